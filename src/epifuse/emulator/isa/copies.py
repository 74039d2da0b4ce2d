# SPDX-License-Identifier: Apache-2.0
"""cp.async, the copies that are not bulk (PTX ISA, "Data Movement: Asynchronous copy, non-bulk").

They use the generic proxy. Each is carried out at the latest when its group is waited for.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from ..builder import Builder, Handler, Registers, Step, check_modifiers
from ..clocks import event
from ..global_races import of_lanes
from ..lanes import LANES, Array, Value
from ..operations import Operation
from ..shared import CTA_SHIFT, OFFSET_MASK, SharedMemory
from ..state import Warp
from ..syntax import Instruction
from . import bulk
from .addressing import address, check_aligned, cta_at, require_address, shared_words
from .loads import active
from .mbarrier import barrier_at
from .synchronisation import uniform


@dataclass
class Groups:
    """A warp's copies: those not yet in a group, and how many groups were committed and waited for."""

    dimension: int
    open: list[tuple[Operation, SharedMemory, Array]] = field(default_factory=list)
    committed: int = 0
    finished: int = 0


def groups_of(warp: Warp) -> Groups:
    """The cp.async groups of a warp."""
    found: Groups | None = warp.groups.get("cp.async")
    if found is None:
        found = Groups(warp.cta.cluster.dimensions.new(f"a cp.async group of {warp.describe()}"))
        warp.groups["cp.async"] = found
    return found


def _copy(builder: Builder, instruction: Instruction) -> Step:
    hints = {m for m in instruction.modifiers if m.startswith("L2::")}
    check_modifiers(builder, instruction, {"async", "ca", "cg", "shared", "shared::cta", "global", *hints})
    to = address(builder, require_address(builder, instruction, 0), 32)
    come_from = address(builder, require_address(builder, instruction, 1), 64)
    rest = list(instruction.operands[2:])
    if instruction.has("L2::cache_hint"):
        rest.pop()
    size = getattr(rest[0], "value", 0)
    if size not in (4, 8, 16) or (instruction.has("cg") and size != 16):
        raise builder.unknown(instruction, f"copies of {size} bytes")
    ignores = len(rest) > 1 and builder.register_bits(rest[1], 32) == 1
    source_size = builder.source(rest[1]) if len(rest) > 1 else builder.constant(size)

    def step(warp: Warp, registers: Registers) -> None:
        targets = active(warp, to(registers), np.uint32)
        sources = active(warp, come_from(registers), np.uint64)
        check_aligned(targets, size)
        given = registers[source_size]
        if ignores:  # the predicate "ignore-src" in the place of a size: zeros are written, nothing is read
            given = np.where(np.broadcast_to(given, (LANES,)), np.uint32(0), np.uint32(size))
        taken = _taken_bytes(warp, given, size)
        used = sources if taken is None else sources[taken > 0]
        check_aligned(used, size)
        memory = cta_at(warp, int(targets[0]) >> CTA_SHIFT, False).shared
        offsets = targets & OFFSET_MASK
        memory.check_all(offsets, size)
        words = shared_words(offsets, size)
        operation = warp.start("cp.async")
        memory.on_write(operation, words)
        groups = groups_of(warp)
        groups.open.append((operation, memory, words))
        warp.bytes_moved += size * len(targets)
        group = groups.committed

        def carry_out() -> None:
            _carry_out(warp, memory, words, sources, taken, size)
            races = warp.grid.races
            if races is not None and used.size:
                done = event(groups.dimension, group + 1)
                races.read(operation, warp.cta.cluster.number, done, of_lanes(used, size))

        operation.on_run(carry_out)
        warp.grid.queue.add(("cp.async", warp, groups.committed), operation)

    return step


def _taken_bytes(warp: Warp, value: Value, size: int) -> Array | None:
    if type(value) is int and value == size:
        return None
    return active(warp, value, np.uint32)


def _carry_out(warp: Warp, memory: SharedMemory, words: Array, sources: Array, taken: Array | None, size: int) -> None:
    rows = np.zeros((len(sources), size // 4), np.uint32)
    whole = slice(None) if taken is None else np.flatnonzero(taken == size)
    rows[whole] = warp.grid.memory.gather(sources[whole], 4, size // 4)
    if taken is not None:
        for lane in np.flatnonzero((taken != 0) & (taken != size)):
            part = warp.grid.memory.span(int(sources[lane]), int(taken[lane]))
            rows[lane].view(np.uint8)[: len(part)] = part
    memory.views[4][words] = rows


def commit(warp: Warp) -> None:
    """cp.async.commit_group: what is open becomes a group."""
    groups = groups_of(warp)
    groups.committed += 1
    for operation, memory, words in groups.open:
        memory.settle(words, operation.stamp, event(groups.dimension, groups.committed))
    groups.open.clear()


def finish(warp: Warp, pending: int) -> None:
    """Everything but the last `pending` groups is complete, and the warp knows it."""
    groups = groups_of(warp)
    for group in range(groups.finished, groups.committed - pending):
        warp.grid.queue.run_stream(("cp.async", warp, group))
        groups.finished = group + 1
    # These copies use the generic proxy, so a proxy fence is still needed before the asynchronous one may read them.
    warp.clock.advance(groups.dimension, groups.finished)


def _commit_group(builder: Builder, instruction: Instruction) -> Step:
    return lambda warp, registers: commit(warp)


def _wait_group(builder: Builder, instruction: Instruction) -> Step:
    pending: int = getattr(instruction.operands[0], "value", 0)
    return lambda warp, registers: finish(warp, pending)


def _wait_all(builder: Builder, instruction: Instruction) -> Step:
    def step(warp: Warp, registers: Registers) -> None:
        commit(warp)
        finish(warp, 0)

    return step


def _arrive(builder: Builder, instruction: Instruction) -> Step:
    """cp.async.mbarrier.arrive: an arrival when the copies issued so far are complete."""
    check_modifiers(builder, instruction, {"async", "mbarrier", "arrive", "noinc", "shared", "shared::cta", "b64"})
    locate = address(builder, require_address(builder, instruction, 0), 32)
    without_increment = instruction.has("noinc")

    def step(warp: Warp, registers: Registers) -> None:
        where = uniform(locate(registers), warp)
        barrier = barrier_at(warp, where)
        lanes = warp.mask.bit_count()
        if not without_increment:
            barrier.pending += lanes
        groups = groups_of(warp)
        waited = list(groups.open)
        operation = warp.start("cp.async.mbarrier.arrive")
        committed = groups.committed

        def complete() -> None:
            for group in range(committed + 1):
                warp.grid.queue.run_stream(("cp.async", warp, group))
            for copy, memory, words in waited:
                memory.settle(words, copy.stamp, barrier.event)
            barrier.arrive(lanes, operation.clock, outside=barrier.event)
            warp.grid.progress += 1

        warp.grid.queue.add(("cp.async arrive", warp, operation.stamp), operation.on_run(complete))

    return step


def _cp(builder: Builder, instruction: Instruction) -> Step:
    if instruction.has("bulk") or instruction.has("reduce"):
        return bulk.handle(builder, instruction)
    second = instruction.modifiers[1] if len(instruction.modifiers) > 1 else ""
    forms: dict[str, Handler] = {
        "commit_group": _commit_group,
        "wait_group": _wait_group,
        "wait_all": _wait_all,
        "mbarrier": _arrive,
    }
    return forms.get(second, _copy)(builder, instruction)


INSTRUCTIONS: dict[str, Handler] = {"cp": _cp}
