# SPDX-License-Identifier: Apache-2.0
"""Tiles whose columns are no multiple of 64: pieces of 16 columns."""

import pytest
import torch

pytest.importorskip("cutlass")

import epifuse as ops
from epifuse_cutedsl.configs.sm90 import NARROWEST, STAGED, configurations
from epifuse_cutedsl.operators_sm90 import Sm90GemmOperator

# mode, tile, cluster, split, bytes of K in a tile
CONFIGS = [
    ("pingpong", (64, 48), 1, 1, 256),
    ("pingpong", (64, 48), 1, 2, 256),
    ("pingpong", (64, 80), 1, 2, 256),
    ("pingpong", (64, 80), 2, 1, 256),
    ("pingpong", (64, 96), 1, 1, 256),
    ("pingpong", (64, 112), 1, 1, 256),
    ("pingpong", (128, 48), 1, 1, 128),
    ("pingpong", (128, 80), 2, 1, 128),
    ("pingpong", (128, 112), 1, 1, 128),
    ("pingpong", (128, 144), 1, 1, 128),
    ("pingpong", (192, 48), 1, 1, 128),
    ("pingpong", (192, 112), 1, 1, 128),
    ("cooperative", (64, 96), 1, 2, 128),
    ("cooperative", (128, 48), 1, 2, 128),
    ("cooperative", (128, 80), 1, 2, 128),
]


def run(hopper, args, tile, cluster=1, split=1, k_bytes=128, seed=0, mode="pingpong"):
    operator = hopper.run(args, mode, tile, 8, None, cluster, split, k_bytes, seed, sm_count=3)
    assert operator.config.columns % operator.config.epilogue_n == 0
    return operator


def around(tile, cluster):
    """Sizes about a few tiles, never a multiple of one."""
    return [(5, tile[1] - 8), (tile[0] * cluster + 8, tile[1] + 1)]


def test_every_such_tile_is_tested():
    found = configurations(90)
    narrow = [config for config in found if config.columns % 64 and config.cluster_n == 1]
    modes = ("cooperative", "pingpong")
    known = [(modes[c.pingpong], (c.tile_m, c.tile_n), c.cluster, c.split, c.tile_k * 2) for c in narrow]
    assert sorted(known) == sorted(CONFIGS)


@pytest.mark.parametrize(("mode", "tile", "cluster", "split", "k_bytes"), CONFIGS)
def test_exact_about_a_tile(hopper, mode, tile, cluster, split, k_bytes):
    for number, (m, n) in enumerate(around(tile, cluster)):
        args = hopper.arguments((m, n, 520 + 8 * number))
        operator = run(hopper, args, tile, cluster, split, k_bytes, number, mode)
        assert operator.config.tail.direct == (n % 4 == 0)


@pytest.mark.parametrize(("mode", "tile", "cluster", "split", "k_bytes"), CONFIGS[::2])
def test_operands_and_outputs_by_tensor_copies(hopper, mode, tile, cluster, split, k_bytes):
    m, n = tile[0] * cluster + 9, tile[1] + 16
    text = "def epi(accum, C, alpha, bias): F = accum * alpha + C + bias; D = relu(F); return D, F"
    full = {"C": hopper.integers(m, n, dtype=torch.bfloat16), "F": hopper.nothing(m, n), "D": hopper.nothing(m, n)}
    args = hopper.arguments((m, n, 260), text, alpha=2.0, bias=hopper.integers(n), **full)
    operator = run(hopper, args, tile, cluster, split, k_bytes, mode=mode)
    assert operator.config.tail.direct
    assert operator.config.epilogue_n == NARROWEST


@pytest.mark.parametrize(("mode", "tile", "cluster", "split", "k_bytes"), CONFIGS[::3])
def test_reductions_of_pieces(hopper, mode, tile, cluster, split, k_bytes):
    m, n = tile[0] * cluster + 5, tile[1] * 2 + 3
    text = (
        "def epi(accum, bias):\n  D = relu(accum + bias)\n  rows = D.sum(dim=-1, keepdim=True)\n"
        "  columns = D.amax(dim=-2)\n  return D, rows, columns"
    )
    outputs = {"D": hopper.nothing(m, n), "rows": hopper.nothing(m, 1, dtype=torch.float32)}
    outputs["columns"] = torch.full((n,), float("nan"))
    args = hopper.arguments((m, n, 136), text, bias=hopper.integers(n), **outputs)
    run(hopper, args, tile, cluster, split, k_bytes, mode=mode)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float8_e5m2], ids=str)
