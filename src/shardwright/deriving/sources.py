"""The images to derive from: every picture file below a folder, in a fixed order."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping, Set
from dataclasses import dataclass, replace
from pathlib import Path

from shardwright.errors import InputMissingError, UsageError
from shardwright.progress import Progress
from shardwright.recipes import Recipe
from shardwright.storage.extents import Extent, Part
from shardwright.storage.local import Found
from shardwright.storage.place import place_at
from shardwright.storage.urls import Location
from shardwright.store.records import LONGEST_FILE_NAME, image_id_of, image_id_problem

# File names that mean an image, by format: Pillow's name for it, or ours if it has none.
_FORMATS = {
    "JPEG": "jpg jpeg jpe jfif jif mpo",
    "PNG": "png apng",
    "WEBP": "webp",
    "GIF": "gif",
    "BMP": "bmp dib",
    "TIFF": "tif tiff",
    "AVIF": "avif avifs",
    "JPEG2000": "jp2 j2k jpx jpf jpc j2c",
    "PPM": "ppm pgm pbm pnm pfm",
    "TGA": "tga",
    "QOI": "qoi",
    "HEIF": "heic heif heics heifs hif",
    "JXL": "jxl",
    "RAW": "3fr arw cr2 cr3 crw dng erf iiq kdc mrw nef nrw orf pef raf rw2 rwl sr2 srf srw x3f",
    "OTHER": "bpg cur dds emf eps exr hdr icns ico jxr pcx psb psd sgi svg svgz wdp wmf xcf",
}
FORMAT_OF = {f".{suffix}": name for name, listed in _FORMATS.items() for suffix in listed.split()}
# Beside one of these, a file of the same name counts as a copy in another format.
_USUAL = (".jpg", ".jpeg", ".png", ".webp", ".gif", ".bmp", ".tif", ".tiff")
_SIDECAR = ".txt"
TAR = ".tar"
State = tuple[int, int]  # the size and the time of a file
_APART = {  # what to do about images of one id, by where ids come from
    "name": "use --ids path{} to tell them apart",
    "path": "rename one of them",
    "captions": "give each row its own image_id",
}


@dataclass(frozen=True, slots=True)
class Source:
    """One image: a file, or a member of a tar."""

    image_id: str  # blank if the captions file has none
    path: str  # as it goes into the record
    has_sidecar: bool  # a text file or member of the same name lies beside it
    fault: str | None = None  # if it is a folder that cannot be read: why
    part: Part | None = None  # where a member of a tar is, or a file at a URL
    text: Part | None = None  # and the text beside it
    shares_text: bool = False  # whether the text file lies beside another image too

    @property
    def place(self) -> Extent:
        """Give where its picture is."""
        return self.part or self.path

    @property
    def sidecar(self) -> str:
        """Give the path of that text file."""
        return os.path.splitext(self.path)[0] + _SIDECAR


def find(folder: Path, progress: Progress) -> list[Source]:
    """Find every image below a folder, in the order of their paths.

    Links to files are followed. Hidden files and folders are skipped; so are links to folders, with
    a warning, because they may lead in circles. A subfolder that cannot be read is a source itself.
    """
    fix = "give the folder of your images"
    if folder.is_file():
        raise UsageError("is a file", path=folder, fix=fix)
    if not folder.is_dir():
        raise InputMissingError("no such folder", path=folder, fix=fix)
    found, _ = find_all(folder, progress)
    if not found:
        listed = ", ".join(suffix[1:] for suffix in _USUAL)
        raise InputMissingError(f"no images; looked for {listed} and others", path=folder, fix=fix)
    return found


def find_all(folder: Location, progress: Progress) -> tuple[list[Source], dict[str, State | None]]:
    """Find every image below a folder that exists, and every tar; as ``find`` does.

    Where the listing has sizes and times, none is asked for by itself.
    """
    progress.phase("look for images", 0, "images")
    sources: list[Source] = []
    tars: dict[str, State | None] = {}
    for files in place_at(folder).walk(progress.warn):
        images: list[Found] = []
        texts: set[str] = set()
        for found in files:
            stem, suffix = os.path.splitext(found.path)
            if found.fault is not None or suffix.lower() in FORMAT_OF:
                images.append(found)
                progress.advance(found.fault is None)
            elif suffix == _SIDECAR:
                texts.add(stem)
            elif suffix.lower() == TAR:
                tars[found.path] = found.state
        sources += (_source(found, texts) for found in images)
    return sorted(sources, key=lambda source: source.path), dict(sorted(tars.items()))


def _source(found: Found, texts: Set[str]) -> Source:
    path, state, fault = found
    if fault is not None:
        return Source(os.path.basename(path), path, False, fault)
    part = Part(path, 0, state[0], "", state[1]) if state else None
    return Source(image_id_of(path), path, os.path.splitext(path)[0] in texts, part=part)


def spelt(path: str, root: str) -> str:
    """Write a path below a folder as a plain file name."""
    return os.path.relpath(path, root).replace("%", "%25").replace("/", "%2F")


def sharing(sources: list[Source]) -> list[Source]:
    """Mark the images that share a text file: it is unknown whose caption it is.

    Only for ids that are not the file names: images of one name have one id there.
    """
    counts = Counter(source.sidecar for source in sources if source.has_sidecar)
    return [
        replace(source, shares_text=True)
        if source.has_sidecar and counts[source.sidecar] > 1
        else source
        for source in sources
    ]


def contested(sources: list[Source]) -> dict[str, list[Source]]:
    """Find the ids that several images have."""
    counts = Counter(source.image_id for source in sources if source.image_id and not source.fault)
    shared: dict[str, list[Source]] = {i: [] for i, count in counts.items() if count > 1}
    for source in sources:
        if source.image_id in shared and not source.fault:
            shared[source.image_id].append(source)
    return shared


def problems(
    sources: list[Source],
    recipe: Recipe,
    owners: Mapping[str, Source] | None = None,
    *,
    begun: bool = False,
) -> dict[int, tuple[str, str]]:
    """Find the sources that cannot be derived, with the reason's name and a detail.

    Of several images with one id, the one on record (``owners``) keeps it, or else the only one in
    a usual format. ``begun`` is whether there are records.
    """
    shared = contested(sources)
    usual = {
        i: [s for s in those if s.path.lower().endswith(_USUAL)] for i, those in shared.items()
    }
    kept = {i: those[0] for i, those in usual.items() if len(those) == 1} | dict(owners or {})
    longest = LONGEST_FILE_NAME - max(len(c.extension) for c in recipe.components)
    found = {}
    for number, source in enumerate(sources):
        if source.fault:
            detail = f"{source.fault}; the images in this folder are not derived"
            found[number] = ("unreadable_folder", detail)
        elif not source.image_id:
            found[number] = ("no_image_id", "no image_id in --captions, and none on record")
        elif not is_text(source.path) or image_id_problem(source.image_id):
            found[number] = ("image_id_invalid", "its name is not a valid image_id")
        elif source.image_id in shared and kept.get(source.image_id) != source:
            others = (other for other in shared[source.image_id] if other != source)
            other = kept.get(source.image_id) or next(others)
            fix = _APART[recipe.ids].format(" --update" * begun)
            detail = f"{other.path} has the same image_id; {fix}"
            found[number] = ("duplicate_id", detail)
        elif len(source.image_id) > longest // 4 and len(os.fsencode(source.image_id)) > longest:
            detail = "its name is too long for the files of this recipe"
            found[number] = ("image_id_invalid", detail)
    return found


def is_text(path: str) -> bool:
    """Whether a path is Unicode, as JSON must be; file names need not be."""
    try:
        path.encode()
    except UnicodeEncodeError:
        return False
    return True
