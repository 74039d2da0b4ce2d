# SPDX-License-Identifier: Apache-2.0
"""The dtypes of A and B and the accumulator that the CPU provider multiplies, as a table."""

from __future__ import annotations

from collections.abc import Iterator

from epifuse import dtypes
from epifuse.dtypes import DType
from epifuse.records import dataclass


@dataclass(frozen=True, slots=True)
class Family:
    """A and B of any of ``operands`` in any mix, accumulated in any of ``accumulators``."""

    operands: tuple[DType, ...]
    accumulators: tuple[DType, ...]


FAMILIES: tuple[Family, ...] = (
    Family((dtypes.FLOAT16,), (dtypes.FLOAT32, dtypes.FLOAT16, dtypes.FLOAT64)),
    Family((dtypes.BFLOAT16,), (dtypes.FLOAT32, dtypes.FLOAT64)),
    Family((dtypes.FLOAT32,), (dtypes.FLOAT32, dtypes.FLOAT64)),
    Family((dtypes.FLOAT64,), (dtypes.FLOAT64, dtypes.FLOAT32)),
    Family((dtypes.FLOAT8_E4M3FN, dtypes.FLOAT8_E5M2), (dtypes.FLOAT32, dtypes.FLOAT16)),
    Family((dtypes.INT8, dtypes.UINT8), (dtypes.INT32,)),
)


def combinations() -> Iterator[tuple[DType, DType, DType]]:
    """Every (A, B, accumulator) of the table."""
    for family in FAMILIES:
        for a in family.operands:
            for b in family.operands:
                for accumulator in family.accumulators:
                    yield a, b, accumulator


def refusal(a: DType, b: DType, accumulator: DType) -> str | None:
    """Why the table has no such combination; None where it has."""
    accepted = set()
    for family in FAMILIES:
        if a in family.operands and b in family.operands:
            if accumulator in family.accumulators:
                return None
            accepted |= {d.name for d in family.accumulators}
    if accepted:
        return f"A {a.name} and B {b.name} do not accumulate in {accumulator.name}; accepted: {_listed(accepted)}"
    partners = {d.name for family in FAMILIES if a in family.operands for d in family.operands}
    if partners:
        return f"A {a.name} is not multiplied with B {b.name}; accepted with it: {_listed(partners)}"
    return f"A of {a.name} is not multiplied; accepted: {_listed({d.name for f in FAMILIES for d in f.operands})}"


def _listed(names: set[str]) -> str:
    return ", ".join(row.name for row in dtypes.TABLE if row.name in names)
