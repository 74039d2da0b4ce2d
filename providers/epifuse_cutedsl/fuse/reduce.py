# SPDX-License-Identifier: Apache-2.0
"""Reductions of an epilogue: folded in registers, finished by the last CTA, in one launch and always in one order.

Every CTA writes its partial results to a workspace, then counts itself at a counter of its group (the tiles that share
a destination). The CTA that counts last reads all partials of the group in the order of their tiles and writes the
destination. So results do not depend on which CTA ran when. Counters must be zero at the start of a launch.

A vector result either runs along the fragment's axis (folded across it: registers over all steps, then shared memory)
or across it (folded along it: shuffles at each step). Positions outside the problem count as the fold's identity.
"""

from __future__ import annotations

from typing import Any

import cutlass
from cutlass import Boolean, Float32, Float64, Int32, Int64, cute

from epifuse.dtypes import FLOAT32, FLOAT64, DType
from epifuse.fusion.plan import PlanReduce
from epifuse_cutedsl.fuse.convert import pack
from epifuse_cutedsl.fuse.fragment import Extents, Fragment, KernelFacts, TileCoordinates
from epifuse_cutedsl.fuse.load import Reach, inside
from epifuse_cutedsl.fuse.store import store_elements
from epifuse_cutedsl.fuse.values import Frame, Lanes, Spread
from epifuse_cutedsl.fuse.workspace import COUNTER_BYTES, PARTIAL_BYTES, WARP, Shape
from epifuse_cutedsl.kernels.ptx import gmem, shared
from epifuse_cutedsl.kernels.ptx.asm import emit

