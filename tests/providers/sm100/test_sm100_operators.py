# SPDX-License-Identifier: Apache-2.0
"""Which Blackwell operators are listed for what, in which order, and what they refuse."""

import pytest
import torch

import epifuse as ops
from epifuse_cutedsl.configs.sm100 import RUNS, Sm100Config, Tails, configurations
from epifuse_cutedsl.configs.sm100_products import PRODUCTS
from epifuse_cutedsl.operators_sm100 import Sm100GemmOperator
from epifuse_cutedsl.tile.smem import limit_bytes

BIAS_RELU = "def epi(accum, bias): D = relu(accum + bias); return D"


def arguments(m, n, k, dtype=torch.bfloat16, accumulator=torch.float32, b_row=False):
    a, b = torch.zeros(m, k).to(dtype), torch.zeros(n, k).to(dtype).T
    d = torch.zeros(m, n).to(torch.bfloat16)
    epilogue = ops.EpilogueArguments(BIAS_RELU, bias=torch.zeros(n), D=d)
    return ops.GemmArguments(a, b.contiguous() if b_row else b, d, accumulator, epilogue)


def blackwell(args, target="100a", **how):
    return [op for op in ops.get_operators(args, target_sm=target, **how) if isinstance(op, Sm100GemmOperator)]


@pytest.mark.parametrize("target", ["100a", "100f", "103a"])
def test_the_family_lists_them_first_and_large_problems_get_pairs(target):
    args = arguments(4096, 4096, 512)
    best = ops.get_operators(args, target_sm=target)[0]
    assert isinstance(best, Sm100GemmOperator)
    assert best.metadata.design.use_2cta_mma
    assert best.metadata.design.tile_shape[0] in (128, 256)
    names = [op.metadata.operator_name for op in blackwell(args, target)]
    assert len(set(names)) == len(names) >= 40


@pytest.mark.parametrize("target", ["80", "90a", "100", "120a"])
def test_no_other_architecture_lists_them(target):
    assert not blackwell(arguments(256, 256, 64), target)


def test_designs_can_be_filtered_on():
    args = arguments(1024, 1024, 64)
    dynamic = blackwell(args, metadata_filter=lambda m: getattr(m.design, "tile_scheduler", "").startswith("dynamic"))
    assert dynamic
    assert all(op.config.dynamic for op in dynamic)
    pairs = blackwell(args, metadata_filter=lambda m: getattr(m.design, "use_2cta_mma", False))
    assert {op.metadata.design.cluster_shape[0] % 2 for op in pairs} == {0}
    one = blackwell(args, metadata_filter=lambda m: m.design.tile_shape == (128, 128, 64))
    assert {op.config.ctas * op.config.tile_m for op in one} == {128}


def test_integers_are_not_in_the_whole_family():
    args = arguments(256, 256, 64, torch.int8, torch.int32)
    assert blackwell(args, "100a")
    assert not blackwell(args, "103a")
    row = {row.family: row.status for row in ops.explain(args, target_sm="103a")}["Sm100GemmOperator"]
    assert "only sm_100a" in row.reason


def test_float32_wants_torchs_switch():
    args = arguments(256, 256, 64, torch.float32)
    assert not blackwell(args)
    reason = {row.family: row.status.reason for row in ops.explain(args, target_sm="100a")}["Sm100GemmOperator"]
    assert "TF32" in reason


def test_an_operator_refuses_what_its_kernel_was_not_made_for():
    found = next(op for op in blackwell(arguments(256, 256, 64)) if op.config.tail.bytes)
    assert found.supports(arguments(512, 200, 72), "100a")
    assert "majors" in found.supports(arguments(256, 256, 64, b_row=True), "100a").reason
    unaligned = arguments(256, 255, 64)
    assert "epilogue goes" in found.supports(unaligned, "100a").reason


def test_every_configuration_fits_and_has_stages():
    for (a, _, _), product in PRODUCTS.items():
        for major in product.majors:
            for tails in (Tails(), Tails(64, False, (4096, 2048, 1024)), Tails(32, True, (0, 8192, 4096))):
                found = configurations(100, product.element_bytes, major == "k", True, 8192, tails)
                assert len(found) >= 20, a
                for config in found:
                    assert config.smem_bytes(8192) <= limit_bytes(100)
                    assert 2 * config.slot_columns <= 512
                    assert config.cluster_m % config.ctas == 0
                    assert config.stage_bytes % 1024 == 0


@pytest.mark.parametrize("reduces", [False, True])
@pytest.mark.parametrize("axis", ["n", "m"])
def test_pieces_cover_a_tile(axis, reduces):
    for config in configurations(100, 2, True, True):
        piece = config.piece(axis, reduces)
        rows = config.tile_m // piece.rows
        columns = config.tile_n // piece.columns
        assert rows * columns * piece.warps == 4
        assert piece.run in RUNS
        assert piece.steps * piece.run == piece.thread_columns


def test_a_tile_is_that_of_a_cluster():
    config = Sm100Config(128, 64, 2, 2, 2)
    assert (config.a.part_rows, config.b.extent, config.b.parts) == (64, 32, 1)
