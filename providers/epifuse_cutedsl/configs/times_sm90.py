# SPDX-License-Identifier: Apache-2.0
"""What the Hopper kernel's configurations take."""

from __future__ import annotations

import functools

from epifuse.arguments import GemmArguments
from epifuse.target import TargetSm
from epifuse_cutedsl.configs.model import (
    Copies,
    Overlap,
    Persistent,
    PersistentTimes,
    Traffic,
    persistent_us,
    work_of,
)
from epifuse_cutedsl.configs.sm90 import Sm90Config

Row = tuple[int, int, int, bool, tuple[int, int], int, int]
"""tile_m, tile_n, bytes of K in a tile, ping-pong, cluster along M and N, depth, split."""

# Fitted to the logarithms of times on an H200 (bfloat16, bias and relu, B K-major, direct epilogue, groups of 1 and 8,
# 19 shapes from 512^3 to 8192 x 4096 x 14336, and four with two outputs or C), those near the best of a shape counting
# most (root of mean square 0.07), then moved until what the table puts first was at most 2.2 % above the best on every
# one of them. A hidden epilogue shows in no time: its column is then what bytes and instructions take at least. 8-bit
# operands are multiplied twice as fast: a K tile of as many bytes takes as long, and the rows serve them as well.
# fmt: off
MEASURED: dict[Row, PersistentTimes] = {
    (128, 128, 128, False, (1, 1), 2, 1): PersistentTimes(0.342, 0.18, 0.82),
    (128, 128, 128, False, (1, 1), 2, 2): PersistentTimes(0.396, 0.02, 0.82),
    (128, 128, 128, True, (1, 1), 2, 1): PersistentTimes(0.333, 0.55, 0.82),
    (128, 128, 128, True, (1, 2), 2, 1): PersistentTimes(0.349, 0.44, 1.41),
    (128, 128, 128, True, (2, 1), 2, 1): PersistentTimes(0.346, 0.44, 1.40),
    (128, 128, 256, False, (1, 1), 2, 1): PersistentTimes(0.749, 0.14, 0.82),
    (128, 192, 128, False, (1, 1), 2, 1): PersistentTimes(0.499, 0.30, 1.90),
    (128, 192, 128, True, (1, 1), 1, 1): PersistentTimes(0.497, 0.71, 1.74),
    (128, 192, 128, True, (1, 1), 2, 1): PersistentTimes(0.480, 0.67, 1.72),
    (128, 192, 128, True, (2, 1), 2, 1): PersistentTimes(0.495, 0.64, 1.94),
    (128, 256, 128, False, (1, 1), 2, 1): PersistentTimes(0.685, 0.02, 1.66),
    (128, 256, 128, False, (2, 1), 2, 1): PersistentTimes(0.680, 0.37, 1.66),
    (256, 128, 128, False, (1, 1), 2, 1): PersistentTimes(0.686, 0.02, 1.64),
    (64, 128, 128, False, (1, 1), 1, 2): PersistentTimes(0.271, 0.34, 0.41),
    (64, 128, 128, False, (1, 1), 1, 4): PersistentTimes(0.213, 3.44, 1.30),
    (64, 128, 128, True, (1, 1), 2, 1): PersistentTimes(0.178, 0.30, 0.41),
    (64, 128, 128, True, (1, 1), 2, 2): PersistentTimes(0.237, 0.98, 0.43),
    (64, 128, 128, True, (1, 2), 2, 1): PersistentTimes(0.225, 0.60, 1.29),
    (64, 128, 128, True, (2, 1), 2, 1): PersistentTimes(0.196, 0.50, 0.89),
    (64, 128, 256, False, (1, 1), 1, 1): PersistentTimes(0.374, 0.14, 0.64),
    (64, 128, 256, False, (1, 1), 1, 2): PersistentTimes(0.546, 0.23, 0.41),
    (64, 128, 256, True, (1, 1), 2, 1): PersistentTimes(0.381, 0.32, 0.46),
    (64, 128, 256, True, (2, 1), 2, 1): PersistentTimes(0.439, 0.27, 1.21),
    (64, 256, 128, False, (1, 1), 2, 1): PersistentTimes(0.312, 0.08, 0.82),
    (64, 256, 128, True, (1, 1), 2, 1): PersistentTimes(0.295, 0.60, 0.82),
    (64, 64, 128, True, (1, 1), 1, 1): PersistentTimes(0.097, 0.32, 0.35),
    (64, 64, 128, True, (1, 1), 1, 2): PersistentTimes(0.101, 1.01, 1.16),
    (64, 64, 256, True, (1, 1), 1, 1): PersistentTimes(0.287, 0.26, 0.23),
    (64, 64, 256, True, (1, 1), 1, 2): PersistentTimes(0.186, 0.51, 1.16),
    (64, 64, 512, True, (1, 1), 1, 1): PersistentTimes(0.375, 0.24, 0.37),
}
# fmt: on
# 3000^3, with rows of 6000 bytes: 48 KB a microsecond to each of 132 SMs in every configuration; 1000^3, 64 CTAs: 77.
COPIES = Copies(sm_bytes_per_us=112e3, chip_bytes_per_us=14.5e6, shifted_sm=1.43, shifted_chip=2.3)
TRAFFIC = Traffic(4.2, 3.0, 1.0, COPIES, launch_us=1.1)
# Measured at 8192^3 in float8, whose sums are promoted after each 128 positions of K: by tiles of 128 x 192 and larger,
# smaller ones, and what ping-pong ones (which were not among the best dozen) take at least.
_PROMOTED, _PROMOTED_SMALL, _PROMOTED_PINGPONG = 1.2, 1.3, 1.5
_SMALL_AREA = 128 * 128
_USUAL_GROUP = 8
_OTHER_GROUPS = 1.002
"""Where nothing tells groups apart, those of 8: they beat 1 nearly everywhere."""
_FLOPS_PER_CLOCK = 4096.0
"""Of one SM, with 16-bit operands and wgmma, as specified; a K tile of 128 bytes takes as long with 8 bits."""
_CLOCK_GHZ = 1.7
_EFFICIENCY = 0.7
_UNKNOWN_SLOWER = 1.05
"""So that a configuration that was measured is preferred."""


