# SPDX-License-Identifier: Apache-2.0
"""Operands swapped: B's columns in the place of an instruction's rows, for problems with few rows or columns."""

import pytest
import torch

pytest.importorskip("cutlass")

import epifuse as ops
from epifuse_cutedsl.configs.sm90 import configurations
from epifuse_cutedsl.operators_sm90 import Sm90GemmOperator

# tile (along N, along M), cluster, split, bytes of K in a tile
CONFIGS = [
    ((64, 16), 1, 1, 512),
    ((64, 16), 1, 2, 256),
    ((64, 32), 1, 1, 256),
    ((64, 32), 1, 2, 256),
    ((64, 48), 1, 1, 256),
    ((64, 96), 1, 2, 128),
    ((64, 80), 2, 1, 256),
    ((64, 112), 1, 1, 256),
    ((128, 48), 1, 1, 128),
    ((128, 80), 2, 1, 128),
    ((192, 48), 1, 1, 128),
    ((128, 48), 1, 2, 128),
]


def run(hopper, args, config, seed=0):
    tile, cluster, split, k_bytes = config
    mode = "cooperative" if split > 1 and k_bytes == 128 else "pingpong"
    operator = hopper.run(args, mode, tile, 8, None, cluster, split, k_bytes, seed, sm_count=3, swapped=True)
    assert operator.config.swapped
    return operator


def test_every_such_tile_is_tested():
    configs = [config for side in "mn" for config in configurations(90, swapped=side)]
    assert {((c.tile_m, c.tile_n), c.cluster, c.split, c.tile_k * 2) for c in configs} == set(CONFIGS)
    assert all(c.pingpong == (c.split == 1 or c.tile_k * 2 > 128) for c in configs)


@pytest.mark.parametrize("config", CONFIGS, ids=str)
@pytest.mark.parametrize("size", [(97, 5), (250, 129), (1, 1)], ids=str)
def test_exact_about_a_tile(hopper, config, size):
    k = 264 if size[0] == 1 else 616
    operator = run(hopper, hopper.arguments((*size, k)), config, seed=k)
    (along_n, along_m), cluster, split, _ = config
    design = operator.metadata.design
    assert design.tile_shape[:2] == (along_m, along_n)
    assert design.cluster_shape == (1, cluster, 1)
    assert (design.swapped, design.split_k) == (True, split)


@pytest.mark.parametrize("majors", ["kk", "km"])
@pytest.mark.parametrize("config", CONFIGS[2::3], ids=str)
def test_outputs_and_operands_of_any_stride(hopper, config, majors):
    m, n = 150, 70
    text = "def epi(accum, C, alpha, row, column): F = accum * alpha + C + row; D = relu(F) - column; return D, F"
    operands = {
        "C": hopper.integers(n, m, dtype=torch.bfloat16).t(),
        "F": torch.full((m, 2 * n), float("nan"))[:, ::2],
        "D": hopper.nothing(n, m).t(),
        "row": hopper.integers(n),
        "column": hopper.integers(m, 1),
    }
    guard = operands["F"]._base.clone()
    run(hopper, hopper.arguments((m, n, 520), text, majors, alpha=2.0, **operands), config)
    untouched = operands["F"]._base[:, 1::2]
    assert torch.equal(untouched.isnan(), guard[:, 1::2].isnan())


@pytest.mark.parametrize("config", CONFIGS[::4], ids=str)
def test_reductions(hopper, config):
    m, n = 190, 90
    text = (
        "def epi(accum, bias):\n  D = relu(accum + bias)\n  rows = D.sum(dim=-1, keepdim=True)\n"
        "  columns = D.amax(dim=-2)\n  most = D.amax()\n  return D, rows, columns, most"
    )
    outputs = {"D": hopper.nothing(m, n), "rows": torch.full((m, 1), float("nan")), "most": torch.tensor(float("nan"))}
    outputs["columns"] = torch.full((n,), float("nan"))
    run(hopper, hopper.arguments((m, n, 600), text, bias=hopper.integers(n), **outputs), config)


