"""What the commands share in printing for people and programs."""

from __future__ import annotations

import argparse
import inspect
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from shardwright.progress import Bar, Lines, quantity
from shardwright.summary import Count, Summary
from shardwright.text import near, shown

if TYPE_CHECKING:
    from shardwright.building import BuildSummary
    from shardwright.deriving import DeriveSummary
    from shardwright.deriving.captions import CaptionRows
    from shardwright.reporting import StoreStatus
    from shardwright.store.facts import Most, Quality

_SPACES_LISTED = 5


def say(text: str) -> None:
    """Print on standard output; the reader may stop early, as ``head`` does."""
    try:
        print(text, flush=True)
    except BrokenPipeError:  # also for what is still in the buffer
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def shown_lines(text: str) -> str:
    """Escape an error for terminals: a path in it may hold anything."""
    return "\n".join(map(shown, text.split("\n")))


def print_json(value: Any) -> None:  # noqa: ANN401 - anything JSON can hold
    """Print one JSON object on standard output."""
    import msgspec  # here, to keep --help fast

    try:
        data = msgspec.json.encode(value)
    except UnicodeEncodeError:  # a file name that is not UTF-8, which JSON cannot hold as it is
        data = msgspec.json.encode(_escaped(value))
    say(msgspec.json.format(data, indent=2).decode())


def _escaped(value: Any) -> Any:  # noqa: ANN401 - anything JSON can hold
    """Escape the bytes that are not UTF-8, in all of a value."""
    if isinstance(value, str):
        return value.encode(errors="backslashreplace").decode()
    if isinstance(value, dict):
        return {_escaped(key): _escaped(item) for key, item in value.items()}
    return [_escaped(item) for item in value] if isinstance(value, list) else value


Made = TypeVar("Made", bound=Summary)


def call(
    function: Callable[..., Made], options: argparse.Namespace, describe: Callable[[Made], str]
) -> Made:
    """Call the function of a command with its flags, and print its summary on standard output."""
    arguments = inspect.signature(function).parameters
    given = {name: value for name, value in vars(options).items() if name in arguments}
    if "progress" in arguments:
        given["progress"] = Bar() if sys.stderr.isatty() else Lines()
    summary = function(**given)
    if options.json:
        print_json(summary.to_dict())
    else:
        say(describe(summary))
    return summary


def listed(items: Sequence[object], most: int) -> Iterator[str]:
    """Give the first of many, a line each, and count the rest."""
    for item in items[:most]:
        yield f"  {item}"
    if len(items) > most:
        yield f"  and {len(items) - most:,} more (--json lists all)"


def change_lines(summary: DeriveSummary | StoreStatus) -> list[str]:
    """Count the images that changed since they were encoded."""
    images = {"changed_images": summary.changed_images, "gone_images": summary.gone_images}
    return [
        f"{name}: {len(paths):,} (for example {near(paths[0])})"
        for name, paths in images.items()
        if paths
    ]


def caption_lines(rows: CaptionRows | None) -> list[str]:
    """Count the rows of a captions file, and the images that have none."""
    if rows is None:
        return []
    return [
        f"rows_used: {rows.rows_used:,}" + f" ({shown(rows.base)})" * bool(rows.base),
        f"rows_unused: {rows.rows_unused:,}",
        f"images_without_row: {rows.images_without_row:,}",
    ]


def facts_lines(summary: BuildSummary | DeriveSummary) -> list[str]:
    """Count what arrays do not show of images and captions."""
    lines = []
    for component, cut in summary.truncated.items():
        if cut.captions:
            lines.append(
                f"truncated_captions, {component}: {cut.captions:,} "
                f"({quantity(cut.tokens_lost, 'tokens')} lost, for example {shown(cut.example)})"
            )
    quality = summary.quality
    lines += _most("enlarged_images", quality.enlarged, f"{quality.enlarged.most:.2f} times")
    lines += _most("cropped_images", quality.cropped, f"{quality.cropped.most:.1%}")
    return lines + decoding_lines(quality)


def _most(name: str, found: Most, words: str) -> list[str]:
    about = f"(at most {words}, for example {shown(found.example)})"
    return [f"{name}: {found.images:,} {about}"] if found.images else []


def decoding_lines(quality: Quality) -> list[str]:
    """Count what was read in another size or colour space than usual."""
    smaller = quality.decoded_smaller
    lines = _most("decoded_smaller", smaller, f"{smaller.most} times")
    if count := quality.animated.count:
        example = shown(quality.animated.example)
        lines.append(f"animated_images: {count:,} (only the first frame, for example {example})")
    spaces = sorted(quality.colour_spaces.items(), key=lambda item: -item[1].count)
    lines += by_reason(dict(spaces[:_SPACES_LISTED]), "colour_space ")
    if len(spaces) > _SPACES_LISTED:
        more = quantity(len(spaces) - _SPACES_LISTED, "more colour spaces")
        lines.append(f"  and {more} (--json lists all)")
    return lines


def by_reason(counts: Mapping[str, Count], before: str = "  ") -> list[str]:
    """List counts by their reasons."""
    return [
        f"{before}{shown(reason)}: {found.count:,} (for example {shown(found.example)})"
        for reason, found in counts.items()
    ]


def total(counts: Mapping[str, Count]) -> int:
    """Add counts up."""
    return sum(found.count for found in counts.values())


def table(rows: Sequence[Sequence[str]], *, left: bool = False) -> str:
    """Align rows in columns: all to the left, or only the first and the others to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(
            cell.rjust(width) if column and not left else cell.ljust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in rows
    )
