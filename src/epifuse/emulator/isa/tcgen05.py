# SPDX-License-Identifier: Apache-2.0
"""tcgen05 (PTX ISA, "TensorCore 5th Generation Family Instructions"): allocation, loads, stores, commits, fences."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..builder import BLOCKED, Builder, Handler, Registers, Step, check_modifiers
from ..lanes import LANES, Array
from ..reports import DescriptorError, TensorMemoryError
from ..shared import CTA_SHIFT, OFFSET_MASK, word_range
from ..state import Cta, Warp
from ..syntax import Address, Instruction, Operand
from .addressing import address, check_aligned, require_address, shared_at
from .mbarrier import barrier_at
from .synchronisation import uniform
from .tcgen05_cp import copy
from .tcgen05_mma import mma
from .tensor_order import order_of
from .tensor_pipe import pipe_of, tensor_memory_of

_GROUPS = {"cta_group::1": 1, "cta_group::2": 2}
# Shape: columns that one repetition reads, registers a thread, and the lanes that a warp reaches.
_SHAPES = {
    "32x32b": (1, 1, 32),
    "16x64b": (2, 1, 16),
    "16x128b": (4, 2, 16),
    "16x256b": (8, 4, 16),
    "16x32bx2": (1, 1, 16),
}


def _group(instruction: Instruction) -> int:
    return next(_GROUPS[m] for m in instruction.modifiers if m in _GROUPS)


# -- allocation --------------------------------------------------------------------------------------------------


def _meet(warp: Warp, what: str, ctas: int, columns: int) -> list[Cta] | None:
    """The CTAs that take part, once one warp of each has come; None while the peer is missing.

    The first call by a warp registers it; the peer finds it there and finishes both.
    """
    if ctas == 1:
        return [warp.cta]
    cluster = warp.cta.cluster
    first = warp.cta.rank & ~1
    meetings: dict[Any, dict[int, int]] = warp.grid.meetings
    meeting = meetings.setdefault((cluster.index, what, first), {})
    meeting[warp.cta.rank] = columns
    if len(meeting) < 2:
        return None
    if len(set(meeting.values())) > 1:
        raise TensorMemoryError(f"the two CTAs of a pair {what} {sorted(meeting.values())} columns")
    del meetings[(cluster.index, what, first)]
    return [cluster.ctas[first], cluster.ctas[first + 1]]


def _alloc(builder: Builder, instruction: Instruction) -> Step:
    check_modifiers(builder, instruction, {"alloc", *_GROUPS, "sync", "aligned", "shared::cta", "b32"})
    ctas = _group(instruction)
    locate = address(builder, require_address(builder, instruction, 0), 32)
    count = builder.source(instruction.operands[1])
    key = f"tcgen05.alloc at {instruction.line}"

    def step(warp: Warp, registers: Registers) -> object:
        warp.require(0xFFFFFFFF, "tcgen05.alloc")
        columns = uniform(registers[count], warp)
        state = tensor_memory_of(warp.cta)
        if key not in warp.groups:
            _check_alloc(state.permitted, columns)
            members = _meet(warp, "tcgen05.alloc", ctas, columns)
            warp.groups[key] = True
            if members is not None:
                _allocate(members, columns)
                warp.grid.progress += 1
        if not state.granted:
            return BLOCKED
        start = state.granted.pop(0)
        del warp.groups[key]
        where = uniform(locate(registers), warp)
        check_aligned(where, 4)
        memory, offset = shared_at(warp, where)
        memory.check_bounds(offset, offset + 4, 4)
        memory.on_write(warp, word_range(offset, 4))
        memory.views[4][offset // 4] = start
        return None

    return step


def _check_alloc(permitted: bool, columns: int) -> None:
    if not permitted:
        raise TensorMemoryError("tcgen05.alloc after tcgen05.relinquish_alloc_permit")
    if not 32 <= columns <= 512 or columns & (columns - 1):
        raise TensorMemoryError(f"tcgen05.alloc of {columns} columns: a power of two from 32 to 512 is needed")


def _allocate(members: list[Cta], columns: int) -> None:
    for cta in members:
        state = tensor_memory_of(cta)
        start = state.find_free(columns)
        if start is None:
            raise TensorMemoryError(f"tcgen05.alloc of {columns} columns waits forever; allocated are {state.leaked()}")
        state.allocate(start, columns)
        state.granted.append(start)


def _dealloc(builder: Builder, instruction: Instruction) -> Step:
    check_modifiers(builder, instruction, {"dealloc", *_GROUPS, "sync", "aligned", "b32"})
    ctas = _group(instruction)
    start_slot, count = (builder.source(operand) for operand in instruction.operands)
    key = f"tcgen05.dealloc at {instruction.line}"

    def step(warp: Warp, registers: Registers) -> object:
        warp.require(0xFFFFFFFF, "tcgen05.dealloc")
        start, columns = uniform(registers[start_slot], warp), uniform(registers[count], warp)
        state = tensor_memory_of(warp.cta)
        if key in warp.groups:
            if start & 0xFFFF in state.allocations:
                return BLOCKED
            del warp.groups[key]
            return None
        state.check_unused(order_of(warp).ending(), start & 0xFFFF, columns)
        members = _meet(warp, "tcgen05.dealloc", ctas, columns)
        if members is None:
            warp.groups[key] = True
            return BLOCKED
        for cta in members:
            tensor_memory_of(cta).free(start & 0xFFFF, columns)
        warp.grid.progress += 1
        return None

    return step


def _relinquish(builder: Builder, instruction: Instruction) -> Step:
    check_modifiers(builder, instruction, {"relinquish_alloc_permit", *_GROUPS, "sync", "aligned"})

    def step(warp: Warp, registers: Registers) -> None:
        tensor_memory_of(warp.cta).permitted = False

    return step


# -- commit ------------------------------------------------------------------------------------------------------


def _commit(builder: Builder, instruction: Instruction) -> Step:
    allowed = {"commit", *_GROUPS, "mbarrier::arrive::one", "shared::cluster", "multicast::cluster", "b64"}
    check_modifiers(builder, instruction, allowed)
    locate = address(builder, require_address(builder, instruction, 0), 32)
    mask_slot = builder.source(instruction.operands[1], 16) if instruction.has("multicast::cluster") else -1

    def step(warp: Warp, registers: Registers) -> None:
        where = uniform(locate(registers), warp)
        mask = uniform(registers[mask_slot], warp) if mask_slot >= 0 else 1 << (where >> CTA_SHIFT)
        lanes = warp.mask.bit_count()
        targets = [rank << CTA_SHIFT | where & OFFSET_MASK for rank in range(16) if mask >> rank & 1]
        for target in targets:
            barrier_at(warp, target, True)
        pipe = pipe_of(warp)
        known = pipe.commit()
        operation = warp.start("tcgen05.commit")

        def carry_out() -> None:
            learned = operation.clock
            learned.learn(known)
            for target in targets:
                barrier_at(warp, target, True, operation).arrive(lanes, learned, outside=known)
            warp.grid.progress += 1

        warp.grid.queue.add(pipe.stream, operation.on_run(carry_out))

    return step


# -- ld and st ---------------------------------------------------------------------------------------------------


def _shape(builder: Builder, instruction: Instruction) -> tuple[str, int, bool]:
    shape = next((m for m in instruction.modifiers if m in _SHAPES), "")
    count = next((int(m[1:]) for m in instruction.modifiers if m[0] == "x" and m[1:].isdigit()), 0)
    packed = instruction.has("pack::16b") or instruction.has("unpack::16b")
    check_modifiers(
        builder, instruction, {"ld", "st", "sync", "aligned", shape, f"x{count}", "pack::16b", "unpack::16b", "b32"}
    )
    if not shape or not count:
        raise builder.unknown(instruction)
    return shape, count, packed


def cell_map(shape: str, count: int, split: int = 0) -> tuple[Array, Array]:
    """Which cell each thread's register holds: lanes within the warp's part and columns, both (registers, 32)."""
    lane = np.arange(LANES)
    group, thread = lane // 4, lane % 4
    repeat = np.arange(count)[:, None]
    if shape == "32x32b":
        return np.broadcast_to(lane, (count, LANES)), np.broadcast_to(repeat, (count, LANES))
    if shape == "16x32bx2":
        return np.broadcast_to(lane % 16, (count, LANES)), repeat + np.where(lane < 16, 0, split)
    if shape == "16x64b":
        return np.broadcast_to(group + 8 * (thread % 2), (count, LANES)), repeat * 2 + thread // 2
    rows = np.concatenate([np.stack((group, group + 8))] * count)
    if shape == "16x128b":
        return rows, np.repeat(repeat * 4 + thread, 2, axis=0)
    pairs = np.stack((2 * thread, 2 * thread + 1))
    columns = np.concatenate([np.concatenate((pairs, pairs)) + 8 * index for index in range(count)])
    return np.repeat(rows, 2, axis=0), columns


class _Access:
    """The operands that tcgen05.ld and tcgen05.st share."""

    def __init__(self, builder: Builder, instruction: Instruction, place: Operand, rest: tuple[Operand, ...]) -> None:
        self.shape, self.count, self.packed = _shape(builder, instruction)
        if not isinstance(place, Address):
            raise builder.unknown(instruction)
        self.locate = address(builder, place, 32)
        self.split = getattr(rest[0], "value", 0) if rest else 0
        width, registers, self.reach = _SHAPES[self.shape]
        self.registers = registers * self.count
        self.rows, self.columns = cell_map(self.shape, self.count, self.split)
        if self.packed:
            # A register holds the low halves of two adjacent columns, which count as one in the layout.
            self.columns = 2 * self.columns
        self.span = int(self.columns.max()) + (2 if self.packed else 1)

    def halves(self, lane: int) -> slice:
        """The half quarters that a warp reaches from a first lane."""
        return slice(lane // 16, lane // 16 + self.reach // 16)

    def find(self, warp: Warp, registers: Registers) -> tuple[Any, int, int]:
        """The tensor memory, first lane and first column. Raises DescriptorError outside the warp's quarter."""
        warp.require(0xFFFFFFFF, "tcgen05.ld or st")
        where = uniform(self.locate(registers), warp)
        lane, column = where >> 16, where & 0xFFFF
        quarter = warp.index % 4
        if lane // 32 != quarter or lane % (32 if self.reach == 32 else 16):
            raise DescriptorError(f"warp {warp.index} reaches lanes {32 * quarter} to {32 * quarter + 31}, not {lane}")
        memory = tensor_memory_of(warp.cta)
        memory.check(column, self.span)
        return memory, lane, column


