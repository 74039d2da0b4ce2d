# SPDX-License-Identifier: Apache-2.0
"""Every product of the Hopper kernel, run: dtypes of A, B and the accumulator, tiles of both modes, exact on integers.

The compiled kernels differ by dtypes and configuration, so that each dtype has every tile, and each mix of dtypes two.
"""

import pytest
import torch

pytest.importorskip("cutlass")

import epifuse as ops
from epifuse import dtypes
from epifuse_cutedsl.configs.sm90 import Tail, configurations
from epifuse_cutedsl.configs.sm90_products import KINDS, MOST_ACCUMULATORS, PROMOTED_STEPS, part_of
from epifuse_cutedsl.operators_sm90 import Sm90GemmOperator

TILES = (
    ("cooperative", (128, 256)),
    ("cooperative", (256, 128)),
    ("pingpong", (128, 128)),
    ("pingpong", (64, 256)),
    ("cooperative", (128, 128)),
    ("pingpong", (64, 128)),
)
"""Those that every kind has."""
E4M3, E5M2, INT8, UINT8, HALF = "float8_e4m3fn", "float8_e5m2", "int8", "uint8", "float16"


def arguments(hopper, product, size, text="def epi(accum, bias): D = relu(accum + bias); return D", batches=0, **more):
    """K-major operands of small integers (none below 0 where unsigned) and an epilogue, D float32 unless given."""
    a_type, b_type, accumulator = (dtypes.of(name).torch for name in product)
    m, n, k = size
    lead = (batches,) if batches else ()
    a, b = hopper.integers(*lead, m, k), hopper.integers(*lead, k, n, seed=1)
    a, b = (x.abs() if name == UINT8 else x for x, name in zip((a, b), product, strict=False))
    a, b = hopper.placed(a.to(a_type), "row"), hopper.placed(b.to(b_type), "column")
    operands = more or {"bias": hopper.integers(n), "D": torch.full((*lead, m, n), float("nan"))}
    out = torch.empty(*lead, m, n, dtype=accumulator)
    return ops.GemmArguments(a, b, out, accumulator, ops.EpilogueArguments(text, **operands))


@pytest.mark.parametrize(("mode", "tile"), TILES)
@pytest.mark.parametrize(
    "product", [(E4M3, E4M3, "float32"), (INT8, INT8, "int32"), (HALF, HALF, HALF)], ids=lambda p: p[0] + p[2]
)
def test_ragged_tiles_are_exact_and_ctas_take_several(hopper, product, mode, tile):
    # Three K tiles and a bit: every part of a promoted sum is added several times, and each buffer used again.
    size = (2 * tile[0] + 3, tile[1] + 10, 3 * 128 + 16)
    hopper.run(arguments(hopper, product, size), mode, tile, sm_count=2, seed=3)


@pytest.mark.parametrize(("mode", "tile"), [("cooperative", (128, 128)), ("pingpong", (64, 128))])
@pytest.mark.parametrize("product", [p for p in KINDS if p[0] != p[1]], ids="-".join)
def test_mixes_of_two_dtypes(hopper, product, mode, tile):
    hopper.run(arguments(hopper, product, (140, 150, 272)), mode, tile, sm_count=1, seed=1)


PROMOTED = (
    ("cooperative", (128, 192), 1, 1, 128),
    ("cooperative", (128, 192), 2, 1, 128),
    ("pingpong", (64, 192), 1, 1, 128),
    ("pingpong", (64, 64), 1, 1, 512),
    ("cooperative", (128, 128), 1, 1, 256),
    ("cooperative", (64, 128), 1, 1, 256),
    ("cooperative", (64, 128), 1, 2, 256),
    ("cooperative", (64, 128), 1, 4, 128),
)
"""Mode, tile, cluster, CTAs that share K, bytes of a K tile: for promoted sums alone, or of several parts along K."""


@pytest.mark.parametrize(("mode", "tile", "cluster", "split", "k_bytes"), PROMOTED)
def test_promoted_sums_in_other_tiles(hopper, mode, tile, cluster, split, k_bytes):
    args = arguments(hopper, (E4M3, E5M2, "float32"), (200, 210, 1300))
    hopper.run(
        args, mode, tile, cluster=cluster, split=split, k_bytes=k_bytes, sm_count=2 * max(cluster, split), seed=5
    )


LONG = (2048, 2048 + 128, 2048 + 256 + 16)


@pytest.mark.parametrize(
    ("mode", "tile", "cluster", "split", "k_bytes", "k"),
    [(*PROMOTED[0], k) for k in LONG] + [(*PROMOTED[row], LONG[row % 3]) for row in (1, 2, 4, 6, 7)],
)
def test_long_sums_promoted_half_as_often(hopper, mode, tile, cluster, split, k_bytes, k):
    """Two K tiles at a time, and one more where their number is odd; two CTAs share an odd number."""
    m, n = tile[0] + 8, tile[1] + 3
    args = arguments(hopper, (E4M3, E4M3, "float32"), (m, n, k), bias=hopper.integers(n), D=hopper.nothing(m, n))
    assert KINDS[E4M3, E4M3, "float32"].interval(args) == 2 * PROMOTED_STEPS
    where = {"cluster": cluster, "split": split, "k_bytes": k_bytes, "sm_count": max(cluster, split)}
    hopper.run(args, mode, tile, seed=k, **where)


