"""What deriving reports: every image is counted as derived, already complete or failed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from shardwright.store.facts import Quality
from shardwright.summary import Count, Summary, require_sum

if TYPE_CHECKING:
    from shardwright.deriving.captions import CaptionRows
    from shardwright.store.facts import Truncated

_FITS = {
    "original": "original: latents keep their picture's size; batches() refuses a bucket with "
    "several sizes (--fit bucket makes all of a bucket stack)",
    "bucket": "bucket: latents have their bucket's size; all of a bucket stack in a batch",
}


@dataclass
class ComponentSummary:
    """What was made of one component, and how."""

    there: int  # arrays that were there before
    to_make: int
    bytes_needed: int  # an estimate, where they follow the pictures' sizes
    settings: dict[str, Any] | None  # None if its encoder was not needed
    made: int = 0
    bytes_written: int = 0
    batch_fill: float = 0  # images that were encoded at a time, on average
    not_recomputed: int = 0  # old arrays without a new one
    elsewhere: bool = False  # whether another tool makes it


@dataclass
class Trial:
    """What a few images took, and about what the others will take."""

    images: int  # that were derived; if there are none, nothing was measured
    left: int  # images that were not tried
    read: float  # seconds to read an image, on one core
    encode: dict[str, float]  # seconds an image, by what runs together
    memory: dict[str, int]  # the most bytes in use, by device
    seconds_left: float
    bytes_left: int


@dataclass(kw_only=True)
class DeriveSummary(Summary):
    """What ``derive`` did, or under ``dry_run`` would do."""

    images_found: int
    derived: int
    already_complete: int
    failed: int
    dry_run: bool
    derived_dir: str
    components: dict[str, ComponentSummary]
    failed_by_reason: dict[str, Count]
    left_out: dict[str, Count] = field(default_factory=dict)  # by the recipe, by reason
    kept_captions: int  # on record, although another one is given or beside the image
    replaced_captions: int  # on record, by one that is given or beside the image
    unused_rows: dict[str, Count]  # of --captions, by reason
    caption_rows: CaptionRows | None = None  # of --captions
    changed_images: list[str]  # since they were encoded; their arrays show the old ones
    gone_images: list[str]  # whose records and arrays are kept
    updated_images: list[str]  # that changed, by --update
    updated_captions: list[str]  # the images whose text changed, by --update
    # The columns of the captions file that changed in the record, by image.
    updated_columns: dict[str, list[str]] = field(default_factory=dict)
    renamed: dict[str, str]  # old and new ids of images that keep their arrays
    pruned: list[str]  # gone images whose records and arrays are removed
    truncated: dict[str, Truncated] = field(default_factory=dict)  # in this run, by component
    quality: Quality = field(default_factory=Quality)  # of the pictures that were encoded
    unapplied_profiles: dict[str, Count] = field(default_factory=dict)  # of colour
    recovered_records: int = 0  # from the journal of a killed run
    bytes_needed: int  # by all components
    free_bytes: int
    swapped: list[str] = field(default_factory=list)  # recomputed, and in use now
    unfinished: list[str] = field(default_factory=list)  # recomputed, but the old ones stay in use
    trial: Trial | None = None
    obstacle: str | None = None  # what would stop the run, under dry_run
    device: str
    seconds: float = 0
    encoder_waited: float = 0  # the part of the time in which the encoders were idle
    cores_used: float = 0  # the part of the time in which the cores of this machine worked

    def require_sum(self) -> None:
        """Raise if an image is in no count, or in two."""
        counts = [self.derived, self.already_complete, self.failed]
        counts += [found.count for found in self.left_out.values()]
        untried = self.trial.left if self.trial else 0
        require_sum("images found", self.images_found, *counts, untried)

    @property
    def fit(self) -> str | None:
        """Say how the latents fit their bucket, and what that means for batches."""
        return fit_text(part.settings for part in self.components.values() if part.settings)


def fit_text(settings: Iterable[Mapping[str, Any]]) -> str | None:
    """Say how latents fit their bucket, by the settings of components; None if there are none.

    Pictures have a fit too, but batches have them in lists, of any sizes.
    """
    latents = (each for each in settings if each.get("encoder") != "picture")
    return next((_FITS[each["fit"]] for each in latents if "fit" in each), None)
