# SPDX-License-Identifier: Apache-2.0
"""Arithmetic on two float32 at a time (PTX ISA, ``add``, ``sub``, ``mul`` and ``fma`` of ``.f32x2``).

Results are those of one at a time; a product and a sum may be contracted, as they may there.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cutlass import Float32

from epifuse_cutedsl.fuse import short
from epifuse_cutedsl.fuse.shortcuts import Precision
from epifuse_cutedsl.kernels.ptx.asm import emit

FIRST_CAPABILITY = 100
INSTRUCTIONS: dict[str, str] = {
    "add": "add.f32x2",
    "sub": "sub.f32x2",
    "mul": "mul.f32x2",
    "multiply_add": "fma.rn.f32x2",
}
"""By primitive."""
SHORT = ("ndtr_product",)
"""Those whose short form has one for two numbers: ``short.<primitive>_pair``."""


def takes(primitive: str, dtype: str, capability: int, count: int, precision: Precision) -> bool:
    """Whether ``count`` copies of a value can be computed by twos."""
    known = primitive in INSTRUCTIONS or (primitive in SHORT and precision is not Precision.FULL)
    return capability >= FIRST_CAPABILITY and dtype == "float32" and known and count % 2 == 0


def compute(primitive: str, first: Sequence[Any], second: Sequence[Any]) -> tuple[Any, ...]:
    """The primitive's results on the operands ``first`` and on the operands ``second``."""
    if primitive in SHORT:
        results: tuple[Any, ...] = getattr(short, f"{primitive}_pair")(*first, *second)
        return results
    names = "abc"[: len(first)]
    lines = [f".reg .b64 {', '.join(names)}, d;"]
    lines += [f"mov.b64 {name}, {{{{$r{2 * i}}}, {{$r{2 * i + 1}}}}};" for i, name in enumerate(names)]
    lines += [f"{INSTRUCTIONS[primitive]} d, {', '.join(names)};", "mov.b64 {{$w0}, {$w1}}, d;"]
    inputs = [value for pair in zip(first, second, strict=True) for value in pair]
    return emit("{\n" + "\n".join(lines) + "\n}", [Float32, Float32], inputs)
