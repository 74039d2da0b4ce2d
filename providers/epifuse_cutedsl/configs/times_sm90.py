# SPDX-License-Identifier: Apache-2.0
"""What the Hopper kernel's configurations take."""

from __future__ import annotations

import functools

from epifuse.arguments import GemmArguments
from epifuse.target import TargetSm
from epifuse_cutedsl.configs.model import Overlap, Persistent, PersistentTimes, Traffic, persistent_us, work_of
from epifuse_cutedsl.configs.sm90 import Sm90Config

# Fitted to the logarithms of times on an H200 (bfloat16, bias and relu, B K-major, four shapes, groups of 1 and 8; root
# of mean square 0.09): by tile_m, tile_n, ping-pong, cluster, depth. A K tile has 128 bytes whatever the dtype, and
# 8-bit operands are multiplied twice as fast, so the rows serve them as well.
# fmt: off
MEASURED: dict[tuple[int, int, bool, int, int], PersistentTimes] = {
    (64, 128, True, 1, 2): PersistentTimes(0.188, 0.32, 1.83),
    (64, 256, True, 1, 2): PersistentTimes(0.400, 0.22, 1.00),
    (128, 128, False, 1, 2): PersistentTimes(0.346, 0.60, 0.68),
    (128, 128, True, 1, 2): PersistentTimes(0.319, 0.81, 1.16),
    (128, 192, True, 1, 2): PersistentTimes(0.469, 1.14, 2.04),
    (128, 256, False, 1, 2): PersistentTimes(0.647, 1.42, 2.60),
    (256, 128, False, 1, 2): PersistentTimes(0.693, 0.24, 2.67),
}
# fmt: on
TRAFFIC = Traffic(2.5, 3.0)
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
    overlap = Overlap.TURNS if config.pingpong else Overlap.EXPOSED
    tile = (config.tile_m, config.tile_n, config.tile_k)
    how = Persistent(*tile, config.cluster, group, overlap, times_of(config), TRAFFIC, config.split)
    return persistent_us(work_of(args), how, target)


@functools.lru_cache(maxsize=512)
def times_of(config: Sm90Config) -> PersistentTimes:
    """A configuration's row, that of two buffers where its own is absent; without any, the tensor cores' rate."""
    tile = (config.tile_m, config.tile_n, config.pingpong, config.cluster)
    row = MEASURED.get((*tile, config.depth)) or MEASURED.get((*tile, 2))
    if row is not None:
        return row
    area = config.tile_m * config.tile_n
    step = 2.0 * area * 64 / (_FLOPS_PER_CLOCK * _EFFICIENCY * 1000 * _CLOCK_GHZ) * _UNKNOWN_SLOWER
    return PersistentTimes(step, 1.0, 1.0 + area / 8192)
