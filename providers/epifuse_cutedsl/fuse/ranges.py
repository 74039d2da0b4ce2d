# SPDX-License-Identifier: Apache-2.0
"""Bounds of a plan's float32 slots, where they are no NaN: enough to see which sums, powers and roots are positive."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TypeAlias

from epifuse.dtypes import FLOAT32
from epifuse.fusion.plan import EpiloguePlan, PlanCompute

Range: TypeAlias = tuple[float, float]
"""The smallest and the largest value, up to roundings."""

ANY: Range = (-math.inf, math.inf)


def ranges_of(plan: EpiloguePlan) -> dict[int, Range]:
    """The range of every slot of which something is known."""
    found = {c.slot: (float(c.literal.value), float(c.literal.value)) for c in plan.constants}
    for step in plan.computes:
        rule = _RULES.get(step.primitive)
        if rule is not None and step.operand_dtype is FLOAT32:
            low, high = rule(step, *(found.get(operand, ANY) for operand in step.operands))
            if low <= high and (low, high) != ANY:  # an invalid operation, inf - inf, says nothing
                found[step.slot] = low, high
    return found


def _power(base: float) -> Callable[..., Range]:
    def range_of_power(step: PlanCompute, x: Range) -> Range:
        low, high = (math.inf if v * math.log2(base) > 1000.0 else base**v if v > -1000.0 else 0.0 for v in x)
        return low, high

    return range_of_power


def _product(step: PlanCompute, a: Range, b: Range) -> Range:
    if step.operands[0] == step.operands[1]:
        return 0.0, max(a[0] * a[0], a[1] * a[1])
    ends = [x * y if x and y else 0.0 for x in a for y in b]  # 0 times what has no bound is 0
    return min(ends), max(ends)


def _inverse(step: PlanCompute, x: Range) -> Range:
    return (1.0 / x[1], 1.0 / x[0]) if x[0] > 0.0 else ANY


_RULES: dict[str, Callable[..., Range]] = {
    "exp": _power(math.e),
    "exp2": _power(2.0),
    "mul": _product,
    "reciprocal": _inverse,
    "add": lambda step, a, b: (a[0] + b[0], a[1] + b[1]),
    "neg": lambda step, x: (-x[1], -x[0]),
    "abs": lambda step, x: (max(x[0], -x[1], 0.0), max(-x[0], x[1])),
    "minimum": lambda step, a, b: (min(a[0], b[0]), min(a[1], b[1])),
    "maximum": lambda step, a, b: (max(a[0], b[0]), max(a[1], b[1])),
    "sqrt": lambda step, x: (math.sqrt(max(x[0], 0.0)), math.sqrt(max(x[1], 0.0))),
    "tanh": lambda step, x: (-1.0, 1.0),
    "ndtr": lambda step, x: (0.0, 1.0),
}
"""Primitives that have a rule, from the step and its operands' ranges."""
