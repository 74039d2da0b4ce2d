# SPDX-License-Identifier: Apache-2.0
"""Medians and what they are worth: order-statistic intervals, and ratios paired round by round."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Interval:
    """A median with the interval that holds the true one with 95 % confidence."""

    median: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.median:.4g} [{self.low:.4g}, {self.high:.4g}]"


def interval(values: Sequence[float]) -> Interval:
    """The median's 95 % interval from order statistics: no distribution is assumed.

    With fewer than six values there is none that narrow, and the interval is the whole range.
    """
    ordered = sorted(values)
    count = len(ordered)
    # The largest k with P(Binomial(n, 1/2) < k) <= 2.5 %: the k-th value from either end bounds the median.
    tail, k = 0.0, 0
    for successes in range(count):
        tail += math.comb(count, successes) / 2.0**count
        if tail > 0.025:
            break
        k = successes + 1
    low = max(k - 1, 0)
    return Interval(statistics.median(ordered), ordered[low], ordered[count - 1 - low])


def ratio(ours: Sequence[float], theirs: Sequence[float]) -> Interval:
    """How many times as fast we are: their time over ours in the same round, and its median's interval."""
    return interval([b / a for a, b in zip(ours, theirs, strict=True)])
