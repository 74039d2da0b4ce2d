# SPDX-License-Identifier: Apache-2.0
"""Boxes of tensors: between global memory with its bounds and shared memory with its swizzle (PTX ISA, "Tensors")."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from ..lanes import Array
from ..memory import HostMemory
from ..reports import DescriptorError
from ..shared import SharedMemory
from ..tensor_map import TensorMap

# Swizzles as (first bit, bits, distance): bits [first, first + bits) are exclusive-ored with those `distance` higher.
_SWIZZLES = {32: (4, 1, 3), 64: (4, 2, 3), 128: (4, 3, 3)}
_ATOMS = {1: (5, 2, 2), 3: (6, 1, 2)}


@lru_cache(maxsize=512)
def swizzled_rows(offset: int, rows: int, swizzle_bytes: int, atom: int = 0) -> Array:
    """Where each 16-byte row of a box goes: row indices in shared memory (read-only)."""
    address = offset + 16 * np.arange(rows, dtype=np.int64)
    if swizzle_bytes:
        if atom == 2:
            raise DescriptorError("the swizzle that also flips 8-byte halves is not executed")
        first, bits, distance = _ATOMS[atom] if atom else _SWIZZLES[swizzle_bytes]
        mask = ((1 << bits) - 1) << first
        address = address ^ (address >> distance & mask)
    found = address >> 4
    found.setflags(write=False)
    return found


def check_box(tensor: TensorMap, offset: int, start: tuple[int, ...]) -> None:
    """Raise DescriptorError for a box, or places of it, that the copy engine does not accept.

    `start` are the coordinates. Where the innermost one is not a whole number of 16 bytes, an H200 ends the kernel with
    an illegal instruction, whatever the swizzle.
    """
    inner = tensor.box[0] * tensor.element_bytes
    if inner % 16:
        raise DescriptorError(f"the box is {inner} bytes wide, not a multiple of 16")
    if tensor.swizzle_bytes and inner > tensor.swizzle_bytes:
        raise DescriptorError(f"the box is {inner} bytes wide, more than its swizzle of {tensor.swizzle_bytes}")
    if offset % 128:
        raise DescriptorError(f"the box stands at shared offset {offset:#x}, not a multiple of 128")
    if start[0] * tensor.element_bytes % 16:
        what = f"the innermost coordinate {start[0]} is {start[0] * tensor.element_bytes} bytes"
        raise DescriptorError(f"{what}, not a multiple of 16")
    if tensor.interleave:
        raise DescriptorError("interleaved layouts are not executed")


def window(tensor: TensorMap, memory: HostMemory, start: tuple[int, ...]) -> tuple[Array | None, tuple[slice, ...]]:
    """The part of a box that lies in the tensor, as a strided view (outermost first), and its place in the box."""
    address = tensor.address
    shape: list[int] = []
    strides: list[int] = []
    place: list[slice] = []
    last = tensor.element_bytes
    for first, box, size, stride, step in zip(
        start, tensor.box, tensor.sizes, tensor.strides, tensor.element_strides, strict=True
    ):
        count = -(-box // step)
        low = max(0, -(first // step) if first < 0 else 0)
        while first + low * step < 0:
            low += 1
        high = min(count, -(-(size - first) // step))
        if high <= low:
            return None, ()
        address += (first + low * step) * stride
        shape.append(high - low)
        strides.append(stride * step)
        place.append(slice(low, high))
        last += (high - low - 1) * stride * step
    data = memory.span(address, last)
    dtype = np.dtype(f"u{tensor.element_bytes}")
    view: Array = np.ndarray(tuple(shape[::-1]), dtype, data, 0, tuple(strides[::-1]))
    return view, tuple(place[::-1])


_NAN = {"f16": 0x7FF7, "bf16": 0x7FF7, "f32": 0x7FF77FF7, "f64": 0x7FF77FF77FF77FF7}
"""What an H200 fills with, recorded for f32: 0x7FF7 in each 16 bits."""


def load_box(tensor: TensorMap, memory: HostMemory, start: tuple[int, ...], shared: SharedMemory, offset: int) -> None:
    """Copy a box from global memory; what lies outside the tensor is zero, or NaN if the map says so."""
    shape = tuple(-(-box // step) for box, step in zip(tensor.box, tensor.element_strides, strict=True))[::-1]
    dtype = np.dtype(f"u{tensor.element_bytes}")
    view, place = window(tensor, memory, start)
    if view is not None and view.shape == shape:
        box: Array = np.ascontiguousarray(view)
    else:
        box = np.full(shape, _NAN.get(tensor.type, 0) if tensor.fill_nan else 0, dtype)
        if view is not None:
            box[place] = view
    rows = box.reshape(-1).view(np.uint64).reshape(-1, 2)
    where = swizzled_rows(offset, len(rows), tensor.swizzle_bytes, tensor.swizzle_atom)
    shared.views[8].reshape(-1, 2)[where] = rows


def read_box(tensor: TensorMap, shared: SharedMemory, offset: int) -> Array:
    """A box as it stands in shared memory, unswizzled, outermost dimension first."""
    where = swizzled_rows(offset, tensor.box_bytes // 16, tensor.swizzle_bytes, tensor.swizzle_atom)
    rows = shared.views[8].reshape(-1, 2)[where]
    return rows.reshape(-1).view(f"u{tensor.element_bytes}").reshape(tensor.box[::-1])


def store_box(tensor: TensorMap, memory: HostMemory, start: tuple[int, ...], box: Array, reduction: str = "") -> None:
    """Write a box to global memory, or combine it with what is there; what lies outside the tensor is dropped."""
    view, place = window(tensor, memory, start)
    if view is None:
        return
    part = box[place]
    view[...] = combine(view, part, reduction, tensor.type) if reduction else part


def combine(old: Array, new: Array, reduction: str, type_name: str) -> Array:
    """Element-wise reduction of bit patterns, rounded to nearest even for floats."""
    if type_name == "bf16":
        left, right = (v.astype(np.uint32) << np.uint32(16) for v in (old, new))
        total = _reduce(left.view(np.float32), right.view(np.float32), reduction)
        raw = total.view(np.uint32)
        return ((raw + np.uint32(0x7FFF) + (raw >> np.uint32(16) & np.uint32(1))) >> np.uint32(16)).astype(np.uint16)
    kinds = {"f16": np.float16, "f32": np.float32, "f64": np.float64, "s32": np.int32, "s64": np.int64}
    kind = kinds.get(type_name, old.dtype)
    left, right = np.ascontiguousarray(old).view(kind), np.ascontiguousarray(new).view(kind)
    return _reduce(left, right, reduction).view(old.dtype)


def _reduce(left: Array, right: Array, reduction: str) -> Array:
    table = {
        "add": np.add,
        "min": np.fmin,
        "max": np.fmax,
        "and": np.bitwise_and,
        "or": np.bitwise_or,
        "xor": np.bitwise_xor,
    }
    if reduction not in table:
        raise DescriptorError(f"the reduction .{reduction} is not executed")
    found: Array = table[reduction](left, right)
    return found


def clear() -> None:
    """Forget the swizzle tables."""
    swizzled_rows.cache_clear()
