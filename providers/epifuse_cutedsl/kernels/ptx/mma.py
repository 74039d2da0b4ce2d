# SPDX-License-Identifier: Apache-2.0
"""``mma.sync``: a warp multiplies a 16-row A by an 8-column B over 32 bytes of K. Registers are bits (Int32)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cutlass import Int32

from epifuse_cutedsl.kernels.ptx.asm import braced, emit

# (K of one instruction, name of the element) by the operands' dtype.
_ELEMENTS = {
    "float16": (16, "f16"),
    "bfloat16": (16, "bf16"),
    "float32": (8, "tf32"),
    "int8": (32, "s8"),
    "uint8": (32, "u8"),
}
_ACCUMULATORS = {"float32": ("f32", 4), "float16": ("f16", 2), "int32": ("s32", 4)}


def accumulator_registers(accumulator: str) -> int:
    """32-bit registers that a lane's four accumulators take."""
    return _ACCUMULATORS[accumulator][1]


def mma_sync(a: str, b: str, accumulator: str, x: Sequence[Any], y: Sequence[Any], z: Sequence[Any]) -> tuple[Any, ...]:
    """``x * y + z``: four registers of A, two of B, two or four accumulators; dtypes by name."""
    depth, of_a = _ELEMENTS[a]
    of_b = _ELEMENTS[b][1]
    of_z, count = _ACCUMULATORS[accumulator]
    text = (
        f"mma.sync.aligned.m16n8k{depth}.row.col.{of_z}.{of_a}.{of_b}.{of_z} "
        f"{braced('w', count)}, {braced('r', 4)}, {braced('r', 2, 4)}, {braced('r', count, 6)};"
    )
    return emit(text, [Int32] * count, [*x, *y, *z])
