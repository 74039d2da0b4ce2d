# SPDX-License-Identifier: Apache-2.0
"""The portable kernel's time in closed form, to put the best configuration first: a table of rates and a small driver.

A wave of CTAs takes as long as its main loops and epilogues; a main loop as long as its products or its traffic. Rates
count per SM and clock. Nothing here changes a result.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

from epifuse.arguments import GemmArguments
from epifuse.emulator import chips
from epifuse.target import TargetSm
from epifuse_cutedsl.configs.sm80 import Sm80Config
from epifuse_cutedsl.tile.smem import limit_bytes

_EMPTY_US = 1.0
"""A run that launches nothing."""


@dataclass(frozen=True, slots=True)
class Rates:
    """What an SM of an architecture does per clock: flops by class of product, bytes from the second-level cache."""

    clock_ghz: float
    half: float
    tf32: float
    byte: float
    f32: float
    f64: float
    l2_bytes: float
    dram_bytes: float


RATES: dict[int, Rates] = {
    80: Rates(1.41, 2048, 1024, 4096, 128, 64, 64, 10),
    86: Rates(1.70, 1024, 256, 2048, 256, 4, 48, 6),
    89: Rates(2.40, 1024, 512, 2048, 256, 4, 48, 3),
    90: Rates(1.75, 2600, 1300, 5200, 256, 128, 64, 20),
    100: Rates(1.85, 2048, 1024, 2048, 256, 128, 64, 26),
    120: Rates(2.40, 1024, 512, 2048, 256, 4, 48, 4),
}
"""By compute capability; that of the newest one not newer stands for the rest."""


def rates_of(cc: int) -> Rates:
    """The row for a compute capability."""
    return RATES[max((known for known in RATES if known <= cc), default=80)]


def sm_count(target: TargetSm) -> int:
    """SMs of the chip of that target; those of an A100 where it is not known."""
    try:
        return chips.chip(str(target)).sm_count
    except ValueError:
        return 108


def estimate_us(config: Sm80Config, group: int, args: GemmArguments, target: TargetSm | None) -> float | None:
    """Predicted microseconds of a run; None without a target."""
    if target is None:
        return None
    rates = rates_of(target.cc)
    m, n, k, batches = args.problem_size
    tiles_m, tiles_n = -(-m // config.tile_m), -(-n // config.tile_n)
    tiles = tiles_m * tiles_n * batches
    if not tiles:
        return _EMPTY_US
    if not tiles:
        return 0.0
    size = args.A.traits.dtype.bytes
    resident = _resident(config, args.accumulator_type.bytes, target.cc)
    sms = sm_count(target)
    concurrent = sms * resident
    waves = -(-tiles // concurrent)
    per_sm = min(resident, -(-tiles // sms))
    flops = 2.0 * config.tile_m * config.tile_n * config.tile_k
    rate: float = getattr(rates, config.kind) * _efficiency(config, per_sm)
    traffic = (config.tile_m + config.tile_n) * config.tile_k * size
    step = max(flops / rate, traffic / rates.l2_bytes) * per_sm
    steps = -(-k // config.tile_k)
    latency = 700.0 / max(1, config.stages - 1)
    loop = steps * max(step, latency) + 900.0
    epilogue = _epilogue_cycles(config, args) * per_sm
    compulsory = (m * k + k * n) * size * batches + m * n * batches * _epilogue_bytes(args)
    floor = compulsory / (rates.dram_bytes * sms)
    cycles = max(waves * (loop + epilogue), floor) + 1500.0
    return cycles / (1000.0 * rates.clock_ghz) * _raster_penalty(config, group, tiles_m, tiles_n, concurrent)


@functools.lru_cache(maxsize=512)
def _resident(config: Sm80Config, accumulator_bytes: int, cc: int) -> int:
    """CTAs that share an SM."""
    by_smem = (limit_bytes(cc) + 1024) // (config.smem_bytes(accumulator_bytes) + 1024)
    registers = 64 + 2 * config.tile_m * config.tile_n // config.threads
    by_registers = 65536 // (config.threads * min(255, max(64, registers)))
    return max(1, min(by_smem, by_registers, 2048 // config.threads))


@functools.lru_cache(maxsize=512)
def _efficiency(config: Sm80Config, per_sm: int) -> float:
    """How much of the products' rate a tile reaches: wide warp tiles reuse fragments, eight warps hide latency."""
    if not config.tensor:
        return 0.75 if config.tile_m * config.tile_n >= 64 * 64 else 0.5
    warp_m, warp_n = config.tile_m // config.warps_m, config.tile_n // config.warps_n
    reuse = 2.0 * warp_m * warp_n / (warp_m + warp_n)
    warps = per_sm * config.threads // 32
    return min(1.0, reuse / 64.0) ** 0.5 * min(1.0, warps / 8.0) ** 0.7


def _epilogue_bytes(args: GemmArguments) -> float:
    facts = args.plan.facts
    return float(facts.load_bytes + facts.store_bytes)


def _epilogue_cycles(config: Sm80Config, args: GemmArguments) -> float:
    facts = args.plan.facts
    elements = config.tile_m * config.tile_n
    issue = 8.0 + facts.alu_operations + facts.fma_operations + 8.0 * facts.special_operations
    return elements * issue / 128.0 + elements * _epilogue_bytes(args) / 48.0 + 600.0


def _raster_penalty(config: Sm80Config, group: int, tiles_m: int, tiles_n: int, concurrent: int) -> float:
    """A wave that covers a square of tiles reads least; one long row of tiles reads all of B."""
    rows = min(group, tiles_m)
    columns = min(tiles_n, max(1, concurrent // max(rows, 1)))
    rows = min(tiles_m, max(rows, concurrent // max(columns, 1)))
    read = rows * config.tile_m + columns * config.tile_n
    best = 2.0 * (config.tile_m * config.tile_n * min(concurrent, tiles_m * tiles_n)) ** 0.5
    return 1.0 + 0.02 * max(0.0, min(4.0, read / best - 1.0))
