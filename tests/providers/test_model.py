# SPDX-License-Identifier: Apache-2.0
"""The cost model's formulas against a few tiles counted by hand, and estimates of everything that is listed."""

import math

import pytest
import torch

import epifuse as ops
from epifuse.target import TargetSm
from epifuse_cutedsl.configs import model, times_sm90
from epifuse_cutedsl.configs.model import Copies, Overlap, Persistent, PersistentTimes, Traffic, WaveTimes, Work
from epifuse_cutedsl.operators import Sm90GemmOperator

HOPPER = TargetSm("90a")
SMS = model.sm_count(HOPPER)
NO_MEMORY = Traffic(1e9, 8.0)
STEP, TILE, EPILOGUE = 2.0, 3.0, 5.0


def plain(m, n, k, batches=1, operations=model.MEASURED_OPERATIONS, moved=model.MEASURED_BYTES):
    return Work(m, n, k, batches, 2, operations, moved)


def how(overlap=Overlap.EXPOSED, times=(STEP, TILE, EPILOGUE), tile=(128, 128, 64), group=1, cluster=1, **rest):
    return Persistent(*tile, cluster, group, overlap, PersistentTimes(*times), rest.pop("traffic", NO_MEMORY), **rest)


def busy(work, *args, **options):
    return model.persistent_us(work, how(*args, **options), HOPPER) - model.LAUNCH_US


@pytest.mark.parametrize(
    ("overlap", "k", "expected"),
    [
        (Overlap.EXPOSED, 64, lambda rounds: rounds * (STEP + TILE + EPILOGUE)),
        (Overlap.TURNS, 64, lambda rounds: rounds * (STEP + TILE) + EPILOGUE),
        (Overlap.TURNS, 1, lambda rounds: rounds * (STEP + TILE) + EPILOGUE),
        (Overlap.TURNS, 0, lambda rounds: rounds * (TILE + (EPILOGUE - TILE) / 2) + EPILOGUE),
        (Overlap.BESIDE, 0, lambda rounds: rounds * EPILOGUE + EPILOGUE),
        (Overlap.BESIDE, 256, lambda rounds: rounds * (4 * STEP + TILE) + EPILOGUE),
    ],
)
@pytest.mark.parametrize(("tiles", "rounds"), [(1, 1), (SMS, 1), (SMS + 1, 2), (3 * SMS, 3)])
def test_tiles_of_the_fullest_sm(overlap, k, expected, tiles, rounds):
    assert busy(plain(128 * tiles, 128, k), overlap) == pytest.approx(expected(rounds))
    assert busy(plain(128, 128, k, batches=tiles), overlap) == pytest.approx(expected(rounds))


def test_tails_are_whole_tiles_and_steps():
    assert busy(plain(129, 1, 65)) == pytest.approx(2 * STEP + TILE + EPILOGUE)
    assert busy(plain(128 * SMS + 1, 128, 64)) == pytest.approx(2 * (STEP + TILE + EPILOGUE))


def test_clusters_and_splits_take_sms_together():
    half = SMS // 2
    assert busy(plain(256 * half, 128, 256), cluster=2) == pytest.approx(4 * STEP + TILE + EPILOGUE)
    assert busy(plain(256 * half + 1, 128, 256), cluster=2) == pytest.approx(2 * (4 * STEP + TILE + EPILOGUE))
    split = busy(plain(128, 128, 256), split=2)
    assert 2 * STEP + TILE + EPILOGUE < split < 4 * STEP + TILE + EPILOGUE
    assert busy(plain(128 * half + 1, 128, 256), split=2) > 2 * (2 * STEP + TILE)


@pytest.mark.parametrize("size", [(0, 5, 3, 1), (5, 0, 3, 1), (5, 5, 3, 0)])
def test_nothing_to_do_takes_next_to_nothing(size):
    work = plain(*size[:3], batches=size[3])
    assert model.persistent_us(work, how(), HOPPER) == model.EMPTY_US
    assert model.waves_us(work, how(), WaveTimes(1, 1, 1, 1), 1, HOPPER) == model.EMPTY_US


def test_heavier_epilogues_take_longer_and_lighter_ones_no_less():
    work = plain(4096, 4096, 64)
    usual = busy(work)
    assert busy(work._replace(operations=50.0)) > usual
    assert busy(work._replace(moved_bytes=6.0)) > usual
    assert busy(work._replace(operations=0.0)) == pytest.approx(usual)


def test_nothing_is_faster_than_memory():
    work = plain(4096, 4096, 4096)
    traffic = Traffic(2.0, 3.0)
    least = work.memory_bytes / 2e6
    assert busy(work, times=(1e-6, 1e-6, 1e-6), traffic=traffic) >= least
    both = busy(work, traffic=traffic)
    assert max(least, busy(work)) <= both <= least * 5 + busy(work)


