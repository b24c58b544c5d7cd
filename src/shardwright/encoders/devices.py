"""What the pretrained encoders share: device, dtype, loading, and running out of memory.

torch is imported inside the functions: it takes seconds, and not everyone has it.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import cached_property
from importlib import import_module
from typing import TYPE_CHECKING, Any, ClassVar, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from shardwright.encoders.base import Axes, Options
from shardwright.encoders.checkpoints import Checkpoint, Layout, find
from shardwright.errors import MissingExtraError, ShardwrightError, UsageError
from shardwright.progress import quantity
from shardwright.recipes import BFLOAT16, Component

if TYPE_CHECKING:
    import torch
    from torch import nn

Made = TypeVar("Made")

# What allocators of CPU, MPS, cuDNN and cuBLAS say, where the class of the error is a general one.
_NO_MEMORY = re.compile("can't allocate memory|out of memory|ALLOC_FAILED")


class Model:
    """The weights of a checkpoint on a device, which are loaded when they are first used."""

    def __init__(
        self, checkpoint: Checkpoint, library: str, kind: str, device: str, dtype: str
    ) -> None:
        self.checkpoint, self._library, self._kind = checkpoint, library, kind
        self._device, self._dtype = device, dtype

    @cached_property
    def module(self) -> nn.Module:
        """Load all weights onto the device."""
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
            what = f"cannot be loaded as {self._kind} ({_first_line(error)})"
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
        try:
            loaded: nn.Module = model.to(self._device).eval()
            return loaded
        except RuntimeError as error:
            if not _out_of_memory(error):
                raise
            fix = "use --components for one at a time, --dtype bfloat16, or another --device"
            what = f"does not fit on {self._device}"
            raise ShardwrightError(what, path=asked, fix=fix) from error


class Pretrained(ABC):
    """An encoder with a model; those of one model and input share it, and its forward pass.

    ``models`` is what the encoders of a run share.
    """

    library: ClassVar[str] = "transformers"
    packages: ClassVar[tuple[str, ...]] = ()  # that are needed besides
    layout: ClassVar[Layout]

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
        self._dtype = options.dtype or _suitable_dtype(self.device, component)
        how = (self.library, kind, self.device, self._dtype)
        key = (*how, checkpoint.folder)
        self._shared: Model = models.setdefault(key, Model(checkpoint, *how))
        self.shares: object = models.setdefault((*key, *self._input()), object())
        self._begin()

    @classmethod
    def load(cls, component: Component, options: Options, models: dict[Any, Any]) -> Self:
        """Find the checkpoint, and refuse one that does not make this component."""
        packages = ("torch", cls.library, *cls.packages)
        _require(packages)
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
        return self.take(self.forward(*inputs))

    def forward(self, *inputs: NDArray[Any]) -> Any:  # noqa: ANN401 - the output of a model
        """Run the model once for all encoders of the same ``shares``."""
        import torch

        model = self._model

        def compute() -> Any:  # noqa: ANN401
            return self._compute(model, *(torch.from_numpy(i).to(self.device) for i in inputs))

        return run(compute)

    def take(self, made: Any) -> NDArray[np.float32]:  # noqa: ANN401
        """Choose this encoder's part of what the model gave."""
        found: NDArray[np.float32] = run(lambda: self._choose(made).float().cpu().numpy())
        return found

    @property
    def _model(self) -> nn.Module:
        return self._shared.module

    def _input(self) -> tuple[object, ...]:
        """Give the settings that the model's input depends on."""
        return ()

    @abstractmethod
    def _compute(self, model: nn.Module, *inputs: torch.Tensor) -> Any:  # noqa: ANN401
        """Call the model."""

    @abstractmethod
    def _choose(self, made: Any) -> torch.Tensor:  # noqa: ANN401
        """Choose from the model's output."""

    def _description(self, output: str, **more: Any) -> dict[str, Any]:  # noqa: ANN401 - plain JSON
        identity = self._shared.checkpoint.identity  # which may have read all weights
        return {"encoder": self.kind, **identity, "dtype": self._dtype, "output": output, **more}


def _require(packages: Iterable[str]) -> None:
    """Raise if a package is not installed."""
    for package in packages:
        try:
            import_module(package)
        except ImportError as error:
            raise MissingExtraError(
                f"the pretrained encoders need {package} ({error})",
                fix="run pip install '.[encode]' in the checkout of shardwright, or choose "
                "--encoders sketch",
            ) from error


def choose_device(name: str) -> str:
    """Turn auto into the best device there is; raise if a named one is not there."""
    import torch

    cuda = [f"cuda:{number}" for number in range(torch.cuda.device_count())]
    there = ["cpu", *(["cuda"] if cuda else []), *cuda]
    if torch.backends.mps.is_available():
        there.append("mps")
    if name == "auto":
        return next(device for device in ("cuda", "mps", "cpu") if device in there)
    if name not in there:
        what = f"--device {name}: torch {torch.__version__} finds no such device"
        raise UsageError(what, fix=f"choose from {', '.join(there)}")
    return name


def _suitable_dtype(device: str, component: Component) -> str:
    """Choose bfloat16 where it is fast; but not for a component that is stored in 32 bits.

    Nor for a model with several outputs, which share a pass: vectors are stored in 32 bits.
    """
    import torch

    fast = device.startswith("cuda") and torch.cuda.is_bf16_supported(including_emulation=False)
    small = component.dtype in ("<f2", BFLOAT16) and "output" not in component.settings
    return "bfloat16" if fast and small else "float32"


def run(compute: Callable[[], Made]) -> Made:
    """Compute without gradients; raise MemoryError if the device has no room."""
    import torch

    try:
        with torch.inference_mode():
            return compute()
    except RuntimeError as error:
        if not _out_of_memory(error):
            raise
        cause = _first_line(error)
    # Only here the error is gone, and with its frames the tensors that they held.
    torch.cuda.empty_cache()
    raise MemoryError(cause)


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0]


def _out_of_memory(error: RuntimeError) -> bool:
    import torch

    return isinstance(error, torch.OutOfMemoryError) or bool(_NO_MEMORY.search(str(error)))


@contextmanager
def _quiet(package: str) -> Iterator[None]:
    """Turn off a library's progress bars and advice for a while."""
    logging = import_module(f"{package}.utils.logging")
    verbosity, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        if bars:
            logging.enable_progress_bar()
