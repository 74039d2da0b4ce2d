# SPDX-License-Identifier: Apache-2.0
"""Medians' intervals against the binomial distribution, and paired ratios."""

import random

import pytest

from epifuse.bench.statistics import interval, ratio


@pytest.mark.parametrize(
    # Ranks from a table of order-statistic intervals of the median at 95 %.
    ("count", "low", "high"),
    [(6, 1, 6), (7, 1, 7), (9, 2, 8), (10, 2, 9), (20, 6, 15), (25, 8, 18), (60, 22, 39), (100, 40, 61)],
)
def test_ranks(count, low, high):
    found = interval(range(1, count + 1))
    assert (found.low, found.high) == (low, high)
    assert found.median == (count + 1) / 2


@pytest.mark.parametrize("count", [1, 2, 5])
def test_few_values_give_their_range(count):
    found = interval(range(count))
    assert (found.low, found.high) == (0, count - 1)


def test_it_covers_the_true_median_in_about_95_percent():
    order = random.Random(5)
    hits = 0
    for _ in range(2000):
        found = interval([order.expovariate(1.0) for _ in range(60)])
        hits += found.low <= 0.6931471805599453 <= found.high
    assert 0.94 <= hits / 2000 <= 0.98


def test_ratios_are_paired_round_by_round():
    # Both slow down together in every second round: the ratio does not move.
    ours = [10.0, 20.0] * 10
    theirs = [15.0, 30.0] * 10
    found = ratio(ours, theirs)
    assert (found.low, found.median, found.high) == (1.5, 1.5, 1.5)


def test_rounds_must_match():
    with pytest.raises(ValueError, match="shorter|longer"):
        ratio([1.0], [1.0, 2.0])
