"""What the summaries of all commands share."""

from __future__ import annotations

from dataclasses import Field, asdict, dataclass
from typing import Any, ClassVar

from shardwright.errors import ShardwrightError


@dataclass
class Count:
    """How many there are of one kind, and one of them to look at."""

    count: int
    example: str


def require_sum(what: str, total: int, *counts: int) -> None:
    """Raise if the outcomes of a run are not as many as its inputs: then some have vanished."""
    if sum(counts) != total:
        raise ShardwrightError(
            f"{total:,} {what}, but {sum(counts):,} are accounted for",
            fix="run it again; if it happens again, report it",
        )


class Summary:
    """The result of a command, as a dataclass."""

    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]

    def to_dict(self) -> dict[str, Any]:
        """Give it as plain dicts, lists and numbers, ready for JSON."""
        return asdict(self)
