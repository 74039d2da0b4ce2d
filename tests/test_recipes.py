# SPDX-License-Identifier: Apache-2.0
"""CONTRIBUTING.md's recipes, performed: a new activation and a user's own kernel, and what each gets for free."""

import math

import numpy as np
import pytest
import torch

import epifuse as ops
from epifuse.errors import UnknownNameError
from epifuse.fusion import frontend, passes
from epifuse.fusion.ir import show
from epifuse.fusion.vocabulary import table
from epifuse.fusion.vocabulary.table import Level, Operation, Parameter


@pytest.fixture
def bump():
    """A throw-away activation: one row, whose body is written in other rows and operators."""

    def body(x):
        return x / (1.0 + x * x)

    def on_torch(x):
        return x / (1.0 + x.square())

    def on_numpy(x):
        return x / (1.0 + np.square(x))

    row = Operation(
        name="bump",
        level=Level.COMPOSITE,
        parameters=(Parameter("x"),),
        summary="x / (1 + x^2).",
        on_torch=on_torch,
        on_numpy=on_numpy,
        body=body,
    )
    yield table.register(row)
    table.unregister("bump")
    frontend.clear()
    passes.clear()


def gemm(epilogue_text, **operands):
    generator = torch.Generator().manual_seed(7)
    a = torch.randint(-2, 3, (5, 13), generator=generator).half()
    b = torch.randint(-2, 3, (13, 7), generator=generator).half()
    d = torch.full((5, 7), math.nan)
    epilogue = ops.EpilogueArguments(epilogue_text, D=d, **operands)
    return ops.GemmArguments(A=a, B=b, out=d, accumulator_type=torch.float32, epilogue=epilogue)


TEXT = "def f(accum, s): D = bump(accum * s); return D"


def test_without_the_row_the_name_is_unknown():
    with pytest.raises(UnknownNameError, match="bump"):
        gemm(TEXT, s=0.5)


def test_an_activation_runs_on_every_provider_without_touching_one(bump):
    args = gemm(TEXT, s=0.5)
    operators = ops.get_operators(args)
    assert operators
    x = (args.A.view.double() @ args.B.view.double()) * 0.5
    for operator in operators:
        args.outputs[0].fill_(math.nan)
        operator.run(args)
        torch.testing.assert_close(args.outputs[0].double(), x / (1 + x * x), rtol=1e-6, atol=0)


def test_an_activation_reaches_a_provider_as_primitives_alone(bump):
    plan = gemm(TEXT, s=0.5).plan
    primitives = {row.name for row in table.rows(Level.PRIMITIVE)}
    assert {compute.primitive for compute in plan.computes} <= primitives
    assert "bump" in show.graph_text(frontend.parse(TEXT))


def test_an_activation_is_a_callable_on_torch_and_numpy(bump):
    x = np.linspace(-3, 3, 11)
    expected = x / (1 + x * x)
    assert np.allclose(bump(x), expected, rtol=1e-15)
    assert np.allclose(ops.fusion.activation.bump(torch.from_numpy(x)).numpy(), expected, rtol=1e-15)


def test_an_activation_is_suggested_by_errors(bump):
    with pytest.raises(UnknownNameError, match="bump"):
        gemm("def f(accum): D = bumb(accum); return D")


def test_an_activation_is_differentiable(bump):
    x = torch.linspace(-2, 2, 9, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(bump, (x,))


@pytest.fixture
def toy():
    """A toy provider with a kernel of the user's own, which knows two primitives."""
    emit = {"add": torch.add, "mul": torch.mul}

    @ops.register_provider("toy")
    class ToyProvider(ops.Provider):
        pass

    @ToyProvider.register
    class ToyGemm(ops.Operator):
        supported_args_type = ops.GemmArguments
        designed_for_min_cc = 0

        @classmethod
        def _generate_operators(cls, metadata_filter, epilogue_args=None, target_sm=None, args=None):
            if args is None or target_sm is not None:
                return []
            tensors = (ops.metadata.DenseTensorConstraints(t.dtype) for t in (args.A, args.B, args.out))
            operands = ops.metadata.GemmOperandsMetadata(*tensors, args.accumulator_type)
            epilogue = ops.metadata.EpilogueMetadata(args.plan) if args.epilogue else None
            return [cls(ops.OperatorMetadata("toy.gemm", cls, (), operands, epilogue=epilogue))]

        def _supports(self, args, target_sm=None):
            for compute in args.plan.computes:
                if compute.primitive not in emit:
                    return ops.Status.fail(ops.errors.UnsupportedError(
                        f"toy knows no {compute.primitive}", subject=compute.primitive))  # fmt: skip
            return ops.Status.success()

        def _compile(self, args, target_sm=None):
            return ops.CompiledArtifact(None, self, None)

        def _run(self, args, compiled_artifact, stream, workspace=None):
            accum = args.A.view.float() @ args.B.view.float()
            slots = [accum if x.operand < 0 else torch.as_tensor(args.loads[x.operand]) for x in args.plan.loads]
            slots += [torch.tensor(x.literal.value) for x in args.plan.constants]
            for compute in args.plan.computes:
                slots.append(emit[compute.primitive](*(slots[i] for i in compute.operands)))
            for store in args.plan.stores:
                args.outputs[store.destination].copy_(slots[store.operand])

    yield ToyGemm
    ops.available_providers.remove("toy")


def test_an_own_kernel_is_discovered_and_runs(toy):
    args = gemm("def f(accum, bias, s): D = accum * s + bias; return D", s=0.5, bias=torch.arange(7.0))
    mine = ops.get_operators(args, providers=[ops.available_providers["toy"]])
    assert [op.metadata.operator_name for op in mine] == ["toy.gemm"]
    assert toy in {type(operator) for operator in ops.get_operators(args)}
    mine[0].run(args)
    expected = args.A.view.float() @ args.B.view.float() * 0.5 + torch.arange(7.0)
    assert torch.equal(args.outputs[0], expected)


def test_an_own_kernel_is_found_by_a_filter_on_its_metadata(toy):
    args = gemm("def f(accum): D = accum + 1.0; return D")
    found = ops.get_operators(args, metadata_filter=lambda m: m.operator_class is toy)
    assert [type(op) for op in found] == [toy]


def test_an_own_kernel_is_explained_with_the_users_line(toy):
    args = gemm("def f(accum):\n    D = tanh(accum)\n    return D")
    assert not ops.get_operators(args, providers=[ops.available_providers["toy"]])
    rows = {row.provider: row for row in ops.explain(args).rows}
    assert rows["toy"].operators == 0
    assert "toy knows no tanh" in rows["toy"].status.reason
    assert rows["toy"].place is not None
    assert rows["toy"].place.line == 2
    assert rows["cpu"].operators == 1


def test_an_own_kernel_leaves_no_trace_when_it_is_removed(toy):
    args = gemm("def f(accum): D = accum + 1.0; return D")
    assert any(isinstance(op, toy) for op in ops.get_operators(args))
    provider = ops.available_providers["toy"]
    ops.available_providers.remove("toy")
    assert not any(isinstance(op, toy) for op in ops.get_operators(args))
    ops.available_providers.add("toy", provider)
