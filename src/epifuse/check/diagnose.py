# SPDX-License-Identifier: Apache-2.0
"""What a wrong ``relu(A @ B + bias)`` looks like: known mistakes, computed, so that a finding can name its stage."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from epifuse import dtypes
from epifuse.check.subjects import BLOCK_K, BLOCK_N
from epifuse.check.verdict import Kind
from epifuse.runtime.rounding import round_to


@dataclass(frozen=True, eq=False)
class Mistake:
    """A result that a known mistake gives."""

    kind: Kind
    hint: str
    result: torch.Tensor


def mistakes(a: torch.Tensor, b: torch.Tensor, bias: torch.Tensor, dtype: torch.dtype) -> Iterator[Mistake]:
    """Results of known mistakes, the likeliest first."""
    row = dtypes.of(dtype)
    k = a.shape[1]
    a, b, bias = a.double(), b.double(), bias.double()
    accum = a @ b
    right = (accum + bias).relu()

    def rounded(x: torch.Tensor) -> torch.Tensor:
        return round_to(x, row)

    half = rounded(accum).double()
    yield Mistake(
        Kind.ROUNDING,
        f"the accumulator was rounded to {row.name} before the bias was added; keep it in float32 until the store",
        rounded((half + bias).relu()),
    )
    yield Mistake(
        Kind.ROUNDING,
        f"the bias was rounded to {row.name} before it was added; add it in float32",
        rounded((accum + rounded(bias).double()).relu()),
    )
    yield Mistake(
        Kind.ROUNDING,
        f"sum and bias were added in {row.name}; the epilogue's arithmetic is float32",
        rounded((half + rounded(bias).double()).relu()),
    )
    if k == 0:
        zeros = torch.zeros_like(accum)
        yield Mistake(
            Kind.VALUE, "with K = 0 the epilogue still runs, on zeros: relu(bias) in every row", rounded(zeros)
        )
    yield Mistake(Kind.VALUE, "bias and ReLU are missing", rounded(accum))
    yield Mistake(Kind.VALUE, "the bias is missing", rounded(accum.relu()))
    yield Mistake(Kind.VALUE, "the ReLU is missing", rounded(accum + bias))
    yield Mistake(Kind.VALUE, "the bias is added after the ReLU, not before", rounded(accum.relu() + bias))
    if accum.shape[0] == accum.shape[1]:
        yield Mistake(
            Kind.VALUE,
            "the bias runs along the rows; it belongs to the columns",
            rounded((accum + bias[:, None]).relu()),
        )
    if k % BLOCK_K:
        whole = k - k % BLOCK_K
        short = (a[:, :whole] @ b[:whole] + bias).relu()
        yield Mistake(
            Kind.VALUE, f"the last, incomplete step along K (K % {BLOCK_K} = {k % BLOCK_K}) is missing", rounded(short)
        )
    if bool(right.isnan().any()):
        yield Mistake(
            Kind.NAN,
            "a NaN became 0 in the ReLU: a comparison x > 0 ? x : 0 drops it; torch.relu and maximum keep it",
            rounded(torch.where(right.isnan(), 0.0, right)),
        )


def name(
    result: torch.Tensor, wrong: torch.Tensor, operands: tuple[torch.Tensor, ...], tile: tuple[int, int, int]
) -> tuple[Kind, str]:
    """The kind of a wrong result and a hint: the mistake that gives just this, else the tiles where it is wrong.

    Just this: but for one element in a hundred, as another order of summing may round a few otherwise.
    """
    a, b, bias = operands
    for mistake in mistakes(a, b, bias, result.dtype):
        same = (mistake.result == result) | (mistake.result.isnan() & result.isnan())
        if bool(same.double().mean() >= 0.99) and bool(same[wrong].double().mean() >= 0.9):
            return mistake.kind, mistake.hint
    return Kind.VALUE, tiles(wrong, tile)


def tiles(wrong: torch.Tensor, tile: tuple[int, int, int]) -> str:
    """Which tiles a mask touches, in words."""
    block_m, block_n = tile[0], tile[1] or BLOCK_N
    m, n = wrong.shape
    tiles_m, tiles_n = -(-m // block_m), -(-n // block_n)
    rows, columns = wrong.nonzero(as_tuple=True)
    touched = sorted(set(zip((rows // block_m).tolist(), (columns // block_n).tolist(), strict=True)))
    if len(touched) == tiles_m * tiles_n:
        return f"in all {len(touched)} tiles" if len(touched) > 1 else ""
    some = " ".join(f"({i},{j})" for i, j in touched[:6]) + (" ..." if len(touched) > 6 else "")
    text = f"in {len(touched)} of {tiles_m} x {tiles_n} tiles of {block_m} x {block_n}: {some}"
    if all(i == tiles_m - 1 for i, _ in touched) and m % block_m:
        text += f"; all in the last, incomplete row of tiles (M % {block_m} = {m % block_m})"
    elif all(j == tiles_n - 1 for _, j in touched) and n % block_n:
        text += f"; all in the last, incomplete column of tiles (N % {block_n} = {n % block_n})"
    return text
