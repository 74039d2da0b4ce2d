# SPDX-License-Identifier: Apache-2.0
"""Tensor maps, the 128 bytes that tensor copies read: by the CUDA driver for a GPU, by the emulator for its device.

CUDA driver API, "Tensor Map Object Management": ``cuTensorMapEncodeTiled``. Names and numbers are that function's.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import torch

from epifuse.dtypes import DType
from epifuse.records import NamedTuple
from epifuse.runtime.launch import driver_call

BYTES = 128
CODE = "128s"
"""The struct code of a tensor map among a kernel's parameters."""
ALIGNMENT_BYTES = 16
"""Of a tensor's address, and of its strides beside the innermost."""
LARGEST_BOX = 256
SWIZZLES = {16: 0, 32: 1, 64: 2, 128: 3}
"""By the bytes that a swizzle spans, which are those of a box's row; 16: none."""
L2_PROMOTION_256B = 3
_NO_INTERLEAVE = _ZEROS_OUTSIDE = 0
_ALIGNMENT_OF_A_MAP = 64
_DATA_TYPES = {
    "uint8": 0, "int8": 0, "float8_e4m3fn": 0, "float8_e5m2": 0, "int16": 1, "int32": 3, "float16": 6, "float32": 7,
    "float64": 8, "bfloat16": 9,
}  # fmt: skip


class TiledMap(NamedTuple):
    """A tensor and the box that a copy takes of it, innermost dimension first, in elements; strides in bytes, one
    fewer; the bytes that the swizzle spans. Zeros outside of the tensor, lines of 256 bytes in the level-two cache."""

    dtype: DType
    address: int
    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    box: tuple[int, ...]
    swizzle_bytes: int = 128


def has_data_type(dtype: DType) -> bool:
    """Whether a tensor map can be of tensors of that dtype."""
    return dtype.name in _DATA_TYPES


def encode(tiled: TiledMap, device: torch.device) -> bytes:
    """The map's bytes for a CUDA device, or for the emulated device (``device`` is the CPU).

    Raises:
        LaunchError: there is no driver, or it refuses the map.
        EmulatorError: the map breaks one of the driver's rules, which are the emulator's too.
    """
    return _encode_by_emulator(tiled) if device.type == "cpu" else _encode_by_driver(tiled)


def _encode_by_emulator(tiled: TiledMap) -> bytes:
    from epifuse.emulator import map_rules, tensor_map  # noqa: PLC0415 - a launch on a GPU does without

    request = map_rules.MapRequest(
        data_type=_DATA_TYPES[tiled.dtype.name],
        address=tiled.address,
        sizes=tiled.sizes,
        strides=tiled.strides,
        box=tiled.box,
        element_strides=(1,) * len(tiled.sizes),
        interleave=_NO_INTERLEAVE,
        swizzle=SWIZZLES[tiled.swizzle_bytes],
        l2_promotion=L2_PROMOTION_256B,
        fill_nan=_ZEROS_OUTSIDE,
    )
    map_rules.check(request)
    return tensor_map.encode(request)


def _encode_by_driver(tiled: TiledMap) -> bytes:
    rank = len(tiled.sizes)
    room = ctypes.create_string_buffer(BYTES + _ALIGNMENT_OF_A_MAP)
    address = -(-ctypes.addressof(room) // _ALIGNMENT_OF_A_MAP) * _ALIGNMENT_OF_A_MAP
    driver_call(
        "cuTensorMapEncodeTiled",
        ctypes.c_void_p(address),
        ctypes.c_int(_DATA_TYPES[tiled.dtype.name]),
        ctypes.c_uint32(rank),
        ctypes.c_void_p(tiled.address),
        _array(ctypes.c_uint64, tiled.sizes),
        _array(ctypes.c_uint64, tiled.strides),
        _array(ctypes.c_uint32, tiled.box),
        _array(ctypes.c_uint32, (1,) * rank),  # strides between the elements that are taken
        ctypes.c_int(_NO_INTERLEAVE),
        ctypes.c_int(SWIZZLES[tiled.swizzle_bytes]),
        ctypes.c_int(L2_PROMOTION_256B),
        ctypes.c_int(_ZEROS_OUTSIDE),
    )
    return ctypes.string_at(address, BYTES)


def _array(kind: type[ctypes.c_uint64 | ctypes.c_uint32], values: Sequence[int]) -> ctypes.Array[ctypes.c_uint64]:
    return (kind * max(len(values), 1))(*values)  # type: ignore[return-value]
