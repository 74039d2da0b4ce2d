# SPDX-License-Identifier: Apache-2.0
"""The host's half of reductions: which groups of tiles share a destination, and the memory that this takes."""

from __future__ import annotations

from typing import Any

from epifuse.fusion.plan import EpiloguePlan, PlanReduce
from epifuse.records import NamedTuple
from epifuse_cutedsl.fuse.facts import KernelFacts

WARP = 32
COUNTER_BYTES = 4
PARTIAL_BYTES = 8
"""Every partial takes eight bytes, whatever its dtype: few of them are ever written."""


class Shape(NamedTuple):
    """How one reduction is laid out: which of rows and columns its result keeps, and whether batches are folded."""

    keeps_m: bool
    keeps_n: bool
    folds_batches: bool
    halved: bool = False

    @classmethod
    def of(cls, reduce: PlanReduce, folds_batches: bool) -> Shape:
        """From the axes that the plan folds."""
        return cls(not reduce.axes[1], not reduce.axes[2], reduce.axes[0] and folds_batches, reduce.halved)

    def groups(self, tiles_m: Any, tiles_n: Any, batches: Any) -> Any:
        """Destination groups, each with a counter."""
        tiles = tiles_m if self.keeps_m else tiles_n if self.keeps_n else 1
        return tiles if self.folds_batches else tiles * batches

    def partials(self, tiles_m: Any, tiles_n: Any, batches: Any) -> Any:
        """Partial results of one group."""
        tiles = tiles_n if self.keeps_m else tiles_m if self.keeps_n else tiles_m * tiles_n
        return tiles * batches if self.folds_batches else tiles

    def width(self, tile_m: int, tile_n: int) -> int:
        """Numbers in one partial result; a gated value has half the columns."""
        if self.halved:
            tile_n //= 2
        return tile_m if self.keeps_m else tile_n if self.keeps_n else 1


def workspace_bytes(
    plan: EpiloguePlan, folds_batches: bool, tile: tuple[int, int], tiles: tuple[int, int], batches: int
) -> tuple[int, int]:
    """Bytes of the workspace, and how many of the first ones must be zero (counters)."""
    counters = total = 0
    for reduce in plan.reduces:
        shape = Shape.of(reduce, folds_batches)
        groups = shape.groups(*tiles, batches)
        counters += groups * COUNTER_BYTES
        total += groups * shape.partials(*tiles, batches) * shape.width(*tile) * PARTIAL_BYTES
    counters = -(-counters // 16) * 16
    return counters + total, counters


def scratch_bytes(plan: EpiloguePlan, axis: str, facts: KernelFacts) -> int:
    """Shared memory that ``Reduction.flush`` and ``finish`` need, in bytes."""
    if not plan.reduces:
        return 0
    line = facts.tile_n if axis == "n" else facts.tile_m
    return max((facts.threads // WARP) * line, facts.threads) * PARTIAL_BYTES


def step_scratch_bytes(plan: EpiloguePlan, axis: str, facts: KernelFacts) -> int:
    """Shared memory that visits write to where steps go along the axis: a line a warp for each result along it."""
    kept = 2 if axis == "n" else 1
    results = sum(not reduce.axes[kept] for reduce in plan.reduces) if facts.steps_along else 0
    line = facts.tile_n if axis == "n" else facts.tile_m
    return results * (facts.threads // WARP) * line * PARTIAL_BYTES


def refusal(plan: EpiloguePlan, folds_batches: bool) -> str | None:
    """Why a plan's reductions cannot be done by this engine; None where they can."""
    for reduce in plan.reduces:
        if not (reduce.axes[1] or reduce.axes[2]):
            return "a reduction over the batch that keeps both rows and columns"
    return None
