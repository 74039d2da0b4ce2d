# SPDX-License-Identifier: Apache-2.0
"""Which tensor maps are legal: the driver's rules for tiled maps (CUDA driver API, cuTensorMapEncodeTiled)."""

from __future__ import annotations

import ctypes
from typing import NamedTuple

from .errors import TensorMapError

DESCRIPTOR_BYTES = 128
_DESCRIPTOR_ALIGN = 64
_LARGEST_BOX, _LARGEST_ELEMENT_STRIDE = 256, 8
# The numbers of the CUDA API's enumerations.
_PACKED_U4, _PADDED_U4, _PADDED_U6 = 13, 14, 15
_BITS = (8, 16, 32, 32, 64, 64, 16, 32, 64, 16, 32, 32, 32, 4, 4, 6)
_FLOATING = frozenset({6, 7, 8, 9, 10, 11, 12})
_SWIZZLE_BYTES = (0, 32, 64, 128, 128, 128, 128)
_PADDED_SWIZZLES = frozenset({0, 3, 4, 6})
_NO_INTERLEAVE, _INTERLEAVE_32B, _SWIZZLE_32B = 0, 2, 1


class MapRequest(NamedTuple):
    """A tiled tensor map as it is asked for, innermost dimension first; `strides` has one entry less, in bytes.

    The four modes and `data_type` carry the numbers of the CUDA API's enumerations.
    """

    data_type: int
    address: int
    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    box: tuple[int, ...]
    element_strides: tuple[int, ...]
    interleave: int = 0
    swizzle: int = 0
    l2_promotion: int = 0
    fill_nan: int = 0

    @property
    def element_bits(self) -> int:
        """Bits of one element in global memory."""
        return _BITS[self.data_type]


def read_request(data_type: int, rank: int, address: int, *rest: int) -> MapRequest:
    """Read the arguments of the C call; the arrays are pointers, the modes are numbers."""
    if not 1 <= rank <= 5:
        raise TensorMapError((f"rank {rank}, where 1 to 5 are allowed",))
    sizes, strides, box, element_strides, *modes = rest
    return MapRequest(
        data_type,
        address or 0,
        tuple((ctypes.c_uint64 * rank).from_address(sizes)),
        tuple((ctypes.c_uint64 * (rank - 1)).from_address(strides)) if rank > 1 else (),
        tuple((ctypes.c_uint32 * rank).from_address(box)),
        tuple((ctypes.c_uint32 * rank).from_address(element_strides)),
        *modes,
    )


def check(request: MapRequest, *, where: str = "cuTensorMapEncodeTiled", descriptor_address: int = 0) -> None:
    """Raise TensorMapError with every rule that the request breaks."""
    broken = violations(request)
    if descriptor_address % _DESCRIPTOR_ALIGN:
        broken = (f"the descriptor lies at {descriptor_address:#x}, not on {_DESCRIPTOR_ALIGN} bytes", *broken)
    if broken:
        raise TensorMapError(broken, where=where)


def violations(request: MapRequest) -> tuple[str, ...]:
    """Every rule that the request breaks, in words; none for a legal map."""
    modes = _mode_violations(request)
    if modes:  # the other rules depend on them
        return modes
    padded = request.data_type in (_PADDED_U4, _PADDED_U6)
    alignment = 32 if padded or request.interleave == _INTERLEAVE_32B else 16
    return (*_memory_violations(request, alignment), *_box_violations(request), *_packed_violations(request))


def _mode_violations(request: MapRequest) -> tuple[str, ...]:
    ranges = {
        "data type": (request.data_type, len(_BITS)),
        "interleave": (request.interleave, 3),
        "swizzle": (request.swizzle, len(_SWIZZLE_BYTES)),
        "L2 promotion": (request.l2_promotion, 4),
        "out-of-bounds fill": (request.fill_nan, 2),
    }
    broken = [f"{name} {value} does not exist" for name, (value, end) in ranges.items() if not 0 <= value < end]
    if request.interleave != _NO_INTERLEAVE and len(request.sizes) < 3:
        broken.append(f"rank {len(request.sizes)} with interleave, which needs 3")
    if request.interleave == _INTERLEAVE_32B and request.swizzle != _SWIZZLE_32B:
        broken.append("32-byte interleave without 32-byte swizzle")
    if request.fill_nan and request.data_type not in _FLOATING:
        broken.append("NaN fill for elements that are not floating point")
    return tuple(broken)


def _memory_violations(request: MapRequest, alignment: int) -> list[str]:
    broken = []
    if request.address % alignment or not request.address:
        broken.append(f"address {request.address:#x} is not a multiple of {alignment}")
    for dimension, size in enumerate(request.sizes):
        if not 1 <= size <= 2**32:
            broken.append(f"size {size} of dimension {dimension} is not in 1 to 2^32")
    for dimension, stride in enumerate(request.strides, start=1):
        if stride % alignment or stride >= 2**40:
            broken.append(f"stride {stride} of dimension {dimension} is not a multiple of {alignment} below 2^40")
    return broken


def _box_violations(request: MapRequest) -> list[str]:
    broken = []
    for dimension, extent in enumerate(request.box):
        if not 1 <= extent <= _LARGEST_BOX:
            broken.append(f"box extent {extent} of dimension {dimension} is not in 1 to {_LARGEST_BOX}")
    first = 1 if request.interleave == _NO_INTERLEAVE else 0
    for dimension, step in enumerate(request.element_strides[first:], start=first):
        if not 1 <= step <= _LARGEST_ELEMENT_STRIDE:
            broken.append(f"element stride {step} of dimension {dimension} is not in 1 to {_LARGEST_ELEMENT_STRIDE}")
    if request.interleave == _NO_INTERLEAVE and request.data_type not in (_PADDED_U4, _PADDED_U6):
        inner_bits = request.box[0] * request.element_bits
        if inner_bits % 128:
            broken.append(f"the box is {inner_bits / 8:g} bytes wide, not a multiple of 16")
        largest = _SWIZZLE_BYTES[request.swizzle]
        if largest and inner_bits > largest * 8:
            broken.append(f"the box is {inner_bits // 8} bytes wide, more than its {largest}-byte swizzle")
    return broken


def _packed_violations(request: MapRequest) -> list[str]:
    broken = []
    if request.data_type in (_PADDED_U4, _PADDED_U6):
        if request.sizes[0] % 128:
            broken.append(f"size {request.sizes[0]} of a padded type is not a multiple of 128")
        if request.box[0] != 128:
            broken.append(f"the box of a padded type is {request.box[0]} elements wide, not 128")
        if request.swizzle not in _PADDED_SWIZZLES or (request.data_type == _PADDED_U4 and request.swizzle == 6):
            broken.append(f"swizzle {request.swizzle} is not supported for a padded type")
    if request.data_type == _PADDED_U6 and request.interleave != _NO_INTERLEAVE:
        broken.append("6-bit elements with interleave")
    if request.data_type == _PACKED_U4 and request.sizes[0] % 2:
        broken.append(f"an odd number {request.sizes[0]} of packed 4-bit elements")
    return broken
