# SPDX-License-Identifier: Apache-2.0
"""One emitter a primitive, on torch tensors: what each primitive means, to the last bit.

Operands come in the compute dtype (float32, float64 or int32; conditions in bool). Arithmetic, square root and division
are IEEE operations. Transcendental functions of float32 are computed in float64 and rounded, so that neither strides
nor a vector's tail can be seen in a result. int32 wraps.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch

from epifuse.dtypes import DType
from epifuse.fusion.vocabulary.exact import fma
from epifuse.runtime.rounding import round_to

_LN2 = math.log(2.0)

Emitter = Callable[..., torch.Tensor]


def emit(primitive: str, operands: list[torch.Tensor], attributes: Mapping[str, Any]) -> torch.Tensor:
    """The primitive applied to operands that broadcast as (l, m, n), each axis whole or 1.

    Raises:
        KeyError: no such primitive.
    """
    return EMITTERS[primitive](*operands, **attributes)


def maximum(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """The larger one; NaN if either is NaN; +0 is larger than -0."""
    if not a.dtype.is_floating_point:
        return torch.maximum(a, b)
    # Torch answers with either zero, depending on where a vector ends; the sum of two zeros is -0 only for two -0.
    return torch.where((a == 0) & (b == 0), a + b, torch.maximum(a, b))


def minimum(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """The smaller one; NaN if either is NaN; -0 is smaller than +0."""
    return -maximum(-a, -b) if a.dtype.is_floating_point else torch.minimum(a, b)


def _wrapping(function: Emitter) -> Emitter:
    """Integers by way of int64, from which the cast back wraps."""

    def emit_wrapping(*operands: torch.Tensor) -> torch.Tensor:
        if operands[0].dtype.is_floating_point:
            return function(*operands)
        return function(*(x.to(torch.int64) for x in operands)).to(operands[0].dtype)

    return emit_wrapping


def _in_float64(function: Emitter) -> Emitter:
    def emit_in_float64(x: torch.Tensor) -> torch.Tensor:
        return function(x.to(torch.float64).contiguous()).to(x.dtype)

    return emit_in_float64


def _sqrt(x: torch.Tensor) -> torch.Tensor:
    """Rounded correctly; torch's own misses by one unit in the last place for 7 in 100 float32 (with MKL)."""
    with np.errstate(invalid="ignore"):
        return torch.from_numpy(np.sqrt(x.numpy(force=True)))


def _exp2(x: torch.Tensor) -> torch.Tensor:
    """Of float64; torch's own gives other bits in a vector's tail. Exact where ``x`` is an integer."""
    x = x.clamp(-1100.0, 1100.0)  # beyond the range on both sides
    whole = x.round()
    power = whole.nan_to_num(nan=0.0).to(torch.int64)
    half = power >> 1  # in two steps, of which each stays in range
    return torch.exp((x - whole) * _LN2) * _power_of_two(half) * _power_of_two(power - half)


def _ndtr(x: torch.Tensor) -> torch.Tensor:
    """Of float64, by erfc: torch's own loses digits below zero."""
    return torch.special.erfc(x * -math.sqrt(0.5)) * 0.5


def _power_of_two(exponent: torch.Tensor) -> torch.Tensor:
    return ((exponent + 1023) << 52).view(torch.float64)


def _multiply_add(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
    return fma(a, b, c) if a.dtype.is_floating_point else a * b + c


def _cast(x: torch.Tensor, dtype: DType) -> torch.Tensor:
    return round_to(x, dtype)


def _every_other(first: int) -> Emitter:
    def emit_every_other(x: torch.Tensor) -> torch.Tensor:
        return x if x.shape[-1] == 1 else x[..., first::2]  # one column: the value does not vary along n

    return emit_every_other


EMITTERS: dict[str, Emitter] = {
    "add": _wrapping(torch.add),
    "sub": _wrapping(torch.sub),
    "mul": _wrapping(torch.mul),
    "div": torch.div,
    "neg": _wrapping(torch.neg),
    "abs": _wrapping(torch.abs),
    "multiply_add": _wrapping(_multiply_add),
    "minimum": minimum,
    "maximum": maximum,
    "floor": torch.floor,
    "sqrt": _sqrt,
    "reciprocal": torch.reciprocal,
    "rsqrt": _in_float64(torch.rsqrt),
    "exp": _in_float64(torch.exp),
    "exp2": _in_float64(_exp2),
    "log": _in_float64(torch.log),
    "log2": _in_float64(torch.log2),
    "sin": _in_float64(torch.sin),
    "cos": _in_float64(torch.cos),
    "tanh": _in_float64(torch.tanh),
    "erf": _in_float64(torch.erf),
    "ndtr": _in_float64(_ndtr),
    "where": torch.where,
    "less": torch.lt,
    "less_equal": torch.le,
    "greater": torch.gt,
    "greater_equal": torch.ge,
    "equal": torch.eq,
    "not_equal": torch.ne,
    "cast": _cast,
    "even_columns": _every_other(0),
    "odd_columns": _every_other(1),
}
"""Emitter by primitive. A test compares the keys with the vocabulary's primitives."""
