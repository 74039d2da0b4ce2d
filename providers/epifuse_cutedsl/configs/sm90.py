# SPDX-License-Identifier: Apache-2.0
"""Legal tiles of the Hopper kernel."""

from __future__ import annotations

import functools
from typing import Any

from epifuse.records import NamedTuple
from epifuse_cutedsl.configs.sm90_products import KINDS, Part, ProductKind, part_of
from epifuse_cutedsl.fuse.facts import kept_row_bytes
from epifuse_cutedsl.tile.operand import OperandTile
from epifuse_cutedsl.tile.smem import align, limit_bytes
from epifuse_cutedsl.tile.stage import StageShape, run_that_fits

WARP = 32
WARPGROUP = 128
WARPGROUP_WARPS = 4
REGISTERS = {2: (40, 232), 3: (32, 160)}
"""By the number of consumers, warpgroups that multiply and run epilogues: registers of a thread of the warpgroup that
loads, and of theirs, after the redistribution; 128 of each are at most the SM's 65536."""
WARP_ROWS = 16
"""Of a wgmma's rows, those that one warp's accumulators are."""
BLOCK_M = 64
"""Rows of one wgmma, and of an epilogue's tile."""
ACCUMULATOR_BYTES = 4
OPERAND_MAPS = 4
"""Tensor maps of A and B: those of whole tiles, and those of what is left of the last ones."""
_BARRIERS_BYTES = 1024
_MOST_STAGES = 8
_LEAST_STAGES = 3


class Tail(NamedTuple):
    """How an epilogue goes, and what that takes of shared memory.

    ``direct``: on the accumulators as they lie, full tensors by tensor copies, ``columns`` at a time. Then
    ``output_bytes`` and ``load_bytes`` are those of one warp's part of a piece, and ``rows`` row vectors are kept for
    each warpgroup. Else through a staged piece of float32.
    """

    direct: bool = False
    columns: int = 64
    output_bytes: int = 0
    load_bytes: int = 0
    rows: int = 0


NARROWEST = 16
"""Columns of a piece at least: what one instruction for matrices takes, two of 8 by 8 beside one another."""
STAGED = (Tail(), Tail(columns=NARROWEST))
"""No tensor copies: through a staged piece."""


