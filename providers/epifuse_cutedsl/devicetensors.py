# SPDX-License-Identifier: Apache-2.0
"""CPU tensors that stand for tensors of the emulated device: the same memory, labelled CUDA, and allowed to kernels."""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Iterator
from typing import Any, NamedTuple

from epifuse.emulator import EmulatedDevice

_CPU, _CUDA = 1, 2


class _DLTensor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("rank", ctypes.c_int32),
        ("type_code", ctypes.c_uint8),
        ("type_bits", ctypes.c_uint8),
        ("type_lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    ]


class Extent(NamedTuple):
    """A range of memory."""

    address: int
    size_bytes: int


class DeviceTensor:
    """A CPU tensor of any DLPack framework, exported as one of CUDA device 0 over the same memory."""

    def __init__(self, tensor: Any) -> None:
        self._tensor = tensor.detach() if getattr(tensor, "requires_grad", False) else tensor

    def __dlpack_device__(self) -> tuple[int, int]:
        return (_CUDA, 0)

    def __dlpack__(self, **_: Any) -> Any:
        capsule = self._tensor.__dlpack__()
        view = _view(capsule)
        view.device_type, view.device_id = _CUDA, 0
        return capsule

    @property
    def extent(self) -> Extent:
        """The memory between the tensor's first and last element."""
        return extent(self._tensor.__dlpack__())


def is_cpu_tensor(value: Any) -> bool:
    """Whether a value is a tensor in host memory that can be exported."""
    if not hasattr(value, "__dlpack__") or not hasattr(value, "__dlpack_device__"):
        return False
    return int(value.__dlpack_device__()[0]) == _CPU


def extent(capsule: Any) -> Extent:
    """The memory between the first and the last element of an exported tensor."""
    view = _view(capsule)
    shape = [view.shape[dimension] for dimension in range(view.rank)]
    strides = _compact(shape) if not view.strides else [view.strides[dimension] for dimension in range(view.rank)]
    return span((view.data or 0) + view.byte_offset, shape, strides, view.type_bits * view.type_lanes)


def span(address: int, shape: list[int], strides: list[int], element_bits: int) -> Extent:
    """The memory between the first and the last element of a strided tensor whose element 0 is at `address`."""
    if 0 in shape:
        return Extent(address, 0)
    steps = [(size - 1) * stride for size, stride in zip(shape, strides, strict=True)]
    first = sum(step for step in steps if step < 0) * element_bits // 8
    elements = sum(abs(step) for step in steps) + 1
    return Extent(address + first, -(-elements * element_bits // 8))


@contextlib.contextmanager
def visible(device: EmulatedDevice, **tensors: Any) -> Iterator[None]:
    """Let kernels of the device use the memory of these CPU tensors until the block ends; reports call them by name."""
    with contextlib.ExitStack() as stack:
        for name, tensor in tensors.items():
            allow(device, DeviceTensor(tensor).extent, name, stack)
        yield


def allow(device: EmulatedDevice, memory: Extent, name: str, until: contextlib.ExitStack) -> None:
    """Let kernels use a range of host memory until the stack is closed."""
    if memory.size_bytes:
        with device.lock:
            device.memory.register(memory.address, memory.size_bytes, name)
        until.callback(_forbid, device, memory)


def _forbid(device: EmulatedDevice, memory: Extent) -> None:
    with device.lock:
        device.memory.unregister(memory.address)


def _view(capsule: Any) -> _DLTensor:
    get_pointer = ctypes.pythonapi.PyCapsule_GetPointer
    get_pointer.restype, get_pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    return _DLTensor.from_address(get_pointer(capsule, b"dltensor"))


def _compact(shape: list[int]) -> list[int]:
    strides, step = [], 1
    for size in reversed(shape):
        strides.append(step)
        step *= size
    return strides[::-1]
