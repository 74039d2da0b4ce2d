# SPDX-License-Identifier: Apache-2.0
"""Legal tiles of the Blackwell kernel, and the stages that fit beside them."""

from __future__ import annotations

import functools

from epifuse.records import NamedTuple
from epifuse_cutedsl.fuse.boxes import PIECE_BUFFERS
from epifuse_cutedsl.fuse.facts import kept_row_bytes
from epifuse_cutedsl.tile.operand import SWIZZLE_BYTES, OperandTile
from epifuse_cutedsl.tile.smem import align, limit_bytes

WARP = 32
EPILOGUE_WARPS = 4
"""Warps 0 to 3: the warps that together reach all lanes of tensor memory."""
MMA_WARP, LOAD_WARP, ASK_WARP = 4, 5, 6
ANSWERS = 3
"""Tiles that a dynamic schedule asks for ahead: the load role is at most two tiles before the epilogues."""
SLOTS = 2
"""Accumulators in tensor memory: one is read while the other is made."""
TENSOR_MEMORY_COLUMNS, LEAST_COLUMNS = 512, 32
BARRIERS_BYTES = 1024
RUNS = (64, 32, 16)
"""Columns that a thread may read of tensor memory in one step."""
COLUMN_RUN = 32
"""The same where runs lie along M."""
_MOST_STAGES = 16
_LEAST_STAGES = 3


class Piece(NamedTuple):
    """What the engine takes for a tile of its own: rows, columns, and the warps that share it.

    ``lanes``: rows that a warp has, 32 or 16. ``pairs``: with 16, whether the upper half of a warp has the second half
    of the columns (else it has nothing to do).
    """

    rows: int
    columns: int
    warps: int
    lanes: int = WARP
    pairs: bool = False
    most: int = RUNS[0]
    """Columns that a thread may take in one step."""

    @property
    def run(self) -> int:
        """Columns of a thread in one step."""
        return next(run for run in RUNS if run <= self.most and self.thread_columns % run == 0)

    @property
    def thread_columns(self) -> int:
        """Columns of a thread."""
        return self.columns // 2 if self.pairs else self.columns

    @property
    def steps(self) -> int:
        """Steps of a thread."""
        return self.thread_columns // self.run


class Tail(NamedTuple):
    """How a configuration's epilogue goes: the most columns of a step; shared memory of one warp's full operands, and
    of its outputs in their place, in a step, as far as they move by tensor copies; that of all row vectors that are
    kept for a tile."""

    columns: int = 32
    piece_bytes: int = 0
    row_bytes: int = 0

    @property
    def bytes(self) -> int:
        """Shared memory of all warps' buffers."""
        return EPILOGUE_WARPS * PIECE_BUFFERS * self.piece_bytes


class Tails(NamedTuple):
    """How an epilogue may go: the most columns of a step, whether it has reductions, what ``Tail`` says of
    ``piece_bytes``, for steps of each number of columns in ``RUNS``, along which axis its runs lie, and how many row
    vectors are kept."""

    columns: int = 32
    reduces: bool = False
    piece_bytes: tuple[int, ...] = (0,) * len(RUNS)
    axis: str = "n"
    rows: int = 0

    def of(self, config: Sm100Config) -> Tail:
        """How it goes with a configuration."""
        piece = config._replace(tail=Tail(self.columns)).piece(self.axis, self.reduces)
        pieces = EPILOGUE_WARPS // piece.warps
        row_bytes = pieces * self.rows * kept_row_bytes(piece.columns, WARP * piece.warps)
        if self.axis == "m" and piece.lanes < WARP:  # half warps would be parts beside one another
            return Tail(self.columns, row_bytes=row_bytes)
        return Tail(self.columns, self.piece_bytes[RUNS.index(piece.run)], row_bytes)