class Sm90Config(NamedTuple):
    """A tile of A and B and how the warpgroups share it.

    Cooperative: each consumer warpgroup has its part of the tile's rows, or half of the columns where there are 64.
    Ping-pong: each has every second tile, so that one's epilogue runs beside the other's products. An epilogue's tile
    has 64 rows and ``epilogue_n`` columns.
    """

    tile_m: int
    tile_n: int
    tile_k: int
    pingpong: bool
    epilogue_n: int
    cluster: int = 1
    """CTAs, with tiles below one another, that share the tiles of B: each loads a part for all."""
    cluster_n: int = 1
    """CTAs, with tiles beside one another, that share the tiles of A likewise."""
    depth: int = 2
    """Buffers that a direct epilogue uses by turns, at most as many as a warpgroup's tile has pieces."""
    split: int = 1
    """CTAs of a cluster that share a tile's K: the first one adds the others' sums to its own."""
    stages: int = 0
    tail: Tail = STAGED[0]
    element_bytes: int = 2
    """Bytes of an element of A and of B."""
    part: Part | None = None
    """What is summed up at a time, where sums are promoted to float32."""
    swapped: bool = False
    """Operands swapped: the kernel multiplies B's columns by A's rows, so that ``tile_m``, ``cluster`` and all that is
    said of rows here lies along the problem's N."""

    def turned(self, pair: tuple[Any, Any]) -> tuple[Any, Any]:
        """What belongs to the problem's M and N, or to A and B, in the kernel's order; or back."""
        return (pair[1], pair[0]) if self.swapped else pair

    @property
    def ctas(self) -> int:
        """CTAs of a cluster."""
        return self.cluster * self.cluster_n * self.split

    @property
    def consumers(self) -> int:
        """Warpgroups that multiply and run epilogues, two or three; one more loads.

        Three where each has 64 of 192 rows: two would have a half each, which no instruction takes. An instruction then
        has up to 192 columns: with four warpgroups the assembler has 128 registers for it.
        """
        return 2 if self.pingpong or self.tile_m != 3 * BLOCK_M else 3

    @property
    def threads(self) -> int:
        """Threads of a CTA."""
        return WARPGROUP * (self.consumers + 1)

    @property
    def b_first(self) -> bool:
        """Whether B is copied before A: in tiles for few rows, where B's are each CTA's own, and A's all CTAs'.

        H200: 64 x 4096 x 4096 8.1 instead of 8.4 us with tiles of 64 x 64; but 4096^3 with two outputs is 1.3 % slower
        with tiles of 128 x 128, 24 x 4096 x 4096 2 % with swapped ones, 3000^3 2 % with 192 x 128 whose A two share.
        """
        return self.tile_n <= BLOCK_M and self.cluster_n == 1 and not self.swapped

    @property
    def early_places(self) -> bool:
        """Ping-pong: whether the next tile's place is found before the turn, not among the tile's first products.

        H200, K = 1024, tiles of 128 x 128: gelu, tanh and mish 1.1 to 1.9 % faster, relu level; wider ones lose as much
        with K = 512 (where the turn waits for the epilogue before it).
        """
        return self.part is None and self.accumulators <= 128

    @property
    def shares_columns(self) -> bool:
        """Whether each warpgroup has a half of the tile's columns."""
        return not self.pingpong and self.tile_m == BLOCK_M

    @property
    def rows(self) -> int:
        """Rows of a tile that one warpgroup multiplies."""
        return self.tile_m if self.pingpong or self.shares_columns else self.tile_m // self.consumers

    @property
    def columns(self) -> int:
        """Columns of a tile that one warpgroup multiplies."""
        return self.tile_n // self.consumers if self.shares_columns else self.tile_n

    @property
    def blocks(self) -> int:
        """Instructions beside one another along M, for one warpgroup."""
        return self.rows // BLOCK_M

    @property
    def accumulators(self) -> int:
        """Accumulator registers of a thread."""
        return self.rows * self.columns // WARPGROUP

    @property
    def warp_accumulator_bytes(self) -> int:
        """The accumulators of a warp, 4 bytes each."""
        return self.accumulators * ACCUMULATOR_BYTES * WARP

    @property
    def split_bytes(self) -> int:
        """Shared memory for other CTAs' accumulators."""
        return (self.split - 1) * self.consumers * WARPGROUP_WARPS * self.warp_accumulator_bytes

    @property
    def pieces(self) -> int:
        """Epilogue tiles of a warpgroup beside one another along N."""
        return self.columns // self.epilogue_n

    @property
    def epilogue_tile(self) -> tuple[int, int]:
        """Rows and columns of the problem that the epilogue's engine takes for a tile."""
        return self.turned((BLOCK_M, self.epilogue_n))

    @property
    def words(self) -> str:
        """For the operator's name."""
        mode = ("pingpong" if self.pingpong else "cooperative") + ("_swapped" if self.swapped else "")
        shape = f"{self.tile_m}x{self.tile_n}x{self.tile_k}"
        tail = f"d{self.epilogue_n}x{self.depth}" if self.tail.direct else f"e{self.epilogue_n}"
        return f"{shape}_{mode}_c{self.cluster}x{self.cluster_n}_k{self.split}_s{self.stages}_{tail}"

    @property
    def a_bytes(self) -> int:
        """Shared memory of a K tile of A."""
        return self.tile_m * self.tile_k * self.element_bytes

    @property
    def b_bytes(self) -> int:
        """Shared memory of a K tile of B."""
        return self.tile_n * self.tile_k * self.element_bytes

    @property
    def stage_bytes(self) -> int:
        """Shared memory of one stage of the ring."""
        return self.a_bytes + self.b_bytes

    def operand_tiles(self, a_k_major: bool, b_k_major: bool) -> tuple[OperandTile, OperandTile]:
        """How the K tiles of A and B lie in a stage."""
        size, k_bytes = self.element_bytes, self.tile_k * self.element_bytes
        a = OperandTile(self.tile_m, size, a_k_major, self.cluster_n, k_bytes)
        return a, OperandTile(self.tile_n, size, b_k_major, self.cluster, k_bytes)

    def stage_shape(self, axis: str, run: int) -> StageShape:
        """How an epilogue tile goes through shared memory for an epilogue that asks for runs of ``run``."""
        tile = self.epilogue_tile
        return StageShape(*tile, axis, ACCUMULATOR_BYTES, WARPGROUP, run_that_fits(*tile, axis, WARPGROUP, run))

    @property
    def warp_bytes(self) -> int:
        """Shared memory of one warp's buffers in a direct epilogue."""
        return self.depth * (self.tail.output_bytes + self.tail.load_bytes)

    @property
    def staged_bytes(self) -> int:
        """Shared memory of one warpgroup's staged epilogue tile, along either axis, or of its warps' buffers."""
        if self.tail.direct:
            return WARPGROUP_WARPS * self.warp_bytes
        return align(max(self.stage_shape(axis, 1).bytes for axis in "nm"), 128)

    @property
    def kept_bytes(self) -> int:
        """Shared memory of one warpgroup's row vectors."""
        return self.tail.rows * kept_row_bytes(self.columns, WARPGROUP)

    def smem_bytes(self, scratch_bytes: int) -> int:
        """Shared memory of a CTA: the ring, other CTAs' accumulators, a staged tile, row vectors and scratch memory for
        each consumer, the mbarriers."""
        consumers = self.consumers * (self.staged_bytes + self.kept_bytes + scratch_bytes)
        return self.stages * self.stage_bytes + self.split_bytes + consumers + _BARRIERS_BYTES

    def __str__(self) -> str:
        mode = ("swapped " if self.swapped else "") + ("ping-pong" if self.pingpong else "cooperative")
        tile = f"{self.tile_m}x{self.tile_n}x{self.tile_k}"
        cluster = f"cluster {self.cluster}x{self.cluster_n} split {self.split}"
        return f"{mode} {tile} {cluster} stages {self.stages} epilogue {self.epilogue_n} x{self.depth}"


