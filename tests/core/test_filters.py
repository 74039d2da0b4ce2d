# SPDX-License-Identifier: Apache-2.0
"""``metadata_filter`` of discovery and of its explanation; names of the Operator API that are left out."""

import pytest
import torch

import epifuse as ops
from epifuse.errors import OperandTypeError


def arguments():
    A, B, D = torch.ones(64, 32).half(), torch.ones(32, 48).half(), torch.empty(64, 48)
    return ops.GemmArguments(A, B, D, torch.float32, ops.EpilogueArguments("def f(accum): return relu(accum)", D=D))


def rows_128(metadata):
    return metadata.design is not None and metadata.design.tile_shape[0] == 128


def nothing(metadata):
    return False


@pytest.mark.parametrize("target", ["80", "90a", "100a"])
def test_a_filter_keeps_the_order_of_what_passes(target):
    args = arguments()
    everything = ops.get_operators(args, target_sm=target)
    kept = ops.get_operators(args, rows_128, target_sm=target)
    assert kept == [operator for operator in everything if operator.metadata.design.tile_shape[0] == 128]
    assert 0 < len(kept) < len(everything)


@pytest.mark.parametrize("target", ["80", "90a", "100a"])
def test_an_explanation_counts_what_the_filter_keeps(target):
    args = arguments()
    found = ops.explain(args, target, rows_128)
    assert sum(row.operators for row in found) == len(ops.get_operators(args, rows_128, target_sm=target))
    plain = {row.family: row for row in ops.explain(args, target)}
    for row in ops.explain(args, target, metadata_filter=nothing):
        assert row.operators == 0
        had = plain[row.family].operators
        expected = f"metadata_filter keeps none of {had} that" if had else plain[row.family].status.reason
        assert expected in row.status.reason


@pytest.mark.parametrize("wrong", ["sm90", 90, {"tile_shape": (128, 128, 64)}, True])
@pytest.mark.parametrize("call", [ops.get_operators, ops.explain])
def test_what_is_no_function_is_no_filter(call, wrong):
    with pytest.raises(OperandTypeError, match="(?s)metadata_filter is .*lambda m:"):
        call(arguments(), metadata_filter=wrong)


@pytest.mark.parametrize("call", [ops.get_operators, ops.explain])
def test_what_a_filter_raises_says_for_which_operator(call):
    with pytest.raises(AttributeError) as caught:
        call(arguments(), metadata_filter=lambda m: m.design.tile_shape[0] == 128)
    (note,) = caught.value.__notes__
    assert "epifuse_cpu.gemm" in note
    assert note.endswith("whose design is None.")


def test_grouped_gemm_is_left_out_and_says_what_to_do():
    with pytest.raises(AttributeError, match=r"there is no grouped GEMM: pass GemmArguments with a batch"):
        ops.GroupedGemmArguments  # noqa: B018
    assert not hasattr(ops, "GroupedGemmArguments")
    with pytest.raises(AttributeError) as caught:
        ops.GemmArgument  # noqa: B018
    assert (caught.value.name, caught.value.obj) == ("GemmArgument", ops)  # from which Python suggests GemmArguments
