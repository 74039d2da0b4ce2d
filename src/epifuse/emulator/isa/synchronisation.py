# SPDX-License-Identifier: Apache-2.0
"""Parallel synchronisation (PTX ISA, "Parallel Synchronization and Communication"): barriers, fences, votes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ..barriers import NamedBarrier
from ..builder import BLOCKED, Builder, Handler, Registers, Step, check_modifiers
from ..clocks import Clock
from ..lanes import LANE_INDEX, Array, first_lane, mask_of
from ..reports import BarrierError
from ..state import Warp
from ..syntax import Discard, Instruction, Operand, Pair
from . import exact
from .comparison import lanes_true

_WARP = 32
_NAMED_BARRIERS = 16


def uniform(value: Any, warp: Warp) -> int:
    """The value of an operand that must be the same in all active lanes: that of the first."""
    return value if type(value) is int else int(value[first_lane(warp.mask)])


# -- named barriers ----------------------------------------------------------------------------------------------


def _bar(builder: Builder, instruction: Instruction) -> Step:
    flags = set(instruction.modifiers) - {"cta", "aligned"}
    if "warp" in flags:
        return _bar_warp(builder, instruction)
    if "red" in flags:
        return _bar_red(builder, instruction)
    check_modifiers(builder, instruction, {"sync", "arrive", "cta", "aligned"})
    number = builder.source(instruction.operands[0])
    count = builder.source(instruction.operands[1]) if len(instruction.operands) > 1 else -1
    if "arrive" in flags:

        def arrive(warp: Warp, registers: Registers) -> None:
            barrier = _named(warp, uniform(registers[number], warp))
            _arrive(warp, barrier, uniform(registers[count], warp))

        return arrive
    key = f"bar at {instruction.line}"

    def sync(warp: Warp, registers: Registers) -> object:
        barrier = _named(warp, uniform(registers[number], warp))
        expected = uniform(registers[count], warp) if count >= 0 else _all_threads(warp)
        return _wait(warp, barrier, key, expected, (0, 0))

    return sync


def _bar_warp(builder: Builder, instruction: Instruction) -> Step:
    # Lanes that run together need no ordering; those named have to be here.
    check_modifiers(builder, instruction, {"warp", "sync"})
    members = builder.source(instruction.operands[0])
    return lambda warp, registers: warp.require(uniform(registers[members], warp), "bar.warp.sync")


def _bar_red(builder: Builder, instruction: Instruction) -> Step:
    check_modifiers(builder, instruction, {"red", "popc", "and", "or", "cta", "aligned", "u32", "pred"})
    target, number_operand, *rest = instruction.operands
    write = builder.setter(builder.target(target))
    number = builder.source(number_operand)
    count = builder.source(rest[0]) if len(rest) > 1 else -1
    condition = builder.source(rest[-1], 1)
    key = f"bar at {instruction.line}"

    def step(warp: Warp, registers: Registers) -> object:
        barrier = _named(warp, uniform(registers[number], warp))
        expected = uniform(registers[count], warp) if count >= 0 else _all_threads(warp)
        true = (mask_of(lanes_true(registers[condition])) & warp.mask).bit_count()
        if _wait(warp, barrier, key, expected, (true, warp.mask.bit_count())) is BLOCKED:
            return BLOCKED
        total, voters = barrier.result
        found: Any = total if instruction.has("popc") else total == voters if instruction.has("and") else total > 0
        write(warp, registers, found)
        return None

    return step


def _named(warp: Warp, number: int) -> NamedBarrier:
    if not 0 <= number < _NAMED_BARRIERS:
        raise BarrierError(f"barrier {number}: a CTA has {_NAMED_BARRIERS}, from 0")
    return warp.cta.named_barriers.setdefault(number, NamedBarrier())


def _all_threads(warp: Warp) -> int:
    return _WARP * sum(1 for other in warp.cta.warps if other.live)


def _arrive(warp: Warp, barrier: NamedBarrier, expected: int, vote: tuple[int, int] = (0, 0)) -> None:
    barrier.arrive(expected, _WARP, warp.release(), vote)
    warp.grid.progress += 1


def _wait(warp: Warp, barrier: NamedBarrier, key: str, expected: int, vote: tuple[int, int]) -> object:
    generation = warp.groups.get(key)
    if generation is None:
        generation = barrier.generation
        _arrive(warp, barrier, expected, vote)
        if barrier.generation == generation:
            warp.groups[key] = generation
            warp.waits += 1
            warp.sleep(barrier.sleepers)
            return BLOCKED
    elif barrier.generation == generation:
        warp.sleep(barrier.sleepers)
        return BLOCKED
    warp.groups.pop(key, None)
    warp.acquire(barrier.completed)
    return None


# -- cluster barrier ---------------------------------------------------------------------------------------------


def _barrier(builder: Builder, instruction: Instruction) -> Step:
    if not instruction.has("cluster"):
        return _bar(builder, instruction)
    check_modifiers(builder, instruction, {"cluster", "arrive", "wait", "release", "acquire", "relaxed", "aligned"})
    relaxed = instruction.has("relaxed")
    if instruction.has("arrive"):

        def arrive(warp: Warp, registers: Registers) -> None:
            cluster = warp.cta.cluster
            clock = warp.released if relaxed else warp.release()
            warp.groups.setdefault("cluster", []).append(cluster.barrier.generation)
            expected = sum(other.live.bit_count() for other in cluster.warps)
            cluster.barrier.arrive(warp.mask.bit_count(), expected, clock)
            warp.grid.progress += 1

        return arrive

    def wait(warp: Warp, registers: Registers) -> object:
        barrier = warp.cta.cluster.barrier
        arrived = warp.groups.get("cluster")
        if not arrived:
            raise builder.unknown(instruction, "wait without an arrive before")
        if barrier.generation == arrived[0]:
            warp.sleep(barrier.sleepers)
            return BLOCKED
        arrived.pop(0)
        warp.acquire(barrier.completed)
        return None

    return wait


# -- fences ------------------------------------------------------------------------------------------------------


def _fence(builder: Builder, instruction: Instruction) -> Step:
    if instruction.opcode == "fence" and instruction.has("proxy"):
        if any(m.startswith("async") for m in instruction.modifiers):
            return lambda warp, registers: warp.fence_proxy()
        return lambda warp, registers: None
    if instruction.has("mbarrier_init"):

        def publish_barriers(warp: Warp, registers: Registers) -> None:
            dimension, count = warp.groups.get("inits", (0, 0))
            if dimension:
                warp.clock.fence(dimension, count)
                warp.released = Clock.of(dimension, count, fenced=True)

        return publish_barriers

    everywhere = any(m in ("gl", "gpu", "sys") for m in instruction.modifiers) or len(instruction.modifiers) < 2

    def publish(warp: Warp, registers: Registers) -> None:
        if everywhere:
            warp.fence_globally()
        warp.released = warp.release()

    return publish


# -- within a warp -----------------------------------------------------------------------------------------------


def _elect(builder: Builder, instruction: Instruction) -> Step:
    pair = instruction.operands[0]
    outs: tuple[Operand, ...] = (pair.first, pair.second) if isinstance(pair, Pair) else (Discard(), pair)
    write_lane = builder.setter(builder.target(outs[0]))
    write_elected = builder.setter(builder.target(outs[1], 1))
    members = builder.source(instruction.operands[1])

    def step(warp: Warp, registers: Registers) -> None:
        mask = uniform(registers[members], warp)
        warp.require(mask, "elect.sync")
        leader = _leader(warp, mask & warp.live)
        write_lane(warp, registers, leader)
        write_elected(warp, registers, np.equal(LANE_INDEX, leader) if warp.mask & (warp.mask - 1) else True)

    return step


def _leader(warp: Warp, mask: int) -> int:
    # Any lane, but always the same one for the same mask.
    leaders: dict[int, int] = warp.groups.setdefault("leaders", {})
    found = leaders.get(mask)
    if found is None:
        lanes = [lane for lane in range(_WARP) if mask >> lane & 1]
        found = leaders[mask] = warp.grid.chance.choice(lanes) if warp.grid.options.seed else lanes[0]
    return found


def _vote(builder: Builder, instruction: Instruction) -> Step:
    sync, mode, _ = (*instruction.modifiers, "", "")[:3]
    if sync != "sync" or mode not in ("all", "any", "uni", "ballot"):
        raise builder.unknown(instruction)
    target, source, members_operand = instruction.operands
    write = builder.setter(builder.target(target))
    condition, members = builder.source(source, 1), builder.source(members_operand)

    def step(warp: Warp, registers: Registers) -> None:
        mask = uniform(registers[members], warp)
        warp.require(mask, "vote.sync")
        mask &= warp.mask
        true = mask_of(lanes_true(registers[condition])) & mask
        results: dict[str, Any] = {"ballot": true, "any": true != 0, "all": true == mask, "uni": true in (0, mask)}
        write(warp, registers, results[mode])

    return step


def _redux(builder: Builder, instruction: Instruction) -> Step:
    sync, operation, *_ = instruction.modifiers
    type_name = instruction.modifiers[-1]
    if type_name == "f32":
        return _redux_float(builder, instruction)
    operations: dict[str, Callable[[Array], Any]] = {
        "add": np.sum,
        "min": np.min,
        "max": np.max,
        "and": np.bitwise_and.reduce,
        "or": np.bitwise_or.reduce,
        "xor": np.bitwise_xor.reduce,
    }
    if sync != "sync" or operation not in operations or type_name not in ("u32", "s32", "b32"):
        raise builder.unknown(instruction)
    check_modifiers(builder, instruction, {sync, operation, type_name})
    target, source, members_operand = instruction.operands
    write = builder.setter(builder.target(target))
    slot, members = builder.source(source), builder.source(members_operand)
    dtype = np.int32 if type_name == "s32" else np.uint32

    def step(warp: Warp, registers: Registers) -> None:
        mask = uniform(registers[members], warp)
        warp.require(mask, "redux.sync")
        value = registers[slot]
        values = np.full(_WARP, value, np.uint32) if type(value) is int else value
        found = operations[operation](values.view(dtype)[warp.lanes])
        write(warp, registers, int(found) & 0xFFFFFFFF)

    return step


def _redux_float(builder: Builder, instruction: Instruction) -> Step:
    check_modifiers(builder, instruction, {"sync", "min", "max", "abs", "NaN", "f32"})
    one = exact.minimum if instruction.has("min") else exact.maximum
    magnitude, propagate = instruction.has("abs"), instruction.has("NaN")
    target, source, members_operand = instruction.operands
    write = builder.setter(builder.target(target))
    slot, members = builder.source(source), builder.source(members_operand)

    def step(warp: Warp, registers: Registers) -> None:
        mask = uniform(registers[members], warp)
        warp.require(mask, "redux.sync")
        value = registers[slot]
        values = (np.full(_WARP, value, np.uint32) if type(value) is int else value).view(np.float32)[warp.lanes]
        values = np.abs(values) if magnitude else values
        found = values[:1]
        for index in range(1, len(values)):
            found = one(found, values[index : index + 1], propagate)
        write(warp, registers, int(found.view(np.uint32)[0]))

    return step


def _match(builder: Builder, instruction: Instruction) -> Step:
    mode, sync, type_name = instruction.modifiers
    if mode not in ("any", "all") or sync != "sync" or type_name not in ("b32", "b64"):
        raise builder.unknown(instruction)
    first, source, members_operand = instruction.operands
    write = builder.setter(builder.target(first.first if isinstance(first, Pair) else first))
    write_same = builder.setter(builder.target(first.second)) if isinstance(first, Pair) else None
    slot, members = builder.source(source, int(type_name[1:])), builder.source(members_operand)

    def step(warp: Warp, registers: Registers) -> None:
        mask = uniform(registers[members], warp)
        warp.require(mask, "match.sync")
        value = registers[slot]
        values = [value] * _WARP if type(value) is int else value.tolist()
        sets = [sum(1 << i for i in range(_WARP) if mask >> i & 1 and values[i] == own) for own in values]
        if mode == "any":
            write(warp, registers, np.array(sets, np.uint32))
            return
        same = sets[first_lane(mask)] == mask
        write(warp, registers, mask if same else 0)
        if write_same is not None:
            write_same(warp, registers, same)

    return step


def _activemask(builder: Builder, instruction: Instruction) -> Step:
    write = builder.setter(builder.target(instruction.operands[0]))
    return lambda warp, registers: write(warp, registers, warp.mask)


def _setmaxnreg(builder: Builder, instruction: Instruction) -> Step:
    count = getattr(instruction.operands[0], "value", 0)
    if not 24 <= count <= 256 or count % 8:
        raise builder.unknown(instruction, f"{count} registers (24 to 256 in steps of 8)")
    return lambda warp, registers: None


def _nothing(builder: Builder, instruction: Instruction) -> Step:
    # griddepcontrol: launches here never overlap. trap and brkpt: handled by whoever reads the report.
    return lambda warp, registers: None


def _trap(builder: Builder, instruction: Instruction) -> Step:
    def step(warp: Warp, registers: Registers) -> None:
        raise builder.unknown(instruction, "the kernel stopped itself")

    return step


INSTRUCTIONS: dict[str, Handler] = {
    "bar": _bar,
    "barrier": _barrier,
    "fence": _fence,
    "membar": _fence,
    "elect": _elect,
    "vote": _vote,
    "redux": _redux,
    "match": _match,
    "activemask": _activemask,
    "setmaxnreg": _setmaxnreg,
    "griddepcontrol": _nothing,
    "trap": _trap,
}
