# SPDX-License-Identifier: Apache-2.0
"""The grouped order: the worked example, the definition by loops, and what a wrong one is told."""

import itertools

import pytest

from epifuse.check import mapping
from epifuse.check.verdict import Kind
from epifuse.tile_order import order, tile_of


def test_the_worked_example():
    assert tuple(order(3, 2, 2)) == mapping.WORKED == ((0, 0), (1, 0), (0, 1), (1, 1), (2, 0), (2, 1))


@pytest.mark.parametrize("group", [1, 2, 3, 4, 5, 8, 100])
def test_arithmetic_is_the_definition_and_every_tile_comes_once(group):
    for tiles_m, tiles_n in itertools.product(range(1, 12), range(1, 7)):
        found = order(tiles_m, tiles_n, group)
        assert found == mapping.defined(tiles_m, tiles_n, group)
        assert sorted(found) == sorted(itertools.product(range(tiles_m), range(tiles_n)))


def test_group_one_is_row_major():
    assert order(4, 3, 1) == list(itertools.product(range(4), range(3)))


def test_the_derivation_ends_in_the_worked_example():
    rows = list(mapping.derivation())
    assert [row[-1] for row in rows] == [f"({m},{n})" for m, n in mapping.WORKED]
    assert rows[4][3] == "min(2, 3 - 2) = 1"
    # Each line's own arithmetic gives its tile.
    assert [eval(row[5]) for row in rows] == list(mapping.WORKED)


def test_ours_passes():
    assert mapping.check() == []


def without_the_last_groups_min(pid, tiles_m, tiles_n, group):
    inner = pid % (group * tiles_n)
    return pid // (group * tiles_n) * group + inner % group, inner // group


@pytest.mark.parametrize(
    ("function", "kind", "hint"),
    [
        (lambda pid, m, n, g: (pid // n, pid % n), Kind.MAPPING, "M runs fastest"),
        (lambda pid, m, n, g: (pid % m, pid // m), Kind.MAPPING, "M runs fastest"),
        (without_the_last_groups_min, Kind.MAPPING, "min(group, tiles_m - first)"),
        (lambda pid, m, n, g: 1 // 0, Kind.RAISED, "ZeroDivisionError"),
        (lambda pid, m, n, g: None, Kind.RAISED, "TypeError"),
    ],
)
def test_a_wrong_one_is_found_with_a_hint(function, kind, hint):
    (finding,) = mapping.check(function, "mine")
    assert finding.kind is kind
    assert hint in finding.hint
    assert finding.subject == "mine"


def test_the_kernels_use_this_very_function():
    from epifuse_cutedsl.tile import scheduler  # noqa: PLC0415

    assert scheduler.tile_of is tile_of