def test_groups_matter_where_operands_are_larger_than_the_cache():
    small, large = plain(512, 512, 512), plain(16384, 16384, 8192)
    options = {"times": (1e-6, 1e-6, 1e-6), "traffic": Traffic(2.0, 3.0)}
    assert busy(large, group=8, **options) < 0.7 * busy(large, group=1, **options)
    assert busy(small, group=8, **options) == pytest.approx(busy(small, group=1, **options))


def test_outputs_that_are_written_row_by_row_take_less_of_memory():
    work = plain(8192, 8192, 64, moved=6.0)._replace(stored_bytes=4.0)
    options = {"times": (1e-6, 1e-6, 1e-6)}
    scattered, in_rows = Traffic(2.0, 3.0), Traffic(2.0, 3.0, in_rows=0.5)
    less = busy(work, group=1, traffic=scattered, **options) - busy(work, group=1, traffic=in_rows, **options)
    assert less == pytest.approx(0.5 * 4.0 * 8192 * 8192 / 2e6, rel=0.05)
    assert busy(work, group=8, traffic=in_rows, **options) == busy(work, group=8, traffic=scattered, **options)


@pytest.mark.parametrize(("majors", "stored_bytes"), [("rr", 4.0), ("cc", 0.0), ("rc", 0.0)])
def test_what_is_written_along_rows(majors, stored_bytes):
    made = {
        "r": lambda: torch.empty(24, 16, dtype=torch.bfloat16),
        "c": lambda: torch.empty(16, 24, dtype=torch.bfloat16).mT,
    }
    outputs = {name: made[major]() for name, major in zip("DF", majors, strict=True)} | {"s": torch.empty(24, 1)}
    outputs["a"] = torch.empty(())
    text = (
        "def epi(accum): D = relu(accum); F = accum; s = sum(D, dim=-1, keepdim=True); a = amax(F); return D, F, s, a"
    )
    epilogue = ops.EpilogueArguments(text, **outputs)
    a, b = torch.empty(24, 8, dtype=torch.bfloat16), torch.empty(8, 16, dtype=torch.bfloat16)
    args = ops.GemmArguments(a, b, torch.empty(24, 16), torch.float32, epilogue)
    assert model.work_of(args).stored_bytes == stored_bytes


@pytest.mark.parametrize(
    ("size", "text", "group"),
    [
        ((8192, 8192, 512), "F = accum + 1.0; D = relu(F); return D, F", 1),
        ((8192, 14336, 4096), "F = accum + 1.0; D = relu(F); return D, F", 8),
        ((8192, 8192, 512), "D = relu(accum + 1.0); return D", 1),
        ((256, 8192, 8192), "D = relu(accum + 1.0); return D", 8),
        ((4096, 4096, 4096), "D = relu(accum + 1.0); return D", 8),
        ((1024, 1024, 1024), "D = relu(accum + 1.0); return D", 1),
    ],
)
def test_the_first_group_is_the_one_that_was_faster_on_an_h200(size, text, group):
    """By 5, 22, 1, 0.1 and 1 percent, in this order."""
    m, n, k = size
    empty = {"dtype": torch.bfloat16, "device": "meta"}
    outputs = {name: torch.empty(m, n, **empty) for name in ("D", "F") if f"{name} =" in text}
    epilogue = ops.EpilogueArguments(f"def epi(accum): {text}", **outputs)
    a, b = torch.empty(m, k, **empty), torch.empty(n, k, **empty).mT
    args = ops.GemmArguments(a, b, torch.empty(m, n, **empty), torch.float32, epilogue)
    first = ops.get_operators(args, target_sm="90a")[0]
    assert isinstance(first, Sm90GemmOperator)
    assert first.group == group


def test_rows_that_begin_within_a_line_are_copied_more_slowly():
    copies = Copies(sm_bytes_per_us=1e5, chip_bytes_per_us=1e7, shifted_sm=1.5, shifted_chip=2.0)
    row = 128 * (128 + 128)  # bytes of a K tile of A and B
    halves, alone = (row / 2, row / 2), (1, 1)
    assert copies.us(halves, (False, False), alone, 1) == pytest.approx(row / 1e5)
    assert copies.us(halves, (True, True), alone, 1) == pytest.approx(1.5 * row / 1e5)
    assert copies.us(halves, (True, False), alone, 132) == pytest.approx(1.5 * row * 132 / 1e7)
    traffic = Traffic(1e9, 8.0, 1.0, copies)
    options = {"times": (1e-3, 1e-3, 1e-3), "traffic": traffic}
    work = plain(128 * SMS, 128, 6400)
    usual, shifted = busy(work, **options), busy(work._replace(shifted=(True, True)), **options)
    assert usual == pytest.approx(100 * row * SMS / 1e7, rel=0.01)
    assert shifted == pytest.approx(2 * usual, rel=0.01)
    shared = busy(work._replace(shifted=(True, True)), cluster=2, **options)
    assert shared == pytest.approx(0.75 * shifted, rel=0.01)
    assert busy(work._replace(shifted=(True, True)), cluster_n=2, **options) > shifted  # one column: half of them idle


