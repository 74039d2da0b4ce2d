# SPDX-License-Identifier: Apache-2.0
"""Values of a warp's 32 lanes.

A register holds a Python int (the same in all lanes; a bool for predicates) or a numpy array of 32 unsigned integers of
the register's width (bool for predicates). A mask of lanes is an int with bit i for lane i.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

LANES = 32
FULL = 0xFFFFFFFF

Array = npt.NDArray[Any]
Lanes = npt.NDArray[np.bool_]
Value = Any
"""An int, a bool, or an array of 32; a pair of ints for 128-bit registers."""

LANE_INDEX: Array = np.arange(LANES, dtype=np.uint32)
DTYPES: dict[int, Any] = {8: np.uint8, 16: np.uint16, 32: np.uint32, 64: np.uint64}
SIGNED: dict[int, Any] = {8: np.int8, 16: np.int16, 32: np.int32, 64: np.int64}


@lru_cache(maxsize=4096)
def lanes_of(mask: int) -> Lanes:
    """The mask as 32 booleans (read-only)."""
    found = (mask >> np.arange(LANES, dtype=np.int64) & 1).astype(np.bool_)
    found.setflags(write=False)
    return found


def mask_of(lanes: Lanes) -> int:
    """32 booleans as a mask."""
    return int(np.packbits(lanes, bitorder="little").view(np.uint32)[0])


def first_lane(mask: int) -> int:
    """The lowest lane of a mask that is not empty."""
    return (mask & -mask).bit_length() - 1


def spread(value: Value, dtype: Any) -> Array:
    """The value as an array of 32, which the caller must not change."""
    if isinstance(value, np.ndarray):
        return value
    return np.full(LANES, value, dtype)


def merge(old: Value, new: Value, lanes: Lanes, dtype: Any) -> Value:
    """`new` in the lanes given and `old` elsewhere."""
    if isinstance(new, np.ndarray):
        return np.where(lanes, new, spread(old, dtype))
    if type(old) is type(new) and old == new:
        return old
    if isinstance(new, tuple):
        return new
    out = np.array(spread(old, dtype))
    out[lanes] = new
    return out


def signed(value: Value, bits: int) -> Value:
    """The value reinterpreted as two's complement: a Python int or an array view."""
    if isinstance(value, np.ndarray):
        return value.view(SIGNED[bits])
    return (value & ((1 << bits) - 1) ^ (1 << (bits - 1))) - (1 << (bits - 1))
