"""Where a model is: a folder on disk, or a hub id whose files are fetched into the hub's own cache.

Small files (configuration, tokenizer) are fetched at once, the weights only when they are loaded.
Nothing here imports torch.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from shardwright.errors import InputMissingError, UsageError
from shardwright.recipes import Component

_WEIGHT_ENDS = (".safetensors", "-*.safetensors", ".safetensors.index.json")
_HUB_ID = re.compile(r"[\w-][\w.-]*(/[\w.-]+)?(@[\w./-]+)?")
_SECONDS = 5.0  # for the hub's first answer


@dataclass(frozen=True)
class Layout:
    """Which files of a model are used, as ``save_pretrained`` names them."""

    small: tuple[str, ...]
    weights: str  # the stem: one file STEM.safetensors, or STEM-00001-of-….safetensors and an index


@dataclass(frozen=True)
class Checkpoint:
    """A model whose small files are on disk."""

    component: Component
    asked: str  # as the user or the default names it
    layout: Layout
    root: Path  # of the folder or snapshot
    folder: Path  # the root, or its subfolder
    revision: str | None  # the hub's commit; None for a local folder

    def read(self, name: str) -> dict[str, Any]:
        """Read one of the JSON files."""
        path = self.folder / name
        try:
            found = json.loads(path.read_bytes())
        except FileNotFoundError:
            raise self._missing(f"has no {name}") from None
        except (OSError, ValueError) as error:
            raise UsageError(f"cannot be read ({error})", path=path) from None
        if not isinstance(found, dict):
            raise UsageError("is not a JSON object", path=path)
        return found

    def config(self, field: str, kind: str) -> dict[str, Any]:
        """Read the configuration; raise if it is not of a model of this kind."""
        config = self.read("config.json")
        if (found := config.get(field)) != kind:
            what = f"is a {found} model; a {kind} is needed"
            raise UsageError(what, path=self.asked, fix=_fix(self.component))
        return config

    def require_shape(self, gives: object, needs: object) -> None:
        """Raise if a model gives arrays of another shape than its component needs."""
        if gives != needs:
            what = f"gives {gives}, and {self.component.name} needs {needs}"
            raise UsageError(what, path=self.asked, fix=_fix(self.component))

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
        small = (path for name in self.layout.small if (path := self.folder / name).is_file())
        digests = hashlib.sha256()
        for path in [*small, *self._weight_files()]:
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
        subfolder = _subfolder(component)
        below = [f"{subfolder}/{name}" for name in layout.small if subfolder]
        root = _download(component, repo, wanted or None, [*layout.small, *below])
        revision = root.name
    within = root / _subfolder(component)
    folder = within if (within / "config.json").is_file() else root
    return Checkpoint(component, asked, layout, root, folder, revision)


def _subfolder(component: Component) -> str:
    """Give where the model is in a complete pipeline; a folder may also be just the model."""
    found: str = component.settings.get("subfolder", "")
    return found


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
