# SPDX-License-Identifier: Apache-2.0
"""What the host knows of a kernel before an epilogue is traced into it."""

from __future__ import annotations

from typing import Any, NamedTuple

from epifuse.fusion.plan import EpiloguePlan, PlanLoad

NUMBER_BYTES = 4
"""What a number of a row vector takes in shared memory."""


class KernelFacts(NamedTuple):
    """What the host knows of the kernel around an epilogue.

    Tile extents, threads of the epilogue (whole warps), compute capability; length of a run, runs of a thread along
    the axis (``positions``, ``lanes * run`` apart), and neighbouring lanes that share a line (``lanes``, a power of
    two). Steps go across the axis: a thread keeps its positions. Where they go along it (``steps_along``), a thread
    keeps its ``lines``, those of one fragment, and sees other positions at every step. A warp covers whole lines.
    ``barrier`` is the number of the named barrier at which the epilogue's threads meet; a kernel whose warpgroups run
    epilogues of their own puts a device integer there while it is traced. ``kept_columns``: row vectors are brought to
    shared memory once for so many columns, which may be those of several tiles beside one another (``kept_bytes``), as
    numbers of the compute dtype; 0: they are not.
    """

    tile_m: int
    tile_n: int
    threads: int
    capability: int
    run: int
    positions: int
    lanes: int
    steps_along: bool = False
    lines: int = 1
    barrier: Any = 0
    kept_columns: int = 0


def is_kept(load: PlanLoad, facts: KernelFacts) -> bool:
    """Whether the numbers of a load that reaches memory are kept in shared memory for a tile.

    Not where the user says how they are to be loaded.
    """
    row = load.broadcast.n and not load.broadcast.m
    return facts.kept_columns > 0 and row and load.route is None and load.compute_dtype.bytes <= NUMBER_BYTES


def kept_numbers(facts: KernelFacts) -> int:
    """Numbers of one row vector that are kept: the columns, and some more so that each thread has as many."""
    return -(-facts.kept_columns // facts.threads) * facts.threads


def kept_rows(plan: EpiloguePlan, facts: KernelFacts) -> int:
    """Row vectors that are kept."""
    return sum(load.operand >= 0 and is_kept(load, facts) for load in plan.loads)


def kept_bytes(plan: EpiloguePlan, facts: KernelFacts) -> int:
    """Shared memory of all row vectors that are kept."""
    return kept_rows(plan, facts) * kept_numbers(facts) * NUMBER_BYTES