# (tile_m, tile_n, tile_k, ping-pong, cluster along M and N, depth, split)
_TILES = (
    (128, 256, 64, False, (1, 1), 2, 1),
    (256, 128, 64, False, (1, 1), 2, 1),
    (128, 192, 64, True, (1, 1), 2, 1),
    (128, 192, 64, True, (1, 1), 1, 1),
    (128, 128, 64, True, (1, 1), 2, 1),
    (64, 256, 64, True, (1, 1), 2, 1),
    (128, 128, 64, False, (1, 1), 2, 1),
    (64, 128, 64, True, (1, 1), 2, 1),
    (64, 256, 64, False, (1, 1), 2, 1),
    (64, 128, 128, True, (1, 1), 2, 1),
    (64, 128, 128, False, (1, 1), 1, 1),
    (64, 64, 64, True, (1, 1), 1, 1),
    (64, 64, 128, True, (1, 1), 1, 1),
    (64, 64, 256, True, (1, 1), 1, 1),
    (128, 128, 128, False, (1, 1), 2, 1),
    (64, 128, 64, True, (1, 1), 2, 2),
    (64, 128, 64, False, (1, 1), 1, 2),
    (64, 128, 128, False, (1, 1), 1, 2),
    (64, 128, 64, False, (1, 1), 1, 4),
    (64, 64, 64, True, (1, 1), 1, 2),
    (64, 64, 128, True, (1, 1), 1, 2),
    (128, 256, 64, False, (2, 1), 2, 1),
    (128, 192, 64, True, (2, 1), 2, 1),
    (128, 128, 64, True, (2, 1), 2, 1),
    (64, 128, 64, True, (2, 1), 2, 1),
    (64, 128, 128, True, (2, 1), 2, 1),
    (128, 128, 64, True, (1, 2), 2, 1),
    (64, 128, 64, True, (1, 2), 2, 1),
    (64, 256, 64, True, (2, 1), 2, 1),
    (64, 192, 64, True, (2, 1), 2, 1),
    (192, 64, 64, True, (1, 2), 1, 1),
    (128, 64, 64, True, (1, 2), 1, 1),
    (192, 128, 64, True, (1, 2), 2, 1),
    (192, 192, 64, False, (1, 2), 2, 1),
    (64, 48, 128, True, (1, 1), 2, 1),
    (64, 48, 128, True, (1, 1), 2, 2),
    (64, 80, 128, True, (1, 1), 2, 2),
    (64, 80, 128, True, (2, 1), 2, 1),
    (64, 96, 128, True, (1, 1), 2, 1),
    (64, 112, 128, True, (1, 1), 2, 1),
    (128, 48, 64, True, (1, 1), 2, 1),
    (128, 80, 64, True, (2, 1), 2, 1),
    (128, 112, 64, True, (1, 1), 2, 1),
    (128, 144, 64, True, (1, 1), 2, 1),
    (192, 48, 64, True, (1, 1), 2, 1),
    (192, 112, 64, True, (1, 1), 2, 1),
    (64, 96, 64, False, (1, 1), 2, 2),
    (128, 48, 64, False, (1, 1), 2, 2),
    (128, 64, 64, False, (1, 1), 1, 2),
    (128, 80, 64, False, (1, 1), 2, 2),
)

