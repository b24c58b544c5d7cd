"""Where a model is: a folder on disk, or a hub id whose files are fetched into the hub's own cache.

Small files (configuration, tokenizer) are fetched at once, the weights only when they are loaded.
Nothing here imports torch.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from shardwright import regular
from shardwright.encoders.base import Axes, RecipeError
from shardwright.errors import InputMissingError, UsageError
from shardwright.recipes import Component
from shardwright.recipes.compare import shown_shape

_WEIGHT_ENDS = (".safetensors", "-*.safetensors", ".safetensors.index.json")
_HUB_ID = re.compile(r"[\w-][\w.-]*(/[\w.-]+)?(@[\w./-]+)?")
_SECONDS = 5.0  # for the hub's first answer


@dataclass(frozen=True)
class Layout:
    """Which files of a model are used, as ``save_pretrained`` names them."""

    small: tuple[str, ...]
    weights: str  # the stem: one file STEM.safetensors, or STEM-00001-of-….safetensors and an index
    tokenizer: tuple[str, ...] = ()  # those of them that a pipeline has in another folder


class Hub:
    """A model on the hub, which is asked once in a run; what it has sent is not asked for again.

    A model that is in the cache needs no network; one that is not fails within seconds.
    """

    def __init__(self, asked: str) -> None:
        self.repo, _, revision = asked.partition("@")
        self._revision = revision or None
        self._sent: dict[tuple[str, ...], Path] = {}

    def fetch(self, component: Component, patterns: tuple[str, ...]) -> Path:
        """Give the snapshot folder in the hub's cache, with those of these files that there are."""
        if patterns not in self._sent:
            self._sent[patterns] = folder = self._download(component, patterns)
            self._revision = folder.name  # the commit: from now on it needs no answer
        return self._sent[patterns]

    @cached_property
    def _problem(self) -> Exception | None:
        """Whether the hub answers: snapshot_download would wait forever."""
        from huggingface_hub import HfApi  # here, because a folder on disk needs no hub

        try:
            HfApi().model_info(self.repo, revision=self._revision, timeout=_SECONDS)
        except Exception as error:  # which HTTP library is used, and its errors, differ by version
            return error
        return None

    def _download(self, component: Component, patterns: tuple[str, ...]) -> Path:
        from huggingface_hub import snapshot_download, utils

        problem = self._problem
        shown = not utils.are_progress_bars_disabled()
        utils.disable_progress_bars()
        try:
            return Path(
                snapshot_download(
                    self.repo,
                    revision=self._revision,
                    allow_patterns=list(patterns),
                    local_files_only=problem is not None,
                )
            )
        except Exception as error:
            what, fix = _explain(self.repo, problem or error)
            fix = f"{fix}, or {_fix(component)}"
            raise InputMissingError(what, path=self.repo, fix=fix) from error
        finally:
            if shown:
                utils.enable_progress_bars()


@dataclass(frozen=True)
class Checkpoint:
    """A model whose small files are on disk."""

    component: Component
    asked: str  # as the user or the default names it
    layout: Layout
    root: Path  # of the folder or snapshot
    folder: Path  # the root, or its subfolder
    hub: Hub | None  # None for a local folder

    def read(self, name: str, folder: Path | None = None) -> dict[str, Any]:
        """Read one of the JSON files."""
        path = (folder or self.folder) / name
        try:
            found = json.loads(regular.read(path))
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
            fix = "leave shape out, or give another model"
            shown = shown_shape(component.shape)
            raise self.refused("shape", shown, f"gives {shown_shape(shape)}", fix)
        if not component.is_float:
            fix = "choose from float16, bfloat16 and float32"
            raise self.refused("dtype", component.dtype_text, "gives floats", fix)

    def refused(self, key: str, value: object, but: str, fix: str) -> RecipeError:
        """Make the error for a value of the component that this model contradicts."""
        return RecipeError(self.component, key, f"{value}, but {self.asked} {but}", fix)

    @cached_property
    def tokenizer_folder(self) -> Path:
        """Where the tokenizer is: with the model, or beside it as in a pipeline of diffusers."""
        if any((self.folder / name).is_file() for name in self.layout.tokenizer):
            return self.folder
        beside = self.folder.with_name(_tokenizer_of(self.folder.name))
        return beside if beside.is_dir() else self.folder

    def fetch_weights(self) -> Path:
        """Give the folder once it has the weights."""
        if self.hub is not None:
            below = "" if self.folder == self.root else f"{_subfolder(self.component)}/"
            stem = f"{below}{self.layout.weights}"
            self.hub.fetch(self.component, tuple(f"{stem}{end}" for end in _WEIGHT_ENDS))
        self._weight_files()
        return self.folder

    @cached_property  # the weights are large
    def identity(self) -> dict[str, str]:
        """Name the exact weights: by the hub's commit, or by a hash of the files in a folder."""
        if self.hub is not None:
            return {"model": self.hub.repo, "revision": self.root.name}
        small = [self.folder / name for name in self.layout.small]
        small += [self.tokenizer_folder / name for name in self.layout.tokenizer]
        digests = hashlib.sha256()
        for path in [*filter(Path.is_file, small), *self._weight_files()]:
            with regular.unbuffered(path) as file:
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


def find(component: Component, layout: Layout, models: dict[Any, Any]) -> Checkpoint:
    """Find the model of a component, and get its small files; ``models`` is what a run shares."""
    asked = component.settings["model"]
    root = Path(asked).expanduser()
    hub = None
    if not root.is_dir():
        if root.exists() or not _HUB_ID.fullmatch(asked):
            what = "is not a folder" if root.exists() else "no such folder"
            raise InputMissingError(what, path=asked, fix=_fix(component))
        hub = models.setdefault((Hub, asked), Hub(asked))
        small, subfolder = (*layout.small, *layout.tokenizer), _subfolder(component)
        below = [f"{subfolder}/{name}" for name in small if subfolder]
        beside = [f"{_tokenizer_of(subfolder)}/{name}" for name in layout.tokenizer if subfolder]
        root = hub.fetch(component, (*small, *below, *beside))
    within = root / _subfolder(component)
    folder = within if (within / "config.json").is_file() else root
    return Checkpoint(component, asked, layout, root, folder, hub)


def _subfolder(component: Component) -> str:
    """Give where the model is in a complete pipeline; a folder may also be just the model."""
    return str(component.settings.get("subfolder", ""))


def _tokenizer_of(folder: str) -> str:
    """Name the folder with the tokenizer of a pipeline's text encoder."""
    return folder.replace("text_encoder", "tokenizer")


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
