# SPDX-License-Identifier: Apache-2.0
"""Operands that tensor copies cannot take: copied to the run's workspace, then multiplied by the Hopper kernel."""

import pytest
import torch

pytest.importorskip("cutlass")

import epifuse as ops
from epifuse.runtime.tensors import traits_of
from epifuse.workspace import Workspace
from epifuse_cutedsl.operators_sm90 import Sm90GemmOperator
from epifuse_cutedsl.tma_operands import route_of

HALF, INT8 = torch.bfloat16, torch.int8


def strided(hopper, shape, strides, first=0, dtype=HALF):
    """Small integers at any strides, ``first`` elements behind 16 bytes, with NaN (77) wherever else."""
    last = sum((extent - 1) * stride for extent, stride in zip(shape, strides, strict=True))
    room = torch.full((first + max(last, 0) + 64,), float("nan") if dtype.is_floating_point else 77, dtype=dtype)
    aligned = -room.data_ptr() // room.element_size() % 16
    view = room.as_strided(shape, strides, aligned + first)
    values = hopper.integers(*(extent if stride else 1 for extent, stride in zip(shape, strides, strict=True)))
    view.copy_(values.expand(shape)) if 0 not in strides else view[:1].copy_(values)
    return view


def arguments(hopper, a, b, accumulator=torch.float32):
    m, n = a.shape[-2], b.shape[-1]
    out = torch.full((*a.shape[:-2], m, n), float("nan"))
    epilogue = ops.EpilogueArguments("def epi(accum, bias): D = accum + bias; return D", bias=hopper.integers(n), D=out)
    return ops.GemmArguments(a, b, torch.empty(out.shape, dtype=accumulator), accumulator, epilogue)


A_FORMS = {
    "odd rows": ((133, 75), (75, 1), 0),
    "unaligned": ((133, 72), (72, 1), 3),
    "no unit stride": ((133, 40), (80, 2), 0),
    "one row for all": ((133, 72), (0, 1), 0),
    "odd columns": ((133, 40), (1, 133), 0),
}
B_FORMS = {
    "odd rows": ((75, 131), (131, 1), 0),
    "odd columns": ((75, 131), (1, 75), 0),
    "whole words": ((72, 132), (132, 1), 2),
}


@pytest.mark.parametrize("form", A_FORMS)
def test_a_is_copied(hopper, form):
    a = strided(hopper, *A_FORMS[form])
    args = arguments(hopper, a, hopper.placed(hopper.integers(a.shape[1], 140, dtype=HALF), "row"))
    operator = hopper.run(args, "pingpong", (64, 128), sm_count=2)
    assert operator.get_workspace_size(args).size_bytes >= a.numel() * 2


@pytest.mark.parametrize("form", B_FORMS)
def test_b_is_copied(hopper, form):
    b = strided(hopper, *B_FORMS[form])
    args = arguments(hopper, hopper.placed(hopper.integers(70, b.shape[0], dtype=HALF), "column"), b)
    operator = hopper.run(args, "cooperative", (128, 128), sm_count=2)
    assert operator.get_workspace_size(args).size_bytes >= b.numel() * 2


@pytest.mark.parametrize("k", [0, 1, 31, 64])
def test_both_are_copied(hopper, k):
    a, b = strided(hopper, (67, k), (k + 1, 1), 1), strided(hopper, (k, 71), (71, 1), 1)
    hopper.run(arguments(hopper, a, b), "pingpong", (64, 128))


@pytest.mark.parametrize("shared", [False, True])
def test_batches(hopper, shared):
    a = strided(hopper, (3, 70, 33), (70 * 33, 33, 1), 1)
    b = strided(hopper, (3, 33, 50), (33 * 50 + 1, 50, 1))
    b = strided(hopper, (33, 50), (50, 1), 1).expand(3, 33, 50) if shared else b
    hopper.run(arguments(hopper, a, b), "cooperative", (128, 128), sm_count=3)
    assert route_of(traits_of(b), k_last=False).operand.batched is not shared


@pytest.mark.parametrize("n", [140, 131])
def test_operands_of_8_bits_along_n(hopper, n):
    a, b = strided(hopper, (130, 80), (80, 1), 0, INT8), strided(hopper, (80, n), (n, 1), 0, INT8)
    args = arguments(hopper, a, b, torch.int32)
    hopper.run(args, "pingpong", (64, 128), sm_count=2)
    route = route_of(args.B.traits, k_last=False, majors=("k",))
    assert route.copy is not None
    assert route.copy.form.words is (n % 4 == 0)


def test_reductions_share_the_workspace(hopper):
    m, n, k = 150, 140, 37
    a, b = strided(hopper, (m, k), (k, 1)), strided(hopper, (k, n), (n + 1, 1))
    sums = torch.full((m, 3), 7.0)[:, :1]  # its elements are not neighbours
    text = "def epi(accum): D = accum * 2.0; r = sum(D, dim=1); t = max(D); return D, r, t"
    epilogue = ops.EpilogueArguments(text, D=torch.empty(m, n), r=sums, t=torch.full((1,), 7.0))
    args = ops.GemmArguments(a, b, torch.empty(m, n), torch.float32, epilogue)
    hopper.run(args, "cooperative", (128, 128), sm_count=2)


def test_a_given_workspace_and_another_one_later(hopper):
    a = strided(hopper, (70, 33), (33, 1))
    args = arguments(hopper, a, hopper.placed(hopper.integers(33, 72, dtype=HALF), "row"))
    with ops.emulator.device("90a"):
        operator = hopper.operator_of(args, "pingpong", (64, 128))
        size = operator.get_workspace_size(args).size_bytes
        for _ in range(3):
            room = torch.full((size + 48,), 0xA5, dtype=torch.uint8)
            first = -room.data_ptr() % 16 + 16
            args.outputs[0].fill_(float("nan"))
            operator.run(args, workspace=Workspace(room[first : first + size]))
            assert torch.equal(args.outputs[0], (a.double() @ args.B.view.double() + args.loads[0]).float())
            assert (room[first + size :] == 0xA5).all()
            assert (room[:first] == 0xA5).all()
            a += 1  # what was copied before must not be used again


def test_listed_behind_and_before_the_portable_kernel():
    """Large problems are worth a copy, few rows are not; fp8 has no other kernel."""

    def first(m, n, k, dtype=HALF):
        a, b = (torch.empty(shape, dtype=dtype, device="meta") for shape in ((m, k), (k, n)))
        args = ops.GemmArguments(a, b, torch.empty(m, n, dtype=HALF, device="meta"), torch.float32)
        return ops.get_operators(args, target_sm="90a")[0]

    assert isinstance(first(4096, 4096, 4095), Sm90GemmOperator)
    assert not isinstance(first(16, 4095, 4095), Sm90GemmOperator)
    assert isinstance(first(16, 4095, 4095, torch.float8_e4m3fn), Sm90GemmOperator)