def estimate_us(
    config: Sm90Config, group: int, args: GemmArguments, target: TargetSm | None, copied: tuple[bool, bool]
) -> float | None:
    """Predicted microseconds of a run, without the copies of A and B that it may read; None without a target."""
    if target is None:
        return None
    us = persistent_us(work_of(args, copied), how(config, group), target)
    return us if group == _USUAL_GROUP else us * _OTHER_GROUPS


def how(config: Sm90Config, group: int) -> Persistent:
    """How a configuration works on a problem."""
    overlap = Overlap.TURNS if config.pingpong else Overlap.EXPOSED
    tile = (config.tile_m, config.tile_n, config.tile_k)
    times = times_of(config)
    return Persistent(*tile, config.cluster, group, overlap, times, TRAFFIC, config.split, config.cluster_n)


def row_of(config: Sm90Config) -> Row:
    """A configuration's key in the table."""
    k_bytes = config.tile_k * config.element_bytes
    cluster = (config.cluster, config.cluster_n)
    return (config.tile_m, config.tile_n, k_bytes, config.pingpong, cluster, config.depth, config.split)


@functools.lru_cache(maxsize=512)
def times_of(config: Sm90Config) -> PersistentTimes:
    """What a configuration takes: its row, slower where sums are promoted."""
    row = _row(config)
    if config.part is None:
        return row
    small = config.tile_m * config.tile_n <= _SMALL_AREA
    slower = _PROMOTED_PINGPONG if config.pingpong else _PROMOTED_SMALL if small else _PROMOTED
    return row._replace(step_us=row.step_us * slower)


def _row(config: Sm90Config) -> PersistentTimes:
    """A configuration's row; else that of the most similar one, its K tile scaled; else the tensor cores' rate."""
    own = row_of(config)
    found = MEASURED.get(own)
    if found is not None:
        return found
    tile_m, tile_n, k_bytes, pingpong, cluster, depth, split = own
    parts, area = k_bytes / 128, tile_m * tile_n
    for row in (
        (tile_m, tile_n, k_bytes, pingpong, cluster[::-1], depth, split),
        (tile_m, tile_n, 128, pingpong, cluster, 2, split),
        (tile_m, tile_n, 128, pingpong, (2, 1) if max(cluster) > 1 else (1, 1), 2, split),
        (tile_m, tile_n, 128, pingpong, (1, 1), 2, 1),
    ):
        found = MEASURED.get(row)
        if found is not None:
            scale = _UNKNOWN_SLOWER * (parts if row[2] != k_bytes else 1)
            return found._replace(step_us=found.step_us * scale)
    step = 2.0 * area * 64 / (_FLOPS_PER_CLOCK * _EFFICIENCY * 1000 * _CLOCK_GHZ) * _UNKNOWN_SLOWER
    return PersistentTimes(step * parts, 0.5, area / 16384 + 0.2)
