"""Where a model is: a folder on disk, or a hub id whose files are fetched into the hub's own cache.

Small files (configuration, tokenizer) are fetched at once, the weights only when they are loaded.
Nothing here imports torch.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from shardwright.errors import InputMissingError, UsageError
from shardwright.recipes import Component, Side

_WEIGHT_ENDS = (".safetensors", "-*.safetensors", ".safetensors.index.json")
_HUB_ID = re.compile(r"[\w-][\w.-]*(/[\w.-]+)?(@[\w./-]+)?")
_SECONDS = 5.0  # for the hub's first answer

Axes = tuple[int | Side | Literal["any"], ...]  # the shape of a component


@dataclass(frozen=True)
class Layout:
    """Which files of a model are used, as ``save_pretrained`` names them."""

    small: tuple[str, ...]
    weights: str  # the stem: one file STEM.safetensors, or STEM-00001-of-….safetensors and an index
    tokenizer: tuple[str, ...] = ()  # those of them that a pipeline has in another folder


@dataclass(frozen=True)
class Checkpoint:
    """A model whose small files are on disk."""

    component: Component
    asked: str  # as the user or the default names it
    layout: Layout
    root: Path  # of the folder or snapshot
    folder: Path  # the root, or its subfolder
    revision: str | None  # the hub's commit; None for a local folder

    def read(self, name: str, folder: Path | None = None) -> dict[str, Any]:
        """Read one of the JSON files."""
        path = (folder or self.folder) / name
        try:
            found = json.loads(path.read_bytes())
        except FileNotFoundError:
            raise self._missing(f"has no {name}") from None
        except (OSError, ValueError) as error:
            raise UsageError(f"cannot be read ({error})", path=path) from None
        if not isinstance(found, dict):
            raise UsageError("is not a JSON object", path=path)
        return found

    def config(self, field: str, kinds: Collection[str]) -> dict[str, Any]:
        """Read the configuration; raise if it is not of a model of these kinds."""
        config = self.read("config.json")
        if (found := config.get(field)) not in kinds:
            what = f"is a {found} model; {' or '.join(kinds)} is needed"
            raise UsageError(what, path=self.asked, fix=_fix(self.component))
        return config

    def count(self, config: Mapping[str, Any], key: str) -> int:
        """Give a number of the configuration, or of a part of it."""
        found = config.get(key)
        if type(found) is not int or found < 1:
            what = f"has {key}: {found}" if key in config else f"has no {key}"
            raise UsageError(what, path=self.folder / "config.json", fix=_fix(self.component))
        return found

    def require(self, shape: Axes) -> None:
        """Raise if the model gives other arrays than its component needs."""
        component = self.component
        if shape != component.shape:
            what = f"is {_words(component.shape)}, and the model gives {_words(shape)}"
            raise self.refused("shape", what, f"leave it out, or {_fix(component)}")
        if not component.is_float:
            what = f"is {component.dtype}, and the model gives floats"
            raise self.refused("dtype", what, "choose from float16, bfloat16 and float32")

    def refused(self, key: str, what: str, fix: str) -> UsageError:
        """Make the error for a setting of the component that this model does not have."""
        where = f"[component.{self.component.name}] {key}: "
        return UsageError(f"{where}{what}", path=self.asked, fix=fix)

    @cached_property
    def tokenizer_folder(self) -> Path:
        """Where the tokenizer is: with the model, or beside it as in a pipeline of diffusers."""
        if any((self.folder / name).is_file() for name in self.layout.tokenizer):
            return self.folder
        beside = self.folder.with_name(_tokenizer_of(self.folder.name))
        return beside if beside.is_dir() else self.folder

    def fetch_weights(self) -> Path:
        """Give the folder once it has the weights."""
        if self.revision is not None:
            repo = self.asked.partition("@")[0]
            below = "" if self.folder == self.root else f"{_subfolder(self.component)}/"
            patterns = [f"{below}{self.layout.weights}{end}" for end in _WEIGHT_ENDS]
            _download(self.component, repo, self.revision, patterns)
        self._weight_files()
        return self.folder

    @cached_property  # the weights are large
    def identity(self) -> dict[str, str]:
        """Name the exact weights: by the hub's commit, or by a hash of the files in a folder."""
        if self.revision is not None:
            return {"model": self.asked.partition("@")[0], "revision": self.revision}
        small = [self.folder / name for name in self.layout.small]
        small += [self.tokenizer_folder / name for name in self.layout.tokenizer]
        digests = hashlib.sha256()
        for path in [*filter(Path.is_file, small), *self._weight_files()]:
            with path.open("rb") as file:
                digest = hashlib.file_digest(file, "sha256").hexdigest()
            digests.update(f"{path.name} {digest}\n".encode())
        # The folder's name and not its path, so that a model may be moved.
        return {"model": self.root.resolve().name, "sha256": digests.hexdigest()}

    def _weight_files(self) -> list[Path]:
        stem = self.layout.weights
        found = [p for end in _WEIGHT_ENDS for p in sorted(self.folder.glob(f"{stem}{end}"))]
        if not any(path.suffix == ".safetensors" for path in found):
            raise self._missing(f"has no {stem}.safetensors")
        return found

    def _missing(self, what: str) -> InputMissingError:
        return InputMissingError(what, path=self.asked, fix=_fix(self.component))