# Operands swapped, by the problem's short side: with few rows, an instruction's 64 rows lie along N, and the ring has
# room for more of B; with few columns, along N too, and tiles of any multiple of 16 lie along M, to fill the chip once.
_SWAPPED_TILES = {
    "m": (
        (64, 16, 256, True, (1, 1), 1, 1),
        (64, 16, 128, True, (1, 1), 1, 2),
        (64, 32, 128, True, (1, 1), 1, 1),
        (64, 32, 128, True, (1, 1), 1, 2),
        (64, 48, 128, True, (1, 1), 1, 1),
        (64, 96, 64, False, (1, 1), 1, 2),
    ),
    "n": (
        (64, 48, 128, True, (1, 1), 1, 1),
        (64, 80, 128, True, (2, 1), 1, 1),
        (64, 112, 128, True, (1, 1), 1, 1),
        (128, 48, 64, True, (1, 1), 1, 1),
        (128, 80, 64, True, (2, 1), 1, 1),
        (192, 48, 64, True, (1, 1), 1, 1),
        (128, 48, 64, False, (1, 1), 1, 2),
    ),
}

# Where sums are promoted: 96 accumulators a thread leave room for as many again, so that a part has all columns.
_PROMOTED_TILES = (
    (128, 192, 64, False, (1, 1), 2, 1),
    (128, 192, 64, False, (2, 1), 2, 1),
    (64, 192, 64, True, (1, 1), 2, 1),
)

HALF = KINDS["bfloat16", "bfloat16", "float32"]
"""What the table is written for; bytes and registers of the other 16-bit kinds are the same."""


def _of_kind(row: Sm90Config, kind: ProductKind) -> Sm90Config | None:
    """A row of the table for a kind; None where its sums do not fit the registers."""
    size = kind.element_bytes
    k_bytes = row.tile_k * HALF.element_bytes
    part = part_of(row.blocks, row.columns, k_bytes, alternating=row.pingpong) if kind.promoted else None
    if kind.promoted and (part is None or row.consumers > 2):
        return None
    return row._replace(tile_k=k_bytes // size, element_bytes=size, part=part)


@functools.lru_cache(maxsize=256)
def configurations(
    cc: int,
    scratch_bytes: int = 0,
    tails: tuple[Tail, ...] = STAGED,
    *,
    kind: ProductKind = HALF,
    swapped: str = "",
) -> tuple[Sm90Config, ...]:
    """Every configuration of a kind with as many stages as fit, where a consumer's epilogue needs ``scratch_bytes``
    beside what its tail says: the first of ``tails`` whose pieces fill a warpgroup's columns.

    ``swapped``: those with swapped operands, for a short side along "m" or "n".

    A staged epilogue takes half of the columns at a time where that leaves two more stages, or any at all.
    """
    found: dict[Sm90Config, None] = {}
    rows = _SWAPPED_TILES[swapped] if swapped else (*_TILES, *(_PROMOTED_TILES if kind.promoted else ()))
    for m, n, k, pingpong, clusters, depth, split in rows:
        row = with_tail(Sm90Config(m, n, k, pingpong, n, *clusters, depth, split, swapped=bool(swapped)), tails)
        wide = None if row is None else _of_kind(row, kind)
        if wide is None:
            continue
        halves = not wide.tail.direct and wide.epilogue_n > NARROWEST
        narrow = wide._replace(epilogue_n=wide.epilogue_n // 2) if halves else wide
        stages, more = (_stages(config, limit_bytes(cc), scratch_bytes) for config in (wide, narrow))
        best, stages = (wide, stages) if stages + 1 >= more and stages >= _LEAST_STAGES else (narrow, more)
        if stages >= _LEAST_STAGES:
            found[best._replace(stages=stages)] = None
    return tuple(found)


def with_tail(row: Sm90Config, tails: tuple[Tail, ...]) -> Sm90Config | None:
    """A row with the first tail whose pieces fill a warpgroup's columns; None where none does."""
    tail = next((each for each in tails if row.columns % each.columns == 0), None)
    if tail is None:
        return None
    return row._replace(epilogue_n=tail.columns, depth=row.depth if tail.direct else 1, tail=tail)


def _stages(config: Sm90Config, limit: int, scratch_bytes: int) -> int:
    return min((limit - config.smem_bytes(scratch_bytes)) // config.stage_bytes, _MOST_STAGES)
