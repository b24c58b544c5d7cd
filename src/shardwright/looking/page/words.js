// Numbers and words as people read them.

const integers = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });

export const count = (value) => integers.format(value);

export function plural(value, word) {
  return `${count(value)} ${value === 1 ? word : `${word}s`}`;
}

export function bytes(value) {
  if (value === null || value === undefined) return "–";
  const units = ["bytes", "kB", "MB", "GB", "TB", "PB"];
  let unit = 0;
  while (value >= 999.5 && unit < units.length - 1) {
    value /= 1000;
    unit += 1;
  }
  return `${unit && value < 99.95 ? value.toFixed(1) : count(value)} ${units[unit]}`;
}

// A measured number with four digits that count; counts keep their thousands separators.
export function figure(value) {
  if (value === null || value === undefined) return "–";
  if (typeof value !== "number") return String(value);
  if (Number.isInteger(value)) return count(value);
  const size = Math.abs(value);
  if (size < 0.001 || size >= 1e7) return value.toExponential(2);
  return new Intl.NumberFormat("en", { maximumSignificantDigits: 4 }).format(value);
}

export const shape = (sizes) => (sizes?.length ? [sizes].flat().join(" × ") : "–");

// A reason or a flag from the data as words: "vae_missing" is "vae missing".
export const plain = (name) => String(name).replaceAll("_", " ");
