# SPDX-License-Identifier: Apache-2.0
"""``Sm90Launch``: a launch of the Hopper kernel, its tensor maps encoded once for the arguments' addresses."""

from __future__ import annotations

from typing import Any

import torch

from epifuse import emulator
from epifuse.arguments import GemmArguments
from epifuse.runtime import tensormap
from epifuse_cutedsl.configs.sm90 import BLOCK_M, OPERAND_MAPS, Sm90Config
from epifuse_cutedsl.configs.sm90_products import KINDS
from epifuse_cutedsl.fuse.boxes import MOST_MAPS, maps_of
from epifuse_cutedsl.tile import division
from epifuse_cutedsl.tma_launch import TmaLaunch
from epifuse_cutedsl.tma_operands import Route, routes_of

_STAGGER, _SHARED_ROWS = 4, 64
"""K tiles by which neighbouring tiles begin apart, where each tile of an operand beyond the cache is read once; but not
where CTAs without a cluster have so many rows of the other operand in common.

In step, all SMs would ask memory for the same part of every row: 53 instead of 61 TFLOP/s at 16 x 8192 x 8192 on an
H200 (4 and 16 do as well, 7 costs 2 %, 1 and 32 cost more). What the cache holds is faster in step, as requests for the
same line at the same time become one: 240 instead of 208 at 64 x 4096 x 4096, 64.6 instead of 67.4 us at 128 x 28672 x
4096; in pairs 8192 x 128 x 8192 takes 39.0 us apart, 44.4 in step.
"""
_LEFT_OUT = 4
_LEFT_OUT_SHARE = 1 / 32
"""Of an operand's last tile, how many rows must be beyond it for copies to leave them out; and in its only tile, what
share of them, which may be fewer.

To fill a row with zeros takes the tensor copies three times as long as to bring one. H200: 16 x 4096 x 4096 13.9
instead of 7.7 us, 16 x 8192 x 8192 43.8 instead of 33.4, both with tiles of 64 x 64; 200 x 5120 x 5120 38.5 instead of
26 with 128 x 112, 62 x 4096 x 4096 8.4 instead of 8.2 with 64 x 64, 15 x 4096 x 4096 7.4 instead of 7.0 with 64 x 16.
But with 63 or 127 rows it costs 1 to 3 %, at 1022^3 (tiles of 64 x 128) 5.
"""
_STAGGERED_TILES = 2**28
"""With more tiles none begins apart: a tile's number times that is an int32."""
_CACHE_BYTES = 50 << 20
"""The second-level cache of an H200."""
_STREAMED_BYTES, _STREAM_READERS = 36 << 20, 2
"""An operand of so many bytes, of which each tile is read so often at most, streams: then it does not push all else out
of the cache.

H200: 3 to 6 % at 5120 x 5120 and 6144 x 4096 with 16 to 128 rows, 10 at 160 x 6144 x 4096, 4 to 8 at 48 x 4608 x 4096,
5 at 256 x 4096 x 8192 (two readers); four make no difference, and with 34 megabytes it costs up to 5 %.
"""


class Sm90Launch(TmaLaunch):
    """A persistent grid: one CTA for each SM, or for each tile where there are fewer (with clusters: in whole ones)."""

    def _layout(
        self, config: Sm90Config, group: int, args: GemmArguments
    ) -> tuple[tuple[int, int, int], list[Any], list[int]]:
        _, _, k, batches = args.problem_size
        m, n = config.turned((args.problem_size.M, args.problem_size.N))
        tiles = (-(-m // (config.tile_m * config.cluster)), -(-n // (config.tile_n * config.cluster_n)))
        total = tiles[0] * tiles[1] * batches
        a, b = (route.operand for route in config.turned(routes(args)))
        maps = [bytes(tensormap.BYTES)] * (OPERAND_MAPS + MOST_MAPS)
        tiles_of_k = config.operand_tiles(a.major == "k", b.major == "k")
        if total and k:
            edges = [tile.edge(extent) for tile, extent in zip(tiles_of_k, (m, n), strict=True)]
            boxes = [tile.copy_box for tile in (*tiles_of_k, *edges)]
            maps[:OPERAND_MAPS] = self._operand_maps(args, routes(args), boxes, swapped=config.swapped)
        if total:
            others = maps_of(self._bound, self._compiled.kinds.boxes)
            maps[OPERAND_MAPS : OPERAND_MAPS + len(others)] = [tensormap.encode(each, args.A.device) for each in others]
        main = [*maps, m, n, k, batches, int(a.batched), int(b.batched), *tiles, group]
        stagger, streamed = _streaming(config, m, n, k * args.A.traits.dtype.bytes, min(tiles))
        if total > _STAGGERED_TILES:
            stagger = 0
        main += [stagger, streamed, int(_has_edges(config, args))]
        main += division.numbers_of(*tiles, group, -(-k // config.tile_k) // config.split)
        pieces = list(config.turned((-(-m // BLOCK_M), -(-n // config.epilogue_n))))
        clusters = min(total, max(1, _sm_count(args.A.device) // config.ctas))
        return (clusters * config.ctas, 1, 1), main, pieces


def _streaming(config: Sm90Config, m: int, n: int, row_bytes: int, readers: int) -> tuple[int, int]:
    """By how many K tiles neighbouring tiles begin apart, and which operand streams: 0 neither, 1 A, 2 B.

    All in the kernel's order of operands; ``row_bytes`` are those of K, and so many CTAs or clusters are the
    ``readers`` of each tile of the longer operand.
    """
    longest_bytes = max(m, n) * row_bytes
    if readers > _STREAM_READERS or longest_bytes < _STREAMED_BYTES:
        return 0, 0
    apart = readers == 1 and longest_bytes > _CACHE_BYTES and (config.ctas > 1 or min(m, n) < _SHARED_ROWS)
    return _STAGGER if apart else 0, 1 if m > n else 2


def routes(args: GemmArguments) -> tuple[Route, Route]:
    """How A and B of arguments that the operator supports reach the kernel."""
    kind = KINDS[args.A.traits.dtype.name, args.B.traits.dtype.name, args.accumulator_type.name]
    return routes_of(args, kind.majors, rounded=kind.rounded)


def _has_edges(config: Sm90Config, args: GemmArguments) -> bool:
    """Whether copies leave out rows of tiles beyond the operands: worth it, and a tile's copies reach all stages."""
    m, n = config.turned((args.problem_size.M, args.problem_size.N))
    reached = -(-args.problem_size.K // config.tile_k) // config.split >= config.stages
    a, b = (route.operand.major == "k" for route in config.turned(routes(args)))
    sides = ((a, m, config.tile_m * config.cluster), (b, n, config.tile_n * config.cluster_n))
    return reached and any(k_major and _is_left_out(extent, together) for k_major, extent, together in sides)


def _is_left_out(extent: int, together: int) -> bool:
    """Whether the last of an operand's tiles, or of clusters' tiles, of so many rows has enough rows beyond it."""
    least = min(_LEFT_OUT, together * _LEFT_OUT_SHARE) if extent < together else _LEFT_OUT
    return -extent % together >= least


def _sm_count(device: torch.device) -> int:
    if device.type == "cuda":
        return int(torch.cuda.get_device_properties(device).multi_processor_count)
    emulated = emulator.current()
    return 1 if emulated is None else emulated.chip.sm_count
