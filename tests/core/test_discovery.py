# SPDX-License-Identifier: Apache-2.0
"""Discovery: lists, filters, explanations, registration of a user's own operator, caches, threads, fake tensors."""

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

import epifuse as ops
from epifuse import discovery
from epifuse.errors import UnsupportedError
from epifuse.metadata import DenseTensorConstraints, EpilogueMetadata, GemmOperandsMetadata
from epifuse.provider import ProviderRegistry

M, N, K = 6, 10, 4


def scaled(accum, bias, alpha):
    D = accum * alpha + bias
    return D


def arguments(alpha=0.5, m=M, epilogue=True, dtype=torch.float32, fake=False, fn=scaled):
    A = (torch.arange(m * K).view(m, K) % 7 - 3).to(dtype)
    B = (torch.arange(K * N).view(K, N) % 5 - 2).to(dtype)
    D = torch.full((m, N), float("nan"), dtype=dtype)
    epi = ops.EpilogueArguments(fn, bias=torch.arange(N, dtype=dtype), alpha=alpha, D=D) if epilogue else None
    return ops.GemmArguments(A, B, D, accumulator_type=torch.float32, epilogue=epi)


def test_finds_runs_and_is_right():
    args = arguments()
    operators = ops.get_operators(args)
    assert operators
    for operator in operators:
        args.out.tensor.fill_(float("nan"))
        operator.run(args)
        assert torch.equal(args.out.tensor, args.A.tensor @ args.B.tensor * 0.5 + torch.arange(N))


def test_an_operator_serves_other_scalars_and_sizes_of_the_same_kinds():
    operator = ops.get_operators(arguments())[0]
    for alpha, m in ((2.0, M), (-1, 3), (0.25, 1)):
        args = arguments(alpha=alpha, m=m)
        assert operator.supports(args)
        operator.run(args)
        assert torch.equal(args.out.tensor, args.A.tensor @ args.B.tensor * alpha + torch.arange(N))


def test_refuses_what_it_does_not_support_and_leaves_the_output_alone():
    operator = ops.get_operators(arguments())[0]
    other = arguments(fn=lambda accum, bias, alpha: accum - bias * alpha)
    status = operator.supports(other)
    assert not status
    assert "epilogue" in status.reason
    with pytest.raises(ValueError, match="does not support"):
        operator.run(other)
    assert torch.isnan(other.out.tensor).all()
    plain = arguments(epilogue=False)
    assert not operator.supports(plain)
    half = arguments(dtype=torch.float16)
    with pytest.raises(UnsupportedError):
        operator.compile(half)


def test_artifacts_are_bound_to_their_operator():
    args, plain = arguments(), arguments(epilogue=False)
    operator, other = ops.get_operators(args)[0], ops.get_operators(plain)[0]
    artifact = operator.compile(args)
    assert artifact.operator_obj is operator
    operator.run(args, artifact, assume_supported_args=True)
    with pytest.raises(ValueError, match="artifact"):
        other.run(plain, artifact)


@pytest.mark.parametrize("target", [None, "80", "86", "90a", "120a"])
def test_without_arguments_lists_everything_under_unique_names(target):
    operators = ops.get_operators(target_sm=target)
    names = [op.metadata.operator_name for op in operators]
    assert names
    assert len(set(names)) == len(names)
    halves = ops.get_operators(target_sm=target, metadata_filter=lambda m: m.operands.out.dtype == torch.float16)
    assert 0 < len(halves) < len(operators)


def test_what_is_listed_without_arguments_serves_those_without_an_epilogue():
    args = arguments(epilogue=False)
    named = {op.metadata.operator_name for op in ops.get_operators(target_sm="90a") if op.supports(args, "90a")}
    assert named == {op.metadata.operator_name for op in ops.get_operators(args, target_sm="90a")}


def test_a_listed_operator_whose_tiles_do_not_fit_another_gpu_says_so():
    args = arguments(epilogue=False, dtype=torch.bfloat16)
    answers = [op.supports(args, "86") for op in ops.get_operators(target_sm="90a")]
    assert any(answers)
    assert any("more shared memory" in str(answer.error) for answer in answers if not answer)


def test_filter_limit_and_providers():
    args = arguments()
    assert ops.get_operators(args, metadata_filter=lambda m: False) == []
    assert ops.get_operators(args, limit=0) == []
    assert ops.get_operators(args, providers=[]) == []
    cpu = ops.available_providers["cpu"]
    assert [o.metadata for o in ops.get_operators(args, providers=[cpu])] == [
        o.metadata for o in ops.get_operators(args)
    ]
    assert all(op.metadata.provider is cpu for op in ops.get_operators(args))
    assert ops.get_operators(args, providers=[ops.CuTeDSLProvider]) == []