_SCALARS = {"float32": Float32, "float64": Float64, "int32": Int32, "int64": Int64}


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
        self.shape = shape
        self.reach = reach
        self.axis = axis
        self.facts = facts
        self.extents = extents
        self.tile = tile
        self.partials: Any = None
        self.counters: Any = None
        self.tiles: tuple[Any, Any] = (None, None)

    def place(self, counters: Any, partials: Any, tiles: tuple[Any, Any]) -> tuple[Any, Any]:
        """Where counters and partials lie (Int64 addresses), and the grid; the addresses behind them."""
        self.counters, self.partials, self.tiles = counters, partials, tiles
        batches = self.extents.batches
        groups = Int64(self.shape.groups(*tiles, batches))
        each = Int64(self.shape.partials(*tiles, batches) * self.shape.width(self.facts.tile_m, self.facts.tile_n))
        return counters + groups * COUNTER_BYTES, partials + groups * each * PARTIAL_BYTES

    @property
    def along(self) -> bool:
        """Whether the result runs along the axis."""
        return self.shape.keeps_n if self.axis == "n" else self.shape.keeps_m

    @property
    def across(self) -> bool:
        """Whether the result runs across the axis."""
        return self.shape.keeps_m if self.axis == "n" else self.shape.keeps_n

    # Folding.

    def combine(self, a: Any, b: Any) -> Any:
        """The fold of two scalars of the accumulating dtype."""
        name = self.reduce.accumulate_dtype.name
        if self.reduce.combine in ("sum", "mean"):
            return a + b
        return _extreme(self.reduce.combine, name, a, b)

    def identity(self) -> Any:
        """What leaves every value as it is."""
        return _identity(self.reduce.combine, self.reduce.accumulate_dtype)

    def begin(self, fragment: Fragment) -> list[Any]:
        """The registers before the first step."""
        if self.across:
            return []
        count = len(fragment.positions) * fragment.length if self.along else 1
        return [self.identity() for _ in range(count)]

    @property
    def registers(self) -> int:
        """How many scalars of the state are this reduction's."""
        if self.across:
            return 0
        return self.facts.positions * self.facts.run if self.along else 1

    def fold(self, lanes: Lanes, compute: DType, frame: Frame, state: list[Any]) -> list[Any]:
        """The registers after a step; a result across the axis is written to its partial at once."""
        fragment = frame.fragment
        whole = Spread(True, True)
        by_line: dict[int, Any] = {}
        for index, run in enumerate(fragment.runs):
            for place in range(fragment.length):
                value = _widen(lanes.at(index, place), compute, self.reduce.accumulate_dtype)
                valid = inside(fragment, self.extents, index, place, whole)
                value = cutlass.select_(valid, value, self.identity())
                if self.across:
                    held = by_line.get(run.line)
                    by_line[run.line] = value if held is None else self.combine(held, value)
                else:
                    slot = fragment.positions.index(run.position) * fragment.length + place if self.along else 0
                    state[slot] = self.combine(state[slot], value)
        for line, value in by_line.items():
            self._write_line(fragment, line, value)
        return state

    def _write_line(self, fragment: Fragment, line: int, value: Any) -> None:
        run = next(run for run in fragment.runs if run.line == line)
        for distance in _powers(1, self.facts.lanes):
            value = self.combine(value, _shuffle(value, distance))
        coordinate = fragment.across(run)
        origin = self.tile.m0 if self.axis == "n" else self.tile.n0
        extent = self.extents.m if self.axis == "n" else self.extents.n
        leads = (self.tile.lane % self.facts.lanes == 0) & (coordinate < extent)
        self._write_partial(coordinate - origin, value, leads)

    # Finishing.

    def flush(self, state: list[Any], scratch: Any) -> None:
        """Bring the registers of all threads together through shared memory and write the CTA's partial.

        All threads call it; ``scratch`` is a shared address of ``scratch_bytes``. Ends without a barrier.
        """
        if self.across:
            return
        warps = self.facts.threads // WARP
        line = (self.facts.tile_n if self.axis == "n" else self.facts.tile_m) if self.along else 1
        distances = _powers(self.facts.lanes, WARP) if self.along else _powers(1, WARP)
        values = []
        for value in state:
            for distance in distances:
                value = self.combine(value, _shuffle(value, distance))  # noqa: PLW2901 - a butterfly
            values.append(value)
        cute.arch.sync_threads()
        self._scatter(values, scratch, line)
        cute.arch.sync_threads()
        self._gather(scratch, line, warps)

    def _scatter(self, values: list[Any], scratch: Any, line: int) -> None:
        """Each warp's line of values into shared memory, by the lanes that lead."""
        lanes = self.facts.lanes if self.along else 1
        leads = self.tile.lane < lanes
        row = scratch + self.tile.warp * (line * PARTIAL_BYTES)
        if not self.along:
            _store_shared(row, values[0], leads)
            return
        length = self.facts.run
        stride = lanes * length
        for slot, value in enumerate(values):
            position, place = divmod(slot, length)
            offset = (self.tile.lane % lanes) * length + (position * stride + place)
            _store_shared(row + offset * PARTIAL_BYTES, value, leads)

    def _gather(self, scratch: Any, line: int, warps: int) -> None:
        """Sum over the warps, in their order, one number a thread at a time."""
        for first in range(0, line, self.facts.threads):
            place = self.tile.thread + first
            mine = place < line
            address = scratch + cutlass.select_(mine, place, Int32(0)) * PARTIAL_BYTES
            value = self._load_shared(address)
            for warp in range(1, warps):
                value = self.combine(value, self._load_shared(address + warp * line * PARTIAL_BYTES))
            self._write_partial(place, value, mine)

    def _load_shared(self, address: Any) -> Any:
        kind = self.reduce.accumulate_dtype.name
        bits = shared.ld_shared(address, kind="b64")[0]
        return _from_bits(bits, kind)

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
        width = self.shape.width(self.facts.tile_m, self.facts.tile_n)
        count = self.shape.partials(*self.tiles, self.extents.batches)
        index = (Int64(group) * Int64(count) + Int64(partial)) * width + Int64(place)
        return self.partials + index * PARTIAL_BYTES

    def _write_partial(self, place: Any, value: Any, predicate: Any) -> None:
        group, partial = self.group()
        bits = _to_bits(value, self.reduce.accumulate_dtype.name)
        gmem.st_global_bits(self._partial_address(group, partial, place), bits, 8, predicate)

    def count(self, flag: Any) -> Any:
        """Count the CTA's partial, and learn in all threads (through a shared word) whether it was the group's last."""
        group, _ = self.group()
        cute.arch.sync_threads()
        leads = self.tile.thread == 0
        total = self.shape.partials(*self.tiles, self.extents.batches)
        before = _count_release(self.counters + Int64(group) * COUNTER_BYTES, leads)
        shared.st_shared(flag, [before], predicate=leads)
        cute.arch.sync_threads()
        seen = shared.ld_shared(flag)[0]
        cute.arch.sync_threads()
        return Boolean(seen == total - 1)

    def destination_place(self, place: Any) -> tuple[Any, Any, Any]:
        """(m, n) of number ``place`` of the group's result, and whether it lies in the problem."""
        if self.shape.keeps_m:
            m = self.tile.m0 + place
            return m, Int32(0), m < self.extents.m
        if self.shape.keeps_n:
            n = self.tile.n0 + place
            return Int32(0), n, n < self.extents.n
        return Int32(0), Int32(0), place == 0

    def write(self, place: Any, value: Any, predicate: Any) -> None:
        """Round a finished value once and write it."""
        value, dtype = _finished(self.reduce, value, self._folded_count())
        m, n, valid = self.destination_place(place)
        words = pack([value], self.reduce.dtype, dtype)
        store_elements(self.reach.at(m, n), self.reduce.dtype.bytes, 1, words, predicate & valid)

    def _folded_count(self) -> Any:
        l, m, n = self.reduce.axes
        count = Float64(1.0)
        for folded, extent in ((l, self.extents.batches), (m, self.extents.m), (n, self.extents.n)):
            if folded:
                count = count * Float64(extent)
        return count

    def read_partial(self, group: Any, partial: Any, place: Any, predicate: Any) -> Any:
        """A partial that some CTA wrote, as it is in the second level of the cache."""
        address = self._partial_address(group, partial, place)
        body = "{\n.reg .b64 t;\nmov.b64 t, 0;\n@{$r1} ld.global.cg.b64 t, [{$r0}];\nmov.b64 {$w0}, t;\n}"
        bits = emit(body, [Int64], [address, predicate])[0]
        return _from_bits(bits, self.reduce.accumulate_dtype.name)


