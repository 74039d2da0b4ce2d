# SPDX-License-Identifier: Apache-2.0
"""A and B as a kernel's main loop is compiled for them: dtype class, major axis, width of their accesses."""

from __future__ import annotations

from math import gcd
from typing import TYPE_CHECKING

from epifuse.arguments import GemmArguments
from epifuse.runtime.rounding import tf32_allowed
from epifuse.runtime.tensors import Traits

if TYPE_CHECKING:
    from epifuse_cutedsl.kernels.sm80.operand import MainTraits

PRODUCTS: dict[tuple[str, str, str], str] = {
    ("float16", "float16", "float32"): "half",
    ("float16", "float16", "float16"): "half",
    ("bfloat16", "bfloat16", "float32"): "half",
    ("int8", "int8", "int32"): "byte",
    ("int8", "uint8", "int32"): "byte",
    ("uint8", "int8", "int32"): "byte",
    ("uint8", "uint8", "int32"): "byte",
    ("float32", "float32", "float32"): "f32",
    ("float64", "float64", "float64"): "f64",
}
"""Dtypes of A, B and the accumulator, and the dtype class of the portable kernel's main loop that multiplies them."""


def kinds_now(product: tuple[str, str, str]) -> tuple[str, ...]:
    """The classes that multiply a product's dtypes, the preferred one first; float32 has two where TF32 is allowed."""
    kind = PRODUCTS.get(product)
    if kind is None:
        return ()
    return ("tf32", "f32") if kind == "f32" and tf32_allowed() else (kind,)


def kind_of(args: GemmArguments) -> str | None:
    """The dtype class of the portable kernel's main loop that multiplies A and B; None where there is none."""
    kinds = kinds_now((args.A.traits.dtype.name, args.B.traits.dtype.name, args.accumulator_type.name))
    return kinds[0] if kinds else None


def main_traits(traits: Traits, *, k_last: bool) -> MainTraits:
    """How A (``k_last``) or B is read: K is the last axis of A and the last but one of B."""
    from epifuse_cutedsl.kernels.sm80.operand import MainTraits  # noqa: PLC0415 - other kernels ask for none

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
