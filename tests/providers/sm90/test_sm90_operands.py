# SPDX-License-Identifier: Apache-2.0
"""Which operands tensor copies take, what maps they get, and what the Hopper operator refuses."""

import pytest
import torch

import epifuse as ops
from epifuse.emulator import map_rules, tensor_map
from epifuse.runtime import tensormap
from epifuse.runtime.tensors import traits_of
from epifuse_cutedsl.operators_sm90 import Sm90GemmOperator, refusal_of_operands
from epifuse_cutedsl.tma_operands import TmaOperand, tma_operand

HALF = torch.bfloat16


def blank(*shape, strides=None, first=0):
    room = torch.zeros(1 << 16, dtype=HALF)
    shift = (-room.data_ptr() // 2) % 64
    return room.as_strided(shape, strides or torch.empty(shape).stride(), shift + first)


def of(tensor, k_last=True):
    return tma_operand(traits_of(tensor), k_last=k_last)


def test_majors_and_what_the_map_says():
    a = of(blank(70, 40))
    assert (a.major, a.sizes, a.strides, a.batched) == ("k", (40, 70, 1), (80, 5600), False)
    b = of(blank(40, 72), k_last=False)
    assert (b.major, b.sizes, b.strides[0]) == ("mn", (72, 40, 1), 144)
    turned = of(blank(72, 40).mT, k_last=False)
    assert (turned.major, turned.sizes) == ("k", (40, 72, 1))
    batched = of(blank(3, 5, 40))
    assert (batched.sizes, batched.strides, batched.batched) == ((40, 5, 3), (80, 400), True)
    shared = of(blank(5, 40).expand(3, 5, 40))
    assert (shared.sizes[2], shared.batched) == (1, False)


@pytest.mark.parametrize(
    ("tensor", "word"),
    [
        (blank(70, 40, first=4), "address"),
        (blank(70, 45), "rows are 90 bytes apart"),
        (blank(70, 40, strides=(80, 2)), "neither of its axes"),
        (blank(70, 40).as_strided((70, 40), (0, 1)), "rows are 0 bytes apart"),
        (blank(3, 5, 40, strides=(204, 40, 1)), "batches are 408 bytes apart"),
    ],
)
def test_what_cannot_move(tensor, word):
    assert word in of(tensor)


@pytest.mark.parametrize("shape", [(1, 40), (70, 1), (1, 1), (0, 40), (70, 0), (1, 70, 40)])
@pytest.mark.parametrize("step", [1, 3])
def test_strides_of_short_axes_do_not_matter(shape, step):
    usual = torch.empty(shape).stride()
    tensor = blank(*shape, strides=tuple(step if e <= 1 else s for e, s in zip(shape, usual, strict=True)))
    for k_last in (True, False):
        found = of(tensor, k_last)
        if not isinstance(found, TmaOperand):
            assert max(shape[-2:]) > 1
            continue
        tiled = found.tiled_map(tensor.data_ptr() or 1024, (64, 64, 1))
        request = map_rules.MapRequest(9, tiled.address, tiled.sizes, tiled.strides, tiled.box, (1, 1, 1), swizzle=3)
        assert not map_rules.violations(request)


def test_a_map_is_what_was_asked_for():
    tensor = blank(3, 70, 40)
    tiled = of(tensor).tiled_map(tensor.data_ptr(), (64, 128, 1))
    found = tensor_map.decode(tensormap.encode(tiled, torch.device("cpu")))
    assert (found.address, found.type, found.sizes) == (tensor.data_ptr(), "bf16", (40, 70, 3))
    assert (found.strides, found.box, found.swizzle_bytes) == ((2, 80, 5600), (64, 128, 1), 128)


def arguments(a, b, accumulator=torch.float32):
    return ops.GemmArguments(a, b, torch.empty(a.shape[0], b.shape[1]), accumulator)


def test_a_refusal_names_the_dtypes():
    args = arguments(torch.zeros(8, 8).double(), torch.zeros(8, 8).double())
    assert "does not multiply float64" in refusal_of_operands(args)
    assert not any(isinstance(op, Sm90GemmOperator) for op in ops.get_operators(args, target_sm="90a"))
    rows = {row.family: row.status.reason for row in ops.explain(args, target_sm="90a")}
    assert "does not multiply float64" in rows["Sm90GemmOperator"]


@pytest.mark.parametrize("target", ["80", "100a", "90"])
def test_it_runs_on_hopper_alone(target):
    found = ops.get_operators(arguments(blank(70, 40), blank(40, 72)), target_sm=target)
    assert not any(isinstance(operator, Sm90GemmOperator) for operator in found)


def test_both_kernels_are_listed_and_ranked_together():
    args = arguments(blank(70, 40), blank(40, 72))
    found = ops.get_operators(args, target_sm="90a")
    kinds = {type(operator).__name__ for operator in found}
    assert kinds == {"Sm80GemmOperator", "Sm90GemmOperator"}
    assert len({operator.metadata.operator_name for operator in found}) == len(found)
    times = [operator._estimate_us(args, ops.TargetSm("90a")) for operator in found]
    assert times == sorted(times)
    assert len(set(times)) > len(times) / 2


def test_the_first_is_hoppers_where_tiles_are_many():
    side = 4096
    a, b, out = (torch.empty(side, side, dtype=HALF, device="meta") for _ in range(3))
    found = ops.get_operators(ops.GemmArguments(a, b.mT, out, torch.float32), target_sm="90a")
    assert isinstance(found[0], Sm90GemmOperator)
    assert any(not isinstance(operator, Sm90GemmOperator) for operator in found)


def test_listed_without_arguments_is_what_arguments_get():
    listed = ops.get_operators(target_sm="90a")
    for out, columns in ((HALF, 72), (torch.float32, 72), (HALF, 71)):
        args = ops.GemmArguments(
            blank(70, 40), blank(72, 40).mT[:, :columns], torch.empty(70, columns, dtype=out), torch.float32
        )
        named = {op.metadata.operator_name for op in listed if op.supports(args, "90a")}
        assert any("sm90" in name for name in named)
        assert named == {op.metadata.operator_name for op in ops.get_operators(args, target_sm="90a")}


def test_an_operator_says_why_another_layout_of_the_output_is_none_of_its():
    a, b = blank(72, 40), blank(40, 72)
    rows = ops.GemmArguments(a, b, torch.empty(72, 72), torch.float32)
    columns = ops.GemmArguments(a, b, torch.empty(72, 72).mT, torch.float32)
    operator = next(op for op in ops.get_operators(rows, target_sm="90a") if isinstance(op, Sm90GemmOperator))
    assert "epilogue goes as" in operator.supports(columns, "90a").reason
    assert any(isinstance(op, Sm90GemmOperator) for op in ops.get_operators(columns, target_sm="90a"))


def test_design_tells_the_modes_apart():
    args = arguments(blank(70, 40), blank(40, 72))
    tiles = {
        mode: {
            op.metadata.design.tile_shape[:2]
            for op in ops.get_operators(args, lambda m, p=mode: getattr(m.design, "pingpong", None) is p, "90a")
        }
        for mode in (True, False)
    }
    assert (128, 128) in tiles[True] & tiles[False]
