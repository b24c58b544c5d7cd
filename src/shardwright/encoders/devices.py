"""What the pretrained encoders share of torch: device, dtype, loading, and running out of memory.

torch is imported inside the functions: it takes seconds, and is not there for everyone.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from importlib import import_module
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from shardwright.encoders.base import Options
from shardwright.encoders.checkpoints import Checkpoint, Layout, find
from shardwright.errors import MissingExtraError, ShardwrightError, UsageError
from shardwright.recipe import Component

if TYPE_CHECKING:
    import torch
    from torch import nn

# What allocators say when the class of the error does not: of CPU, MPS, cuDNN and cuBLAS.
_NO_MEMORY = re.compile("can't allocate memory|out of memory|ALLOC_FAILED")


class Pretrained:
    """What every encoder with a model has; the model is loaded when it is first used."""

    library: ClassVar[str]
    kind: ClassVar[str]  # its class there

    def __init__(self, component: Component, checkpoint: Checkpoint, options: Options) -> None:
        self.component = component
        self.device = choose_device(options.device)
        self._checkpoint = checkpoint
        self._dtype = choose_dtype(options.dtype, self.device, component)

    @cached_property
    def _model(self) -> nn.Module:
        return load_model(self.library, self.kind, self._checkpoint, self.device, self._dtype)

    def _description(self, output: str, **more: Any) -> dict[str, Any]:  # noqa: ANN401 - plain JSON
        identity = self._checkpoint.identity
        return {"encoder": self.kind, **identity, "dtype": self._dtype, "output": output, **more}


def find_model(
    component: Component, options: Options, packages: Sequence[str], default: str, layout: Layout
) -> Checkpoint:
    """Find a model, once its packages and the device are known to be there."""
    for package in packages:
        try:
            import_module(package)
        except ImportError as error:
            raise MissingExtraError(
                f"the pretrained encoders need {package} ({error}): pip install '.[encode]' in the "
                "checkout of shardwright, or choose --encoders sketch"
            ) from error
    choose_device(options.device)
    return find(component, options, default, layout)


def choose_device(name: str) -> str:
    """Turn auto into the best device there is, and any other name into itself if it is there."""
    import torch

    cuda = [f"cuda:{number}" for number in range(torch.cuda.device_count())]
    there = ["cpu", *(["cuda"] if cuda else []), *cuda]
    if torch.backends.mps.is_available():
        there.append("mps")
    if name == "auto":
        return next(device for device in ("cuda", "mps", "cpu") if device in there)
    if name in there:
        return name
    raise UsageError(
        f"--device {name}: torch {torch.__version__} finds no such device; it has "
        f"{', '.join(there)}"
    )


def choose_dtype(name: str | None, device: str, component: Component) -> str:
    """Give the dtype to compute in: that asked for, or what suits the device and the component."""
    import torch

    if name is not None:
        return name
    # Halving the bits of what is stored whole would lose some of them.
    fast = device.startswith("cuda") and torch.cuda.is_bf16_supported(including_emulation=False)
    return "bfloat16" if fast and component.dtype == "<f2" else "float32"


def load_model(
    library: str, kind: str, checkpoint: Checkpoint, device: str, dtype: str
) -> nn.Module:
    """Load the weights of a transformers or diffusers model, all of them, onto the device."""
    import torch

    folder = checkpoint.fetch_weights()
    options = {"dtype": getattr(torch, dtype)}
    if library == "diffusers":  # has its own name for it, and would ask for accelerate
        options = {"torch_dtype": options["dtype"], "low_cpu_mem_usage": False}
    try:
        with _quiet(library):
            model, found = getattr(import_module(library), kind).from_pretrained(
                folder,
                local_files_only=True,
                use_safetensors=True,
                output_loading_info=True,
                **options,
            )
    except Exception as error:  # whatever these libraries make of a damaged file
        cause = str(error).strip().partition("\n")[0]
        raise UsageError(
            f"{checkpoint.asked}: cannot be loaded as {kind} ({cause}); its files may be "
            "damaged: fetch the model again"
        ) from error
    # Missing weights would be made up at random, with a warning.
    if lost := sorted(found["missing_keys"]):
        raise UsageError(
            f"{checkpoint.asked}: lacks {len(lost)} of the weights of {kind}, such as "
            f"{lost[0]}; fetch the model again"
        )
    try:
        return model.to(device).eval()
    except RuntimeError as error:
        if not _out_of_memory(error):
            raise
        raise ShardwrightError(
            f"{checkpoint.asked}: does not fit on {device}; run one component at a time "
            "(--components), in bfloat16 (--dtype), or on another --device"
        ) from error


def run(compute: Callable[[], torch.Tensor]) -> NDArray[np.float32]:
    """Compute without gradients; a device without room is a MemoryError."""
    import torch

    try:
        with torch.inference_mode():
            result: NDArray[np.float32] = compute().float().cpu().numpy()
            return result
    except RuntimeError as error:
        if not _out_of_memory(error):
            raise
        cause = str(error).partition("\n")[0]
    # Only here are the error and its frames gone, and with them the tensors they held.
    torch.cuda.empty_cache()
    raise MemoryError(cause)


def _out_of_memory(error: RuntimeError) -> bool:
    import torch

    return isinstance(error, torch.OutOfMemoryError) or bool(_NO_MEMORY.search(str(error)))


@contextmanager
def _quiet(package: str) -> Iterator[None]:
    """Keep a library's progress bars and advice off the terminal for a while."""
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
