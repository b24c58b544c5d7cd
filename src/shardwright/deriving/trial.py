"""A forecast for all images, from a few that were derived."""

from __future__ import annotations

from shardwright.deriving import machine
from shardwright.deriving.pipeline import Pipeline
from shardwright.deriving.summary import DeriveSummary, Trial
from shardwright.engine.local import cores


def forecast(pipeline: Pipeline, summary: DeriveSummary, tried: int, left: int) -> Trial:
    """Reckon what the images that are left will take, from what those that were tried took."""
    made = max(summary.derived, 1)  # those that failed were not encoded
    read = pipeline.read_seconds / tried
    encode = {each.name: took / made for each, took in pipeline.batcher.seconds.items() if took}
    devices = {each.device for each in pipeline.batcher.passes}
    reading, encoding = read / cores(), sum(encode.values())
    # A device works while the next images are read; a CPU has to do both.
    on_cpu = devices <= {"cpu"}
    seconds = left * (reading + encoding if on_cpu else max(reading, encoding))
    written = sum(part.bytes_written for part in summary.components.values())
    return Trial(
        images=summary.derived,
        left=left,
        read=round(read, 6),
        encode={name: round(took, 6) for name, took in encode.items()},
        memory={device: machine.peak_memory(device) for device in sorted(devices | {"cpu"})},
        seconds_left=round(seconds, 3),
        bytes_left=max(0, summary.bytes_needed - written) if left else 0,
    )
