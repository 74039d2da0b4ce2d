# SPDX-License-Identifier: Apache-2.0
"""Launching an image where the operands are: through the driver on a GPU, in the emulator on CPU tensors."""

from __future__ import annotations

import contextlib
import ctypes
import threading
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import torch

from epifuse import emulator
from epifuse.errors import OperandError, UnsupportedError
from epifuse.runtime.cache import KernelImage
from epifuse.runtime.launch import LoadedKernel, PreparedLaunch, current_stream, stream_address

if TYPE_CHECKING:
    from epifuse.runtime.emulated import EmulatedKernel


class Launcher:
    """One image, loaded on first use by whoever runs it. Safe in threads."""

    def __init__(self, image: KernelImage) -> None:
        self.image = image
        self._lock = threading.Lock()
        self._loaded: LoadedKernel | None = None
        self._emulated: EmulatedKernel | None = None

    def prepare(self, device: int, stream: int, grid: Sequence[int], values: Sequence[Any]) -> PreparedLaunch:
        """A launch on a stream of a CUDA device."""
        loaded = self._loaded
        if loaded is None:
            with self._lock:
                loaded = self._loaded = self._loaded or LoadedKernel(self.image)
        return loaded.prepare(device, stream, grid, values)

    def emulated(self, grid: Sequence[int], values: Sequence[Any], tensors: Sequence[torch.Tensor]) -> None:
        """Run in the emulated device that is entered.

        Raises:
            UnsupportedError: no device is emulated.
        """
        device = emulator.current()
        if device is None:
            raise UnsupportedError(
                f"The operands are CPU tensors and the operator's kernel is for sm_{self.image.target}.",
                advice=f"Run it inside `with epifuse.emulator.device({self.image.target!r}):`, or pass CUDA tensors.",
            )
        from epifuse.runtime.emulated import EmulatedKernel  # noqa: PLC0415 - a launch on a GPU does without

        with self._lock:
            if self._emulated is None:
                self._emulated = EmulatedKernel(self.image, device)
        self._emulated(device, grid, values, tensors)


@contextlib.contextmanager
def on_stream(stream: Any, device: int) -> Iterator[int]:
    """The address of the stream to launch on; inside, torch allocates and fills on that stream too."""
    if stream is None:
        yield current_stream(device)
        return
    address = stream_address(stream, device)
    if address == current_stream(device):
        yield address
        return
    with torch.cuda.stream(torch.cuda.ExternalStream(address, device=device)):
        yield address


def zeroed_workspace(size_bytes: int, zero_bytes: int, device: torch.device) -> torch.Tensor:
    """Scratch memory of one launch, its first bytes zero; from torch's allocator, on its current stream."""
    memory = torch.empty(size_bytes, dtype=torch.uint8, device=device)
    memory[:zero_bytes].zero_()
    return memory


def bytes_of(data: Any, size_bytes: int, device: torch.device) -> torch.Tensor:
    """The first bytes of scratch memory that a user gave, a tensor or an address, as a tensor on ``device``.

    Raises:
        OperandError: it is too small, not aligned to 16 bytes, not contiguous, or elsewhere.
    """
    if isinstance(data, torch.Tensor):
        have = data.numel() * data.element_size()
        if have < size_bytes or not data.is_contiguous() or data.device != device or data.data_ptr() % 16:
            raise OperandError(
                f"The workspace has {have} bytes on {data.device} at address {data.data_ptr():#x}.",
                advice=f"Pass a contiguous tensor of {size_bytes} bytes or more on {device}, aligned to 16, or none.",
            )
        return data.view(-1).view(torch.uint8)[:size_bytes]
    address = int(data)
    if not address or address % 16:
        raise OperandError(f"The workspace's address {address:#x} is no multiple of 16.")
    if device.type == "cpu":
        return torch.frombuffer((ctypes.c_uint8 * size_bytes).from_address(address), dtype=torch.uint8)
    return torch.as_tensor(_DeviceBytes(address, size_bytes), device=device)


class _DeviceBytes:
    """Bytes at an address of a GPU, as torch takes them."""

    def __init__(self, address: int, size_bytes: int) -> None:
        self.__cuda_array_interface__ = {
            "data": (address, False), "shape": (size_bytes,), "strides": None, "typestr": "|u1", "version": 2,
        }  # fmt: skip
