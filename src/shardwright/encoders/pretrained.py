"""What the pretrained encoders share: the weights of models, and the steps of a forward pass.

Weights are loaded when they are first used, and on the device as long as they fit. Models that do
not fit on a device together take turns: the least recently used one moves back to the host.
"""

from __future__ import annotations

import os
import shutil
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cached_property, partial
from importlib import import_module
from importlib.util import find_spec
from itertools import chain
from typing import Any, ClassVar, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from shardwright.encoders.base import EAGER, Axes, Options
from shardwright.encoders.checkpoints import Checkpoint, Layout, find
from shardwright.encoders.devices import (
    Device,
    Made,
    choose_device,
    device_of,
    guard,
    precision,
)
from shardwright.encoders.packages import broken, first_line, is_import, require
from shardwright.errors import ShardwrightError, UsageError
from shardwright.progress import quantity
from shardwright.recipes import BFLOAT16, Component

COMPILE = "compile"


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

    @cached_property
    def nbytes(self) -> int:
        """Count the bytes of the weights."""
        tensors = chain(self.loaded.parameters(), self.loaded.buffers())
        return sum(tensor.numel() * tensor.element_size() for tensor in tensors)

    @cached_property
    def loaded(self) -> nn.Module:
        """Load all weights that are used, on the host."""
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


