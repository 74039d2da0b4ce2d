# SPDX-License-Identifier: Apache-2.0
"""Runs the warps of a grid: which one goes on, when operations in flight are carried out, and when nothing can."""

from __future__ import annotations

from .builder import BLOCKED
from .lanes import mask_of
from .program import Code
from .reports import DeadlockError, ExecutionError, Place
from .state import Cluster, Fragment, Grid, Split, Warp

_IDLE_LIMIT = 400_000
"""Blocks run without any progress before a spin over memory counts as a deadlock."""
_SPIN_LIMIT = 20_000
"""Blocks run without any progress before other clusters get a turn: this one may spin on what they write."""


class Scheduler:
    """Runs clusters, at most `resident` at a time. `make` creates a cluster's CTAs and warps from its index."""

    def __init__(self, grid: Grid, resident: int) -> None:
        self.grid = grid
        self.resident = max(1, resident)
        self.running: list[Cluster] = []
        self._idle = 0

    def run(self, cluster: Cluster) -> bool:
        """Run a cluster until it is done (True) or nothing in it can go on although others might let it (False)."""
        grid = self.grid
        chance, lazy = grid.chance, grid.queue.eagerness == 0
        while True:
            warps = [warp for warp in cluster.ready if warp.live]
            cluster.ready = []
            if not warps and not any(warp.live for warp in cluster.warps):
                return True
            if grid.options.seed:
                chance.shuffle(warps)
            if self._idle > _SPIN_LIMIT and (len(self.running) > 1 or grid.waiting) and not grid.queue:
                self._idle = 0
                cluster.ready = warps
                return False
            moved = False
            for warp in warps:
                if warp.polled_at != grid.progress:
                    moved |= self._advance(warp, 64 if lazy else chance.randint(1, 48))
                    if not lazy and grid.queue and chance.random() < grid.queue.eagerness:
                        grid.queue.run_one()
                        grid.progress += 1
            cluster.ready.extend(warp for warp in warps if not warp.asleep and warp not in cluster.ready)
            if moved or (not lazy and any(warp.polled_at != grid.progress for warp in cluster.ready)):
                continue
            if grid.queue.run_one():
                grid.progress += 1
            elif not self._time_out(cluster):
                return False

    def _time_out(self, cluster: Cluster) -> bool:
        """Let waits that may end without success do so; False if that changed nothing, a few times over."""
        grid = self.grid
        for _ in range(3):
            before = grid.progress
            for warp in [warp for warp in cluster.warps if warp.live and warp.may_time_out]:
                warp.timed_out, warp.asleep = True, False
                self._advance(warp, 64)
                warp.timed_out = False
                if not warp.asleep and warp not in cluster.ready:
                    cluster.ready.append(warp)
            if grid.progress != before or any(warp.polled_at != before for warp in cluster.ready if warp.live):
                return True
        return False

    # -- one warp ------------------------------------------------------------------------------------------------

    def _advance(self, warp: Warp, budget: int) -> bool:
        """Run a warp for at most `budget` blocks; False if all its fragments are blocked."""
        moved = False
        for fragment in list(warp.fragments):
            if fragment in warp.fragments:
                moved |= self._run_fragment(warp, fragment, budget)
        if not moved and warp.live:
            warp.polled_at = self.grid.progress
        return moved

    def _run_fragment(self, warp: Warp, fragment: Fragment, budget: int) -> bool:
        blocks = self.grid.program.blocks
        registers = warp.registers
        warp.narrow(fragment.mask)
        warp.may_time_out = False
        moved = False
        before = self.grid.progress
        for _ in range(budget):
            code = blocks[fragment.block]
            start = fragment.index
            if code.steps:
                reached = self._run_steps(warp, fragment, code, registers)
                if reached >= 0:
                    warp.instructions += reached - start
                    return moved or reached > start
                warp.instructions += len(code.steps) - start
            moved = True
            fragment.index = 0
            if not self._branch(warp, fragment, code):
                return True
        self._idle = self._idle + budget if self.grid.progress == before else 0
        if self._idle > _IDLE_LIMIT:
            raise self.deadlock("warps run in circles and nothing they can see changes")
        return moved

    def _run_steps(self, warp: Warp, fragment: Fragment, code: Code, registers: list[object]) -> int:
        """Run the rest of a block; the index of the step that blocked, or -1."""
        steps, lines = code.steps, code.lines
        trace = self.grid.options.trace
        index = fragment.index
        try:
            for index in range(fragment.index, len(steps)):
                warp.line = lines[index]
                if trace is not None:
                    trace(str(warp.place()))
                if steps[index](warp, registers) is BLOCKED:
                    fragment.index = index
                    return index
        except ExecutionError as error:
            fragment.index = index
            raise error.in_lanes(warp.mask).located(warp.place()) from None
        return -1

    def _branch(self, warp: Warp, fragment: Fragment, code: Code) -> bool:
        """Follow the end of a block; False if the fragment ended, split or has to wait for others."""
        target = code.taken
        if code.guard >= 0:
            predicate = warp.registers[code.guard]
            if type(predicate) is bool:
                target = code.taken if predicate is not code.negated else code.falls
            else:
                mask = warp.mask & (~mask_of(predicate) if code.negated else mask_of(predicate))
                if mask == 0:
                    target = code.falls
                elif mask != warp.mask:
                    return self._split(warp, fragment, code, mask)
        return self._arrive(warp, fragment, target)

    def _split(self, warp: Warp, fragment: Fragment, code: Code, mask: int) -> bool:
        split = Split(code.meets, 2, fragment.split)
        taken = Fragment(code.taken, mask, split)
        falls = Fragment(code.falls, warp.mask & ~mask, split)
        warp.fragments.remove(fragment)
        parts = [taken, falls]
        if self.grid.options.seed and self.grid.chance.random() < 0.5:
            parts.reverse()
        warp.fragments.extend(parts)
        for part in parts:
            warp.narrow(part.mask)
            self._arrive(warp, part, part.block)
        return False

    def _arrive(self, warp: Warp, fragment: Fragment, target: int) -> bool:
        """The fragment reaches a block: it goes on there (True), or ends, or waits for the rest of its split."""
        fragment.block = target
        if target == len(self.grid.program.blocks):
            self._exit(warp, fragment)
            return False
        if fragment.split is not None and fragment.split.meets == target:
            fragment.split.arrived |= fragment.mask
            warp.fragments.remove(fragment)
            self._join(warp, fragment.split)
            return False
        return True

    def _exit(self, warp: Warp, fragment: Fragment) -> None:
        warp.live &= ~fragment.mask
        warp.fragments.remove(fragment)
        grid, cluster = self.grid, warp.cta.cluster
        grid.progress += 1
        cluster.barrier.settle(sum(other.live.bit_count() for other in cluster.warps))
        if fragment.split is not None:
            self._join(warp, fragment.split)

    def _join(self, warp: Warp, split: Split) -> None:
        """One part of a split has arrived or ended; with the last the lanes go on together."""
        split.parts -= 1
        if split.parts:
            return
        if not split.arrived:
            if split.parent is not None:
                self._join(warp, split.parent)
            return
        merged = Fragment(split.meets, split.arrived, split.parent)
        warp.fragments.append(merged)
        warp.narrow(merged.mask)
        if split.parent is not None and split.parent.meets == split.meets:
            self._arrive(warp, merged, split.meets)

    # -- reports -------------------------------------------------------------------------------------------------

    def where(self) -> tuple[str, ...]:
        """One line for each warp: where it is, and what it waits for."""
        lines = []
        for cluster in self.running:
            for warp in cluster.warps:
                for fragment in warp.fragments:
                    code = self.grid.program.blocks[fragment.block]
                    line = code.lines[fragment.index] if fragment.index < len(code.lines) else code.end_line
                    text = self.grid.program.module.line_text(line)
                    lanes = "" if fragment.mask == warp.live else f" lanes {fragment.mask:#010x}"
                    lines.append(f"{warp.describe()}{lanes} is at PTX line {line}: {text}")
        return tuple(lines)

    def deadlock(self, what: str) -> DeadlockError:
        """The report of a deadlock, with every warp's place."""
        error = DeadlockError(what, Place(self.grid.program.name))
        error.waiting = self.where()
        return error
