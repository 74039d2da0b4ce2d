# SPDX-License-Identifier: Apache-2.0
"""A and B as a kernel's main loop is compiled for them: dtype class, major axis, width of their accesses."""

from __future__ import annotations

from math import gcd

from epifuse.arguments import GemmArguments
from epifuse.runtime.rounding import tf32_allowed
from epifuse.runtime.tensors import Traits
from epifuse_cutedsl.kernels.sm80.operand import MainTraits

# (A, B, accumulator) by dtype class of the main loop. float32 stands twice: see ``kind_of``.
_HALF = ("float16", "bfloat16")
_BYTE = ("int8", "uint8")


def kind_of(args: GemmArguments) -> str | None:
    """The dtype class of the portable kernel's main loop that multiplies A and B; None where there is none."""
    a, b, accumulator = args.A.traits.dtype.name, args.B.traits.dtype.name, args.accumulator_type.name
    if a == b and a in _HALF and (accumulator == "float32" or (a == "float16" and accumulator == "float16")):
        return "half"
    if a in _BYTE and b in _BYTE and accumulator == "int32":
        return "byte"
    if a == b == "float32" and accumulator == "float32":
        return "tf32" if tf32_allowed() else "f32"
    if a == b == accumulator == "float64":
        return "f64"
    return None


def main_traits(traits: Traits, *, k_last: bool) -> MainTraits:
    """How A (``k_last``) or B is read: K is the last axis of A and the last but one of B."""
    k, other = (-1, -2) if k_last else (-2, -1)
    size = traits.dtype.bytes
    major, unit = "k", True
    if traits.strides[k] == 1 and traits.shape[k] > 1:
        major = "k"
    elif traits.strides[other] == 1 and traits.shape[other] > 1:
        major = "mn"
    elif traits.shape[k] > 1 and traits.shape[other] > 1:
        major, unit = ("k" if traits.strides[k] <= traits.strides[other] else "mn"), False
    else:
        # One row or column: the axis with elements, if its stride is 1, was taken above.
        major, unit = ("k" if traits.shape[k] > 1 else "mn"), max(traits.shape[k], traits.shape[other]) <= 1
    if not unit:
        return MainTraits(traits.dtype, major, size, unit=False)
    minor = other if major == "k" else k
    common = traits.alignment_bytes
    for axis in range(-len(traits.shape), 0):
        is_major = axis == (k if major == "k" else other)
        if not is_major and traits.shape[axis] > 1 and axis in (minor, -3):
            common = gcd(common, traits.strides[axis] * size)
    width = max(size, min(16, common & -common))
    extent = traits.shape[k if major == "k" else other]
    return MainTraits(traits.dtype, major, width, whole=extent * size % width == 0)


def strides_mkl(traits: Traits, *, k_last: bool) -> tuple[int, int, int]:
    """Strides in elements along M (of A) or N (of B), K, and the batch; 0 for an axis that is not there."""
    batch = traits.strides[0] if len(traits.shape) == 3 else 0
    if k_last:
        return traits.strides[-2], traits.strides[-1], batch
    return traits.strides[-1], traits.strides[-2], batch
