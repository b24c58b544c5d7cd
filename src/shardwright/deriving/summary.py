"""What deriving reports: the books, which always balance."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from shardwright.store.facts import Truncated


@dataclass
class FailedReason:
    """How many images failed for one reason, and one of them to look at."""

    count: int
    example: str


@dataclass
class ComponentSummary:
    """What was made of one component, and with what."""

    there: int  # arrays that were there before
    to_make: int
    bytes_needed: int  # about, where they follow the pictures' sizes
    settings: dict[str, Any] | None  # None if nothing needed its encoder
    made: int = 0
    bytes_written: int = 0
    not_recomputed: int = 0  # old arrays that there is no new one for


_FITS = {
    "original": "original: latents keep their picture's size; only equal sizes stack in a batch "
    "(--fit bucket stacks all)",
    "bucket": "bucket: latents have their bucket's size; all of a bucket stack in a batch",
}


@dataclass
class UnusedRows:
    """How many rows of a file of captions came to nothing for one reason, and an image of one."""

    count: int
    example: str


@dataclass
class DeriveSummary:
    """What ``derive`` did, or under ``dry_run`` would do."""

    images_found: int
    derived: int
    already_complete: int
    failed: int
    dry_run: bool
    derived_dir: str
    components: dict[str, ComponentSummary]
    failed_by_reason: dict[str, FailedReason]
    kept_captions: int  # on record, though others are given or beside the images
    replaced_captions: int  # on record, by those given or beside the images
    unused_rows: dict[str, UnusedRows]  # of --captions, by reason
    changed_images: list[str]  # since they were encoded; their arrays show the old ones
    gone_images: list[str]  # whose records and arrays are there still
    truncated: dict[str, Truncated]  # captions that this run cut, by component
    unapplied_profiles: dict[str, FailedReason]  # of colour, by reason; these images are derived
    profiles_estimated: bool  # whether their counts are estimates, from some of many images
    recovered_records: int  # that a killed run had left in its journal
    bytes_needed: int  # by all components
    free_bytes: int
    unfinished: list[str]  # recomputed components of which the old arrays stay in use
    obstacle: str | None  # what would stop the run, under dry_run
    device: str
    seconds: float
    encoder_waited: float  # the part of the time in which it had nothing to do

    @property
    def fit(self) -> str | None:
        """Say how the latents that are made fit their bucket, and what that means for batches."""
        settings = [part.settings for part in self.components.values() if part.settings]
        return next((_FITS[each["fit"]] for each in settings if "fit" in each), None)

    def to_dict(self) -> dict[str, Any]:
        """Give it as plain dicts and numbers, ready for JSON."""
        return asdict(self)