def test_bytes_that_many_read_at_a_time_count_less_for_all_together():
    copies = Copies(sm_bytes_per_us=1e9, chip_bytes_per_us=1e7, shifted_sm=1.0, shifted_chip=1.0, shared=0.5)
    size, within_lines = (1e4, 1e4), (False, False)
    assert copies.us(size, within_lines, (1, 1), 100) == pytest.approx(2e6 / 1e7)
    for readers in ((1, 64), (64, 1)):
        assert copies.us(size, within_lines, readers, 100) == pytest.approx(1.125e6 / 1e7)
    # 64 x 4096 x 6400: each CTA has its own columns of B, and all read the same rows of A; the problem turned likewise
    options = {"times": (1e-3, 1e-3, 1e-3), "traffic": Traffic(1e9, 8.0, 1.0, copies)}
    few_rows, few_columns = plain(64, 4096, 6400), plain(4096, 64, 6400)
    row_bytes = 64 * 2 * 32
    wide = busy(few_rows, tile=(64, 128, 64), **options)
    assert wide == pytest.approx(100 * row_bytes * (64 / 32**0.5 + 128) / 1e7, rel=0.01)
    assert busy(few_columns, tile=(128, 64, 64), group=8, **options) == pytest.approx(wide, rel=0.2)


def test_memory_feeds_one_sm_only_so_fast_and_what_the_cache_keeps_comes_from_it():
    traffic, times = Traffic(4.0, 8.0, sm_bytes_per_us=1e4), (1e-6, 1e-6, 1e-6)
    large = plain(64, 32768, 4096)  # 272 megabytes, the cache has 50
    assert busy(large, times=times, traffic=traffic) == pytest.approx(large.memory_bytes / (SMS * 1e4), rel=0.02)
    few = busy(large, times=times, traffic=traffic, tile=(64, 32768 // 16, 64))
    assert few == pytest.approx(large.memory_bytes / (16 * 1e4), rel=0.02)
    kept, half, none = (plain(64, n, 4096) for n in (4096, 4288, 6100))
    assert busy(kept, times=times, traffic=traffic) < 0.01
    assert busy(none, times=times, traffic=traffic) == pytest.approx(none.memory_bytes / (48 * 1e4), rel=0.02)
    part = busy(half, times=times, traffic=traffic) * 34 * 1e4 / half.memory_bytes
    assert 0.2 < part < 0.8


@pytest.mark.parametrize(
    "size", [(14336, 64, 4096), (64, 14336, 4096), (1, 8192, 8192), (777, 1111, 1232), (300, 7, 64)]
)
def test_the_hopper_kernel_is_before_the_portable_one_which_was_faster_on_no_problem(size):
    m, n, k = size
    a, b, d = (torch.empty(shape, dtype=torch.bfloat16, device="meta") for shape in ((m, k), (n, k), (m, n)))
    epilogue = ops.EpilogueArguments("def epi(accum): D = relu(accum + 1.0); return D", D=d)
    args = ops.GemmArguments(a, b.mT, d, torch.float32, epilogue)
    assert ops.get_operators(args, target_sm="90a")[0].architecture == "sm90"


@pytest.mark.parametrize(
    ("k", "n", "shifted"), [(64, 64, (False, False)), (72, 64, (True, True)), (40, 1, (True, False))]
)
def test_what_begins_within_a_line(k, n, shifted):
    a, b = torch.empty(8, k, dtype=torch.bfloat16), torch.empty(n, k, dtype=torch.bfloat16).mT
    args = ops.GemmArguments(a, b, torch.empty(8, n), torch.float32)
    assert model.work_of(args).shifted == shifted
    assert model.work_of(args, (True, False)).shifted == (False, shifted[1])


def test_waves_count_ctas_that_share_an_sm():
    times = WaveTimes(step_us=2.0, latency_us=5.0, tile_us=1.0, each_us=0.5)
    tile = how()

    def waves(tiles, resident):
        return model.waves_us(plain(128 * tiles, 128, 128), tile, times, resident, HOPPER) - model.LAUNCH_US

    one, three = 2 * 5.0 + 1.0 + 0.5, 2 * 6.0 + 1.0 + 1.5
    assert waves(1, 3) == waves(SMS, 3) == pytest.approx(one)
    assert waves(3 * SMS, 3) == pytest.approx(three)
    assert waves(3 * SMS + 1, 3) == pytest.approx(three + one)
    assert waves(2 * SMS, 1) == pytest.approx(2 * one)


@pytest.mark.parametrize("target", ["80", "86", "90a", "100a", "120a"])
@pytest.mark.parametrize(
    "dtypes", [("bfloat16", "float32"), ("int8", "int32"), ("float64", "float64"), ("float32", "float32")]
)
@pytest.mark.parametrize("size", [(1, 1, 1), (1000, 7, 0), (16, 8192, 8192), (8192, 8192, 8192)])
def test_everything_listed_has_a_time_and_stands_by_it(target, dtypes, size):
    m, n, k = size
    element, accumulator = (getattr(torch, name) for name in dtypes)
    a, b = (torch.empty(shape, dtype=element, device="meta") for shape in ((m, k), (k, n)))
    args = ops.GemmArguments(a, b, torch.empty(m, n, dtype=accumulator, device="meta"), accumulator)
    listed = ops.get_operators(args, target_sm=target)
    times = [operator._estimate_us(args, TargetSm(target)) for operator in listed]
    assert times
    assert all(math.isfinite(us) and us > 0 for us in times)
    assert times == sorted(times)


def test_a_times_table_has_a_row_for_every_configuration_that_is_offered():
    args = ops.GemmArguments(
        torch.empty(64, 64, dtype=torch.bfloat16), torch.empty(64, 64, dtype=torch.bfloat16),
        torch.empty(64, 64, dtype=torch.bfloat16), torch.float32,
    )  # fmt: skip
    for operator in ops.get_operators(args, lambda m: m.operator_class is Sm90GemmOperator, "90a"):
        times = times_sm90.times_of(operator.config)
        config = operator.config
        work = 2.0 * config.tile_m * config.tile_n * config.tile_k / 4096 / 1750
        assert 0.9 * work < times.step_us < 6 * work, operator


def test_promoted_sums_take_longer_and_ping_pong_most_of_all():
    def times(dtype):
        a, b = (torch.empty(8192, 8192, dtype=dtype, device="meta") for _ in range(2))
        out = torch.empty(8192, 8192, dtype=torch.bfloat16, device="meta")
        args = ops.GemmArguments(a, b.mT, out, torch.float32)
        found = ops.get_operators(args, lambda m: m.operator_class is Sm90GemmOperator, "90a")
        tiles = {
            (op.config.tile_m, op.config.tile_n, op.config.pingpong): op._estimate_us(args, HOPPER)
            for op in found[::-1]
        }
        return tiles, found[0].config

    half, first = times(torch.bfloat16)
    promoted, first_promoted = times(torch.float8_e4m3fn)
    assert first.pingpong
    assert not first_promoted.pingpong
    for tile in ((128, 128, True), (256, 128, False)):
        assert 0.45 * half[tile] < promoted[tile] < half[tile]  # about twice the rate, less what the promotion takes


@pytest.mark.parametrize(
    ("size", "tile", "k_bytes", "cluster"),
    [
        ((16, 8192, 8192), (64, 16), 512, (1, 1)),
        ((2560, 2560, 2560), (128, 144), 128, (1, 1)),
        ((5120, 200, 5120), (128, 80), 128, (2, 1)),
        ((128, 8192, 8192), (64, 128), 256, (2, 1)),
        ((192, 8192, 4096), (192, 64), 128, (1, 2)),
        ((8192, 192, 4096), (64, 192), 128, (2, 1)),
        ((1024, 1024, 1024), (64, 128), 128, (1, 1)),
        ((2048, 2048, 2048), (128, 128), 128, (1, 1)),
    ],
)
def test_the_first_tile_is_one_that_was_fast_on_every_h200(size, tile, k_bytes, cluster):
    m, n, k = size
    empty = {"dtype": torch.bfloat16, "device": "meta"}
    epilogue = ops.EpilogueArguments("def epi(accum): D = relu(accum + 1.0); return D", D=torch.empty(m, n, **empty))
    a, b = torch.empty(m, k, **empty), torch.empty(n, k, **empty).mT
    args = ops.GemmArguments(a, b, torch.empty(m, n, **empty), torch.float32, epilogue)
    config = ops.get_operators(args, target_sm="90a")[0].config
    found = (config.tile_m, config.tile_n), config.tile_k * config.element_bytes, (config.cluster, config.cluster_n)
    assert found == (tile, k_bytes, cluster)