def find(component: Component, layout: Layout) -> Checkpoint:
    """Find the model of a component, and get its small files."""
    asked = component.settings["model"]
    root = Path(asked).expanduser()
    revision = None
    if not root.is_dir():
        if root.exists() or not _HUB_ID.fullmatch(asked):
            what = "is not a folder" if root.exists() else "no such folder"
            raise InputMissingError(what, path=asked, fix=_fix(component))
        repo, _, wanted = asked.partition("@")
        small, subfolder = (*layout.small, *layout.tokenizer), _subfolder(component)
        below = [f"{subfolder}/{name}" for name in small if subfolder]
        beside = [f"{_tokenizer_of(subfolder)}/{name}" for name in layout.tokenizer if subfolder]
        root = _download(component, repo, wanted or None, [*small, *below, *beside])
        revision = root.name
    within = root / _subfolder(component)
    folder = within if (within / "config.json").is_file() else root
    return Checkpoint(component, asked, layout, root, folder, revision)


def _subfolder(component: Component) -> str:
    """Give where the model is in a complete pipeline; a folder may also be just the model."""
    found: str = component.settings.get("subfolder", "")
    return found


def _tokenizer_of(folder: str) -> str:
    """Name the folder with the tokenizer of a pipeline's text encoder."""
    return folder.replace("text_encoder", "tokenizer")


def _words(shape: Axes) -> str:
    """Write a shape as the documentation does."""
    axes = (f"{a.of[0].upper()}//{a.divisor}" if isinstance(a, Side) else str(a) for a in shape)
    return f"({', '.join(axes)}{',' if len(shape) == 1 else ''})"


def _download(
    component: Component, repo: str, revision: str | None, patterns: Sequence[str]
) -> Path:
    """Give the snapshot folder in the hub's cache, with those of these files that the model has.

    A model that is in the cache needs no network; one that is not fails within seconds.
    """
    # Here, because a folder on disk needs no hub.
    from huggingface_hub import HfApi, snapshot_download, utils

    problem = None
    try:  # only to see whether the hub answers: snapshot_download would wait forever
        HfApi().model_info(repo, revision=revision, timeout=_SECONDS)
    except Exception as error:  # which HTTP library is used, and its errors, differ by version
        problem = error
    shown = not utils.are_progress_bars_disabled()
    utils.disable_progress_bars()
    try:
        snapshot = snapshot_download(
            repo, revision=revision, allow_patterns=patterns, local_files_only=problem is not None
        )
    except Exception as error:
        what, fix = _explain(repo, problem or error)
        fix = f"{fix}, or {_fix(component)}"
        raise InputMissingError(what, path=repo, fix=fix) from error
    finally:
        if shown:
            utils.enable_progress_bars()
    return Path(snapshot)


def _explain(repo: str, problem: Exception) -> tuple[str, str]:
    """Give the cause and the fix of an error of the hub's library."""
    from huggingface_hub import errors

    page = f"https://huggingface.co/{repo}"
    cause = str(problem).strip().partition("\n")[0] or type(problem).__name__
    nowhere = "no such folder here, not in the hub's cache, and"
    match problem:
        case errors.GatedRepoError():
            return "you have not accepted its licence", f"accept it at {page}, run `hf auth login`"
        case errors.RevisionNotFoundError():
            return "has no such revision", f"see {page}/commits/main"
        case errors.RepositoryNotFoundError():
            what = "no such folder here, and no such model on the hub"
            return what, "for a private model run `hf auth login`"
        case errors.OfflineModeIsEnabled():
            return f"{nowhere} HF_HUB_OFFLINE is set", "unset it to download the model"
        case _:
            what = f"{nowhere} the hub cannot be reached ({cause})"
            return what, "run once with a network"


def _fix(component: Component) -> str:
    return f"give a folder made by save_pretrained: --model {component.name}=FOLDER"
