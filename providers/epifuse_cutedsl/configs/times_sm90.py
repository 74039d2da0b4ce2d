# SPDX-License-Identifier: Apache-2.0
"""What the Hopper kernel's configurations take."""

from __future__ import annotations

import functools
from dataclasses import replace

from epifuse.arguments import GemmArguments
from epifuse.target import TargetSm
from epifuse_cutedsl.configs.model import Overlap, Persistent, PersistentTimes, Traffic, persistent_us, work_of
from epifuse_cutedsl.configs.sm90 import Sm90Config

# Fitted to the logarithms of times on an H200 (bfloat16, bias and relu, B K-major, direct epilogue, groups of 8, eight
# shapes from 1024^3 to 8192 x 14336 x 4096; root of mean square 0.08): by tile_m, tile_n, bytes of K in a tile,
# ping-pong, cluster, depth. A hidden epilogue shows in no time: its column is then what bytes and instructions take.
# What the table puts first was within 1.2 % of the best of these shapes. 8-bit operands are multiplied twice as fast:
# a K tile of as many bytes takes as long, and the rows serve them as well.
# fmt: off
MEASURED: dict[tuple[int, int, int, bool, int, int], PersistentTimes] = {
    (64, 128, 128, True, 1, 2): PersistentTimes(0.201, 0.35, 0.41),
    (64, 256, 128, True, 1, 2): PersistentTimes(0.348, 0.74, 0.82),
    (128, 128, 128, False, 1, 2): PersistentTimes(0.348, 0.52, 1.03),
    (128, 128, 128, True, 1, 2): PersistentTimes(0.345, 0.50, 0.82),
    (128, 128, 128, True, 2, 2): PersistentTimes(0.389, 0.24, 0.82),
    (128, 192, 128, True, 1, 1): PersistentTimes(0.521, 0.53, 1.23),
    (128, 192, 128, True, 1, 2): PersistentTimes(0.527, 0.34, 1.23),
    (128, 192, 128, True, 2, 2): PersistentTimes(0.535, 0.57, 1.23),
    (128, 256, 128, False, 1, 2): PersistentTimes(0.695, 0.74, 2.17),
    (128, 256, 128, False, 2, 2): PersistentTimes(0.706, 0.38, 2.58),
    (256, 128, 128, False, 1, 2): PersistentTimes(0.714, 0.20, 2.18),
    (256, 128, 128, False, 2, 2): PersistentTimes(0.804, 0.02, 1.64),
}
# fmt: on
TRAFFIC = Traffic(4.5, 3.0, 2.0)
_USUAL_GROUP = 8
_OTHER_GROUPS = 1.002
"""Where nothing tells groups apart, those of 8: they beat 1 nearly everywhere."""
_FLOPS_PER_CLOCK = 4096.0
"""Of one SM, with 16-bit operands and wgmma, as specified; a K tile of 128 bytes takes as long with 8 bits."""
_CLOCK_GHZ = 1.7
_EFFICIENCY = 0.75
_UNKNOWN_SLOWER = 1.15
"""So that a configuration that was measured is preferred."""


def estimate_us(config: Sm90Config, group: int, args: GemmArguments, target: TargetSm | None) -> float | None:
    """Predicted microseconds of a run; None without a target."""
    if target is None:
        return None
    us = persistent_us(work_of(args), how(config, group), target)
    return us if group == _USUAL_GROUP else us * _OTHER_GROUPS


def how(config: Sm90Config, group: int) -> Persistent:
    """How a configuration works on a problem."""
    overlap = Overlap.TURNS if config.pingpong else Overlap.EXPOSED
    tile = (config.tile_m, config.tile_n, config.tile_k)
    return Persistent(*tile, config.cluster, group, overlap, times_of(config), TRAFFIC, config.split)


def row_of(config: Sm90Config) -> tuple[int, int, int, bool, int, int]:
    """A configuration's key in the table."""
    k_bytes = config.tile_k * config.element_bytes
    return (config.tile_m, config.tile_n, k_bytes, config.pingpong, config.cluster, config.depth)


@functools.lru_cache(maxsize=512)
def times_of(config: Sm90Config) -> PersistentTimes:
    """A configuration's row; else that of a tile of 128 bytes of K with two buffers; else the tensor cores' rate."""
    row = MEASURED.get(row_of(config))
    if row is not None:
        return row
    k_bytes = config.tile_k * config.element_bytes
    row = MEASURED.get((config.tile_m, config.tile_n, 128, config.pingpong, config.cluster, 2))
    area, parts = config.tile_m * config.tile_n, k_bytes / 128
    if row is not None:
        return replace(row, step_us=row.step_us * parts)
    step = 2.0 * area * 64 / (_FLOPS_PER_CLOCK * _EFFICIENCY * 1000 * _CLOCK_GHZ) * _UNKNOWN_SLOWER
    return PersistentTimes(step * parts, 0.5, area / 16384 + 0.2)
