# SPDX-License-Identifier: Apache-2.0
"""The ring of stages: slots in shared memory, each with a K tile of A and one of B, filled some tiles ahead."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import cutlass

from epifuse_cutedsl.kernels.ptx import copy
from epifuse_cutedsl.kernels.sm80.copy import TileCopy

State = list[Any]
"""Carried round the loop: the slot to fill next, the pointers into A and B, what is left of K."""


@dataclass(frozen=True)
class Ring:
    """Traced once a kernel. ``fill`` starts all but one stage; then each K tile takes one slot and fills another.

    A tile is issued while the one ``stages - 1`` before it is multiplied, into the slot that was read last; so one
    barrier a K tile, between the wait for a tile and its first read, covers both.
    """

    base: Any
    stages: int
    a: TileCopy
    b: TileCopy
    tile_k: int
    k_extent: Any

    nothing = ((), ())
    """What ``issue`` gives where both operands come by ``cp.async``."""

    @property
    def b_displacement(self) -> int:
        """Bytes from a slot's tile of A to its tile of B."""
        return self.a.shape.tile.bytes

    @property
    def stage_bytes(self) -> int:
        """Bytes of a slot."""
        return self.a.shape.tile.bytes + self.b.shape.tile.bytes

    def after(self, slot: Any) -> Any:
        """The slot that follows ``slot``."""
        following = slot + self.stage_bytes
        return cutlass.select_(following == self.base + self.stages * self.stage_bytes, self.base, following)

    def fill(self) -> State:
        """Start the first ``stages - 1`` tiles."""
        state: State = [self.base, self.a.pointer, self.b.pointer, self.k_extent]
        for _ in range(self.stages - 1):
            self.deposit(state, self.issue(state))
            state = self.advance(state)
        return state

    def issue(self, state: State, part: int = 0, parts: int = 1) -> tuple[Any, Any]:
        """Start a part of the next tile's copies, the last one closes the group; the words of operands that are copied
        by plain loads come with the first part."""
        slot, pointer_a, pointer_b, k_left = state
        words: list[Any] = []
        for operand, pointer, shift in ((self.a, pointer_a, 0), (self.b, pointer_b, self.b_displacement)):
            if operand.shape.plain:
                words.append(operand.fetch(pointer, k_left) if part == 0 else ())
            else:
                operand.issue(slot + shift, pointer, k_left, part, parts)
                words.append(())
        if part == parts - 1:
            copy.cp_async_commit_group()
        return words[0], words[1]

    def deposit(self, state: State, words: tuple[Any, Any]) -> None:
        """Write the words of plain loads into the slot that ``issue`` filled."""
        slot = state[0]
        self.a.deposit(slot, words[0])
        self.b.deposit(slot + self.b_displacement, words[1])

    def advance(self, state: State) -> State:
        """The state of the next tile."""
        slot, pointer_a, pointer_b, k_left = state
        return [
            self.after(slot),
            pointer_a + self.a.k_step * self.tile_k,
            pointer_b + self.b.k_step * self.tile_k,
            k_left - self.tile_k,
        ]
