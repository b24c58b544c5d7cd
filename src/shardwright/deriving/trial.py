"""A forecast for all images, from a few that were derived."""

from __future__ import annotations

from shardwright.deriving.making import Report
from shardwright.deriving.summary import DeriveSummary, Trial
from shardwright.engine.local import cores


def forecast(report: Report, summary: DeriveSummary, tried: int, left: int, devices: int) -> Trial:
    """Reckon what the images that are left will take, from what those that were tried took."""
    made = max(summary.derived, 1)  # those that failed were not encoded
    read = report.read / tried
    encode = {name: took / made for name, took in report.encode.items()}
    reading, encoding = read / cores(), sum(encode.values()) / devices
    # A device works while the next images are read; a CPU has to do both.
    on_cpu = report.memory.keys() <= {"cpu"}
    seconds = left * (reading + encoding if on_cpu else max(reading, encoding))
    written = sum(part.bytes_written for part in summary.components.values())
    return Trial(
        images=summary.derived,
        left=left,
        read=round(read, 6),
        encode={name: round(took, 6) for name, took in encode.items()},
        memory=report.memory,
        seconds_left=round(seconds, 3),
        bytes_left=max(0, summary.bytes_needed - written) if left else 0,
    )