class Sm100Config(NamedTuple):
    """A CTA's tile, and how CTAs work together.

    ``ctas`` 2: pairs of CTAs, whose tiles lie below one another, multiply together; each has half of the tile of B.
    ``cluster_m`` by ``cluster_n`` CTAs (a pair counts as two along M) share tiles of A along N and of B along M.
    """

    tile_m: int
    tile_n: int
    ctas: int = 1
    cluster_m: int = 1
    cluster_n: int = 1
    element_bytes: int = 2
    a_k_major: bool = True
    b_k_major: bool = True
    dynamic: bool = False
    """Whether CTAs ask for tiles (launch control) instead of taking every so many."""
    stages: int = 0
    tail: Tail = Tail()

    @property
    def tile_k(self) -> int:
        """Elements of K in a stage: four instructions' worth."""
        return SWIZZLE_BYTES // self.element_bytes

    @property
    def threads(self) -> int:
        """Threads of a CTA; a dynamic schedule has a warp of its own."""
        return WARP * (ASK_WARP + self.dynamic)

    @property
    def cluster(self) -> int:
        """CTAs of a cluster."""
        return self.cluster_m * self.cluster_n

    @property
    def a(self) -> OperandTile:
        """The CTA's tile of A."""
        return OperandTile(self.tile_m, self.element_bytes, self.a_k_major, self.cluster_n)

    @property
    def b(self) -> OperandTile:
        """The CTA's tile of B, or its half of the pair's."""
        return OperandTile(self.tile_n // self.ctas, self.element_bytes, self.b_k_major, self.cluster_m // self.ctas)

    @property
    def stage_bytes(self) -> int:
        """Shared memory of one stage of the ring."""
        return self.a.bytes + self.b.bytes

    @property
    def copied_bytes(self) -> int:
        """What the copies bring to one CTA in a stage."""
        return self.a.copied_bytes + self.b.copied_bytes

    @property
    def split(self) -> bool:
        """Whether the second half of the accumulator's columns lies in lanes 64 to 127 (PTX ISA: M = 128 of a pair)."""
        return self.ctas == 2 and self.tile_m == 64

    @property
    def slot_columns(self) -> int:
        """Columns of tensor memory from one accumulator to the next, a power of two."""
        columns = self.tile_n // 2 if self.split else self.tile_n
        return max(LEAST_COLUMNS // SLOTS, 1 << (columns - 1).bit_length())

    @property
    def warp_rows(self) -> int:
        """Rows of the accumulator that one warp reaches."""
        return WARP if self.split or self.tile_m == EPILOGUE_WARPS * WARP else WARP // 2

    def piece(self, axis: str, reduces: bool) -> Piece:
        """What the engine takes for a tile, for an epilogue with runs along ``axis``.

        Along N a thread has a row, along M a warp has parts of columns; warps share a piece where a line goes through
        several, or where reductions would have four partial results instead of one.
        """
        lanes = self.warp_rows
        columns = self.tile_n // 2 if self.split else self.tile_n
        if axis == "m":
            return Piece(lanes, columns, 1, lanes, lanes < WARP, min(self.tail.columns, COLUMN_RUN))
        pairs = lanes < WARP and not reduces and columns % WARP == 0
        return Piece(self.tile_m, columns, self.tile_m // lanes, lanes, pairs, self.tail.columns)

    def smem_bytes(self, scratch_bytes: int) -> int:
        """Shared memory of a CTA: the ring, the warps' buffers, the epilogues' scratch memory and row vectors, the
        mbarriers."""
        epilogues = self.tail.bytes + align(scratch_bytes, 128) + self.tail.row_bytes
        return self.stages * self.stage_bytes + epilogues + BARRIERS_BYTES

    @property
    def words(self) -> str:
        """For the operator's name."""
        tile = f"{self.tile_m}x{self.tile_n}x{self.tile_k}"
        majors = "".join("k" if k_major else "m" for k_major in (self.a_k_major, self.b_k_major))
        tail = f"{'t' if self.tail.bytes else 'p'}{self.tail.columns}{'d' * self.dynamic}"
        return f"{tile}_{majors}_{self.ctas}cta_c{self.cluster_m}x{self.cluster_n}_s{self.stages}{tail}"

    def __str__(self) -> str:
        return self.words


# (tile_m, tile_n, CTAs that multiply together, cluster_m, cluster_n)
_TILES = (
    (128, 256, 2, 2, 1),
    (128, 256, 2, 2, 2),
    (128, 256, 2, 4, 1),
    (128, 192, 2, 2, 1),
    (128, 128, 2, 2, 1),
    (128, 128, 2, 2, 2),
    (128, 64, 2, 2, 1),
    (64, 256, 2, 2, 1),
    (64, 128, 2, 2, 1),
    (128, 256, 1, 1, 1),
    (128, 192, 1, 1, 1),
    (128, 128, 1, 1, 1),
    (128, 128, 1, 2, 1),
    (128, 128, 1, 1, 2),
    (128, 128, 1, 2, 2),
    (128, 64, 1, 1, 1),
    (128, 32, 1, 1, 1),
    (64, 128, 1, 1, 1),
    (64, 64, 1, 1, 1),
    (64, 32, 1, 1, 1),
)


_DYNAMIC = ((128, 256, 2, 2, 1), (128, 128, 2, 2, 1), (128, 128, 1, 1, 1))
"""Those that are listed with a dynamic schedule too."""
PLAIN = Tails()
"""No tensor copies."""


@functools.lru_cache(maxsize=256)
def configurations(
    cc: int, element_bytes: int, a_k_major: bool, b_k_major: bool, scratch_bytes: int = 0, tails: Tails = PLAIN
) -> tuple[Sm100Config, ...]:
    """Every configuration with as many stages as fit, for operands of so many bytes an element and these majors, where
    the epilogue needs ``scratch_bytes`` and goes as ``tails`` says."""
    found = []
    for tile in _TILES:
        for dynamic in (False, True) if tile in _DYNAMIC else (False,):
            bare = Sm100Config(*tile, element_bytes, a_k_major, b_k_major, dynamic)
            config = with_stages(bare, cc, scratch_bytes, tails)
            if config is not None:
                found.append(config)
    return tuple(found)


def with_stages(config: Sm100Config, cc: int, scratch_bytes: int, tails: Tails = PLAIN) -> Sm100Config | None:
    """The configuration with its tail and as many stages as fit; None where they are too few."""
    bare = config._replace(stages=0, tail=tails.of(config))
    room = (limit_bytes(cc) - bare.smem_bytes(scratch_bytes)) // config.stage_bytes
    return bare._replace(stages=min(room, _MOST_STAGES)) if room >= _LEAST_STAGES else None
