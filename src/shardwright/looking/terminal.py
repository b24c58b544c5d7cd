"""One sample for the terminal, and its picture as a file."""

from __future__ import annotations

import io
from pathlib import Path
from typing import TYPE_CHECKING

from PIL import Image

from shardwright.errors import InputMissingError
from shardwright.looking import samples
from shardwright.looking.pictures import Previews
from shardwright.storage import files

if TYPE_CHECKING:
    from shardwright.looking import LookSummary


def show(pictures: Previews, image_id: str, save: Path | None, summary: LookSummary) -> None:
    """Find a sample by its id, and save its picture if asked to."""
    source = pictures.source
    try:
        number = source.table.ids.index(image_id)
    except ValueError:
        example = source.table.ids[0]
        fix = f"give one that is there, for example {example}"
        raise InputMissingError(
            f"--id {image_id}: no such sample", path=source.name, fix=fix
        ) from None
    summary.sample = samples.full(source, number)
    if save is not None:
        made = pictures.image(number)
        summary.saved_latent = made is None
        made = made or pictures.thumbnail(number, latent=True)
        if made is None:
            what = f"--save: nothing shows {image_id}"
            fix = "give the folder of the images with --images"
            raise InputMissingError(what, path=source.name, fix=fix)
        out = io.BytesIO()
        Image.open(io.BytesIO(made)).save(out, "png")
        files.write(save, out.getvalue())
        summary.saved = str(save)
