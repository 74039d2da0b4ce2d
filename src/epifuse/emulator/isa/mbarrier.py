# SPDX-License-Identifier: Apache-2.0
"""mbarrier (PTX ISA, "Parallel Synchronization and Communication Instructions: mbarrier")."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..barriers import Mbarrier
from ..builder import BLOCKED, Builder, Handler, Registers, Step, check_modifiers
from ..clocks import event
from ..lanes import LANES, Value, mask_of
from ..reports import BarrierError
from ..shared import CTA_SHIFT, Agent, word_range
from ..state import Warp
from ..syntax import Address, Discard, Instruction
from .addressing import address, check_aligned, require_address, shared_at
from .synchronisation import uniform

_SCOPES = {"shared", "shared::cta", "shared::cluster", "b64", "cta", "cluster", "acquire", "release", "relaxed"}


def barrier_at(warp: Warp, where: int, cluster: bool = False, agent: Agent | None = None) -> Mbarrier:
    """The mbarrier at a shared address. Raises BarrierError if there is none, or its creation is not visible."""
    memory, offset = shared_at(warp, where, cluster)
    found: Mbarrier | None = memory.barriers.get(offset)
    if found is None:
        raise BarrierError(f"no mbarrier is initialised at shared offset {offset:#x} of CTA rank {memory.rank}")
    viewer = agent if agent is not None else warp
    if memory.strict and not viewer.clock.knows(found.created):
        raise BarrierError(
            f"{viewer.describe()} uses the mbarrier at shared offset {offset:#x} of CTA rank {memory.rank}, whose "
            "initialisation is not visible to it: a fence and a barrier are missing between"
        )
    return found


def _init(builder: Builder, instruction: Instruction) -> Step:
    check_modifiers(builder, instruction, {"init", *_SCOPES})
    locate = address(builder, require_address(builder, instruction, 0), 32)
    count = builder.source(instruction.operands[1])

    def step(warp: Warp, registers: Registers) -> None:
        for where, number in _each(warp, locate(registers), registers[count]):
            check_aligned(where, 8)
            memory, offset = shared_at(warp, where)
            memory.check_bounds(offset, offset + 8, 8)
            if offset in memory.barriers:
                raise BarrierError(f"the mbarrier at shared offset {offset:#x} is initialised again")
            memory.on_write(warp, word_range(offset, 8))
            dimensions = warp.cta.cluster.dimensions
            name = f"a phase of the mbarrier at offset {offset:#x} of CTA {warp.cta.index}"
            barrier = Mbarrier(number, dimensions, name)
            dimension, made = warp.groups.get("inits", (0, 0))
            dimension = dimension or dimensions.new(f"mbarrier.init by {warp.describe()}")
            warp.groups["inits"] = (dimension, made + 1)
            barrier.created = event(dimension, made + 1)
            # The asynchronous proxy sees it only after fence.mbarrier_init or a proxy fence.
            warp.clock.advance(dimension, made + 1)
            memory.add_barrier(offset, barrier)

    return step


def _inval(builder: Builder, instruction: Instruction) -> Step:
    locate = address(builder, require_address(builder, instruction, 0), 32)

    def step(warp: Warp, registers: Registers) -> None:
        where = uniform(locate(registers), warp)
        barrier_at(warp, where)
        memory, offset = shared_at(warp, where)
        memory.remove_barrier(offset)

    return step


def _each(warp: Warp, where: Value, number: Value) -> list[tuple[int, int]]:
    """(address, number) of each active lane; one pair where all are the same."""
    if type(where) is int and type(number) is int:
        return [(where, number)]
    lanes = [lane for lane in range(LANES) if warp.mask >> lane & 1]
    return [
        (where if type(where) is int else int(where[lane]), number if type(number) is int else int(number[lane]))
        for lane in lanes
    ]


def _per_lane(warp: Warp, where: Value, number: Value) -> list[tuple[int, int, int]]:
    """(address, number, lanes that have them)."""
    pairs = _each(warp, where, number)
    if len(pairs) == 1:
        return [(*pairs[0], warp.mask.bit_count())]
    return [(*pair, pairs.count(pair)) for pair in dict.fromkeys(pairs)]


def _arrive(builder: Builder, instruction: Instruction) -> Step:
    check_modifiers(builder, instruction, {"arrive", "arrive_drop", "expect_tx", "noComplete", *_SCOPES})
    if instruction.has("noComplete"):
        raise builder.unknown(instruction)
    operands = instruction.operands
    has_state = not isinstance(operands[0], Address)
    write = (
        builder.setter(builder.target(operands[0], 64)) if has_state and not isinstance(operands[0], Discard) else None
    )
    position = 1 if has_state else 0
    locate = address(builder, require_address(builder, instruction, position), 32)
    number = builder.source(operands[position + 1]) if len(operands) > position + 1 else builder.constant(1)
    expects, drops = instruction.has("expect_tx"), instruction.has("arrive_drop")
    cluster, relaxed = instruction.has("shared::cluster"), instruction.has("relaxed")

    def step(warp: Warp, registers: Registers) -> None:
        stamp = warp.stamp
        clock = None if relaxed else warp.release()
        for where, value, lanes in _per_lane(warp, locate(registers), registers[number]):
            barrier = barrier_at(warp, where, cluster)
            if write is not None:
                write(warp, registers, barrier.phase)
            if expects:
                barrier.expect(value * lanes)
            count = lanes if expects else value * lanes
            barrier.arrive(count, clock, count if drops else 0, stamp if where >> CTA_SHIFT != warp.cta.rank else 0)
        warp.grid.progress += 1

    return step


def _transactions(builder: Builder, instruction: Instruction) -> Step:
    name = instruction.modifiers[0]
    check_modifiers(builder, instruction, {name, *_SCOPES})
    locate = address(builder, require_address(builder, instruction, 0), 32)
    number = builder.source(instruction.operands[1])
    cluster = instruction.has("shared::cluster")

    def step(warp: Warp, registers: Registers) -> None:
        for where, value, lanes in _per_lane(warp, locate(registers), registers[number]):
            barrier = barrier_at(warp, where, cluster)
            if name == "expect_tx":
                barrier.expect(value * lanes)
            else:
                barrier.transact(value * lanes, None, by_thread=where >> CTA_SHIFT == warp.cta.rank)
        warp.grid.progress += 1

    return step


def _wait(builder: Builder, instruction: Instruction) -> Step:
    check_modifiers(builder, instruction, {"try_wait", "test_wait", "parity", *_SCOPES})
    target, _, state_operand = instruction.operands[:3]
    write = builder.setter(builder.target(target, 1))
    locate = address(builder, require_address(builder, instruction, 1), 32)
    by_parity, may_block = instruction.has("parity"), instruction.has("try_wait")
    state = builder.source(state_operand, 32 if by_parity else 64)
    relaxed = instruction.has("relaxed")

    def ready(barrier: Mbarrier, value: int) -> bool:
        return barrier.ready(value) if by_parity else barrier.phase > value

    def step(warp: Warp, registers: Registers) -> object:
        where, value = locate(registers), registers[state]
        pairs = _each(warp, where, value)
        barriers = [barrier_at(warp, place) for place, _ in pairs]
        found = [ready(barrier, number) for barrier, (_, number) in zip(barriers, pairs, strict=True)]
        if not any(found) and may_block and not _gives_up(warp):
            warp.waits += 1
            warp.may_time_out = True
            if len(barriers) == 1:
                warp.sleep(barriers[0].sleepers)
            return BLOCKED
        if not relaxed:
            for barrier, is_ready in zip(barriers, found, strict=True):
                if is_ready:
                    warp.acquire(barrier.completed)
        write(warp, registers, found[0] if len(pairs) == 1 else _scatter(warp, found))
        return None

    return step


def _gives_up(warp: Warp) -> bool:
    """Whether a wait that would block ends without success instead, as the ISA allows at any time."""
    if warp.timed_out:
        warp.timed_out = False
        return True
    return bool(warp.grid.options.seed) and warp.grid.chance.random() < 0.1


def _scatter(warp: Warp, found: list[bool]) -> Any:
    out = np.zeros(LANES, np.bool_)
    out[warp.lanes] = found
    return bool(found[0]) if mask_of(out) in (0, warp.mask) else out


def _pending_count(builder: Builder, instruction: Instruction) -> Step:
    raise builder.unknown(instruction)


def _mbarrier(builder: Builder, instruction: Instruction) -> Step:
    forms: dict[str, Handler] = {
        "init": _init,
        "inval": _inval,
        "arrive": _arrive,
        "arrive_drop": _arrive,
        "expect_tx": _transactions,
        "complete_tx": _transactions,
        "try_wait": _wait,
        "test_wait": _wait,
        "pending_count": _pending_count,
    }
    handler = forms.get(instruction.modifiers[0])
    if handler is None:
        raise builder.unknown(instruction)
    return handler(builder, instruction)


INSTRUCTIONS: dict[str, Handler] = {"mbarrier": _mbarrier}
