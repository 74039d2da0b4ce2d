# SPDX-License-Identifier: Apache-2.0
"""Reductions of an epilogue: folded in registers, finished by the last CTA, in one launch and always in one order.

Every CTA writes its partial results to a workspace, then counts itself at a counter of its group (the tiles that share
a destination). The CTA that counts last reads all partials of the group in the order of their tiles and writes the
destination. So results do not depend on which CTA ran when. Counters must be zero at the start of a launch.

A result runs along the fragment's axis, across it, or is one number. What a step completes (a line's fold where steps
go across the axis; a place's fold where they go along it) leaves the registers at that step; all else stays in
registers until ``flush``. Positions outside the problem count as the fold's identity.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import cutlass
from cutlass import Boolean, Int32, Int64

from epifuse.dtypes import DType
from epifuse.fusion.plan import PlanReduce
from epifuse_cutedsl.fuse import folds
from epifuse_cutedsl.fuse.control import fold_range, when
from epifuse_cutedsl.fuse.convert import SCALARS, pack
from epifuse_cutedsl.fuse.facts import KernelFacts
from epifuse_cutedsl.fuse.fragment import Extents, Fragment, TileCoordinates
from epifuse_cutedsl.fuse.load import Reach, inside
from epifuse_cutedsl.fuse.store import store_elements
from epifuse_cutedsl.fuse.values import Frame, Lanes, Spread
from epifuse_cutedsl.fuse.workspace import COUNTER_BYTES, PARTIAL_BYTES, WARP, Shape
from epifuse_cutedsl.kernels.ptx import gmem, shared
from epifuse_cutedsl.kernels.ptx.asm import emit


class Reduction:
    """One reduction while a kernel is traced. Its registers are part of the epilogue's state."""

    def __init__(
        self,
        reduce: PlanReduce,
        shape: Shape,
        reach: Reach,
        axis: str,
        facts: KernelFacts,
        extents: Extents,
        tile: TileCoordinates,
    ) -> None:
        self.reduce = reduce
        self.dtype = reduce.accumulate_dtype
        self.shape = shape
        self.reach = reach
        self.inputs = extents
        if shape.halved:  # from here on in columns of the gated value
            facts = facts._replace(tile_n=facts.tile_n // 2, run=facts.run // 2)
            extents, tile = replace(extents, n=extents.n // 2), replace(tile, n0=tile.n0 // 2)
        self.facts = facts
        self.extents = extents
        self.tile = tile
        self.along = shape.keeps_n if axis == "n" else shape.keeps_m
        self.across = shape.keeps_m if axis == "n" else shape.keeps_n
        self.line = facts.tile_n if axis == "n" else facts.tile_m
        self.width = facts.tile_m if shape.keeps_m else facts.tile_n if shape.keeps_n else 1
        self.partials: Any = None
        self.counters: Any = None
        self.tiles: tuple[Any, Any] = (None, None)
        self._first: Fragment | None = None
        self._scratch: Any = None

    def place(self, counters: Any, partials: Any, tiles: tuple[Any, Any]) -> tuple[Any, Any]:
        """Where counters and partials lie (Int64 addresses), and the grid; the addresses behind them."""
        self.counters, self.partials, self.tiles = counters, partials, tiles
        batches = self.extents.batches
        groups = Int64(self.shape.groups(*tiles, batches))
        each = Int64(self.shape.partials(*tiles, batches)) * self.width
        return counters + groups * COUNTER_BYTES, partials + groups * each * PARTIAL_BYTES

    @property
    def immediate(self) -> bool:
        """Whether every step completes a part of the result."""
        return self.along if self.facts.steps_along else self.across

    @property
    def registers(self) -> int:
        """How many scalars of the state are this reduction's."""
        if self.immediate:
            return 0
        if self.across:
            return self.facts.lines
        return self.facts.positions * self.facts.run if self.along else 1

    @property
    def step_scratch_bytes(self) -> int:
        """Shared memory that its steps write to, if it is ``immediate`` along the axis."""
        return (self.facts.threads // WARP) * self.line * PARTIAL_BYTES

    # Folding.

    def begin(self, fragment: Fragment, scratch: Any = None) -> list[Any]:
        """The registers before the first step. ``scratch``: shared memory that steps along the axis write to."""
        self._first, self._scratch = fragment, scratch
        return [folds.identity(self.reduce) for _ in range(self.registers)]

    def fold(self, lanes: Lanes, compute: DType, frame: Frame, state: Sequence[Any]) -> list[Any]:
        """The registers after a step; what the step completes is written at once."""
        fragment = frame.fragment
        whole = Spread(True, True, self.shape.halved)
        found: dict[tuple[int, int], Any] = {}
        for index, run in enumerate(fragment.runs):
            for place in range(self.facts.run):
                value = folds.widen(lanes.at(index, place), compute, self.dtype)
                valid = inside(fragment, self.inputs, index, place, whole)
                value = SCALARS[self.dtype.name](cutlass.select_(valid, value, folds.identity(self.reduce)))
                key = (run.position, place) if self.along else (run.line, 0) if self.across else (0, 0)
                found[key] = folds.combine(self.reduce, found[key], value) if key in found else value
        if not self.immediate:
            return [folds.combine(self.reduce, held, new) for held, new in zip(state, found.values(), strict=True)]
        for key, value in found.items():
            if self.across:
                self._write_line(fragment, key[0], value)
            else:
                self._scatter_place(fragment, *key, value)
        return []

    def _write_line(self, fragment: Fragment, line: int, value: Any) -> None:
        """A line's fold over the lanes that share it, as part of the CTA's partial result."""
        run = next(run for run in fragment.runs if run.line == line)
        value = folds.across_lanes(self.reduce, value, 1, self.facts.lanes)
        coordinate = fragment.across(run)
        n_axis = fragment.axis == "n"
        origin, extent = (self.tile.m0, self.extents.m) if n_axis else (self.tile.n0, self.extents.n)
        leads = (self.tile.lane % self.facts.lanes == 0) & (coordinate < extent)
        self._write_partial(coordinate - origin, value, leads)

    def _scatter_place(self, fragment: Fragment, position: int, place: int, value: Any) -> None:
        """A place's fold over the lanes of a warp that have it, into the warp's line of shared memory."""
        run = next(run for run in fragment.runs if run.position == position)
        value = folds.across_lanes(self.reduce, value, self.facts.lanes, WARP)
        origin = self.tile.n0 if fragment.axis == "n" else self.tile.m0
        row = self._scratch + self.tile.warp * (self.line * PARTIAL_BYTES)
        along = fragment.along(run) // 2 if self.shape.halved else fragment.along(run)
        self._put(row + (along - origin + place) * PARTIAL_BYTES, value, self._leads())

    # Bringing the threads of a CTA together.

    def flush(self, state: Sequence[Any], scratch: Any) -> None:
        """Write the CTA's partial result. All threads call it; ``scratch`` has ``scratch_bytes`` of shared memory."""
        warps = self.facts.threads // WARP
        if self.across:
            if not self.immediate:
                assert self._first is not None
                for line, value in zip(self._first.lines, state, strict=True):
                    self._write_line(self._first, line, value)
        elif self.immediate:
            self.barrier()
            self._gather(self._scratch, self.line, warps)
        elif self.along:
            values = [folds.across_lanes(self.reduce, value, self.facts.lanes, WARP) for value in state]
            self.barrier()
            row = scratch + self.tile.warp * (self.line * PARTIAL_BYTES)
            length, lanes = self.facts.run, self.facts.lanes
            first = row + (self.tile.lane % lanes) * (length * PARTIAL_BYTES)
            leads = self._leads()
            for slot, value in enumerate(values):
                position, place = divmod(slot, length)
                self._put(first + (position * lanes * length + place) * PARTIAL_BYTES, value, leads)
            self.barrier()
            self._gather(scratch, self.line, warps)
        else:
            value = folds.across_lanes(self.reduce, state[0], 1, WARP)
            self.barrier()
            self._put(scratch + self.tile.warp * PARTIAL_BYTES, value, self.tile.lane == 0)
            self.barrier()
            self._gather(scratch, 1, warps)

    def barrier(self) -> None:
        """All threads of the epilogue meet."""
        meet(self.facts)

    def _gather(self, scratch: Any, width: int, rows: int) -> None:
        """The fold over rows of shared memory, in their order, written as the CTA's partial result."""
        for first in range(0, width, self.facts.threads):
            place = self.tile.thread + first
            mine = self.destination_place(place)[2] & (place < width)
            self._write_partial(place, self._fold_rows(scratch, width, rows, place, mine), mine)

    def _fold_rows(self, scratch: Any, width: int, rows: int, place: Any, mine: Any) -> Any:
        address = scratch + Int32(cutlass.select_(mine, place, Int32(0))) * PARTIAL_BYTES
        value = self._get(address)
        for row in range(1, rows):
            value = folds.combine(self.reduce, value, self._get(address + row * width * PARTIAL_BYTES))
        return value

    def _leads(self) -> Any:
        """Whether the lane is the first that has its places; None where every lane is (a predicate that the compiler
        can fold is none that inline PTX can take)."""
        return self.tile.lane < self.facts.lanes if self.facts.lanes < WARP else None

    def _put(self, address: Any, value: Any, predicate: Any) -> None:
        shared.st_shared(address, [folds.to_bits(value, self.dtype)], kind="b64", predicate=predicate)

    def _get(self, address: Any) -> Any:
        return folds.from_bits(shared.ld_shared(address, kind="b64")[0], self.dtype)

    # Bringing the CTAs together.

    def group(self) -> tuple[Any, Any]:
        """The tile's destination group, and the number of its partial in it."""
        tile_row, tile_column = self.tile.m0 // self.facts.tile_m, self.tile.n0 // self.facts.tile_n
        tiles_m, tiles_n = self.tiles
        batch = self.tile.batch
        if self.shape.keeps_m:
            group, partial, groups, partials = tile_row, tile_column, tiles_m, tiles_n
        elif self.shape.keeps_n:
            group, partial, groups, partials = tile_column, tile_row, tiles_n, tiles_m
        else:
            group, partial = Int32(0), tile_row * tiles_n + tile_column
            groups, partials = Int32(1), tiles_m * tiles_n
        if self.shape.folds_batches:
            return group, batch * partials + partial
        return batch * groups + group, partial

    def _partial_address(self, group: Any, partial: Any, place: Any) -> Any:
        count = self.shape.partials(*self.tiles, self.extents.batches)
        index = (Int64(group) * Int64(count) + Int64(partial)) * self.width + Int64(place)
        return self.partials + index * PARTIAL_BYTES

    def _write_partial(self, place: Any, value: Any, predicate: Any) -> None:
        address = self._partial_address(*self.group(), place)
        gmem.st_global_bits(address, folds.to_bits(value, self.dtype), 8, predicate)

    def finish(self, scratch: Any) -> None:
        """Count the CTA; in the one that is last of its group, fold all partials and write the destination.

        All threads call it, after ``flush``; ``scratch`` as there.
        """
        when(self._is_last(scratch), lambda: self._fold_partials(scratch))

    def _is_last(self, flag: Any) -> Any:
        """Count the CTA's partial, and learn in all threads (through a shared word) whether it was the group's last."""
        group, _ = self.group()
        self.barrier()
        leads = self.tile.thread == 0
        total = self.shape.partials(*self.tiles, self.extents.batches)
        before = _count(self.counters + Int64(group) * COUNTER_BYTES, total - 1, leads)
        shared.st_shared(flag, [before], predicate=leads)
        self.barrier()
        seen = shared.ld_shared(flag)[0]
        self.barrier()
        return Boolean(seen == total - 1)

    def _fold_partials(self, scratch: Any) -> None:
        """The threads share the partials of a place, by turns; the shares then meet in shared memory, in order."""
        threads, width = self.facts.threads, self.width
        group, _ = self.group()
        total = self.shape.partials(*self.tiles, self.extents.batches)
        if width >= threads:
            for first in range(0, width, threads):
                place = self.tile.thread + first
                mine = self.destination_place(place)[2] & (place < width)
                self._write(place, self._fold_share(group, place, Int32(0), total, 1, mine), mine)
            return
        shares = threads // width
        place, share = self.tile.thread % width, self.tile.thread // width
        mine = self.destination_place(place)[2] & (share < shares)
        value = self._fold_share(group, place, share, total, shares, mine)
        rows = shares
        if width < WARP:  # a power of two: lanes of one place differ in the bits above it
            value = folds.across_lanes(self.reduce, value, width, WARP)
            share, rows = self.tile.warp, threads // WARP
            mine = self.tile.lane < width
        self._put(scratch + (share * width + place) * PARTIAL_BYTES, value, mine & (share < rows))
        self.barrier()
        mine = self.destination_place(self.tile.thread)[2] & (self.tile.thread < width)
        self._write(self.tile.thread, self._fold_rows(scratch, width, rows, self.tile.thread, mine), mine)

    def _fold_share(self, group: Any, place: Any, first: Any, total: Any, step: int, mine: Any) -> Any:
        def add(partial: Any, value: Any) -> Any:
            return folds.combine(self.reduce, value, self._read_partial(group, partial, place, mine))

        end = Int32(cutlass.select_(mine, total, Int32(0)))
        return fold_range(first, end, Int32(step), add, folds.identity(self.reduce))

    def _read_partial(self, group: Any, partial: Any, place: Any, predicate: Any) -> Any:
        """A partial that some CTA wrote, as it is in the second level of the cache."""
        address = self._partial_address(group, partial, place)
        body = "{\n.reg .b64 t;\nmov.b64 t, 0;\n@{$r1} ld.global.cg.b64 t, [{$r0}];\nmov.b64 {$w0}, t;\n}"
        return folds.from_bits(emit(body, [Int64], [address, predicate])[0], self.dtype)

    def destination_place(self, place: Any) -> tuple[Any, Any, Any]:
        """(m, n) of number ``place`` of the group's result, and whether it lies in the problem."""
        if self.shape.keeps_m:
            m = self.tile.m0 + place
            return m, Int32(0), m < self.extents.m
        if self.shape.keeps_n:
            n = self.tile.n0 + place
            return Int32(0), n, n < self.extents.n
        return Int32(0), Int32(0), place == 0

    def _write(self, place: Any, value: Any, predicate: Any) -> None:
        """Round a finished value once and write it."""
        value, dtype = folds.finished(self.reduce, value, self._folded_count())
        m, n, _ = self.destination_place(place)
        words = pack([value], self.reduce.dtype, dtype)
        store_elements(self.reach.at(m, n), 0, self.reduce.dtype.bytes, 1, words, predicate)

    def _folded_count(self) -> Any:
        """How many values a destination element stands for, as a Float64."""
        l, m, n = self.reduce.axes
        count = Int64(1)
        for folded, extent in ((l, self.extents.batches), (m, self.extents.m), (n, self.extents.n)):
            if folded:
                count = count * Int64(extent)
        return emit("cvt.rn.f64.s64 {$w0}, {$r0};", [cutlass.Float64], [count])[0]


def _count(address: Any, last: Any, predicate: Any) -> Any:
    """The counter before this CTA added one to it, after making its writes visible to the GPU and before seeing
    everyone's. From ``last`` the counter goes back to zero, as the next launch wants it."""
    body = "{\n.reg .b32 t;\nmov.b32 t, 0;\n"
    body += "@{$r1} atom.acq_rel.gpu.global.inc.u32 t, [{$r0}], {$r2};\nmov.b32 {$w0}, t;\n}"
    emit("fence.acq_rel.gpu;")
    found = emit(body, [Int32], [address, predicate, last])[0]
    emit("fence.acq_rel.gpu;")
    return found


def meet(facts: KernelFacts) -> None:
    """All threads of the epilogue meet at its named barrier."""
    if isinstance(facts.barrier, int):
        emit(f"bar.sync {facts.barrier}, {facts.threads};")
    else:
        emit(f"bar.sync {{$r0}}, {facts.threads};", (), [facts.barrier])
