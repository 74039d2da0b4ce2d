# SPDX-License-Identifier: Apache-2.0
"""The direct epilogue of the Hopper kernel: full tensors by tensor copies, in and out, in every mode.

Rows of the outputs are multiples of 16 bytes; what lies between and around them is NaN before and after.
"""

import pytest
import torch

pytest.importorskip("cutlass")

import epifuse as ops
from epifuse_cutedsl import sm90_launch

MODES = (
    ("cooperative", (128, 256)),
    ("cooperative", (256, 128)),
    ("pingpong", (128, 192)),
    ("pingpong", (64, 256)),
    ("pingpong", (64, 128)),
    ("pingpong", (64, 64)),
    ("cooperative", (64, 256)),
)
DTYPES = (torch.bfloat16, torch.float32, torch.int8, torch.int16, torch.int32, torch.float8_e4m3fn)


@pytest.mark.parametrize(("mode", "tile"), MODES)
def test_every_mode_with_several_tiles_a_cta(hopper, mode, tile):
    m, n, k = 2 * tile[0] + 3, tile[1] + 10, 200
    out = hopper.nothing(m, n)
    args = hopper.arguments((m, n, k), bias=hopper.integers(n), D=out)
    operator = hopper.run(args, mode, tile, sm_count=2, seed=3)
    assert operator.config.tail.direct
    assert operator.config.depth == (1 if operator.config.pieces * operator.config.blocks == 1 else 2)


@pytest.mark.parametrize("majors", ["kk", "mm", "km"])
@pytest.mark.parametrize(
    ("mode", "tile", "k_bytes"),
    [("pingpong", (64, 64), 512), ("pingpong", (64, 128), 256), ("cooperative", (64, 128), 256)],
)
def test_wide_k_tiles(hopper, mode, tile, k_bytes, majors):
    m, n, k = tile[0] + 8, 2 * tile[1] + 8, 64 * 13 + 8
    args = hopper.arguments((m, n, k), majors=majors, bias=hopper.integers(n), D=hopper.nothing(m, n))
    operator = hopper.run(args, mode, tile, k_bytes=k_bytes, sm_count=2, seed=2)
    assert operator.config.tile_k == k_bytes // 2


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("loaded", [torch.float16, torch.float32, torch.int16], ids=str)
def test_operands_and_outputs_of_every_width(hopper, dtype, loaded):
    m, n, batches = 150, 200, 2
    text = "def epi(accum, c, row, column): D = relu(accum * 0.5 + c + row) + column; return D"
    c = hopper.placed(hopper.integers(batches, m, n, dtype=loaded), "row")
    args = hopper.arguments(
        (m, n, 24), text, batches=batches, c=c, row=hopper.integers(n), column=hopper.integers(m, 1),
        D=hopper.nothing(batches, m, n, dtype=dtype),
    )  # fmt: skip
    operator = hopper.run(args, "pingpong", (128, 192), sm_count=2, seed=1)
    assert operator.config.tail.load_bytes
    assert operator.config.tail.output_bytes


@pytest.mark.parametrize("mode", ["cooperative", "pingpong"])
@pytest.mark.parametrize("seed", range(3))
def test_several_full_tensors_one_for_all_batches(hopper, mode, seed):
    m, n, batches = 200, 300, 3
    text = "def epi(accum, c, e, s): D = accum + c; F = D * e + s; return D, F"
    c = hopper.placed(hopper.integers(m, n), "row")
    e = hopper.placed(hopper.integers(batches, m, n, dtype=torch.bfloat16), "row")
    args = hopper.arguments(
        (m, n, 72), text, batches=batches, c=c, e=e, s=2.0, D=hopper.nothing(batches, m, n),
        F=hopper.nothing(batches, m, n, dtype=torch.float32),
    )  # fmt: skip
    hopper.run(args, mode, sm_count=3, seed=seed)


@pytest.mark.parametrize(("mode", "tile"), [("pingpong", (64, 192)), ("cooperative", (128, 192))])
def test_an_odd_number_of_pieces_with_two_buffers(hopper, mode, tile):
    # Of three pieces, one buffer takes two and the other one: their phases differ from the second tile on.
    m, n, float8 = 2 * tile[0] + 3, 2 * tile[1] + 8, torch.float8_e4m3fn
    c = hopper.placed(hopper.integers(m, n, dtype=torch.bfloat16), "row")
    text = "def epi(accum, c, row): D = accum + c * 2.0 + row; return D"
    args = hopper.arguments((m, n, 200), text, dtype=float8, c=c, row=hopper.integers(n), D=hopper.nothing(m, n))
    operator = hopper.run(args, mode, tile, sm_count=1)
    assert (operator.config.depth, operator.config.pieces * operator.config.blocks) == (2, 3)