def test_gated_pairs(hopper):
    m, n = 100, 48
    args = hopper.arguments((m, n, 72), "def epi(accum): D = reglu(accum); return D", D=hopper.nothing(m, n // 2))
    run(hopper, args, CONFIGS[4])


@pytest.mark.parametrize("batches", [0, 3])
@pytest.mark.parametrize("share_b", [False, True])
def test_batches(hopper, batches, share_b):
    run(hopper, hopper.arguments((100, 30, 72), batches=batches, share_b=share_b), CONFIGS[9])


def test_no_k(hopper):
    run(hopper, hopper.arguments((100, 30, 0)), CONFIGS[6])


def test_copied_operands(hopper):
    """What tensor copies cannot take is copied before, and its maps are encoded for the workspace."""
    args = hopper.arguments((100, 30, 77))
    a, b = args.A.view[:, 1:], args.B.view[1:]
    text = "def epi(accum, bias): D = relu(accum + bias); return D"
    out = hopper.nothing(100, 30)
    copied = ops.GemmArguments(a, b, out, torch.float32, ops.EpilogueArguments(text, bias=hopper.integers(30), D=out))
    run(hopper, copied, CONFIGS[4])


@pytest.mark.parametrize(
    ("size", "expected"), [((300, 256), True), ((257, 300), False), ((1, 3000), True), ((3000, 1), True)]
)
def test_listed_for_few_rows_or_columns(hopper, size, expected):
    args = hopper.arguments((*size, 64))
    with ops.emulator.device("90a"):
        found = [op.config.swapped for op in ops.get_operators(args) if isinstance(op, Sm90GemmOperator)]
    assert any(found) == expected


def test_what_it_does_not_take(hopper):
    def arguments(**kinds):
        return hopper.arguments((300, 64, 64), **kinds)

    with ops.emulator.device("90a"):
        operator = hopper.operator_of(arguments(), "pingpong", (64, 48), k_bytes=256, swapped=True)
        assert operator.supports(arguments())
        assert "A take one that is contiguous along K" in str(operator.supports(arguments(majors="mk")).error)
        copied = arguments(bias=hopper.integers(64), D=ops.Store(hopper.nothing(300, 64), via="tma"))
        found = [op.config for op in ops.get_operators(copied) if isinstance(op, Sm90GemmOperator)]
        assert found
        assert not any(config.swapped for config in found)
        mixed = hopper.arguments((300, 64, 64), dtype=torch.float8_e4m3fn)
        e5m2 = mixed.B.view.to(torch.float8_e5m2)
        mixed = ops.GemmArguments(mixed.A.view, e5m2, torch.empty(300, 64), torch.float32)
        found = [op.config for op in ops.get_operators(mixed) if isinstance(op, Sm90GemmOperator)]
        assert found
        assert not any(config.swapped for config in found)


@pytest.mark.parametrize("config", CONFIGS, ids=str)
def test_an_output_in_the_place_of_a_row_vector(hopper, config):
    """Pieces outside of the problem must not read the vector again, behind the store."""
    row = hopper.integers(9, dtype=torch.bfloat16)
    text = "def epi(accum, C): D = accum + C; return D"
    run(hopper, hopper.arguments((1, 9, 600), text, C=row, D=row.reshape(1, 9)), config)


def test_an_asked_width_is_kept(hopper):
    """128 bits of a gated output are 8 elements of 16 accumulators, which a piece of 16 columns does not give a
    thread."""
    text = "def epi(accum): D = reglu(accum); return D"
    out = hopper.nothing(200, 128)
    args = hopper.arguments((200, 256, 64), text, D=ops.Store(out, via="sync_gmem_store", num_bits_per_copy=128))
    with ops.emulator.device("90a"):
        found = [op for op in ops.get_operators(args) if isinstance(op, Sm90GemmOperator)]
        assert found
        assert not any(op.config.epilogue_n == 16 or op.config.swapped for op in found)
        ptx = found[0].compile(args).compiled_obj.launcher.image.ptx.decode()
    assert "st.global.v4.b32" in ptx
