# SPDX-License-Identifier: Apache-2.0
"""One warp's full tensors through its own shared memory: tensor copies in, ahead of time, and out.

The warp works on pieces, and has ``PIECE_BUFFERS`` buffers for them by turns. A piece's operands come to its buffer;
when all lanes have read them, its outputs take their place and are copied out. Lane 0 issues the copies, and waits for
those that read shared memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from cutlass import Int32

from epifuse_cutedsl.fuse.boxes import PIECE_BUFFERS, Box, Boxes
from epifuse_cutedsl.fuse.control import when
from epifuse_cutedsl.fuse.staged import Staged
from epifuse_cutedsl.kernels.ptx import cluster, mbarrier, tma

Place = tuple[Any, Any, Any]
"""Batch, row, column (Int32)."""
Places = Sequence[Place]


@dataclass(frozen=True)
class Turn:
    """Which piece of a warp: the ``place``-th (an int) of ``size`` that are worked on together, after ``before``
    (Int32) such groups."""

    before: Any
    place: int
    size: int

    @property
    def buffer(self) -> Any:
        """The number of its buffer: an int where groups begin with the same one."""
        return self.place if self.size == PIECE_BUFFERS else self.before & (PIECE_BUFFERS - 1)

    @property
    def parity(self) -> Any:
        """That of the phase in which its buffer's operands come (Int32)."""
        return (self.before if self.size == PIECE_BUFFERS else self.before >> 1) & 1

    @property
    def following(self) -> Turn:
        """The next piece."""
        last = self.place == self.size - 1
        return Turn(self.before + 1, 0, self.size) if last else Turn(self.before, self.place + 1, self.size)


@dataclass(frozen=True)
class WarpCopies:
    """``maps`` are tensor maps (generic addresses); shared addresses (Int32): ``copied`` is where the warp's buffers
    lie, ``arrived`` their mbarriers. Where a piece is: (batch, m, n) of each part of its boxes' rows that is copied."""

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

    def start(self, places: Places, turn: Turn, condition: Any) -> None:
        """Before the first piece of a tile: its operands, where the condition holds."""
        if self.boxes.load_bytes:
            when(condition & (self.lane == 0), lambda: self._load(places, turn, PIECE_BUFFERS - 1))

    def arrive(self, turn: Turn, places: Places, more: Any = None) -> None:
        """Wait until the operands of a piece have come and its buffer may be written to; where there are ``more``
        (None: certainly), start the copies of the operands of the next one, at ``places``."""
        if self.boxes.load_bytes:
            leads = self.lane == 0
            when(leads if more is None else more & leads, lambda: self._load(places, turn.following, 0))
            mbarrier.wait_parity(self._arrived(turn), turn.parity)
        elif self.boxes.output_bytes:
            tma.wait_group_read(PIECE_BUFFERS - 1)  # of lane 0; the others have no groups
        if self.boxes.output_bytes:
            cluster.sync_warp()

    def store(self, places: Places, turn: Turn) -> None:
        """Start the copies of the outputs of a piece, which the warp's lanes have written."""
        if self.boxes.output_bytes or self.boxes.load_bytes:
            tma.fence_async_shared()
            cluster.sync_warp()
        if self.boxes.output_bytes:
            when(self.lane == 0, lambda: self._store(places, turn))

    def finish(self) -> None:
        """After the last piece: shared memory may be given back when the copies have read it."""
        if self.boxes.output_bytes:
            when(self.lane == 0, lambda: tma.wait_group_read(0))

    def staged(self, row: Any, column: Any, offsets: tuple[tuple[int, int], ...], turn: Turn) -> Staged:
        """Where the tensors of a piece lie, for a thread at (row, column) with runs at ``offsets``."""
        known = isinstance(turn.buffer, int)
        first, behind = (self.copied, self._behind(turn)) if known else (self._buffer(turn), 0)
        loads = {load: address for _, load, _, address in addresses(self.boxes.numbered_loads(), first)}
        outputs = {number: address for _, number, _, address in addresses(self.boxes.numbered_outputs(), first)}
        both = bool(loads and outputs)
        return Staged(row, column, offsets, loads, outputs, cluster.sync_warp if both else None, behind_bytes=behind)

    def _behind(self, turn: Turn) -> Any:
        return turn.buffer * self.boxes.piece_bytes

    def _buffer(self, turn: Turn) -> Any:
        return self.copied + self._behind(turn)

    def _arrived(self, turn: Turn) -> Any:
        return self.arrived + turn.buffer * mbarrier.BYTES

    def _load(self, places: Places, turn: Turn, pending: int) -> None:
        """Start the copies of a piece's operands when all stores but the last ``pending`` have read their buffers."""
        if self.boxes.output_bytes:
            tma.wait_group_read(pending)
        load_boxes(self.plan, self.boxes, self.maps, places[0], self._buffer(turn), self._arrived(turn), places[1:])

    def _store(self, places: Places, turn: Turn) -> None:
        store_boxes(self.plan, self.boxes, self.maps, places[0], self._buffer(turn), places[1:])
        tma.commit_group()


def addresses(numbered: list[tuple[int, int, Box]], first: Any) -> list[tuple[int, int, Box, Any]]:
    """The address of each tensor's boxes, which lie behind one another, beside its numbers and box."""
    found = []
    for number, index, box in numbered:
        found.append((number, index, box, first))
        first = first + box.bytes
    return found


def load_boxes(
    plan: Any, boxes: Boxes, maps: list[Any], place: Place, first: Any, arrived: Any, others: Places = ()
) -> None:
    """Start the copies of all operands' boxes at ``place`` to ``first`` and behind; ``others`` are the places of
    further parts of the boxes' rows. One lane calls it."""
    mbarrier.arrive_expect_tx(arrived, boxes.copied_load_bytes * (1 + len(others)))
    operands = [load for load in plan.loads if load.operand >= 0]
    for number, load, box, address in addresses(boxes.numbered_loads(), first):
        for behind, where in _copies(box, (place, *others), operands[load].halved):
            tma.load(address + behind, maps[number], where, arrived)


def store_boxes(
    plan: Any, boxes: Boxes, maps: list[Any], place: Place, first: Any, others: Places = (), *, elects: bool = False
) -> None:
    """Start the copies of all outputs' boxes from ``first`` and behind to ``place``, of further parts of their rows to
    ``others``. One lane calls it, or all of a warp, of which it ``elects`` one."""
    halved = {store.destination: store.halved for store in plan.stores}
    for number, destination, box, address in addresses(boxes.numbered_outputs(), first):
        for behind, where in _copies(box, (place, *others), halved[destination]):
            tma.store(maps[number], where, address + behind, elects=elects)


def _copies(box: Box, places: Places, halved: bool) -> list[tuple[int, list[Any]]]:
    """Of each copy of a tensor's boxes: where it lies in them, in bytes, and in the tensor, innermost first."""
    found = []
    for part, (batch, m, n) in enumerate(places):
        for number in range(box.boxes):
            along, across = (m, n) if box.axis == "m" else (n // 2 if halved else n, m)
            where = [along + number * box.box_columns, across, batch if box.batched else Int32(0)]
            found.append((number * box.box_bytes + part * box.part_bytes, where))
    return found
