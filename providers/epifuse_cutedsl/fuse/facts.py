# SPDX-License-Identifier: Apache-2.0
"""What the host knows of a kernel before an epilogue is traced into it."""

from __future__ import annotations

from typing import Any

from epifuse.fusion.plan import EpiloguePlan, PlanLoad
from epifuse.records import NamedTuple

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
    shared memory once for so many columns, which may be those of several tiles beside one another, as numbers of the
    compute dtype; 0: they are not. ``beside_wgmma``: another warpgroup's products run beside the epilogue.
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
    beside_wgmma: bool = False


def is_kept_row(load: PlanLoad) -> bool:
    """Whether a load is of a row vector whose numbers are kept in shared memory, by a kernel that keeps any.

    Not where the user says how they are to be loaded.
    """
    row = load.operand >= 0 and load.broadcast.n and not load.broadcast.m
    return row and load.route is None and load.compute_dtype.bytes <= NUMBER_BYTES


def kept_rows(plan: EpiloguePlan) -> int:
    """Row vectors that are kept, by a kernel that keeps any."""
    return sum(is_kept_row(load) for load in plan.loads)


def kept_row_bytes(columns: int, threads: int) -> int:
    """Shared memory of one row vector: its columns, and some more so that each thread has as many."""
    return -(-columns // threads) * threads * NUMBER_BYTES
