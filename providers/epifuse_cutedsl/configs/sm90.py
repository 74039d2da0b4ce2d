# SPDX-License-Identifier: Apache-2.0
"""Legal tiles of the Hopper kernel: 16-bit operands, float32 accumulators."""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace

from epifuse_cutedsl.tile.smem import align, limit_bytes
from epifuse_cutedsl.tile.stage import StageShape, run_that_fits

WARPGROUP = 128
WARPGROUP_WARPS = 4
CONSUMERS = 2
"""Warpgroups that multiply and run epilogues; one more loads."""
ELEMENT_BYTES = 2
BLOCK_M = 64
"""Rows of one wgmma, and of an epilogue's tile."""
ACCUMULATOR_BYTES = 4
_BARRIERS_BYTES = 1024
_MOST_STAGES = 8
_LEAST_STAGES = 3


@dataclass(frozen=True, slots=True)
class Sm90Config:
    """A tile of A and B and how the warpgroups share it.

    Cooperative: each consumer warpgroup has half of the tile's rows. Ping-pong: each has every second tile, so that
    one's epilogue runs beside the other's products. An epilogue's tile has 64 rows and ``epilogue_n`` columns.
    """

    tile_m: int
    tile_n: int
    tile_k: int
    pingpong: bool
    epilogue_n: int
    cluster: int = 1
    """CTAs, with tiles below one another, that share the tiles of B: each loads a part for all."""
    stages: int = 0

    @property
    def threads(self) -> int:
        """Threads of a CTA."""
        return WARPGROUP * (CONSUMERS + 1)

    @property
    def rows(self) -> int:
        """Rows of a tile that one warpgroup multiplies."""
        return self.tile_m if self.pingpong else self.tile_m // CONSUMERS

    @property
    def blocks(self) -> int:
        """Instructions beside one another along M, for one warpgroup."""
        return self.rows // BLOCK_M

    @property
    def accumulators(self) -> int:
        """Accumulator registers of a thread."""
        return self.rows * self.tile_n // WARPGROUP

    @property
    def pieces(self) -> int:
        """Epilogue tiles beside one another along N."""
        return self.tile_n // self.epilogue_n

    @property
    def epilogue_tile(self) -> tuple[int, int]:
        """Rows and columns that the epilogue's engine takes for a tile."""
        return BLOCK_M, self.epilogue_n

    @property
    def words(self) -> str:
        """For the operator's name."""
        mode = "pingpong" if self.pingpong else "cooperative"
        shape = f"{self.tile_m}x{self.tile_n}x{self.tile_k}"
        return f"{shape}_{mode}_c{self.cluster}_s{self.stages}_e{self.epilogue_n}"

    @property
    def a_bytes(self) -> int:
        """Shared memory of a K tile of A."""
        return self.tile_m * self.tile_k * ELEMENT_BYTES

    @property
    def b_bytes(self) -> int:
        """Shared memory of a K tile of B."""
        return self.tile_n * self.tile_k * ELEMENT_BYTES

    @property
    def stage_bytes(self) -> int:
        """Shared memory of one stage of the ring."""
        return self.a_bytes + self.b_bytes

    def stage_shape(self, axis: str, run: int) -> StageShape:
        """How an epilogue tile goes through shared memory for an epilogue that asks for runs of ``run``."""
        fitting = run_that_fits(BLOCK_M, self.epilogue_n, axis, WARPGROUP, run)
        return StageShape(BLOCK_M, self.epilogue_n, axis, ACCUMULATOR_BYTES, WARPGROUP, fitting)

    @property
    def staged_bytes(self) -> int:
        """Shared memory of one warpgroup's staged epilogue tile, along either axis."""
        return align(max(self.stage_shape(axis, 1).bytes for axis in "nm"), 128)

    def smem_bytes(self, scratch_bytes: int) -> int:
        """Shared memory of a CTA: the ring, a staged tile and scratch memory for each consumer, the mbarriers."""
        return self.stages * self.stage_bytes + CONSUMERS * (self.staged_bytes + scratch_bytes) + _BARRIERS_BYTES

    def __str__(self) -> str:
        mode = "ping-pong" if self.pingpong else "cooperative"
        tile = f"{self.tile_m}x{self.tile_n}x{self.tile_k}"
        return f"{mode} {tile} cluster {self.cluster} stages {self.stages} epilogue {self.epilogue_n}"


# (tile_m, tile_n, tile_k, ping-pong, epilogue_n, cluster)
_TILES = (
    (128, 256, 64, False, 32, 1),
    (256, 128, 64, False, 64, 1),
    (128, 192, 64, True, 32, 1),
    (128, 192, 64, True, 64, 1),
    (128, 128, 64, True, 64, 1),
    (64, 256, 64, True, 64, 1),
    (128, 128, 64, False, 64, 1),
    (64, 128, 64, True, 64, 1),
)


# Right, but half as fast as the same tiles without a cluster (H200): not offered until it is known why.
_CLUSTER_TILES = (
    (128, 256, 64, False, 32, 2),
    (128, 192, 64, True, 32, 2),
    (128, 128, 64, True, 64, 2),
    (256, 128, 64, False, 64, 2),
)


@functools.lru_cache(maxsize=64)
def configurations(cc: int, scratch_bytes: int = 0, *, clusters: bool = False) -> tuple[Sm90Config, ...]:
    """Every configuration with as many stages as fit, where a consumer's epilogue needs ``scratch_bytes``.

    With ``clusters``, those that share tiles in clusters too.
    """
    found = []
    for fields in (*_TILES, *(_CLUSTER_TILES if clusters else ())):
        without = Sm90Config(*fields)
        room = (limit_bytes(cc) - without.smem_bytes(scratch_bytes)) // without.stage_bytes
        if room >= _LEAST_STAGES:
            found.append(replace(without, stages=min(room, _MOST_STAGES)))
    return tuple(found)
