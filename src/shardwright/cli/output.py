"""What the commands share in speaking to people and programs."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from shardwright.progress import Bar, Lines, Progress, quantity
from shardwright.store.listing import shown

if TYPE_CHECKING:
    from shardwright.derive import DeriveSummary
    from shardwright.status import StoreStatus


def progress() -> Progress:
    """Choose a bar on a terminal, and plain lines elsewhere."""
    return Bar() if sys.stderr.isatty() else Lines()


def print_json(value: Any) -> None:  # noqa: ANN401 - anything JSON can say
    """Print one JSON object on standard output."""
    import msgspec  # here, because --help is to be quick

    print(msgspec.json.format(msgspec.json.encode(value), indent=2).decode())


class _Summary(Protocol):
    def to_dict(self) -> dict[str, Any]: ...


Summary = TypeVar("Summary", bound=_Summary)


def tell(summary: Summary, describe: Callable[[Summary], str], *, as_json: bool) -> None:
    """Print a summary on standard output, for a program or for a person."""
    if as_json:
        print_json(summary.to_dict())
    else:
        print(describe(summary))


def facts_lines(summary: DeriveSummary | StoreStatus) -> list[str]:
    """Count the images that are not as they were encoded, and the captions that were cut."""
    lines = []
    for name, paths in (
        ("changed_images", summary.changed_images),
        ("gone_images", summary.gone_images),
    ):
        if paths:
            lines.append(f"{name}: {len(paths):,} (for example {shown(paths[0])})")
    for component, cut in summary.truncated.items():
        if cut.captions:
            lines.append(
                f"truncated_captions, {component}: {cut.captions:,} "
                f"({quantity(cut.tokens_lost, 'tokens')} lost, for example {shown(cut.example)})"
            )
    return lines


def table(rows: Sequence[Sequence[str]]) -> str:
    """Lay rows out in columns, the first to the left and the rest to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(
            cell.rjust(width) if column else cell.ljust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in rows
    )