@pytest.mark.parametrize("target", ["0", "80", "90a", "103a", "120f"])
def test_lists_for_a_gpu_hold_only_what_supports_it(target):
    for args in (arguments(), arguments(epilogue=False)):
        for operator in ops.get_operators(args, target_sm=target):
            assert operator.supports(args, target)
            assert ops.TargetSm(target).supports_operators_from(operator.metadata.supported_targets)


def test_explains_every_family():
    args = arguments()
    here, there = ops.explain(args), ops.explain(args, target_sm="90a")
    assert here
    assert sum(row.operators for row in here) == len(ops.get_operators(args))
    cpu = next(row for row in there if row.provider == "cpu")
    assert cpu.operators == 0
    assert "sm_90a" in cpu.status.reason
    assert all(row.status.reason for row in there if not row.operators)
    assert "cpu" in str(there)


@pytest.mark.parametrize("target", [None, "80", "90a", "100a"])
def test_an_explanation_names_the_first_operator_of_each_family(target):
    args = arguments()
    found, shown = ops.get_operators(args, target_sm=target), ops.explain(args, target_sm=target)
    for row in shown:
        family = [operator for operator in found if type(operator).__name__ == row.family]
        assert row.first == (family[0].metadata.operator_name if family else "")
        assert row.remark == (row.first or row.status.reason)
        assert row.first in str(shown)
    assert found[0].metadata.operator_name in {row.first for row in shown}


def test_same_list_again_and_anew_after_clear():
    args = arguments()
    first = ops.get_operators(args)
    assert ops.get_operators(arguments(alpha=3.0))[0] is first[0]
    first.clear()
    assert ops.get_operators(args)
    discovery.clear()
    assert ops.get_operators(args)


def test_an_identity_epilogue_and_none_at_all_are_two_questions():
    identity = arguments(fn=lambda accum, bias, alpha: accum)
    plain = arguments(epilogue=False)
    for first, second in ((plain, identity), (identity, plain)):
        discovery.clear()
        assert ops.get_operators(first)
        for args in (first, second):
            for target in (None, "90a"):
                assert all(op.supports(args, target) for op in ops.get_operators(args, target_sm=target))
        ops.get_operators(second)[0].run(second)
    assert torch.equal(plain.out.tensor, identity.outputs[0])


def test_fake_tensors_discover_and_real_ones_run():
    with FakeTensorMode():
        A, B, D, bias = (torch.empty(s) for s in ((M, K), (K, N), (M, N), (N,)))
    epilogue = ops.EpilogueArguments(scaled, bias=bias, alpha=2.0, D=D)
    fake = ops.GemmArguments(A, B, D, accumulator_type=torch.float32, epilogue=epilogue)
    operator = ops.get_operators(fake)[0]
    artifact = operator.compile(fake)
    real = arguments(alpha=2.0)
    operator.run(real, artifact)
    assert torch.equal(real.out.tensor, real.A.tensor @ real.B.tensor * 2.0 + torch.arange(N))
    with pytest.raises(ValueError, match="fake|data"):
        operator.run(fake, artifact)


def test_fake_cuda_tensors_without_a_gpu_find_nothing_on_the_cpu():
    with FakeTensorMode():
        A, B, D = (torch.empty(s, device="cuda") for s in ((M, K), (K, N), (M, N)))
    args = ops.GemmArguments(A, B, D, accumulator_type=torch.float32)
    assert all(op.metadata.provider is not ops.available_providers["cpu"] for op in ops.get_operators(args))
    assert any("cuda" in row.status.reason for row in ops.explain(args) if row.provider == "cpu")


def test_eight_threads_get_the_same_bits():
    want = arguments()
    ops.get_operators(want)[0].run(want)

    def one(_):
        args = arguments()
        ops.get_operators(args)[0].run(args)
        return torch.equal(args.out.tensor, want.out.tensor)

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(one, range(64)))


