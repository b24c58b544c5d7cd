// Asks the server. An answer that is no answer becomes a sentence to show.

import { query } from "./route.js";

export class Unanswered extends Error {}

export async function get(path, values = {}, signal = undefined) {
  const asked = query(values);
  let response;
  let body;
  try {
    response = await fetch(asked ? `${path}?${asked}` : path, { signal });
    body = await response.text();
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Unanswered("The server does not answer.");
  }
  let answer;
  try {
    answer = JSON.parse(body);
  } catch {
    throw new Error(`The answer to ${path} is not JSON (HTTP ${response.status}).`);
  }
  if (!response.ok) throw new Error(answer.error ?? `HTTP ${response.status}`);
  return answer;
}

const marked = (path, side) => (side ? `${path}${path.includes("?") ? "&" : "?"}side=${side}` : path);

export const thumb = (n, of, side) => marked(of === "latent" ? `/thumb/${n}?of=latent` : `/thumb/${n}`, side);
export const image = (n, side) => marked(`/image/${n}`, side);
export const latent = (n, name, side) => marked(`/latent/${n}/${encodeURIComponent(name)}`, side);
export const heat = (n, suffix, side) => marked(`/heat/${n}/${encodeURIComponent(suffix)}`, side);
