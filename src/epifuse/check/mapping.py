# SPDX-License-Identifier: Apache-2.0
"""The grouped tile order, derived step by step for people, and checked against its definition."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from epifuse.check.verdict import Finding, Kind
from epifuse.tile_order import tile_of

WORKED = ((0, 0), (1, 0), (0, 1), (1, 1), (2, 0), (2, 1))
"""3 x 2 tiles with GROUP = 2."""


def defined(tiles_m: int, tiles_n: int, group: int) -> list[tuple[int, int]]:
    """The order by its definition, with loops and no arithmetic: groups of rows of tiles, M fastest in a group."""
    found = []
    for first in range(0, tiles_m, group):
        rows = range(first, min(first + group, tiles_m))
        found += [(m, n) for n in range(tiles_n) for m in rows]
    return found


def derivation(tiles_m: int = 3, tiles_n: int = 2, group: int = 2) -> Iterator[tuple[str, ...]]:
    """Rows of a table: pid, its group, first row of tiles, rows in the group, position in the group, tile."""
    for pid in range(tiles_m * tiles_n):
        number = pid // (group * tiles_n)
        first = number * group
        rows = min(group, tiles_m - first)
        inner = pid - number * group * tiles_n
        m, n = first + inner % rows, inner // rows
        yield (
            str(pid),
            f"{pid} // {group * tiles_n} = {number}",
            f"{number} * {group} = {first}",
            f"min({group}, {tiles_m} - {first}) = {rows}",
            f"{inner}",
            f"{first} + {inner} % {rows}, {inner} // {rows}",
            f"({m},{n})",
        )


def check(function: Callable[..., Any] = tile_of, subject: str = "tile_of") -> list[Finding]:
    """Compare ``function(pid, tiles_m, tiles_n, group)`` with the definition on all small grids; the first fault."""
    worked = [(3, 2, 2)]
    grids = [(m, n, g) for m in range(1, 10) for n in range(1, 6) for g in (1, 2, 3, 4, 8)]
    for tiles_m, tiles_n, group in worked + grids:
        case = f"{tiles_m} x {tiles_n} tiles, group {group}"
        found = []
        for pid, wanted in enumerate(defined(tiles_m, tiles_n, group)):
            try:
                got = tuple(int(x) for x in function(pid, tiles_m, tiles_n, group))
            except Exception as error:  # noqa: BLE001 - a learner's function may raise anything, and that is the verdict
                return [Finding(Kind.RAISED, subject, case, f"pid {pid}", hint=f"{type(error).__name__}: {error}")]
            found.append(got)
            if got != wanted:
                return [Finding(Kind.MAPPING, subject, case, f"pid {pid}", str(wanted), str(got), _hint(*wanted_group(
                    pid, tiles_m, tiles_n, group)))]  # fmt: skip
    return []


def wanted_group(pid: int, tiles_m: int, tiles_n: int, group: int) -> tuple[int, int]:
    """Rows of tiles in the group of ``pid``, and the group's full height."""
    first = pid // (group * tiles_n) * group
    return min(group, tiles_m - first), group


def _hint(rows: int, group: int) -> str:
    if rows < group:
        return f"the last group has only {rows} rows of tiles: divide by min(group, tiles_m - first), not by group"
    return "in a group M runs fastest: m = first + inner % rows, n = inner // rows"
