# SPDX-License-Identifier: Apache-2.0
"""One warp's full tensors through its own shared memory: tensor copies in, ahead of time, and out.

The warp works on pieces by turns, each with ``depth`` buffers: one for all operands of a piece, one for all its
outputs. Lane 0 issues the copies and waits for those that read shared memory.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from cutlass import Int32

from epifuse_cutedsl.fuse.boxes import Box, Boxes
from epifuse_cutedsl.fuse.control import when
from epifuse_cutedsl.fuse.staged import Staged
from epifuse_cutedsl.kernels.ptx import cluster, mbarrier, tma


@dataclass(frozen=True)
class WarpCopies:
    """``maps`` are tensor maps (generic addresses); shared addresses (Int32): ``copied`` is where the buffers of the
    outputs lie, those of the loads behind them, ``arrived`` the mbarriers of the loads' buffers."""

    plan: Any
    boxes: Boxes
    depth: int
    maps: list[Any]
    copied: Any
    arrived: Any
    lane: Any

    def make_barriers(self) -> None:
        """Initialize the warp's mbarriers. One lane calls it."""
        for buffer in range(self.depth if self.boxes.load_bytes else 0):
            mbarrier.init(self._arrived(buffer), 1)
        mbarrier.fence_init()

    def load(self, place: tuple[Any, Any, Any], turn: Any, condition: Any) -> None:
        """Where the condition holds, start the copies of the operands of piece number ``turn``, which begins at
        ``place`` (batch, m, n)."""
        if self.boxes.load_bytes:
            when(condition & (self.lane == 0), lambda: self._load(place, turn % self.depth))

    def wait_loads(self, turn: Any) -> None:
        """Wait until the operands of piece number ``turn`` have come."""
        if self.boxes.load_bytes:
            mbarrier.wait_parity(self._arrived(turn % self.depth), (turn // self.depth) & 1)

    def wait_outputs(self) -> None:
        """Wait until the buffer of the piece ``depth`` before this one may be written to."""
        if self.boxes.output_bytes:
            when(self.lane == 0, lambda: tma.wait_group_read(self.depth - 1))
            cluster.sync_warp()

    def store(self, place: tuple[Any, Any, Any], turn: Any) -> None:
        """Start the copies of the outputs of piece number ``turn``, which the warp's lanes have written; and let the
        buffer of its operands be used again."""
        if self.boxes.output_bytes:
            tma.fence_async_shared()
        if self.boxes.output_bytes or self.boxes.load_bytes:
            cluster.sync_warp()
        if self.boxes.output_bytes:
            when(self.lane == 0, lambda: self._store(place, turn % self.depth))

    def finish(self) -> None:
        """After the last piece: shared memory may be given back when the copies have read it."""
        if self.boxes.output_bytes:
            when(self.lane == 0, lambda: tma.wait_group_read(0))

    def staged(self, row: Any, column: Any, offsets: tuple[tuple[int, int], ...], turn: Any) -> Staged:
        """Where the tensors of piece number ``turn`` lie, for a thread at (row, column) with runs at ``offsets``."""
        loads, outputs = {}, {}
        address = self._outputs(turn % self.depth)
        for _, destination, box in self.boxes.numbered_outputs():
            outputs[destination] = address
            address = address + box.bytes
        address = self._loads(turn % self.depth)
        for _, load, box in self.boxes.numbered_loads():
            loads[load] = address
            address = address + box.bytes
        return Staged(row, column, offsets, loads, outputs)

    def _outputs(self, buffer: Any) -> Any:
        return self.copied + buffer * self.boxes.output_bytes

    def _loads(self, buffer: Any) -> Any:
        return self.copied + self.depth * self.boxes.output_bytes + buffer * self.boxes.load_bytes

    def _arrived(self, buffer: Any) -> Any:
        return self.arrived + buffer * mbarrier.BYTES

    def _load(self, place: tuple[Any, Any, Any], buffer: Any) -> None:
        arrived, address = self._arrived(buffer), self._loads(buffer)
        mbarrier.arrive_expect_tx(arrived, self.boxes.copied_load_bytes)
        operands = [load for load in self.plan.loads if load.operand >= 0]
        for number, load, box in self.boxes.numbered_loads():
            for part in range(box.boxes):
                where = _place(place, box, part, operands[load].halved)
                tma.load(address + part * box.box_bytes, self.maps[number], where, arrived)
            address = address + box.bytes

    def _store(self, place: tuple[Any, Any, Any], buffer: Any) -> None:
        address = self._outputs(buffer)
        halved = {store.destination: store.halved for store in self.plan.stores}
        for number, destination, box in self.boxes.numbered_outputs():
            for part in range(box.boxes):
                tma.store(
                    self.maps[number], _place(place, box, part, halved[destination]), address + part * box.box_bytes
                )
            address = address + box.bytes
        tma.commit_group()


def _place(place: tuple[Any, Any, Any], box: Box, part: int, halved: bool) -> list[Any]:
    """Where one box of a tensor begins, innermost first."""
    batch, m, n = place
    return [(n // 2 if halved else n) + part * box.box_columns, m, batch if box.batched else Int32(0)]
