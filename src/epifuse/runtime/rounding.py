# SPDX-License-Identifier: Apache-2.0
"""The one rounding of a store: from a compute dtype to an element type, to nearest even, saturating where it must.

Torch narrows float64 to 16 and 8 bits by way of float32, which rounds twice. Here a float64 goes to float32 rounded
to odd first: the odd last bit remembers that digits were lost, and as float32 keeps at least two bits more than any
narrower type, in every part of its range, the second step then rounds as if it saw the float64.
"""

from __future__ import annotations

import torch

from epifuse.dtypes import DType

_NARROW = (torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2)
_INT64_LIMIT = float(2**63)
_EXACT_INTEGER = 2**53
_TF32_DROPPED = 13


def round_to(x: torch.Tensor, dtype: DType) -> torch.Tensor:
    """``x`` rounded once to ``dtype``, to nearest, ties to even; ``x`` itself where it has the dtype already.

    float8 and integer results saturate: an infinity gives the largest finite value, and NaN stays NaN in float8 and
    gives 0 in integers. float16, bfloat16 and float32 overflow to infinities. bool is ``x != 0``.
    """
    if x.dtype == dtype.torch:
        return x
    if x.dtype in _NARROW:
        x = x.to(torch.float32)
    if dtype.torch == torch.bool:
        return x != 0
    if dtype.is_integer:
        return _to_integer(x, dtype)
    if not x.dtype.is_floating_point:
        if dtype.torch == torch.float64:
            return x.to(torch.float64)
        x = _sticky_float64(x)
    if dtype.torch in (torch.float64, torch.float32):
        return x.to(dtype.torch)
    if dtype.saturates:
        x = x.clamp(dtype.lowest, dtype.highest)
    if x.dtype == torch.float64:
        x = _round_to_odd(x)
    return x.to(dtype.torch)


def round_to_tf32(x: torch.Tensor) -> torch.Tensor:
    """float32 values rounded to TF32 (10 explicit significand bits) to nearest, ties away from zero; float32 still.

    Tensor cores take TF32 so when ``cvt.rna.tf32.f32`` makes it; NaN and infinities stay.
    """
    x = x.to(torch.float32)
    bits = x.view(torch.int32)
    half, mask = 1 << (_TF32_DROPPED - 1), -(1 << _TF32_DROPPED)
    rounded = (bits + half).bitwise_and(mask).view(torch.float32)
    return torch.where(x.isfinite(), rounded, x)


def tf32_allowed() -> bool:
    """Whether torch's own switches let a float32 matrix product on a GPU use TF32. Neither raises nor warns.

    ``torch.backends.cuda.matmul.fp32_precision`` reflects the older switches too, whereas these refuse to be read once
    the two kinds were mixed; so it is asked first.
    """
    matmul = torch.backends.cuda.matmul
    try:
        return bool(matmul.fp32_precision == "tf32")
    except (AttributeError, RuntimeError):
        pass  # a torch without the newer switch
    try:
        return bool(matmul.allow_tf32)
    except (AttributeError, RuntimeError):
        return False


def _to_integer(x: torch.Tensor, dtype: DType) -> torch.Tensor:
    lowest, highest = int(dtype.lowest), int(dtype.highest)
    if not x.dtype.is_floating_point:
        return x.to(torch.int64).clamp(lowest, highest).to(dtype.torch)
    x = x.to(torch.float64).nan_to_num(nan=0.0, posinf=_INT64_LIMIT, neginf=-_INT64_LIMIT).round()
    # Half the limit is exact in int64; a float64 at the limit itself has no int64 to be cast to.
    whole = torch.where(x.abs() < _INT64_LIMIT, x, 0.0).to(torch.int64)
    whole = torch.where(x >= _INT64_LIMIT, highest, torch.where(x <= -_INT64_LIMIT, lowest, whole))
    return whole.clamp(lowest, highest).to(dtype.torch)


def _sticky_float64(x: torch.Tensor) -> torch.Tensor:
    """Integers as float64; those that 53 bits cannot hold keep their leading bits and an odd last one."""
    if x.dtype != torch.int64:
        return x.to(torch.float64)
    kept = x >> 11
    sticky = ((x & 2047) != 0).to(torch.int64)
    large = (kept | sticky).to(torch.float64) * 2048.0
    small = (x >= -_EXACT_INTEGER) & (x <= _EXACT_INTEGER)
    return torch.where(small, x.to(torch.float64), large)


def _round_to_odd(x: torch.Tensor) -> torch.Tensor:
    """float64 to float32, rounded to odd: exact values stay, others take that neighbour whose last bit is odd."""
    nearest = x.to(torch.float32)
    back = nearest.to(torch.float64)
    inexact = (back != x) & ~x.isnan()
    bits = nearest.view(torch.int32)
    # One step down in the pattern is one step toward zero for either sign; from an infinity, the largest finite value.
    toward_zero = bits - (back.abs() > x.abs()).to(torch.int32)
    return torch.where(inexact, toward_zero | 1, bits).view(torch.float32)