@pytest.mark.parametrize("k", [0, 16, 128, 144, 1040])
@pytest.mark.parametrize("mode", ["cooperative", "pingpong"])
@pytest.mark.parametrize("product", [(E4M3, E4M3, "float32"), (INT8, INT8, "int32")], ids=lambda p: p[0])
def test_k_tails_and_wraps_of_the_ring(hopper, product, k, mode):
    hopper.run(arguments(hopper, product, (130, 140, k)), mode, (128, 128), sm_count=1, seed=k)


@pytest.mark.parametrize(("mode", "tile"), [("cooperative", (128, 256)), ("pingpong", (128, 128))])
def test_clusters_share_8_bit_tiles(hopper, mode, tile):
    args = arguments(hopper, (E5M2, E5M2, "float32"), (300, 200, 400), batches=2)
    hopper.run(args, mode, tile, group=8, cluster=2, sm_count=5, seed=2)


@pytest.mark.parametrize("turned", [False, True])
def test_integer_accumulators_wrap_and_stay_integers_in_the_epilogue(hopper, turned):
    """The largest products, just so many that their sum is beyond 2^31. Staged and direct."""
    m, n, k = 3, 16, 33152
    assert 2**31 < 255 * 255 * k < 2**31 + 255 * 255 * 128
    a, b = torch.full((m, k), 255, dtype=torch.uint8), torch.full((n, k), 255, dtype=torch.uint8).mT
    d = torch.empty(n, m, dtype=torch.int32).mT if turned else torch.empty(m, n, dtype=torch.int32)
    c = torch.arange(m * n, dtype=torch.int32).reshape(m, n)
    epilogue = ops.EpilogueArguments("def epi(accum, c): D = accum + c; return D", c=c, D=d)
    hopper.run(ops.GemmArguments(a, b, d, torch.int32, epilogue), "pingpong", (64, 128), sm_count=1)
    assert torch.equal(d, 255 * 255 * k - 2**32 + c)


@pytest.mark.parametrize("mode", ["cooperative", "pingpong"])
def test_row_and_column_scales(hopper, mode):
    m, n = 150, 200
    text = "def epi(accum, row, column): D = accum * row * column; return D"
    scales = {"row": 2.0 ** hopper.integers(n), "column": 2.0 ** hopper.integers(m, 1)}
    d = torch.full((m, n), float("nan"), dtype=torch.bfloat16)
    hopper.run(arguments(hopper, (E4M3, E4M3, "float32"), (m, n, 160), text, D=d, **scales), mode, (128, 128))


def test_float16_accumulators_are_rounded_as_they_are_summed_up(hopper):
    """2049 is no float16: a sum that stays in float32 would keep it."""
    k = 2064
    a, b = torch.ones(8, k, dtype=torch.float16), torch.ones(8, k, dtype=torch.float16).mT
    args = ops.GemmArguments(a, b, torch.empty(8, 8), torch.float16)
    with ops.emulator.device("90a"):
        hopper.operator_of(args, "pingpong", (64, 128)).run(args)
    assert torch.equal(args.out.view, torch.full((8, 8), 2064.0))
    a[:, -1] = 2.0  # 2065 in exact arithmetic
    with ops.emulator.device("90a"):
        hopper.operator_of(args, "pingpong", (64, 128)).run(args)
    assert torch.equal(args.out.view, torch.full((8, 8), 2064.0))


@pytest.fixture
def precision():
    """Sets torch's precision of float32 products until the test ends."""
    before = torch.get_float32_matmul_precision()
    yield torch.set_float32_matmul_precision
    torch.set_float32_matmul_precision(before)


@pytest.mark.parametrize(("mode", "tile"), [("cooperative", (128, 256)), ("pingpong", (64, 128))])
def test_tf32_is_rounded_to_nearest_and_only_where_torch_allows_it(hopper, precision, mode, tile):
    """1 + 2^-11 lies between two TF32 numbers and goes to the farther one from 0; the tensor cores would cut it off."""
    precision("high")
    args = arguments(hopper, ("float32", "float32", "float32"), (140, 150, 100))
    args.A.view[:, 3] = 1.0 + 2.0**-11
    operator = hopper.run(args, mode, tile, sm_count=2)
    assert any(isinstance(op, Sm90GemmOperator) for op in ops.get_operators(args, target_sm="90a"))
    precision("highest")
    assert "does not allow now" in operator.supports(args, "90a").reason
    assert not any(isinstance(op, Sm90GemmOperator) for op in ops.get_operators(args, target_sm="90a"))


