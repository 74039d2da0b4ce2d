# SPDX-License-Identifier: Apache-2.0
"""What the Blackwell kernel's configurations take: by the chip's rates, since none has been measured."""

from __future__ import annotations

import functools

from epifuse.arguments import GemmArguments
from epifuse.target import TargetSm
from epifuse_cutedsl.configs.model import Overlap, Persistent, PersistentTimes, Traffic, persistent_us, work_of
from epifuse_cutedsl.configs.sm100 import Sm100Config

# NOT MEASURED: no chip of the family was at hand. Rates of one SM as specified, times a share that kernels reach.
_CLOCK_GHZ = 1.85
_FLOPS_PER_CLOCK = 8192.0
"""With 16-bit operands; a K tile of 128 bytes takes as long whatever the dtype (TF32: half the elements, half the
rate)."""
_EFFICIENCY = 0.85
_FULL_ROWS = 128
"""Rows of one CTA with which the tensor core is busy; fewer take as long."""
_COPIED_BYTES_PER_CLOCK = 64.0
"""What the second-level cache brings to one SM; CTAs that share a tile by multicast get a part of it each."""
_ROUND_US = 0.25
"""A tile's start: the first copies of a CTA, and the hand-over of an accumulator."""
_EPILOGUE_OPERATIONS = 8.0
"""Instructions for each element, the measured epilogue's (bias and relu) and what is around them."""
_LANES = 128.0
TRAFFIC = Traffic(6.0, 3.0, launch_us=1.1)
"""A launch as on Hopper, where it was measured: grids overlap in the same way."""
_CLUSTER_PENALTY = 1.01
"""For each doubling of a cluster: with equal times the smaller one, which waits for fewer CTAs."""

_DYNAMIC_PENALTY = 1.005
"""With nothing else on the chip a static schedule needs no questions."""


def estimate_us(config: Sm100Config, group: int, args: GemmArguments, target: TargetSm | None) -> float | None:
    """Predicted microseconds of a run; None without a target."""
    if target is None:
        return None
    us = persistent_us(work_of(args), how(config, group), target) * (_DYNAMIC_PENALTY if config.dynamic else 1.0)
    return us * _CLUSTER_PENALTY ** (config.cluster.bit_length() - 1)


def how(config: Sm100Config, group: int) -> Persistent:
    """How a configuration works on a problem.

    CTAs beside one another count as one wide tile; the model's cluster has the rows that make the area right.
    """
    tile = (config.tile_m / config.cluster_n, config.tile_n * config.cluster_n, config.tile_k)
    return Persistent(*tile, config.cluster, group, Overlap.BESIDE, times_of(config), TRAFFIC)


def row_of(config: Sm100Config) -> tuple[int, int, int, int, int]:
    """What a table of measured times would be looked up by: tile along M and N, CTAs of one product, the cluster."""
    return (config.tile_m, config.tile_n, config.ctas, config.cluster_m, config.cluster_n)


@functools.lru_cache(maxsize=512)
def times_of(config: Sm100Config) -> PersistentTimes:
    """By rates: a K tile takes as long as its products or as its copies, whichever is longer."""
    per_us = 1000 * _CLOCK_GHZ
    rows = max(config.tile_m, _FULL_ROWS)
    products = 2.0 * rows * config.tile_n * 64 / (_FLOPS_PER_CLOCK * _EFFICIENCY)
    copied = config.a.copied_bytes / config.cluster_n + config.b.copied_bytes / (config.cluster_m // config.ctas)
    step = max(products, copied / _COPIED_BYTES_PER_CLOCK)
    epilogue = config.tile_m * config.tile_n * _EPILOGUE_OPERATIONS / _LANES
    return PersistentTimes(step / per_us, _ROUND_US, _ROUND_US + epilogue / per_us)