@pytest.mark.parametrize("loads", [4, 6])
def test_more_full_tensors_than_tensor_maps(hopper, loads):
    m, n = 130, 136
    names = [f"c{i}" for i in range(loads)]
    text = f"def epi(accum, {', '.join(names)}): D = accum + {' + '.join(names)}; return D"
    operands = {
        name: hopper.placed(hopper.integers(m, n, dtype=torch.bfloat16, seed=i), "row") for i, name in enumerate(names)
    }
    hopper.run(hopper.arguments((m, n, 40), text, **operands, D=hopper.nothing(m, n)), sm_count=1)


def test_reductions_beside_an_output(hopper):
    m, n = 200, 264
    text = "def epi(accum, row): D = accum + row; r = sum(D, dim=1); c = max(D, dim=0); e = sum(D); return D, r, c, e"
    args = hopper.arguments(
        (m, n, 40), text, row=hopper.integers(n), D=hopper.nothing(m, n), r=torch.empty(m), c=torch.empty(n),
        e=torch.empty(1),
    )  # fmt: skip
    operator = hopper.run(args, "pingpong", (128, 192), sm_count=2)
    assert operator.config.tail.direct


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float8_e4m3fn], ids=str)
def test_gated_columns(hopper, dtype):
    m, n = 140, 288
    text = "def epi(accum, c): D = reglu(accum) + c; return D"
    c = hopper.placed(hopper.integers(m, n // 2, dtype=torch.float16), "row")
    out = hopper.nothing(m, n // 2, dtype=dtype)
    hopper.run(hopper.arguments((m, n, 40), text, c=c, D=out), "pingpong", (128, 192), sm_count=1)


@pytest.mark.parametrize("size", [(1, 8, 8), (64, 64, 0), (65, 64, 64), (63, 72, 64), (257, 8, 16)])
def test_sizes_around_a_piece(hopper, size):
    m, n, _ = size
    args = hopper.arguments(size, bias=hopper.integers(n), D=hopper.nothing(m, n))
    hopper.run(args, "pingpong", (64, 128), sm_count=1)


@pytest.mark.parametrize("size", [(16, 700, 64 * 9), (700, 16, 64 * 9 + 1), (8, 520, 64 * 3)])
@pytest.mark.parametrize("split", [1, 2])
def test_few_rows_or_columns_begin_apart(hopper, monkeypatch, size, split):
    monkeypatch.setattr(sm90_launch, "_CACHE_BYTES", 0)
    monkeypatch.setattr(sm90_launch, "_STREAMED_BYTES", 0)
    m, n, _ = size
    args = hopper.arguments(size, bias=hopper.integers(n), D=hopper.nothing(m, n))
    hopper.run(args, "pingpong", (64, 64), split=split, sm_count=4)


@pytest.mark.parametrize(("mode", "tile"), [("pingpong", (64, 64)), ("cooperative", (128, 128))])
def test_a_row_vector_that_is_the_only_row_of_the_output(hopper, mode, tile):
    # A CTA reads the numbers of its own columns alone: those beside them may have been written by another one.
    n = 4 * tile[1] - 8
    out = hopper.placed(hopper.integers(1, n, dtype=torch.bfloat16), "row")
    text = "def epi(accum, row): D = accum + row * 2.0; return D"
    operator = hopper.run(hopper.arguments((1, n, 200), text, row=out[0], D=out), mode, tile, sm_count=4)
    assert operator.config.tail.rows == 1


@pytest.mark.parametrize("write", ["tma", "sync_gmem_store"])
@pytest.mark.parametrize("read", ["tma", "sync_gmem_load", "async_gmem_load"])
def test_each_tensor_moves_as_it_was_asked_to(hopper, read, write):
    m, n = 140, 136
    c, d = hopper.placed(hopper.integers(m, n, dtype=torch.float16), "row"), hopper.nothing(m, n)
    text = "def epi(accum, C, alpha, beta): D = alpha * accum + beta * C; return D"
    args = hopper.arguments(
        (m, n, 40), text, C=ops.Load(c, via=read), alpha=0.5, beta=2.0, D=ops.Store(d, via=write)
    )  # fmt: skip
    operator = hopper.run(args, sm_count=2)
    assert bool(operator.config.tail.load_bytes) == (read == "tma")
    assert bool(operator.config.tail.output_bytes) == (write == "tma")
