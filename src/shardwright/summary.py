"""What the summaries of all commands share."""

from __future__ import annotations

from dataclasses import Field, asdict, dataclass
from typing import Any, ClassVar


@dataclass
class Count:
    """How many there are of one kind, and one of them to look at."""

    count: int
    example: str


class Summary:
    """The result of a command, as a dataclass."""

    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]

    def to_dict(self) -> dict[str, Any]:
        """Give it as plain dicts, lists and numbers, ready for JSON."""
        return asdict(self)