def test_gated_pairs_have_half_of_a_piece(hopper, dtype):
    """8 columns, which are a copy's row of 16 bytes or, in 8 bits, too few for one."""
    m, n = 70, 240
    text = "def epi(accum, C): D = reglu(accum) + C; return D"
    operands = {"C": hopper.integers(m, n // 2, dtype=torch.bfloat16), "D": hopper.nothing(m, n // 2, dtype=dtype)}
    args = hopper.arguments((m, n, 8), text, **operands)
    narrow = [tail.columns for tail in Sm90GemmOperator.tails(args)]
    assert narrow == ([64, 16] if dtype.itemsize == 2 else [64])
    if NARROWEST in narrow:
        run(hopper, args, (64, 112), k_bytes=256)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.int32], ids=str)
@pytest.mark.parametrize("tile", [(128, 112), (128, 144)])
def test_outputs_of_other_sizes(hopper, tile, dtype):
    m, n = tile[0] + 3, tile[1] + 12
    text = f"def epi(accum, bias): D = (accum + bias).to('{str(dtype).removeprefix('torch.')}'); return D"
    args = hopper.arguments((m, n, 72), text, bias=hopper.integers(n), D=hopper.nothing(m, n, dtype=dtype))
    run(hopper, args, tile)


@pytest.mark.parametrize("tile", [(128, 112), (192, 112)])
def test_columns_that_are_contiguous_are_staged(hopper, tile):
    m, n = tile[0] + 9, tile[1] + 5
    out = hopper.nothing(n, m).t()
    operator = run(hopper, hopper.arguments((m, n, 72), bias=hopper.integers(n), D=out), tile)
    assert operator.config.tail in STAGED


def test_no_k(hopper):
    run(hopper, hopper.arguments((130, 200, 0)), (128, 144))


def test_batches(hopper):
    run(hopper, hopper.arguments((70, 100, 72), batches=3), (128, 112))


def test_only_a_b_along_k_is_taken(hopper):
    """Boxes of 64 columns would lie beyond the stage; with room for them, and two lines for each row, they are slower
    than whole boxes (2560^3 with a B along N 56.0 us beside 55.1, 512 x 14336 x 4096 114 beside 95)."""
    for majors in ("km", "mm"):
        args = hopper.arguments((130, 200, 136), majors=majors)
        with ops.emulator.device("90a"):
            operators = [op for op in ops.get_operators(args) if isinstance(op, Sm90GemmOperator)]
            assert operators
            assert all(op.config.columns % 64 == 0 or op.config.swapped for op in operators)
            whole = hopper.arguments((130, 200, 136))
            for narrow in (("pingpong", (128, 112)), ("cooperative", (64, 96), 8, None, 1, 2)):
                status = hopper.operator_of(whole, *narrow).supports(args)
                assert not status
                assert "B take one that is contiguous along K" in str(status.error)


@pytest.mark.parametrize("swapped", [False, True])
def test_an_operator_of_narrow_halves_runs_on_nothing_too(hopper, swapped):
    """Tensors with nothing in them may have any strides: B along N, of which halves of 48 columns cannot be taken."""
    operator = hopper.operator_of(hopper.arguments((64, 96, 512)), "cooperative", (64, 96), split=2, swapped=swapped)
    b = torch.ones(512, 96, dtype=torch.bfloat16)
    a, d = torch.ones(0, 512, dtype=torch.bfloat16), torch.empty(0, 96)
    epilogue = ops.EpilogueArguments("def epi(accum, bias): D = relu(accum + bias); return D", bias=torch.ones(96), D=d)
    args = ops.GemmArguments(a, b, d, torch.float32, epilogue)
    with ops.emulator.device("90a"):
        assert operator.supports(args)
        operator.run(args)
