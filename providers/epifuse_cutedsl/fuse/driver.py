# SPDX-License-Identifier: Apache-2.0
"""``Epilogue``: the six hooks through which a kernel runs a plan.

A kernel builds one on the host, binds it to its parameters and tile on the device, and then calls, in this order:
``tile_begin`` once; for each step ``load_step`` and ``visit`` (which stores too: ``store_step`` is its last part);
``reduce_flush`` and ``tile_end`` once. The state between the hooks is a flat list of scalars, so that a kernel may
carry it round a loop. The plan's tuples are walked by ordinary Python loops while the DSL traces.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from cutlass import Boolean, Float32, Int32, Int64

from epifuse.dtypes import DType
from epifuse.fusion.plan import EpiloguePlan, PlanCompute
from epifuse_cutedsl.fuse import compute, convert, paired, reduce, shortcuts, workspace
from epifuse_cutedsl.fuse.boxes import Boxes
from epifuse_cutedsl.fuse.control import choose
from epifuse_cutedsl.fuse.facts import KernelFacts, is_kept_row, kept_row_bytes, kept_rows
from epifuse_cutedsl.fuse.fragment import Extents, Fragment, TileCoordinates
from epifuse_cutedsl.fuse.load import MemoryLoad, Reach
from epifuse_cutedsl.fuse.params import EpilogueTraits, Param, parameters
from epifuse_cutedsl.fuse.rows import KeptRow
from epifuse_cutedsl.fuse.staged import Staged
from epifuse_cutedsl.fuse.store import stage, store
from epifuse_cutedsl.fuse.values import Frame, Lanes, Spread


@dataclass(frozen=True)
class Epilogue:
    """A plan, how its tensors are reached, and the kernel around it. Hashable by its parts; made on the host."""

    plan: EpiloguePlan
    traits: EpilogueTraits
    facts: KernelFacts
    folds_batches: bool = False
    boxes: Boxes = Boxes()
    """The tensors that the kernel moves through shared memory itself; ``visit`` then takes where they lie."""

    @cached_property
    def parameters(self) -> tuple[Param, ...]:
        """The numbers that the kernel takes for the epilogue, after its own."""
        return parameters(self.plan, self.traits)

    @property
    def axis(self) -> str:
        """The direction in which runs lie: ``n`` or ``m``."""
        return self.traits.axis

    @property
    def run(self) -> int:
        """Registers of a run."""
        return self.facts.run

    @property
    def scratch_bytes(self) -> int:
        """Shared memory that ``reduce_flush`` and ``tile_end`` need."""
        return workspace.scratch_bytes(self.plan, self.traits.axis, self.facts)

    @property
    def step_scratch_bytes(self) -> int:
        """Shared memory that ``visit`` needs; none unless steps go along the axis."""
        return workspace.step_scratch_bytes(self.plan, self.traits.axis, self.facts)

    @property
    def kept_bytes(self) -> int:
        """Shared memory of the row vectors that are kept for a tile; begins on 16 bytes."""
        return kept_rows(self.plan) * kept_row_bytes(self.facts.kept_columns, self.facts.threads)

    @cached_property
    def ways(self) -> tuple[shortcuts.Way, ...]:
        """How each of the plan's computes is emitted."""
        return shortcuts.ways_of(self.plan, beside_wgmma=self.facts.beside_wgmma)

    def bind(
        self,
        params: Sequence[Any],
        tile: TileCoordinates,
        extents: Extents,
        step_scratch: Any = None,
        kept: Any = None,
        before: int = 0,
    ) -> BoundEpilogue:
        """The epilogue of one tile on the device; ``params`` in the order of ``parameters``.

        ``step_scratch`` is the shared address of ``step_scratch_bytes``, from ``tile_begin`` to ``reduce_flush``;
        ``kept`` that of ``kept_bytes``, for the whole tile, or for several, of which this one begins ``before`` columns
        behind the first one.
        """
        return BoundEpilogue(self, list(params), tile, extents, step_scratch, kept, before)


