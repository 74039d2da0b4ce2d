# SPDX-License-Identifier: Apache-2.0
"""One warp's full tensors through its own shared memory: tensor copies in, ahead of time, and out.

The warp works on pieces, and has ``PIECE_BUFFERS`` buffers for them by turns. A piece's operands come to its buffer;
when all lanes have read them, its outputs take their place and are copied out. Lane 0 issues the copies, and waits for
those that read shared memory.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from cutlass import Int32

from epifuse_cutedsl.fuse.boxes import PIECE_BUFFERS, Box, Boxes
from epifuse_cutedsl.fuse.control import when
from epifuse_cutedsl.fuse.staged import Staged
from epifuse_cutedsl.kernels.ptx import cluster, mbarrier, tma


@dataclass(frozen=True)
class WarpCopies:
    """``maps`` are tensor maps (generic addresses); shared addresses (Int32): ``copied`` is where the warp's buffers
    lie, ``arrived`` their mbarriers."""

    plan: Any
    boxes: Boxes
    maps: list[Any]
    copied: Any
    arrived: Any
    lane: Any

    def make_barriers(self) -> None:
        """Initialize the warp's mbarriers. One lane calls it."""
        for buffer in range(PIECE_BUFFERS if self.boxes.load_bytes else 0):
            mbarrier.init(self.arrived + buffer * mbarrier.BYTES, 1)
        mbarrier.fence_init()

    def start(self, place: tuple[Any, Any, Any], turn: Any, condition: Any) -> None:
        """Before the first piece of a tile, number ``turn``, at ``place`` (batch, m, n): its operands, where the
        condition holds."""
        if self.boxes.load_bytes:
            when(condition & (self.lane == 0), lambda: self._load(place, turn, PIECE_BUFFERS - 1))

    def arrive(self, turn: Any, following: tuple[Any, Any, Any], more: Any) -> None:
        """Wait until the operands of piece number ``turn`` have come and its buffer may be written to; where there are
        ``more`` pieces, start the copies of the operands of the one at ``following``."""
        if self.boxes.load_bytes:
            when(more & (self.lane == 0), lambda: self._load(following, turn + 1, 0))
            mbarrier.wait_parity(self._arrived(turn), (turn // PIECE_BUFFERS) & 1)
        elif self.boxes.output_bytes:
            when(self.lane == 0, lambda: tma.wait_group_read(PIECE_BUFFERS - 1))
        if self.boxes.output_bytes:
            cluster.sync_warp()

    def store(self, place: tuple[Any, Any, Any], turn: Any) -> None:
        """Start the copies of the outputs of piece number ``turn``, which the warp's lanes have written."""
        if self.boxes.output_bytes:
            tma.fence_async_shared()
        if self.boxes.output_bytes or self.boxes.load_bytes:
            cluster.sync_warp()
        if self.boxes.output_bytes:
            when(self.lane == 0, lambda: self._store(place, turn))

    def finish(self) -> None:
        """After the last piece: shared memory may be given back when the copies have read it."""
        if self.boxes.output_bytes:
            when(self.lane == 0, lambda: tma.wait_group_read(0))

    def staged(self, row: Any, column: Any, offsets: tuple[tuple[int, int], ...], turn: Any) -> Staged:
        """Where the tensors of piece number ``turn`` lie, for a thread at (row, column) with runs at ``offsets``."""
        first = self._buffer(turn)
        loads = {load: address for _, load, _, address in addresses(self.boxes.numbered_loads(), first)}
        outputs = {number: address for _, number, _, address in addresses(self.boxes.numbered_outputs(), first)}
        both = bool(loads and outputs)
        return Staged(row, column, offsets, loads, outputs, cluster.sync_warp if both else None)

    def _buffer(self, turn: Any) -> Any:
        return self.copied + turn % PIECE_BUFFERS * self.boxes.piece_bytes

    def _arrived(self, turn: Any) -> Any:
        return self.arrived + turn % PIECE_BUFFERS * mbarrier.BYTES

    def _load(self, place: tuple[Any, Any, Any], turn: Any, pending: int) -> None:
        """Start the copies of a piece's operands when all stores but the last ``pending`` have read their buffers."""
        if self.boxes.output_bytes:
            tma.wait_group_read(pending)
        load_boxes(self.plan, self.boxes, self.maps, place, self._buffer(turn), self._arrived(turn))

    def _store(self, place: tuple[Any, Any, Any], turn: Any) -> None:
        store_boxes(self.plan, self.boxes, self.maps, place, self._buffer(turn))
        tma.commit_group()


def addresses(numbered: list[tuple[int, int, Box]], first: Any) -> list[tuple[int, int, Box, Any]]:
    """The address of each tensor's boxes, which lie behind one another, beside its numbers and box."""
    found = []
    for number, index, box in numbered:
        found.append((number, index, box, first))
        first = first + box.bytes
    return found


def load_boxes(plan: Any, boxes: Boxes, maps: list[Any], place: tuple[Any, Any, Any], first: Any, arrived: Any) -> None:
    """Start the copies of all operands' parts at ``place`` (batch, m, n) to ``first`` and behind. One lane calls it."""
    mbarrier.arrive_expect_tx(arrived, boxes.copied_load_bytes)
    operands = [load for load in plan.loads if load.operand >= 0]
    for number, load, box, address in addresses(boxes.numbered_loads(), first):
        for part in range(box.boxes):
            where = _place(place, box, part, operands[load].halved)
            tma.load(address + part * box.box_bytes, maps[number], where, arrived)


def store_boxes(plan: Any, boxes: Boxes, maps: list[Any], place: tuple[Any, Any, Any], first: Any) -> None:
    """Start the copies of all outputs' parts from ``first`` and behind to ``place``. One lane calls it."""
    halved = {store.destination: store.halved for store in plan.stores}
    for number, destination, box, address in addresses(boxes.numbered_outputs(), first):
        for part in range(box.boxes):
            where = _place(place, box, part, halved[destination])
            tma.store(maps[number], where, address + part * box.box_bytes)


def _place(place: tuple[Any, Any, Any], box: Box, part: int, halved: bool) -> list[Any]:
    """Where one box of a tensor begins, innermost first."""
    batch, m, n = place
    return [(n // 2 if halved else n) + part * box.box_columns, m, batch if box.batched else Int32(0)]