def _ld(builder: Builder, instruction: Instruction) -> Step:
    access = _Access(builder, instruction, instruction.operands[1], instruction.operands[2:])
    writes = [builder.setter(target) for target in builder.targets(instruction.operands[0])]
    if len(writes) != access.registers:
        raise builder.unknown(instruction, f"{len(writes)} registers")

    def step(warp: Warp, registers: Registers) -> None:
        memory, lane, column = access.find(warp, registers)
        memory.on_read(order_of(warp).access("ld"), access.halves(lane), column, access.span)
        if access.packed:
            low, high = (memory.cells[lane + access.rows, column + access.columns + each] for each in (0, 1))
            values = (low & np.uint32(0xFFFF)) | (high << np.uint32(16))
        elif access.shape == "32x32b":
            values = np.ascontiguousarray(memory.cells[lane : lane + 32, column : column + access.span].T)
        else:
            values = memory.cells[lane + access.rows, column + access.columns]
        for index, write in enumerate(writes):
            write(warp, registers, values[index])

    return step


def _st(builder: Builder, instruction: Instruction) -> Step:
    has_split = len(instruction.operands) > 2
    access = _Access(builder, instruction, instruction.operands[0], instruction.operands[1:2] if has_split else ())
    slots = builder.sources(instruction.operands[-1])
    if len(slots) != access.registers:
        raise builder.unknown(instruction, f"{len(slots)} registers")

    def step(warp: Warp, registers: Registers) -> None:
        memory, lane, column = access.find(warp, registers)
        memory.on_write(order_of(warp).access("st"), access.halves(lane), column, access.span)
        values = np.empty((len(slots), LANES), np.uint32)
        for index, slot in enumerate(slots):
            values[index] = registers[slot]
        if access.packed:
            memory.cells[lane + access.rows, column + access.columns + 1] = values >> np.uint32(16)
            values = values & np.uint32(0xFFFF)
        memory.cells[lane + access.rows, column + access.columns] = values

    return step