@cute.jit
def finish(reduction: cutlass.Constexpr, flag: Int32) -> None:
    """Count the CTA's partial; in the CTA that is last of its group, fold all partials and write the destination."""
    last = reduction.count(flag)
    if last:
        group, _ = reduction.group()
        total = reduction.shape.partials(*reduction.tiles, reduction.extents.batches)
        width = reduction.shape.width(reduction.facts.tile_m, reduction.facts.tile_n)
        for first in cutlass.range_constexpr(0, width, reduction.facts.threads):
            place = reduction.tile.thread + first
            mine = Boolean(place < width)
            value = reduction.identity()
            for partial in cutlass.range(total):
                value = reduction.combine(value, reduction.read_partial(group, partial, place, mine))
            reduction.write(place, value, mine)


def _count_release(address: Any, predicate: Any) -> Any:
    """Add one to a counter after making this CTA's writes visible to the GPU, and see everyone's before it."""
    body = "{\n.reg .b32 t;\nmov.b32 t, 0;\n@{$r1} atom.acq_rel.gpu.global.add.u32 t, [{$r0}], 1;\nmov.b32 {$w0}, t;\n}"
    emit("fence.acq_rel.gpu;")
    found = emit(body, [Int32], [address, predicate])[0]
    emit("fence.acq_rel.gpu;")
    return found


def _powers(first: int, limit: int) -> list[int]:
    found = []
    while first < limit:
        found.append(first)
        first *= 2
    return found


def _identity(combine: str, dtype: DType) -> Any:
    kind = _SCALARS[dtype.name]
    if combine in ("sum", "mean"):
        return kind(0)
    if dtype.is_float:
        return kind(float("-inf") if combine == "max" else float("inf"))
    return kind(int(dtype.lowest if combine == "max" else dtype.highest))


def _extreme(combine: str, dtype: str, a: Any, b: Any) -> Any:
    if dtype == "float32":
        return emit(f"{combine}.NaN.f32 {{$w0}}, {{$r0}}, {{$r1}};", [Float32], [a, b])[0]
    if dtype == "float64":
        body = (
            f"{{\n.reg .pred p;\n.reg .f64 t;\n{combine}.f64 t, {{$r0}}, {{$r1}};\n"
            "setp.nan.f64 p, {$r0}, {$r1};\n@p add.f64 t, {$r0}, {$r1};\nmov.b64 {$w0}, t;\n}"
        )
        return emit(body, [Float64], [a, b])[0]
    bits = "s32" if dtype == "int32" else "s64"
    return emit(f"{combine}.{bits} {{$w0}}, {{$r0}}, {{$r1}};", [_SCALARS[dtype]], [a, b])[0]


def _widen(value: Any, compute: DType, accumulate: DType) -> Any:
    if compute.name == accumulate.name:
        return value
    if compute.name == "bool":
        value = cutlass.select_(value, Int32(1), Int32(0))
    return _SCALARS[accumulate.name](value)


def _shuffle(value: Any, distance: int) -> Any:
    """The value of the lane whose number differs in one bit."""
    text = f"shfl.sync.bfly.b32 {{$w0}}, {{$r0}}, {distance}, 31, 0xffffffff;"
    if isinstance(value, Float32 | Int32):
        return emit(text, [type(value)], [value])[0]
    body = (
        "{\n.reg .b32 l, h;\nmov.b64 {l, h}, {$r0};\n"
        f"shfl.sync.bfly.b32 l, l, {distance}, 31, 0xffffffff;\nshfl.sync.bfly.b32 h, h, {distance}, 31, 0xffffffff;\n"
        "mov.b64 {$w0}, {l, h};\n}"
    )
    return emit(body, [type(value)], [value])[0]


def _to_bits(value: Any, dtype: str) -> Any:
    form = {"float32": "cvt.f64.f32", "float64": "mov.b64", "int32": "cvt.s64.s32", "int64": "mov.b64"}[dtype]
    return emit(f"{form} {{$w0}}, {{$r0}};", [Int64], [value])[0]


def _from_bits(bits: Any, dtype: str) -> Any:
    form = {"float32": "cvt.rn.f32.f64", "float64": "mov.b64", "int32": "cvt.u32.u64", "int64": "mov.b64"}[dtype]
    return emit(f"{form} {{$w0}}, {{$r0}};", [_SCALARS[dtype]], [bits])[0]


def _store_shared(address: Any, value: Any, predicate: Any) -> None:
    kind = {Float32: "float32", Float64: "float64", Int32: "int32", Int64: "int64"}[type(value)]
    shared.st_shared(address, [_to_bits(value, kind)], kind="b64", predicate=predicate)


def _finished(reduce: PlanReduce, value: Any, count: Any) -> tuple[Any, DType]:
    """The value that is stored, and its dtype: a mean is divided in float64, an integer fold stays an integer."""
    if reduce.combine == "mean":
        return Float64(value) / count, FLOAT64
    if reduce.accumulate_dtype.is_float:
        return value, FLOAT64 if reduce.accumulate_dtype is FLOAT64 else FLOAT32
    return Float64(value), FLOAT64