def test_discovery_imports_neither_cutlass_nor_cuda():
    program = (
        "import sys, torch\n"
        "before = set(sys.modules)  # torch itself looks for cuda\n"
        "import epifuse as ops\n"
        "A, B, D = torch.zeros(4, 4), torch.zeros(4, 4), torch.zeros(4, 4)\n"
        "epi = ops.EpilogueArguments('def f(accum): D = relu(accum); return D', D=D)\n"
        "args = ops.GemmArguments(A, B, D, torch.float32, epi)\n"
        "ops.get_operators(args)[0].run(args)\n"
        "ops.get_operators(args, target_sm='100a'), ops.explain(args, '90a'), ops.get_operators()\n"
        "never = ('cutlass', 'cuda', 'tvm_ffi', 'rich', 'typer')\n"
        "bad = [m for m in set(sys.modules) - before if m.split('.')[0] in never]\n"
        "assert not bad, bad\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


class OuterProvider(ops.Provider):
    """A provider from outside the tree."""


@OuterProvider.register
class AddOnly(ops.Operator):
    """A user's own operator: knows elementwise sums of the accumulator and full float32 tensors, and says so."""

    supported_args_type = ops.GemmArguments
    designed_for_min_cc = 0

    def _supports(self, args, target_sm=None):
        for compute in args.plan.computes:
            if compute.primitive != "add":
                return ops.Status.fail(UnsupportedError(f"{compute.primitive} is not known", subject=compute.primitive))
        return ops.Status.success()

    def _compile(self, args, target_sm=None):
        return ops.CompiledArtifact("sum", self, target_sm)

    def _run(self, args, compiled_artifact, stream, workspace=None):
        total = args.A.view @ args.B.view
        for value in args.loads:
            total = total + value
        args.outputs[0].copy_(total)

    @classmethod
    def _generate_operators(cls, metadata_filter, epilogue_args=None, target_sm=None, args=None):
        if args is None or target_sm is not None:
            return []
        f32 = DenseTensorConstraints(args.A.dtype)
        metadata = ops.OperatorMetadata(
            "outer.add_only",
            cls,
            (),
            GemmOperandsMetadata(f32, f32, None, args.accumulator_type),
            epilogue=EpilogueMetadata(args.plan) if epilogue_args else None,
        )
        return [cls(metadata)] if metadata_filter(metadata) else []


@pytest.fixture
def outer():
    ops.register_provider("outer")(OuterProvider)
    yield OuterProvider
    ops.available_providers.remove("outer")


def test_a_users_own_operator_comes_through_the_same_door(outer):
    def plus(accum, bias, alpha):
        D = accum + bias + alpha
        return D

    args = arguments(fn=plus)
    found = ops.get_operators(args, metadata_filter=lambda m: m.operator_class is AddOnly)
    assert len(found) == 1
    assert found[0].metadata.provider is outer
    found[0].run(args)
    assert torch.equal(args.out.tensor, args.A.tensor @ args.B.tensor + torch.arange(N) + 0.5)
    assert {op.metadata.provider for op in ops.get_operators(args)} == {outer, ops.available_providers["cpu"]}


def test_its_refusal_is_explained_with_the_users_line(outer):
    row = next(r for r in ops.explain(arguments()) if r.provider == "outer")
    assert row.operators == 0
    assert "mul is not known" in row.status.reason
    assert row.place is not None
    assert "accum * alpha" in row.place.text
    assert "^" in str(ops.explain(arguments()))


def test_registration_is_checked():
    with pytest.raises(TypeError, match="Operator"):
        OuterProvider.register(int)
    with pytest.raises(TypeError, match="Provider"):
        ops.register_provider("x")(int)
    hooks = {name: lambda *a, **k: None for name in ("_compile", "_run", "_generate_operators")}
    with pytest.raises(TypeError, match="supported_args_type"):
        type("NoArgs", (ops.Operator,), {**hooks, "designed_for_min_cc": 80})
    with pytest.raises(TypeError, match="designed_for_min_cc"):
        type("NoCc", (ops.Operator,), {**hooks, "supported_args_type": ops.GemmArguments})


def test_an_entry_point_that_cannot_be_loaded_is_a_reason_not_an_error(monkeypatch):
    registry = ProviderRegistry()
    registry._load_one("broken", "no_such_module:Provider")
    assert "no_such_module" in registry.failures["broken"]
    assert "cpu" in registry


def test_lazily_negated_views_are_kept_from_kernels_that_read_memory():
    def plus(accum, C):
        D = accum + C
        return D

    negated = torch.complex(torch.zeros(M, N), -torch.ones(M, N)).conj().imag
    A, B, D = torch.ones(M, K), torch.ones(K, N), torch.empty(M, N)
    lazy, plain = (
        ops.GemmArguments(A, B, D, torch.float32, ops.EpilogueArguments(plus, C=C, D=D))
        for C in (negated, negated.resolve_neg())
    )
    assert lazy.negated == ("C",)
    operator = ops.get_operators(plain, target_sm="90a")[0]
    assert ops.get_operators(lazy, target_sm="90a") == []
    assert "C is a view that torch has negated lazily" in operator.supports(lazy, "90a").reason
    ops.get_operators(lazy)[0].run(lazy)
    assert (D == K + 1).all()