def _wait(builder: Builder, instruction: Instruction) -> Step:
    kind = instruction.modifiers[0].removeprefix("wait::")
    check_modifiers(builder, instruction, {"wait::ld", "wait::st", "sync", "aligned"})
    return lambda warp, registers: order_of(warp).wait(kind)


def _fence(builder: Builder, instruction: Instruction) -> Step:
    if instruction.has("fence::before_thread_sync"):
        return lambda warp, registers: order_of(warp).before_thread_sync()
    return lambda warp, registers: order_of(warp).after_thread_sync()


def _tcgen05(builder: Builder, instruction: Instruction) -> Step:
    forms: dict[str, Handler] = {
        "alloc": _alloc,
        "dealloc": _dealloc,
        "relinquish_alloc_permit": _relinquish,
        "mma": mma,
        "cp": copy,
        "commit": _commit,
        "ld": _ld,
        "st": _st,
        "wait::ld": _wait,
        "wait::st": _wait,
        "fence::before_thread_sync": _fence,
        "fence::after_thread_sync": _fence,
    }
    handler = forms.get(instruction.modifiers[0])
    if handler is None:
        raise builder.unknown(instruction)
    return handler(builder, instruction)


INSTRUCTIONS: dict[str, Handler] = {"tcgen05": _tcgen05}
