"""Where a model is: a folder on disk, or a hub id whose files are fetched into the hub's own cache.

Either way it is loaded from a folder in the end. Small files (configuration, tokenizer) are fetched
at once, the weights only when they are loaded, and nothing here imports torch.
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

from shardwright.encoders.base import Options
from shardwright.errors import InputMissingError, UsageError
from shardwright.recipe import Component

_WEIGHT_ENDS = (".safetensors", "-*.safetensors", ".safetensors.index.json")
_HUB_ID = re.compile(r"[\w-][\w.-]*(/[\w.-]+)?(@[\w./-]+)?")
_SECONDS = 5.0  # for the hub's first answer


@dataclass(frozen=True)
class Layout:
    """Which of a model's files are used, as ``save_pretrained`` names them."""

    small: tuple[str, ...]
    weights: str  # the stem: one file STEM.safetensors, or STEM-00001-of-….safetensors and an index
    subfolder: str = ""  # where it is when the model is part of a whole pipeline


@dataclass(frozen=True)
class Checkpoint:
    """A model whose small files are on disk."""

    component: str
    asked: str  # as the user or the default names it
    layout: Layout
    root: Path  # of the folder or snapshot
    folder: Path  # the root, or its subfolder
    revision: str | None  # the hub's commit; None for a folder of the user's

    def read(self, name: str) -> dict[str, Any]:
        """Read one of the JSON files."""
        path = self.folder / name
        try:
            found = json.loads(path.read_bytes())
        except FileNotFoundError:
            raise InputMissingError(
                f"{self.asked}: has no {name}; {_cure(self.component)}"
            ) from None
        except (OSError, ValueError) as error:
            raise UsageError(f"{path}: cannot be read ({error})") from None
        if not isinstance(found, dict):
            raise UsageError(f"{path}: is not a JSON object")
        return found

    def fetch_weights(self) -> Path:
        """Give the folder once it has the weights."""
        if self.revision is not None:
            repo = self.asked.partition("@")[0]
            below = "" if self.folder == self.root else f"{self.layout.subfolder}/"
            patterns = [f"{below}{self.layout.weights}{end}" for end in _WEIGHT_ENDS]
            _download(self.component, repo, self.revision, patterns)
        self._weight_files()
        return self.folder

    @cached_property  # the weights are large
    def identity(self) -> dict[str, str]:
        """Name the exact weights: by the hub's commit, or by a hash of the files in a folder."""
        if self.revision is not None:
            return {"model": self.asked.partition("@")[0], "revision": self.revision}
        # The folder's name and not its path, so that a model may be moved.
        return {"model": self.root.resolve().name, "sha256": self._hash()}

    def _hash(self) -> str:
        small = (path for name in self.layout.small if (path := self.folder / name).is_file())
        whole = hashlib.sha256()
        for path in [*small, *self._weight_files()]:
            with path.open("rb") as file:
                digest = hashlib.file_digest(file, "sha256").hexdigest()
            whole.update(f"{path.name} {digest}\n".encode())
        return whole.hexdigest()

    def _weight_files(self) -> list[Path]:
        stem = self.layout.weights
        found = [p for end in _WEIGHT_ENDS for p in sorted(self.folder.glob(f"{stem}{end}"))]
        if not any(path.suffix == ".safetensors" for path in found):
            raise InputMissingError(
                f"{self.asked}: has no {stem}.safetensors; {_cure(self.component)}"
            )
        return found


def find(component: Component, options: Options, default: str, layout: Layout) -> Checkpoint:
    """Find the model asked for, or the default one, and get its small files."""
    asked = options.models.get(component.name, default)
    root = Path(asked).expanduser()
    revision = None
    if not root.is_dir():
        if root.exists() or not _HUB_ID.fullmatch(asked):
            what = "is not a folder" if root.exists() else "no such folder"
            raise InputMissingError(f"{asked}: {what}; {_cure(component.name)}")
        repo, _, wanted = asked.partition("@")
        below = [f"{layout.subfolder}/{name}" for name in layout.small if layout.subfolder]
        root = _download(component.name, repo, wanted or None, [*layout.small, *below])
        revision = root.name
    within = root / layout.subfolder
    folder = within if (within / "config.json").is_file() else root
    return Checkpoint(component.name, asked, layout, root, folder, revision)


def _download(component: str, repo: str, revision: str | None, patterns: Sequence[str]) -> Path:
    """Give the snapshot folder in the hub's cache, with these files as far as the model has them.

    A model that is in the cache needs no network; one that is not fails within seconds.
    """
    # Imported here because a folder on disk needs no hub.
    from huggingface_hub import HfApi, snapshot_download, utils

    problem = None
    try:  # only to see whether the hub answers: snapshot_download would wait for ever
        HfApi().model_info(repo, revision=revision, timeout=_SECONDS)
    except Exception as error:  # the HTTP library beneath differs by version, and so do its errors
        problem = error
    shown = not utils.are_progress_bars_disabled()
    utils.disable_progress_bars()
    try:
        snapshot = snapshot_download(
            repo, revision=revision, allow_patterns=patterns, local_files_only=problem is not None
        )
    except Exception as error:
        raise InputMissingError(_explain(component, repo, problem or error)) from error
    finally:
        if shown:
            utils.enable_progress_bars()
    return Path(snapshot)


def _explain(component: str, repo: str, problem: Exception) -> str:
    from huggingface_hub import errors

    page = f"https://huggingface.co/{repo}"
    cause = str(problem).strip().partition("\n")[0] or type(problem).__name__
    match problem:
        case errors.GatedRepoError():
            return (
                f"{repo}: its licence must be accepted first: do so at {page}, then run "
                f"`hf auth login`; or {_cure(component)}"
            )
        case errors.RevisionNotFoundError():
            return f"{repo}: has no such revision; see {page}/commits/main"
        case errors.RepositoryNotFoundError():
            return (
                f"{repo}: no such folder here, and no such model on the hub (or a private one: "
                f"run `hf auth login`); {_cure(component)}"
            )
        case errors.OfflineModeIsEnabled():
            return (
                f"{repo}: no such folder here, not in the hub's cache, and HF_HUB_OFFLINE is set; "
                f"unset it to download the model, or {_cure(component)}"
            )
        case _:
            return (
                f"{repo}: no such folder here, not in the hub's cache, and the hub cannot be "
                f"reached ({cause}); run once with a network, or {_cure(component)}"
            )


def _cure(component: str) -> str:
    return f"give a folder made by save_pretrained: --model {component}=FOLDER"
