# SPDX-License-Identifier: Apache-2.0
"""What users filter on, what members of the family list and compile, and for which arguments a kernel serves again."""

import pytest
import torch

import epifuse as ops
from epifuse_cutedsl.operators_sm100 import Sm100GemmOperator

DESIGNS = (
    {"tile_shape": (256, 128, 64)},
    {"tile_shape": (64, 64, 64), "group": 1},
    {"cluster_shape": (2, 2, 1)},
    {"cluster_shape": (1, 2, 1), "use_2cta_mma": False},
    {"use_2cta_mma": True},
    {"use_2cta_mma": False, "tile_scheduler": "dynamic persistent"},
    {"use_2cta_mma": True, "cluster_shape": (4, 1, 1), "tile_scheduler": "static persistent"},
)


def arguments(m=512, n=768, k=64):
    a, b = torch.zeros(m, k, dtype=torch.bfloat16), torch.zeros(n, k, dtype=torch.bfloat16).T
    outputs = {"D": torch.zeros(m, n, dtype=torch.bfloat16), "r": torch.zeros(m), "x": torch.zeros(n)}
    text = "def epi(accum, row, column): D = relu(accum * column + row); r = sum(D, dim=1); x = max(D, dim=0); "
    operands = {"row": torch.zeros(n), "column": torch.zeros(m, 1)}
    epilogue = ops.EpilogueArguments(text + "return D, r, x", **operands, **outputs)
    return ops.GemmArguments(a, b, outputs["D"], torch.float32, epilogue)


def blackwell(args=None, target="100a", **how):
    found = ops.get_operators(args, target_sm=target, **how)
    return [operator for operator in found if isinstance(operator, Sm100GemmOperator)]


@pytest.mark.parametrize("wanted", DESIGNS)
@pytest.mark.parametrize("target", ["100a", "100f", "103a"])
def test_a_filter_keeps_what_it_asks_for_in_the_same_order(wanted, target):
    def takes(metadata):
        return all(getattr(metadata.design, name, None) == value for name, value in wanted.items())

    args = arguments()
    found = [operator.metadata.operator_name for operator in blackwell(args, target, metadata_filter=takes)]
    every = blackwell(args, target)
    assert found == [operator.metadata.operator_name for operator in every if takes(operator.metadata)]
    assert 0 < len(found) < len(every)


def test_a_filter_keeps_what_it_asks_for_without_arguments():
    found = blackwell(metadata_filter=lambda m: getattr(m.design, "cluster_shape", ()) == (2, 2, 1))
    assert found
    assert {operator.metadata.design.cluster_shape for operator in found} == {(2, 2, 1)}
    assert {operator.metadata.design.use_2cta_mma for operator in found} == {False, True}


def test_members_of_the_family_list_the_same():
    args = arguments()
    names = [[operator.metadata.operator_name for operator in blackwell(args, t)] for t in ("100a", "100f", "103a")]
    assert sorted(names[0]) == sorted(names[1]) == sorted(names[2])
    for target in ("100f", "103a"):
        row = next(row for row in ops.explain(args, target_sm=target).rows if row.family == "Sm100GemmOperator")
        assert (row.operators, row.status.reason) == (len(names[0]), "")


@pytest.mark.parametrize("target", ["100f", "103a"])
def test_members_of_the_family_compile_for_themselves(target):
    pytest.importorskip("cutlass")
    args = arguments()
    artifact = blackwell(args, target)[0].compile(args, target_sm=target)
    assert f".target sm_{target}" in artifact.compiled_obj.launcher.image.ptx.decode()


def test_one_kernel_serves_every_number_of_rows():
    kinds = [{}, {}]
    for m in (2, 3, 4, 7, 64, 130, 511, 512):
        args = arguments(m)
        for target, found in zip(("90a", "100a"), kinds, strict=True):
            for operator in ops.get_operators(args, target_sm=target):
                found.setdefault(operator.metadata.operator_name, set()).add(operator._kinds(args))
    for found in kinds:
        assert {len(each) for each in found.values()} == {1}


@pytest.mark.parametrize("size", [(0, 192, 64), (128, 0, 64), (128, 192, 0)])
def test_an_artifact_serves_problems_with_nothing_in_them(size):
    pytest.importorskip("cutlass")
    with ops.emulator.device("100a") as device:
        operator = blackwell(arguments(128, 192))[0]
        artifact = operator.compile(arguments(128, 192))
        args = arguments(*size)
        for output in args.outputs:
            output.fill_(7)
        operator.run(args, artifact)
        assert len(device.reports) == (size[2] == 0)
    found = dict(zip(args.bound.names.stores, args.outputs, strict=True))
    assert found["D"].eq(0).all()
    assert found["r"].eq(0).all()
    assert found["x"].eq(0 if size[0] else -torch.inf).all()
