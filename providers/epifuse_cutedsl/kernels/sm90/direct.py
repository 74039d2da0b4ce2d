# SPDX-License-Identifier: Apache-2.0
"""A consumer's epilogue on its accumulators as they lie: pairs of columns, full tensors by tensor copies.

Every warp works for itself. Of a piece (64 rows by ``columns``) it has 16 rows; it brings its part of full operands to
its own shared memory by tensor copies, some pieces ahead, leaves its part of the outputs there, and copies them out.
No barrier of the warpgroup is needed, but in reductions, and for row
vectors, which the warpgroup keeps in shared memory for all pieces of a tile.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from cutlass.cute import arch

from epifuse import dtypes
from epifuse_cutedsl.configs.sm90 import BLOCK_M, NARROWEST, WARP_ROWS, Sm90Config
from epifuse_cutedsl.fuse.boxes import Boxes
from epifuse_cutedsl.fuse.control import either, when
from epifuse_cutedsl.fuse.convert import unpack
from epifuse_cutedsl.fuse.fragment import Extents, Fragment, Run, TileCoordinates
from epifuse_cutedsl.fuse.staged import Staged
from epifuse_cutedsl.kernels.copies import addresses, load_boxes, store_boxes
from epifuse_cutedsl.kernels.ptx import cluster, mbarrier, tma

_FEW_PIECES = 2
_FEW_ACCUMULATORS = 128


@dataclass(frozen=True)
class Memory:
    """One warp's own shared memory, and its warpgroup's: addresses (Int32), and the number of the named barrier.

    ``copied`` is where the buffers of outputs lie, those of loads behind them; ``arrived`` are the mbarriers of the
    loads' buffers; ``kept`` is the warpgroup's, for row vectors, and so is ``scratch``, for reductions.
    """

    copied: Any
    arrived: Any
    kept: Any
    scratch: Any
    barrier: Any


@dataclass(frozen=True)
class DirectTail:
    """What turns accumulators into outputs, while a kernel is traced. ``maps`` are tensor maps (generic addresses)."""

    config: Sm90Config
    epilogue: Any
    parameters: list[Any]
    extents: Extents
    memory: Memory
    maps: list[Any]
    lane: Any
    accumulator: str = "float32"
    """Dtype of the accumulators' registers."""

    @property
    def boxes(self) -> Boxes:
        """How full tensors lie in shared memory."""
        return self.epilogue.boxes

    def make_barriers(self) -> None:
        """Initialize the warp's mbarriers. One lane of each warp calls it."""
        for buffer in range(self.config.depth if self.boxes.load_bytes else 0):
            mbarrier.init(self._arrived(buffer), 1)
        mbarrier.fence_init()

    def tiles(self, batch: Any, m: Any, n: Any, thread: Any) -> list[TileCoordinates]:
        """The pieces of a warpgroup's rows, which begin at (m, n)."""
        warp = arch.make_warp_uniform(thread >> 5)  # or the copies' coordinates are brought together lane by lane
        return [
            TileCoordinates(m + block * BLOCK_M, n + first, batch, thread, warp, thread & 31)
            for block in range(self.config.blocks)
            for first in range(0, self.config.columns, self.config.epilogue_n)
        ]

    def start(self, pieces: list[TileCoordinates]) -> None:
        """Before the tile's products: the first copies of full operands."""
        for index in range(self.config.depth if self.boxes.load_bytes else 0):
            when(self.lane == 0, lambda index=index: self._load(pieces[index], index))

    def rows(self, tile: TileCoordinates) -> tuple[Any, list[list[Any]]]:
        """Issue the loads of the row vectors of all pieces, of which ``tile`` is the first one."""
        bound = self._bound(tile)
        return bound, bound.row_loads()

    def keep(self, rows: tuple[Any, list[list[Any]]]) -> None:
        """Leave what ``rows`` loaded in shared memory. All of the warpgroup's threads call it."""
        bound, words = rows
        bound.keep_rows(words)

    def _bound(self, tile: TileCoordinates, index: int = 0) -> Any:
        """The engine for one piece."""
        facts = self.epilogue.facts._replace(barrier=self.memory.barrier)
        before = index % self.config.pieces * self.config.epilogue_n
        kept = self.memory.kept
        return replace(self.epilogue, facts=facts).bind(self.parameters, tile, self.extents, None, kept, before)

    def begin(self, tile: TileCoordinates, index: int = 0) -> tuple[Any, list[Any], list[Any], Fragment]:
        """The engine for one piece, and its first loads."""
        bound = self._bound(tile, index)
        places = self._places(tile)
        whole = (self.extents.m - tile.m0 >= BLOCK_M) & (self.extents.n - tile.n0 >= self.config.epilogue_n)
        return bound, *bound.tile_and_step_loads(places, whole), places

    def run(self, product: Any, accumulators: Any, pieces: list[TileCoordinates], ahead: Any, turn: Any) -> None:
        """All pieces; those outside the problem are left out. ``ahead`` is what ``begin`` gave for the first one,
        ``turn`` (Int32) the number of tiles before this one.

        The first loads of a piece are issued before the piece in front of it is worked on; they know the problem's
        extents and read nothing outside.
        """
        depth = self.config.depth
        before: TileCoordinates | None = None
        for index, tile in enumerate(pieces):
            begun = ahead
            if index + 1 < len(pieces):
                ahead = self.begin(pieces[index + 1], index + 1)
            block, piece = divmod(index, self.config.pieces)
            registers = product.columns(accumulators, block, piece * self.config.epilogue_n, self.config.epilogue_n)
            inside = self.extents.has(tile)
            if self.boxes.load_bytes:
                uses = len(range(index % depth, len(pieces), depth))  # of the buffer, in a tile
                parity = (turn * uses + index // depth) & 1
                mbarrier.wait_parity(self._arrived(index % depth), parity)
            if self._late:
                used = index >= depth or (len(pieces) - 1 - index) % depth == 0  # by a copy that none has waited for
                flush = functools.partial(self._flush, before, index - 1, used)
                work = functools.partial(self._piece, tile, registers, index, begun, flush)
                if self._everywhere:
                    work()
                else:
                    either(inside, work, flush)
                before = tile
                continue
            work = functools.partial(self._piece, tile, registers, index, begun)
            if self._everywhere:
                work()
            else:
                when(inside, work)
            if self.boxes.output_bytes:  # also where nothing was stored: a buffer's group is found by counting
                tma.commit_group()
            if self.boxes.load_bytes:
                if not self.boxes.output_bytes:  # else the outputs' fence stands between
                    tma.fence_async_shared()
                cluster.sync_warp()  # the buffer has been read: the next copies may follow
                if index + depth < len(pieces):
                    when(self.lane == 0, lambda i=index + depth: self._load(pieces[i], i))
        if self._late:
            self._flush(before, len(pieces) - 1)

    @property
    def _late(self) -> bool:
        """Whether a piece's output is copied when the next one's arithmetic is done, so that no lane waits for what it
        has just written to shared memory. H200, K = 512 and 1024: gelu about 2 % faster; two outputs, and tiles of two
        pieces (1024^3), 2 to 3 % slower."""
        one = self.boxes.output_bytes > 0 and len(self.boxes.numbered_outputs()) == 1 and not self.boxes.load_bytes
        return one and self.config.depth > 1 and self.config.blocks * self.config.pieces > _FEW_PIECES

    @property
    def _everywhere(self) -> bool:
        """Whether pieces outside of the problem are worked on too, of which nothing is stored: without branches a
        tile's epilogue is one block of instructions, where a piece's last special functions run beside the next one's
        first. H200, K = 512, tiles of 128 by 192: gelu 4 to 5 % faster, with C 2 %, others level or 1 %; gelu (erf) at
        K = 1024 with tiles of 128 by 128 2 % slower, as there are longer runs of FMA beside the products."""
        wide = self.config.accumulators > _FEW_ACCUMULATORS and self.config.epilogue_n > NARROWEST
        return wide and not self.epilogue.plan.reduces

    def _flush(self, tile: TileCoordinates | None, index: int, used: bool = True) -> None:
        """Start the copies of piece ``index``, if there is one; ``used``: those before must have read their buffers."""
        if tile is not None:
            tma.fence_async_shared()
        if used:
            tma.wait_group_read(0)
        if used or tile is not None:
            cluster.sync_warp()
        if tile is not None:
            store = functools.partial(self._store, tile, index % self.config.depth)
            if self._everywhere:
                store()
            else:
                when(self.extents.has(tile), store)
            tma.commit_group()

    def finish(self) -> None:
        """After the last tile: shared memory is given back when the copies have read it."""
        if self.boxes.output_bytes:
            tma.wait_group_read(0)

    def _piece(
        self,
        tile: TileCoordinates,
        registers: list[Any],
        index: int,
        begun: tuple[Any, list[Any], list[Any], Fragment],
        flush: Callable[[], None] | None = None,
    ) -> None:
        """One piece from registers to outputs; or, after ``flush`` (``_late``), to shared memory."""
        bound, words, pieces, places = begun
        buffer = index % self.config.depth
        at_once = self.boxes.output_bytes > 0 and not self._late
        if at_once:
            tma.wait_group_read(self.config.depth - 1 if index else 0)  # the buffer has been read
        if at_once or self.boxes.load_bytes:  # ldmatrix wants the lanes together, too
            cluster.sync_warp()
        state = bound.tile_begin(places, words)
        staged = replace(self._staged(buffer), sync=flush)
        dtype = dtypes.of(self.accumulator)
        values = [unpack([word], dtype, 1, dtype)[0] for word in registers]
        state = bound.visit(replace(places, registers=values), pieces, state, staged)
        if at_once:
            tma.fence_async_shared()
            cluster.sync_warp()
            self._store(tile, buffer)
        state = bound.reduce_flush(state, self.memory.scratch)
        bound.tile_end(state)

    def _places(self, tile: TileCoordinates) -> Fragment:
        """A thread's pairs of columns in a piece.

        PTX ISA, "Register Fragments and Shared Memory Matrix Layouts" of wgmma, matrix D: a warp has 16 rows; register
        ``4 j + 2 h + e`` of a lane is row ``lane // 4 + 8 h``, column ``8 j + 2 (lane % 4) + e``.
        """
        m, n = tile.m0 + tile.warp * WARP_ROWS + (tile.lane >> 2), tile.n0 + (tile.lane & 3) * 2
        runs = [
            Run(2 * number, 2, m + row, n + column, position=column // 8, line=row // 8)
            for number, (row, column) in enumerate(self._offsets())
        ]
        return Fragment("n", tuple(runs), origin=(m, n), offsets=self._offsets())

    def _offsets(self) -> tuple[tuple[int, int], ...]:
        """Row and column of each run behind the thread's first one."""
        return tuple((8 * h, 8 * j) for j in range(self.config.epilogue_n // 8) for h in range(2))

    def _staged(self, buffer: int) -> Staged:
        loads = {load: at for _, load, _, at in addresses(self.boxes.numbered_loads(), self._loads(buffer))}
        outputs = {to: at for _, to, _, at in addresses(self.boxes.numbered_outputs(), self._outputs(buffer))}
        row, column = self.lane & 15, (self.lane & 16) >> 1  # lanes 8 q to 8 q + 7: rows of matrix q of four
        pairs = self.lane >> 2, (self.lane & 3) * 2
        return Staged(*pairs, self._offsets(), loads, outputs, matrix_row=row, matrix_column=column)

    def _outputs(self, buffer: int) -> Any:
        return self.memory.copied + buffer * self.boxes.output_bytes

    def _loads(self, buffer: int) -> Any:
        first = self.config.depth * self.boxes.output_bytes
        return self.memory.copied + first + buffer * self.boxes.load_bytes

    def _arrived(self, buffer: int) -> Any:
        return self.memory.arrived + buffer * mbarrier.BYTES

    def _load(self, tile: TileCoordinates, index: int) -> None:
        """Start the copies of a piece's full operands. One lane calls it."""
        buffer = index % self.config.depth
        first, arrived = self._loads(buffer), self._arrived(buffer)
        load_boxes(self.epilogue.plan, self.boxes, self.maps, self._corner(tile), first, arrived)

    def _store(self, tile: TileCoordinates, buffer: int) -> None:
        """Start the copies of a piece's outputs. All lanes call it."""
        corner, first = self._corner(tile), self._outputs(buffer)
        store_boxes(self.epilogue.plan, self.boxes, self.maps, corner, first, elects=True)

    def _corner(self, tile: TileCoordinates) -> tuple[Any, Any, Any]:
        """Batch, row and column where the warp's part of a piece begins."""
        return tile.batch, tile.m0 + tile.warp * WARP_ROWS, tile.n0
