"""What differs between devices: sending inputs, fetching results, memory, and precision.

A ``Device`` has four steps: ``send`` begins a copy to it, ``ready`` gives what was sent to be
computed with, ``mark`` says that all is begun that a result needs, and ``fetch`` waits for that
result, not for what is begun later. Nobody else knows of streams and pinned memory.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import backends, nn

from shardwright.encoders.base import every_gpu
from shardwright.encoders.packages import first_line
from shardwright.engine import DeviceLostError
from shardwright.errors import UsageError

Made = TypeVar("Made")

# What allocators of CPU, MPS, cuDNN and cuBLAS say, where the class of the error is a general one.
_NO_MEMORY = re.compile("can't allocate memory|out of memory|ALLOC_FAILED")
# What CUDA says when a device, or what this process has on it, is of no more use. Other errors of
# it are about what was asked for, and the next picture may be right again.
_LOST = re.compile(
    "CUDA error: (?!out of memory|no kernel image|invalid |operation not supported|CUBLAS|CUDNN)"
    "|no CUDA-capable device|device-side assert|unspecified launch failure|uncorrectable ECC error"
    "|illegal memory access"
)
RESERVE = 3 << 30  # bytes beside a model: what one picture of a megapixel takes in float32


class Device:
    """A device that shares the memory of the host, or whose memory nobody needs to watch."""

    def __init__(self, name: str) -> None:
        self.name = name

    def send(self, arrays: Sequence[NDArray[Any]]) -> Any:  # noqa: ANN401 - only for ``ready``
        """Begin to copy arrays to the device, and do not wait for it."""
        return tuple(torch.from_numpy(array).to(self.name) for array in arrays)

    def ready(self, sent: Any) -> tuple[torch.Tensor, ...]:  # noqa: ANN401
        """Give what was sent; computing with it waits until it is there."""
        return tuple(sent)

    def mark(self) -> Any:  # noqa: ANN401 - only for ``fetch``
        """Mark the end of what is begun by now."""

    def fetch(self, choose: Callable[[], torch.Tensor], mark: Any) -> NDArray[np.float32]:  # noqa: ANN401
        """Wait for what was begun before the mark, and copy what is chosen of it to the host."""
        return np.asarray(choose().float().cpu())

    def put(self, module: nn.Module) -> None:
        """Move a model to the device."""
        module.to(self.name)

    def take_back(self, module: nn.Module) -> None:
        """Move a model back to the host."""
        module.to("cpu")

    def has_room(self, nbytes: int) -> bool:
        """Whether a model of this size can be put there and used."""
        return True


class Cuda(Device):
    """A GPU. Copies have a stream of their own, beside the one that computes."""

    @cached_property
    def _copies(self) -> torch.cuda.Stream:
        return torch.cuda.Stream(self.name)

    def send(self, arrays: Sequence[NDArray[Any]]) -> Any:  # noqa: ANN401
        with torch.cuda.stream(self._copies):
            # Only from pinned memory a copy runs beside the work of the host.
            pinned = [torch.from_numpy(array).pin_memory() for array in arrays]
            there = tuple(each.to(self.name, non_blocking=True) for each in pinned)
        return there, self._copies.record_event()

    def ready(self, sent: Any) -> tuple[torch.Tensor, ...]:  # noqa: ANN401
        tensors: tuple[torch.Tensor, ...]
        tensors, copied = sent
        computing = torch.cuda.current_stream(self.name)
        computing.wait_event(copied)
        for each in tensors:  # its memory must not be given to the next copy before it is used
            each.record_stream(computing)
        return tensors

    def mark(self) -> Any:  # noqa: ANN401
        return torch.cuda.current_stream(self.name).record_event()

    def fetch(self, choose: Callable[[], torch.Tensor], mark: Any) -> NDArray[np.float32]:  # noqa: ANN401
        # Beside the stream that computes, which is busy with the next batch already.
        with torch.cuda.stream(self._copies):
            self._copies.wait_event(mark)
            there = choose().float()
            pinned = torch.empty_like(there, device="cpu", pin_memory=True)
            pinned.copy_(there, non_blocking=True)
        self._copies.synchronize()
        return np.array(pinned)  # a copy, because pinned memory is scarce

    def take_back(self, module: nn.Module) -> None:
        module.to("cpu")
        torch.cuda.empty_cache()

    def has_room(self, nbytes: int) -> bool:
        return free_on_cuda(self.name) >= nbytes + RESERVE


def device_of(name: str, models: dict[Any, Any]) -> Device:
    """Give a device by its name, the same one to all encoders of a run."""
    kind = Cuda if name.startswith("cuda") else Device
    found: Device = models.setdefault((Device, name), kind(name))
    return found


def free_on_cuda(name: str) -> int:
    """Count the bytes of a GPU that are free, or that torch holds and does not use."""
    held = torch.cuda.memory_reserved(name) - torch.cuda.memory_allocated(name)
    return int(torch.cuda.mem_get_info(name)[0] + held)


def choose_device(name: str) -> str:
    """Turn auto into the best device there is; raise if a named one is not there."""
    cuda = every_gpu()
    there = ["cpu", *(["cuda"] if cuda else []), *cuda]
    if torch.backends.mps.is_available():
        there.append("mps")
    if name == "auto":
        return next(device for device in ("cuda", "mps", "cpu") if device in there)
    if name not in there:
        what = f"--device {name}: torch {torch.__version__} finds no such device"
        raise UsageError(what, fix=f"choose from {', '.join(there)}")
    return name


@contextmanager
def precision(dtype: str) -> Iterator[None]:
    """Let GPUs round the factors of products to TF32, or not; then put torch's globals back.

    By default torch rounds those of convolutions, and not those of matrices.
    """
    places: tuple[Any, ...] = (backends.cuda.matmul, backends.cudnn.conv)
    before = [place.fp32_precision for place in places]
    try:
        for place in places:
            place.fp32_precision = "tf32" if dtype == "tf32" else "ieee"
        yield
    finally:
        for place, old in zip(places, before, strict=True):
            place.fp32_precision = old


def guard(compute: Callable[[], Made]) -> Made:
    """Compute; raise MemoryError if the device has no room, DeviceLostError if it is gone."""
    try:
        return compute()
    except RuntimeError as error:
        if not (isinstance(error, torch.OutOfMemoryError) or _NO_MEMORY.search(str(error))):
            if _LOST.search(str(error)):
                raise DeviceLostError(first_line(error)) from error
            raise
        cause = first_line(error)
    # Only here the error is gone, and with its frames the tensors that they held.
    torch.cuda.empty_cache()
    raise MemoryError(cause)