class Pretrained(ABC):
    """An encoder with a model; those of one model and input share it, and its forward pass.

    ``models`` is what the encoders of a run share.
    """

    library: ClassVar[str] = "transformers"
    packages: ClassVar[tuple[str, ...]] = ()  # that are needed besides
    layout: ClassVar[Layout]
    on_cuda: ClassVar[str] = "float32"  # the precision there, if the user does not choose one
    compiled: ClassVar[str] = "_compute"  # the method that torch.compile is applied to
    way = EAGER
    warn: Callable[[str], None] | None = None  # without it, another way than eager may fail

    def __init__(
        self,
        component: Component,
        checkpoint: Checkpoint,
        options: Options,
        models: dict[Any, Any],
        kind: str,
    ) -> None:
        self.component = component
        self.device = choose_device(options.device)
        self.kind = kind  # the model's class
        self._checkpoint = checkpoint
        self.dtype = options.dtype or self._suitable_dtype()
        self._device = device_of(self.device, models)
        turns = models.setdefault((Turns, self.device), Turns(self._device))
        weights = "float32" if self.dtype == "tf32" else self.dtype
        how = (self.library, kind, weights)
        key = (*how, self.device, checkpoint.folder)
        made = Model(checkpoint, *how, turns, self._strip)
        self._shared: Model = models.setdefault(key, made)
        self.shares: object = models.setdefault((*key, self.dtype, *self._input()), object())
        self._begin()

    @classmethod
    def load(cls, component: Component, options: Options, models: dict[Any, Any]) -> Self:
        """Find the checkpoint, and refuse one that does not make this component."""
        require((cls.library, *cls.packages))
        choose_device(options.device)  # before anything is fetched
        checkpoint = find(component, cls.layout, models)
        kind, shape = cls.examine(component, checkpoint)
        checkpoint.require(shape)
        return cls(component, checkpoint, options, models, kind)

    @classmethod
    def shape(cls, component: Component, models: dict[Any, Any]) -> Axes:
        """Give the shape that the checkpoint's configuration gives a component."""
        return cls.examine(component, find(component, cls.layout, models))[1]

    @classmethod
    @abstractmethod
    def examine(cls, component: Component, checkpoint: Checkpoint) -> tuple[str, Axes]:
        """Give the class and the shape of a checkpoint's arrays, by its configuration."""

    def _begin(self) -> None:  # noqa: B027 - not every encoder needs it
        """Read what ``prepare`` and ``describe`` need."""

    def encode(self, *inputs: NDArray[Any]) -> NDArray[np.float32]:
        return self.take(self.run(self.send(*inputs)))

    def send(self, *inputs: NDArray[Any]) -> Any:  # noqa: ANN401 - what the device makes of it
        """Begin to copy the input to the device, and do not wait for it."""
        return guard(lambda: self._device.send(inputs))

    def run(self, sent: Any) -> Any:  # noqa: ANN401 - the output of a model
        """Run the model once for all encoders of the same ``shares``; a GPU works on after this."""
        return self._run(sent), self._device.mark()

    def _run(self, sent: Any) -> Any:  # noqa: ANN401
        model = self._model
        inputs = self._device.ready(sent)
        try:
            return self._computed(lambda: self._compute(model, *inputs))
        except MemoryError:
            # Smaller batches cost less than moving models, unless they are moved all the time.
            several = len(inputs[0]) > 1 and not self.takes_turns
            if several or not self._shared.turns.leave_alone(self._shared):
                raise
        except Exception as error:
            if self.way == EAGER or self.warn is None:
                raise
            self.warn(f"{self.component.name}: {self.way} failed ({first_line(error)}); not used")
            self.use(EAGER)  # if that fails too, it is not the way
        return self._computed(lambda: self._compute(model, *inputs))

    def take(self, made: Any) -> NDArray[np.float32]:  # noqa: ANN401
        """Wait for this encoder's part of what the model gives."""
        output, mark = made
        choose = partial(self._choose, output)
        return self._computed(lambda: self._device.fetch(choose, mark))

    def ways(self) -> list[str]:
        """Name other ways to compute that may be faster here."""
        if self.device.startswith("cuda"):
            return [COMPILE] if find_spec("triton") else []
        compilers = (os.environ.get("CXX", "c++"), "g++", "clang++")
        return [COMPILE] if self.device == "cpu" and any(map(shutil.which, compilers)) else []

    def use(self, way: str) -> None:
        """Compute in one of the ``ways``, or eager."""
        self.__dict__.pop(self.compiled, None)
        if way == COMPILE:  # once for all sizes
            setattr(self, self.compiled, torch.compile(getattr(self, self.compiled), dynamic=True))
        self.way = way

    @property
    def takes_turns(self) -> bool:
        """Whether models of this run have to make room for one another on the device."""
        return self._shared.turns.needed

    def _computed(self, compute: Callable[[], Made]) -> Made:
        with torch.inference_mode(), precision(self.dtype):
            return guard(compute)

    @property
    def _model(self) -> nn.Module:
        self._shared.turns.bring(self._shared)
        return self._shared.loaded

    @staticmethod  # noqa: B027 - not every model has such
    def _strip(module: nn.Module) -> None:
        """Drop the weights that are never used."""

    def _input(self) -> tuple[object, ...]:
        """Give the settings that the model's input depends on."""
        return ()

    @abstractmethod
    def _compute(self, model: nn.Module, *inputs: torch.Tensor) -> Any:  # noqa: ANN401
        """Call the model."""

    @abstractmethod
    def _choose(self, made: Any) -> torch.Tensor:  # noqa: ANN401
        """Choose from the model's output."""

    def _suitable_dtype(self) -> str:
        """Choose the precision: on a GPU that of the encoder, elsewhere float32.

        bfloat16 only where it is fast, and never for arrays that are stored in 32 bits.
        """
        if not self.device.startswith("cuda"):
            return "float32"
        fast = torch.cuda.is_bf16_supported(including_emulation=False)
        small = self.component.dtype in ("<f2", BFLOAT16)
        return self.on_cuda if self.on_cuda != "bfloat16" or (fast and small) else "float32"

    def _description(self, output: str, **more: Any) -> dict[str, Any]:  # noqa: ANN401 - plain JSON
        identity = self._shared.checkpoint.identity  # which may have read all weights
        return {"encoder": self.kind, **identity, "dtype": self.dtype, "output": output, **more}


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
