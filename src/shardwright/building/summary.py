"""What building reports: every input is written, there already, or left out with a reason."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from shardwright.deriving.summary import fit_text
from shardwright.packing.summary import BucketSummary, PartSummary
from shardwright.store.facts import Quality
from shardwright.summary import Count, Summary

if TYPE_CHECKING:
    from shardwright.comparing.parts import InParts
    from shardwright.deriving.captions import CaptionRows
    from shardwright.store.facts import Truncated


@dataclass(kw_only=True)
class BuildSummary(Summary):
    """What ``build`` did, or under ``dry_run`` would do.

    ``inputs = written_samples + already_there + left_out + not_chosen``, where the last two are the
    sums of their counts.
    """

    inputs: int = 0
    written_samples: int = 0  # by this plan, also in runs that were interrupted
    already_there: int = 0  # in shards of earlier builds
    left_out: dict[str, Count] = field(default_factory=dict)  # by reason; the ledger lists them
    not_chosen: dict[str, Count] = field(default_factory=dict)  # by what they fail, or the limit
    failed: int = 0  # of those left out: all but what the recipe's limits leave out
    written_shards: int = 0
    written_bytes: int = 0  # an estimate under dry_run
    kept_shards: int = 0  # shards that an interrupted run of the same plan had finished
    dry_run: bool
    output_dir: str
    ledger: str | None = None  # the file that lists what is left out
    buckets: dict[str, BucketSummary] = field(default_factory=dict)  # over all parts
    parts: dict[str, PartSummary] = field(default_factory=dict)  # of a split
    components: dict[str, dict[str, Any]] = field(default_factory=dict)  # the settings of each
    copied: list[str] = field(default_factory=list)  # components of --from that stay as they are
    source: str | None = None  # the shards of --from
    truncated: dict[str, Truncated] = field(default_factory=dict)  # by component
    quality: Quality = field(default_factory=Quality)
    unapplied_profiles: dict[str, Count] = field(default_factory=dict)  # of colour
    unused_rows: dict[str, Count] = field(default_factory=dict)  # of --captions, by reason
    caption_rows: CaptionRows | None = None  # of --captions, if this run made the plan
    changed_inputs: dict[str, dict[str, Count]] = field(default_factory=dict)  # since the plan
    under_other_ids: Count | None = None  # of the written: images that were there under others
    free_bytes: int | None = None  # None at a URL
    obstacle: str | None = None  # what would stop the run, under dry_run
    seconds_needed: float | None = None  # about, under dry_run
    device: str
    seconds: float = 0
    encoder_waited: float = 0  # the part of the time in which the encoders were idle
    cores_used: float = 0  # the part of the time in which the cores of this machine worked
    index_commands: list[str] = field(default_factory=list)
    copies: InParts | None = None  # in several parts of a split

    @property
    def fit(self) -> str | None:
        """Say how the latents fit their bucket, and what that means for batches."""
        return fit_text(self.components.values())
