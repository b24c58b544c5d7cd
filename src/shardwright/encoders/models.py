"""The weights of models: loaded when they are first used, and on the device as long as they fit.

Models that do not fit on a device together take turns: the least recently used one moves back to
the host. Only this module knows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cached_property
from importlib import import_module
from itertools import chain
from typing import TYPE_CHECKING, Any

from shardwright.encoders.checkpoints import Checkpoint
from shardwright.encoders.devices import Device, guard
from shardwright.encoders.packages import broken, first_line, is_import
from shardwright.errors import ShardwrightError, UsageError
from shardwright.progress import quantity

if TYPE_CHECKING:
    from torch import nn


class Turns:
    """The models that are on a device, the least recently used first."""

    def __init__(self, device: Device) -> None:
        self.device = device
        self.needed = False  # whether a model has ever made room for another
        self._there: list[Model] = []

    def bring(self, model: Model) -> None:
        """Put a model on the device, if need be instead of others."""
        there = self._there
        while model not in there:
            if there and not self.device.has_room(model.nbytes):
                self._make_room()
                continue
            try:
                guard(lambda: self.device.put(model.loaded))
            except MemoryError as error:
                self.device.take_back(model.loaded)  # it may be there in part
                if not there:
                    raise model.too_large(self.device) from error
                self._make_room()
            else:
                there.append(model)
        there.append(there.pop(there.index(model)))

    def leave_alone(self, model: Model) -> bool:
        """Move all other models back to the host; False if there are none."""
        others = [each for each in self._there if each is not model]
        for _ in others:
            self._make_room()
        return bool(others)

    def _make_room(self) -> None:
        self.device.take_back(self._there.pop(0).loaded)
        self.needed = True


class Model:
    """The weights of a checkpoint for one device."""

    def __init__(
        self,
        checkpoint: Checkpoint,
        library: str,
        kind: str,
        dtype: str,
        turns: Turns,
        strip: Callable[[nn.Module], None],
    ) -> None:
        self.checkpoint, self._library, self._kind = checkpoint, library, kind
        self._dtype, self.turns, self._strip = dtype, turns, strip

    @property
    def module(self) -> nn.Module:
        """Give the model, on the device."""
        self.turns.bring(self)
        return self.loaded

    @cached_property
    def nbytes(self) -> int:
        """Count the bytes of the weights."""
        tensors = chain(self.loaded.parameters(), self.loaded.buffers())
        return sum(tensor.numel() * tensor.element_size() for tensor in tensors)

    @cached_property
    def loaded(self) -> nn.Module:
        """Load all weights that are used, on the host."""
        import torch

        asked, folder = self.checkpoint.asked, self.checkpoint.fetch_weights()
        dtype = getattr(torch, self._dtype)
        options = {"dtype": dtype, "trust_remote_code": False}  # else it asks whether to run it
        if self._library == "diffusers":  # has its own name for it, and would ask for accelerate
            options = {"torch_dtype": dtype, "low_cpu_mem_usage": False}
        try:
            with _quiet(self._library):
                model, found = getattr(import_module(self._library), self._kind).from_pretrained(
                    folder,
                    local_files_only=True,
                    use_safetensors=True,
                    output_loading_info=True,
                    **options,
                )
        except Exception as error:  # these libraries may raise anything for a damaged file
            if is_import(error):
                raise broken(self._library, error) from error
            what = f"cannot be loaded as {self._kind} ({first_line(error)})"
            fix = "download the model again"
            if "auto_map" in self.checkpoint.read("config.json"):
                fix = "choose a model without code of its own, which is never run"
            raise UsageError(what, path=asked, fix=fix) from error
        # The libraries would fill in missing weights at random, with a warning.
        if lost := sorted(found["missing_keys"]):
            what = (
                f"{quantity(len(lost), 'weights')} missing for {self._kind}, for example {lost[0]}"
            )
            raise UsageError(what, path=asked, fix="download the model again")
        module: nn.Module = model.eval()
        self._strip(module)
        return module

    def too_large(self, device: Device) -> ShardwrightError:
        """Make the error for a model that does not fit even alone."""
        fix = f"use --dtype {self.checkpoint.component.name}=bfloat16, or another --device"
        what = f"{quantity(self.nbytes, 'B')} do not fit on {device.name}"
        return ShardwrightError(what, path=self.checkpoint.asked, fix=fix)


@contextmanager
def _quiet(package: str) -> Iterator[None]:
    """Turn off a library's progress bars and advice for a while."""
    logging: Any = import_module(f"{package}.utils.logging")
    verbosity, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        if bars:
            logging.enable_progress_bar()