@pytest.mark.parametrize(
    ("k", "dtype", "positions"),
    [(256, torch.bfloat16, 128), (2047, torch.float16, 128), (2048, torch.float32, 128), (2048, torch.bfloat16, 256)],
)
def test_a_promoted_sum_keeps_what_one_long_sum_in_the_tensor_cores_would_not(hopper, k, dtype, positions):
    """So many positions of K are a group of their own, however long a K tile is: PTX adds in float32 after each."""
    out = {"bias": hopper.integers(128), "D": hopper.nothing(64, 128, dtype=dtype)}
    args = arguments(hopper, (E4M3, E4M3, "float32"), (64, 128, k), **out)
    kinds = (("pingpong", (64, 128), 128), ("pingpong", (64, 64), 512), ("cooperative", (128, 128), 128))
    for mode, tile, k_bytes in kinds:
        with ops.emulator.device("90a"):
            operator = hopper.operator_of(args, mode, tile, k_bytes=k_bytes)
            ptx = operator.compile(args).compiled_obj.launcher.image.ptx.decode()
        columns = tile[1] // operator.config.part.n
        tiles = [max(k_bytes, positions)] + [k_bytes] * (positions > k_bytes)  # and one alone, behind pairs of them
        sums = columns * sum(-(-each // positions) for each in tiles)
        assert ptx.count("wgmma.mma_async") == columns * sum(tiles) // 32
        assert ptx.count("setp.ne.u32 add, 0, 0") == sums  # what begins anew
        assert ptx.count("add.rn.f32") >= sums * operator.config.part.n // 2


def test_whose_outputs_say_how_often_sums_are_promoted(hopper):
    kind = KINDS[E4M3, E4M3, "float32"]

    def interval(k=4096, text="def epi(accum): D = accum; return D", **outputs):
        found = outputs or {"D": hopper.nothing(16, 32)}
        return kind.interval(arguments(hopper, (E4M3, E4M3, "float32"), (16, 32, k), text, **found))

    assert interval() == interval(k=2048) == 2 * PROMOTED_STEPS
    assert interval(k=2047) == PROMOTED_STEPS
    assert interval(D=torch.empty(16, 32)) == PROMOTED_STEPS
    two = "def epi(accum): D = accum; F = accum * 2; return D, F"
    assert interval(text=two, D=hopper.nothing(16, 32), F=torch.empty(16, 32)) == PROMOTED_STEPS
    summed = "def epi(accum): D = accum; r = sum(D, dim=-1); return D, r"
    assert interval(text=summed, D=hopper.nothing(16, 32), r=torch.empty(16)) == PROMOTED_STEPS
    assert KINDS[HALF, HALF, "float32"].interval(hopper.arguments((16, 32, 4096))) == 0


def test_an_artifact_for_long_sums_says_why_it_does_not_take_short_ones(hopper):
    def made(k):
        return arguments(hopper, (E4M3, E4M3, "float32"), (64, 128, k), "def epi(accum): D = accum; return D",
                         D=hopper.nothing(64, 128))  # fmt: skip

    long, short = made(2048), made(256)
    with ops.emulator.device("90a"):
        operator = hopper.operator_of(long, "cooperative", (128, 128))
        artifact = operator.compile(long)
        operator.run(made(2304), artifact)
        with pytest.raises(ops.errors.UnsupportedError, match="of 8-bit floats, 2048 or more"):
            operator.run(short, artifact)
        operator.run(short)


@pytest.mark.parametrize("product", list(KINDS), ids="-".join)
def test_the_table(product):
    kind = KINDS[product]
    assert kind.instruction_k * kind.element_bytes == 32
    direct = (Tail(True, 64, 4096), Tail(True, 16, 1024))
    for config in (*configurations(90, 0, kind=kind), *configurations(90, 0, direct, kind=kind)):
        assert config.tile_k * config.element_bytes in (128, 256, 512)
        assert (config.part is not None) == kind.promoted
        sums = config.accumulators
        if config.part is not None:
            sums += config.part.buffers * config.part.n // 2
            assert config.tile_n % config.part.n == 0
        assert sums <= MOST_ACCUMULATORS


@pytest.mark.parametrize(
    ("blocks", "tile_n", "k_bytes", "alternating", "expected"),
    [
        (1, 256, 128, False, (128, 1)),
        (2, 128, 128, False, (128, 1)),
        (1, 128, 128, False, (128, 1)),
        (1, 256, 128, True, (64, 2)),
        (2, 128, 128, True, (64, 2)),
        (1, 128, 128, True, (64, 2)),
        (1, 64, 128, True, (64, 1)),
        (1, 192, 128, False, (192, 1)),
        (1, 128, 256, False, (128, 2)),
        (2, 128, 256, False, (128, 1)),
        (2, 192, 128, True, None),
    ],
)
def test_parts_of_promoted_sums(blocks, tile_n, k_bytes, alternating, expected):
    part = part_of(blocks, tile_n, k_bytes, alternating=alternating)
    assert (part and (part.n, part.buffers)) == expected