class BoundEpilogue:
    """An epilogue while it is traced for one tile."""

    def __init__(
        self,
        epilogue: Epilogue,
        params: list[Any],
        tile: TileCoordinates,
        extents: Extents,
        step_scratch: Any,
        kept: Any = None,
        before: int = 0,
    ) -> None:
        self.plan = epilogue.plan
        self.axis = epilogue.traits.axis
        self._ways = epilogue.ways
        self.facts = epilogue.facts
        self.extents = extents
        self.tile = tile
        self._arguments: dict[int, Any] = {}
        self._loads: list[MemoryLoad] = []
        self._kept: dict[int, KeptRow] = {}
        operands = [load for load in self.plan.loads if load.operand >= 0]
        self._boxes = epilogue.boxes
        for number, (load, tensor) in enumerate(zip(operands, epilogue.traits.loads, strict=True)):
            if tensor is None:
                self._arguments[load.slot] = _restored(params.pop(0), load.compute_dtype)
            else:
                reach = _reach(tensor, params, tile.batch)
                box = epilogue.boxes.loads[number] if epilogue.boxes.loads else None
                self._loads.append(MemoryLoad(load, number, reach, self.axis, self.facts.steps_along, box))
                if self.facts.kept_columns and is_kept_row(load):
                    address = kept + len(self._kept) * kept_row_bytes(self.facts.kept_columns, self.facts.threads)
                    self._kept[load.slot] = KeptRow(self._loads[-1], address, self.facts, tile, before)
        self._outputs = [_reach(tensor, params, tile.batch) for tensor in epilogue.traits.outputs]
        self._reductions = self._bind_reductions(epilogue, params)
        self._compute_dtypes = _compute_dtypes(self.plan)
        self._step_scratch = step_scratch
        self._scratch: Any = None

    def _bind_reductions(self, epilogue: Epilogue, params: list[Any]) -> list[reduce.Reduction]:
        if not self.plan.reduces:
            return []
        start, tiles_m, tiles_n = params
        found = []
        counters: Any = Int64(start)
        for plan in self.plan.reduces:
            shape = workspace.Shape.of(plan, epilogue.folds_batches)
            reach = self._outputs[plan.destination]
            found.append(reduce.Reduction(plan, shape, reach, self.axis, self.facts, self.extents, self.tile))
            counters = counters + Int64(shape.groups(tiles_m, tiles_n, self.extents.batches)) * workspace.COUNTER_BYTES
        partials = (counters - Int64(start) + 15) // 16 * 16 + Int64(start)
        counters = Int64(start)
        for reduction in found:
            counters, partials = reduction.place(counters, partials, (tiles_m, tiles_n))
        return found

    # The hooks.

    def tile_loads(self, first: Fragment) -> list[list[Any]]:
        """Issue the loads of ``tile_begin``, for a kernel that has other work until they come: the words of each."""
        frame = Frame(first)
        return [load.issue(frame, self.extents) for load in self._once]

    def tile_and_step_loads(self, places: Fragment, whole: Any) -> tuple[list[list[Any]], list[list[Any]]]:
        """What ``tile_loads`` and ``load_step`` give, where a tile has one step; ``whole`` (Boolean): all of it lies
        inside of the problem. Then nothing is asked for each access: on Hopper, 8 loads of a row vector cost a warp 200
        cycles with their predicates, of 1700 that a piece of 64 columns took in all."""
        frame, loads = Frame(places), [*self._once, *self._each]
        if not loads:
            return [], []

        def issued(extents: Extents | None) -> list[list[Any]]:
            return [load.issue(frame, extents) for load in loads]

        words = choose(whole, lambda: issued(None), lambda: issued(self.extents), [load.zeros(frame) for load in loads])
        return words[: len(self._once)], words[len(self._once) :]

    @property
    def _once(self) -> list[MemoryLoad]:
        """What ``tile_loads`` loads."""
        return [load for load in self._loads if load.once and load.load.slot not in self._kept]

    @property
    def _each(self) -> list[MemoryLoad]:
        """What ``load_step`` loads."""
        waiting = [load for load in self._loads if not load.once and load.box is None]
        return [load for load in waiting if load.load.slot not in self._kept]

    def tile_begin(self, first: Fragment, words: Sequence[Sequence[Any]] | None = None) -> list[Any]:
        """What is the same at every step: vectors along the axis, scalars in memory; and empty reductions.

        ``words`` are what ``tile_loads`` gave, if it was called.
        """
        frame = Frame(first)
        state: list[Any] = []
        for index, load in enumerate(self._once):
            state += load.scalars(frame, load.issue(frame, self.extents) if words is None else list(words[index]))
        state = [_carried(value) for value in state]
        scratch = self._step_scratch
        for reduction in self._reductions:
            state += reduction.begin(first, scratch)
            if scratch is not None and reduction.immediate and reduction.along:
                scratch = scratch + reduction.step_scratch_bytes
        return state

    def row_loads(self) -> list[list[Any]]:
        """Issue the loads of ``keep_rows``, for the first one of the tiles: the words of each."""
        return [row.issue(self.extents) for row in self._kept.values()]

    def keep_rows(self, words: Sequence[Sequence[Any]]) -> None:
        """Write the tile's row vectors, of which ``row_loads`` gave the words, to shared memory; where there are any,
        the epilogue's threads meet before and afterwards. All of them call it, before the first ``visit``."""
        if not self._kept:
            return
        reduce.meet(self.facts)
        for row, loaded in zip(self._kept.values(), words, strict=True):
            row.keep(loaded)
        reduce.meet(self.facts)

    def load_step(self, places: Fragment) -> list[list[Any]]:
        """Issue the loads of one step (full operands, vectors across the axis): the words of each."""
        frame = Frame(places)
        return [load.issue(frame, self.extents) for load in self._each]

    def visit(
        self,
        fragment: Fragment,
        pieces: Sequence[Sequence[Any]],
        state: Sequence[Any],
        staged: Staged | None = None,
    ) -> list[Any]:
        """Compute on a fragment's registers, store the outputs, fold the reductions; the new state.

        ``staged`` says where the tensors with boxes lie; an output is left there for the kernel to copy.
        """
        frame = Frame(fragment)
        state = list(state)
        slots, used = self._load_slots(frame, pieces, state, staged)
        for constant in self.plan.constants:
            number = convert.constant(constant.literal.value, constant.compute_dtype)
            slots[constant.slot] = frame.lanes(Spread(False, False), [number])
        for step, way in zip(self.plan.computes, self._ways, strict=True):
            if way.operands:
                slots[step.slot] = self._compute(step, way, slots, frame)
        self.store_step(slots, frame, staged)
        kept, folded = state[:used], state[used:]
        for reduction in self._reductions:
            count = reduction.registers
            operand = reduction.reduce.operand
            part = reduction.fold(slots[operand], self._compute_dtypes[operand], frame, folded[:count])
            kept += part
            folded = folded[count:]
        return kept

    def store_step(self, slots: dict[int, Lanes], frame: Frame, staged: Staged | None = None) -> None:
        """Round each output once and write it, to its box if it has one."""
        if staged is not None and staged.sync is not None:
            staged.sync()
        for plan in self.plan.stores:
            lanes, compute_dtype = slots[plan.operand], self._compute_dtypes[plan.operand]
            reach = self._outputs[plan.destination]
            box = self._boxes.outputs[plan.destination] if self._boxes.outputs else None
            if box is None:
                store(plan, lanes, compute_dtype, reach, frame, self.extents)
            else:
                assert staged is not None
                stage(plan, lanes, compute_dtype, reach.traits.dtype, frame, box, staged)

    def reduce_flush(self, state: Sequence[Any], scratch: Any) -> Sequence[Any]:
        """Bring the tile's reductions together; ``scratch`` is a shared address. All threads call it."""
        self._scratch = scratch
        owned = sum(reduction.registers for reduction in self._reductions)
        registers = list(state)[len(state) - owned :]
        for reduction in self._reductions:
            count = reduction.registers
            reduction.flush(registers[:count], scratch)
            registers = registers[count:]
        return state

    def tile_end(self, state: Sequence[Any]) -> None:
        """Count the tile; the last one of each destination writes it. All threads call it."""
        for reduction in self._reductions:
            reduction.finish(self._scratch)

    # Parts of them.

    def _load_slots(
        self, frame: Frame, pieces: Sequence[Sequence[Any]], state: Sequence[Any], staged: Staged | None
    ) -> tuple[dict[int, Lanes], int]:
        """The plan's loads as slots, and how many scalars of the state they took."""
        slots: dict[int, Lanes] = {}
        used = 0
        waiting = list(pieces)
        for load in self.plan.loads:
            if load.operand < 0:
                slots[load.slot] = self._accumulator(frame, load.compute_dtype)
            elif load.slot in self._arguments:
                slots[load.slot] = frame.lanes(Spread(False, False), [self._arguments[load.slot]])
        for memory in self._loads:
            count = len(frame.layout(memory.spread).representatives)
            if memory.load.slot in self._kept:
                scalars = self._kept[memory.load.slot].scalars(frame)
            elif memory.once:
                scalars = [_restored(v, memory.load.compute_dtype) for v in state[used : used + count]]
                used += count
            elif memory.box is not None:
                assert staged is not None
                scalars = memory.scalars(frame, memory.read(frame, staged))
            else:
                scalars = memory.scalars(frame, waiting.pop(0))
            slots[memory.load.slot] = frame.lanes(memory.spread, scalars)
        return slots, used

    def _accumulator(self, frame: Frame, compute_dtype: DType) -> Lanes:
        kind = convert.SCALARS[compute_dtype.name]
        registers = frame.fragment.registers
        assert registers is not None
        scalars = []
        for run, place in frame.layout(Spread(True, True)).representatives:
            value = registers[frame.fragment.runs[run].offset + place]
            scalars.append(value if isinstance(value, kind) else kind(value))
        return frame.lanes(Spread(True, True), scalars)

    def _compute(self, step: PlanCompute, way: shortcuts.Way, slots: dict[int, Lanes], frame: Frame) -> Lanes:
        operands = [slots[operand] for operand in way.operands]
        spread = Spread(False, False)
        for operand in operands:
            spread |= operand.spread
        if step.primitive in ("even_columns", "odd_columns"):
            return _pick_columns(operands[0], step.primitive == "odd_columns", frame)
        if step.primitive == "cast":
            attributes = dict(step.attributes)
            target = attributes["dtype"]
            assert isinstance(target, DType)
            return frame.map(
                lambda x: compute.cast(x, step.operand_dtype, target, step.compute_dtype), operands, spread
            )
        dtype = step.operand_dtype.name
        if way.addend and step.primitive == "add":
            operands.append(frame.lanes(Spread(False, False), [Float32(way.addend)]))
        count = len(frame.layout(spread).representatives)
        name = way.form or step.primitive
        if paired.takes(name, dtype, self.facts.capability, count, way.precision):
            return frame.map_pairs(lambda *pair: paired.compute(name, *pair), operands, spread)
        return frame.map(lambda *values: compute.emit_one(name, values, dtype, way), operands, spread)


def _reach(tensor: Any, params: list[Any], batch: Any) -> Reach:
    count = 1 + sum(tensor.strided())
    numbers, params[:count] = params[:count], []
    return Reach.of(tensor, numbers, batch)


def _compute_dtypes(plan: EpiloguePlan) -> dict[int, DType]:
    records = (*plan.loads, *plan.constants, *plan.computes)
    return {record.slot: record.compute_dtype for record in records}


def _pick_columns(operand: Lanes, odd: bool, frame: Frame) -> Lanes:
    """Every second column of a value, as a value of half as many."""
    spread = Spread(operand.spread.along, operand.spread.across, halved=True)
    layout = frame.layout(spread)
    shift = int(odd)
    scalars = [operand.at(run, 2 * place + shift) for run, place in layout.representatives]
    if not operand.spread.along:
        scalars = [operand.at(run, 0) for run, _ in layout.representatives]
    return frame.lanes(spread, scalars)


def _carried(value: Any) -> Any:
    """A condition goes round a loop as an integer."""
    return convert.bool_as_int(value) if isinstance(value, Boolean) else value


def _restored(value: Any, compute_dtype: DType) -> Any:
    return value != Int32(0) if compute_dtype.name == "bool" else value
