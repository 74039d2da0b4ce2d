# SPDX-License-Identifier: Apache-2.0
"""``CpuGemmOperator`` from end to end, through the public names, against arithmetic that is done here."""

import math
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

import epifuse as ops
from epifuse import dtypes
from epifuse.dtypes import DType
from epifuse.errors import UnsupportedError
from epifuse.fusion import reference
from epifuse.fusion.activation import cast, gelu, mean, multiply_add, relu, swiglu, where
from epifuse.runtime.rounding import round_to
from epifuse_cpu import CpuProvider, evaluate
from epifuse_cpu.configs import combinations
from epifuse_cpu.operator import CpuGemmOperator

GENERATOR = torch.Generator().manual_seed(0)


def whole(*shape: int, dtype: torch.dtype = torch.float32, low: int = -2, high: int = 3) -> torch.Tensor:
    return torch.randint(low, high, shape, generator=GENERATOR).to(dtype)


def unwritten(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.full(shape, math.nan if dtype.is_floating_point else 77).to(dtype)


def arguments(
    a: torch.Tensor, b: torch.Tensor, epilogue: Any = None, acc: Any = torch.float32, out: Any = None, **operands: Any
) -> ops.GemmArguments:
    if out is None:
        out = operands.get("D")
    if out is None or out.shape != (*a.shape[:-1], b.shape[-1]):
        out = unwritten(*a.shape[:-1], b.shape[-1])
    made = None if epilogue is None else ops.EpilogueArguments(epilogue, **operands)
    return ops.GemmArguments(A=a, B=b, out=out, accumulator_type=acc, epilogue=made)


def run(*positional: Any, **named: Any) -> ops.GemmArguments:
    args = arguments(*positional, **named)
    (operator,) = ops.get_operators(args)
    assert isinstance(operator, CpuGemmOperator)
    assert operator.supports(args)
    operator.run(args)
    return args


def bias_relu(accum, bias, alpha):
    D = relu(accum * alpha + bias)
    return D


@pytest.mark.parametrize(("a", "b", "acc"), list(combinations()), ids=lambda d: d.short)
@pytest.mark.parametrize(("m", "n", "k"), [(1, 1, 1), (3, 7, 5), (13, 2, 31), (5, 6, 0)])
def test_every_combination_is_exact_on_whole_numbers(a: DType, b: DType, acc: DType, m: int, n: int, k: int) -> None:
    low = 0 if dtypes.UINT8 in (a, b) else -2
    x, y = whole(m, k, dtype=a.torch, low=low), whole(k, n, dtype=b.torch, low=low)
    exact = x.to(torch.int64) @ y.to(torch.int64)
    plain = unwritten(m, n, dtype=acc.torch)
    run(x, y, acc=acc, out=plain)
    assert torch.equal(plain.to(torch.int64), exact)
    bias = whole(n)
    for dtype in (torch.float32, torch.float16, torch.int8, torch.float8_e4m3fn):
        d = unwritten(m, n).to(dtype)
        run(x, y, bias_relu, acc, bias=bias, alpha=2, D=d)
        expected = (exact * 2 + bias.to(torch.int64)).clamp(min=0)
        assert torch.equal(d.to(torch.float64), round_to(expected, dtypes.of(dtype)).to(torch.float64))


def test_integer_epilogues_stay_integers() -> None:
    a, b = torch.full((2, 1), 127, dtype=torch.int8), torch.full((1, 3), 127, dtype=torch.int8)
    d = unwritten(2, 3, dtype=torch.int32)
    f = unwritten(2, 3)

    def scaled(accum, c):
        D = accum * c + 1
        F = accum / 2
        return D, F

    run(a, b, scaled, torch.int32, c=133144, D=d, F=f)
    assert d.flatten().tolist() == [(127 * 127 * 133144 + 1 + 2**31) % 2**32 - 2**31] * 6
    assert (f == 127 * 127 / 2).all()


@pytest.mark.parametrize(("l", "m", "n", "k"), [(None, 5, 7, 3), (1, 5, 7, 3), (3, 4, 4, 2), (2, 1, 6, 0)])
def test_broadcasts_and_batches(l: int | None, m: int, n: int, k: int) -> None:
    batch = () if l is None else (l,)
    a, b = whole(*batch, m, k), whole(*batch, k, n)
    exact = a @ b
    shapes = [(), (1,), (n,), (1, n), (m, 1), (m, n)] + ([] if l is None else [(l, 1, n), (l, m, 1), (l, 1, 1)])
    for shape in [*shapes, (*batch, m, n)]:
        bias, d = whole(*shape, low=-9, high=9), unwritten(*batch, m, n)
        run(a, b, bias_relu, bias=bias, alpha=0.5, D=d)
        assert torch.equal(d, (exact * 0.5 + bias).relu()), shape


def test_a_vector_of_m_elements_is_a_column_and_warns() -> None:
    a, b, bias, d = whole(5, 3), whole(3, 7), whole(5), unwritten(5, 7)
    with pytest.warns(ops.errors.BroadcastWarning):
        run(a, b, bias_relu, bias=bias, alpha=1.0, D=d)
    assert torch.equal(d, (a @ b + bias[:, None]).relu())


LAYOUTS: dict[str, Callable[[int, int], torch.Tensor]] = {
    "row-major": torch.empty,
    "column-major": lambda m, n: torch.empty(n, m).t(),
    "padded": lambda m, n: torch.empty(m, n + 3)[:, :n],
    "every other column": lambda m, n: torch.empty(m, 2 * n)[:, ::2],
    "every other row": lambda m, n: torch.empty(2 * m, n)[::2],
    "odd address": lambda m, n: torch.empty(m * n + 1)[1:].view(m, n),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_same_bits_in_every_layout(layout: str) -> None:
    m, n, k = 13, 7, 300
    a, b = torch.randn(m, k, generator=GENERATOR), torch.randn(k, n, generator=GENERATOR)
    c, bias = torch.randn(m, n, generator=GENERATOR), torch.randn(n, generator=GENERATOR)

    def epilogue(accum, c, bias):
        F = accum + c
        D = gelu(F, approximate="tanh") * bias
        return D, F

    plain = {name: unwritten(m, n) for name in "DF"}
    run(a, b, epilogue, c=c, bias=bias, **plain)
    placed = {}
    for name, value in {"a": a, "b": b, "c": c, "bias": bias[None], "D": plain["D"], "F": plain["F"]}.items():
        view = LAYOUTS[layout](*value.shape)
        base = view if view._base is None else view._base
        base.fill_(math.nan)
        if name not in "DF":
            view.copy_(value)
        placed[name] = view
    run(placed["a"], placed["b"], epilogue, c=placed["c"], bias=placed["bias"], D=placed["D"], F=placed["F"])
    for name in "DF":
        assert torch.equal(placed[name], plain[name])
        base = placed[name]._base
        if base is not None:  # what lies between the elements is not touched
            assert base.isnan().sum() == base.numel() - m * n


def test_outputs_beside_each_other_keep_their_own_dtype_and_layout() -> None:
    a, b = whole(6, 4), whole(4, 6)
    d, f, g = unwritten(6, 6, dtype=torch.bfloat16), unwritten(6, 6).t(), unwritten(6, 6, dtype=torch.float16)

    def epilogue(accum):
        F = accum * 1.001
        return F, F, F

    def three(accum):
        F = accum * 1.001
        D = F + 0.0
        G = F
        return D, F, G

    run(a, b, three, D=d, F=f, G=g)
    scaled = (a @ b) * torch.tensor(1.001)
    assert torch.equal(d, scaled.bfloat16())
    assert torch.equal(f, scaled)
    assert torch.equal(g, scaled.half())


def test_out_stays_untouched_where_d_is_another_buffer() -> None:
    a, b, out, d = whole(3, 2), whole(2, 3), torch.full((3, 3), 5.0), unwritten(3, 3)
    run(a, b, lambda accum: accum * 2.0, out=out, D=d)
    assert (out == 5).all()
    assert torch.equal(d, a @ b * 2)


def test_in_place_accumulation() -> None:
    a, b, c = whole(4, 3), whole(3, 5), whole(4, 5)
    expected = c + 3 * (a @ b)

    def add(accum, C):
        D = accum + C
        return D

    for _ in range(3):
        run(a, b, add, C=c, D=c)
    assert torch.equal(c, expected)


def test_an_operand_is_read_before_an_output_over_it_is_written() -> None:
    a, b, c, f = whole(4, 3), whole(3, 5), whole(4, 5), unwritten(4, 5)
    before = c.clone()

    def swap(accum, C):
        D = accum
        F = C
        return D, F

    run(a, b, swap, C=c, D=c, F=f)
    assert torch.equal(c, a @ b)
    assert torch.equal(f, before)


def test_gradients_are_neither_needed_nor_made() -> None:
    a, b = whole(3, 4).requires_grad_(), whole(4, 2).requires_grad_()
    bias, d = whole(2).requires_grad_(), unwritten(3, 2)
    run(a, b, bias_relu, bias=bias, alpha=1.0, D=d)
    assert not d.requires_grad
    assert torch.equal(d, (a @ b + bias).relu())
    root = torch.empty(3, 2, requires_grad=True)
    run(a, b, lambda accum: accum.sqrt(), D=root)
    assert root.is_leaf


def test_lazy_negation_is_seen() -> None:
    def negated(*shape: int) -> torch.Tensor:
        x = torch.complex(whole(*shape), whole(*shape)).conj().imag
        assert x.is_neg()
        return x

    a, b, bias, d = negated(3, 4), whole(4, 2), negated(3, 2), negated(3, 2)
    run(a, b, bias_relu, bias=bias, alpha=1.0, D=d)
    assert torch.equal(d.resolve_neg(), (a.resolve_neg() @ b + bias.resolve_neg()).relu())


def test_inference_tensors() -> None:
    with torch.inference_mode():
        a, b, d = whole(3, 4), whole(4, 2), unwritten(3, 2)
    run(a, b, bias_relu, bias=whole(2), alpha=0.0, D=d)
    with torch.inference_mode():
        assert not d.isnan().any()


@pytest.mark.parametrize("shape", [(0, 3, 4), (3, 0, 4), (3, 4, 0), (2, 0, 3, 4), (0, 2, 3, 4), (2, 3, 4, 0)])
def test_empty_problems(shape: tuple[int, ...]) -> None:
    *batch, m, n, k = shape
    a, b = torch.ones(*batch, m, k), torch.ones(*batch, k, n)
    bias, d = torch.arange(1.0, n + 1), unwritten(*batch, m, n)
    s, t = unwritten(1), unwritten(1)

    def epilogue(accum, bias):
        D = relu(accum + bias)
        S = sum(D)
        T = max(D)
        return D, S, T

    kept = bias.clone()
    run(a, b, epilogue, bias=bias, D=d, S=s, T=t)
    assert torch.equal(bias, kept)
    assert torch.equal(d, bias.expand(*batch, m, n))
    assert s.item() == d.sum().item()
    assert t.item() == (n if d.numel() else -math.inf)


def test_reductions_and_their_destinations() -> None:
    a, b = whole(2, 5, 4), whole(2, 4, 7)
    exact = a @ b

    def epilogue(accum):
        D = accum * 0.5
        r = sum(D, dim=2)
        c = max(D, dim=-2, keepdim=True)
        p = mean(D, dim=(1, 2))
        q = min(D)
        w = sum(D, dim=0)
        return D, r, c, p, q, w

    outputs = {
        "D": unwritten(2, 5, 7, dtype=torch.float16),
        "r": torch.full((2, 5), 7.0),
        "c": unwritten(2, 1, 7),
        "p": unwritten(2, 1, 1),
        "q": unwritten(2),
        "w": unwritten(5, 7, dtype=torch.float64),
    }
    for _ in range(2):  # written, not accumulated into
        run(a, b, epilogue, **outputs)
    half = exact.to(torch.float64) * 0.5
    assert torch.equal(outputs["r"].double(), half.sum(2))
    assert torch.equal(outputs["c"].double(), half.amax(1, keepdim=True))
    assert torch.equal(outputs["p"].flatten(), half.mean((1, 2)).float())
    assert torch.equal(outputs["q"].double(), half.amin((1, 2)))
    assert torch.equal(outputs["w"], half.sum(0))


def test_gated_epilogue() -> None:
    a, b, bias = whole(5, 3), whole(3, 8), whole(4)
    d, f = unwritten(5, 4), unwritten(5, 8)

    def epilogue(accum, bias):
        F = accum
        D = swiglu(accum) + bias
        return D, F

    run(a, b, epilogue, out=unwritten(5, 8), bias=bias, D=d, F=f)
    x = (a @ b).double()
    expected = torch.nn.functional.silu(x[:, ::2]) * x[:, 1::2] + bias
    assert torch.equal(f.double(), x)
    torch.testing.assert_close(d.double(), expected, rtol=1e-6, atol=1e-6)


def test_the_accumulator_is_not_rounded_before_the_epilogue() -> None:
    a = torch.tensor([[2048.0, 1.0]]).half()
    d, raw = unwritten(1, 1, dtype=torch.float16), unwritten(1, 1)

    def epilogue(accum):
        D = accum - 2048.0
        return D, accum

    run(a, torch.ones(2, 1).half(), epilogue, D=d, accum=raw)
    assert d.item() == 1.0
    assert raw.item() == 2049.0


def test_nan_and_no_shortcuts() -> None:
    a, b = whole(2, 2), whole(2, 3)
    c, d = torch.full((2, 3), math.nan), torch.zeros(2, 3)

    def epilogue(accum, C):
        D = accum + 0.0 * C
        return D

    run(a, b, epilogue, C=c, D=d)
    assert d.isnan().all()
    accum = torch.tensor([[math.nan, -math.inf, math.inf, -0.0]])
    out = torch.zeros(1, 4)
    run(torch.ones(1, 1), accum, lambda accum: relu(accum) + 0.0, D=out)
    assert out[0, 0].isnan()
    assert out[0, 1:].tolist() == [0.0, math.inf, 0.0]
    assert not out.signbit()[0, 1:].any()


def test_multiply_add_is_one_rounding_and_cast_rounds_where_it_stands() -> None:
    x = torch.tensor([[1 + 2.0**-12]])
    d, f = unwritten(1, 1), unwritten(1, 1)

    def epilogue(accum):
        D = multiply_add(accum, accum, -1.0)
        F = cast(accum, "bfloat16") * 3.0
        return D, F

    run(x, torch.ones(1, 1), epilogue, D=d, F=f)
    assert d.item() == 2.0**-11 + 2.0**-24
    assert f.item() == 3.0


def test_float64() -> None:
    a, b = torch.randn(9, 40, generator=GENERATOR).double(), torch.randn(40, 5, generator=GENERATOR).double()
    d = unwritten(9, 5, dtype=torch.float64)
    args = run(a, b, lambda accum: where(accum > 0.1, accum * 0.1, gelu(accum)), torch.float64, D=d)
    x = a @ b
    torch.testing.assert_close(d, torch.where(x > 0.1, x * 0.1, torch.nn.functional.gelu(x)), rtol=1e-13, atol=1e-14)
    torch.testing.assert_close(reference.gemm(args)["D"], d, rtol=1e-13, atol=1e-14)


@pytest.mark.parametrize("cut", [1, 6, 12])
def test_the_same_bits_when_rows_are_split(cut: int) -> None:
    a = torch.randn(13, 64, generator=GENERATOR).bfloat16()
    b = torch.randn(64, 9, generator=GENERATOR).bfloat16()
    bias, d, parts = torch.randn(9, generator=GENERATOR), unwritten(13, 9), unwritten(13, 9)

    def epilogue(accum, bias):
        D = gelu(accum + bias)
        return D

    run(a, b, epilogue, bias=bias, D=d)
    run(a[:cut], b, epilogue, bias=bias, D=parts[:cut])
    run(a[cut:], b, epilogue, bias=bias, D=parts[cut:])
    assert torch.equal(d, parts)


def test_alpha_in_every_form_gives_the_same_bits_and_the_same_plan() -> None:
    a, b = torch.randn(5, 8, generator=GENERATOR), torch.randn(8, 3, generator=GENERATOR)
    found = []
    for alpha in (
        1 / 3,
        torch.tensor(1 / 3),
        torch.tensor([1 / 3]),
        torch.tensor([[1 / 3]]),
        torch.full((5, 3), 1 / 3),
    ):
        d = unwritten(5, 3)
        run(a, b, bias_relu, bias=0.25, alpha=alpha, D=d)
        found.append(d)
    assert all(torch.equal(d, found[0]) for d in found)
    one, two = (arguments(a, b, bias_relu, bias=0.25, alpha=v, D=unwritten(5, 3)) for v in (1.0, 2.0))
    assert one.plan == two.plan
    (operator,) = ops.get_operators(one)
    operator.run(two)
    accum = (a.double() @ b.double()).float()
    assert torch.equal(two.outputs[0], (accum * 2 + 0.25).relu())


def test_a_compiled_artifact_serves_other_sizes_and_numbers() -> None:
    first = arguments(whole(5, 8), whole(8, 3), bias_relu, bias=whole(3), alpha=1.0, D=unwritten(5, 3))
    second = arguments(whole(2, 9), whole(9, 7), bias_relu, bias=whole(7), alpha=3.0, D=unwritten(2, 7))
    (operator,) = ops.get_operators(first)
    artifact = operator.compile(first)
    assert artifact.compiled_for is None
    for args, alpha in ((first, 1.0), (second, 3.0)):
        operator.run(args, artifact)
        bias = args.loads[args.bound.names.loads.index("bias")]
        assert torch.equal(args.outputs[0], (args.A.view @ args.B.view * alpha + bias).relu())


def test_an_operator_without_epilogue_says_its_out_dtype() -> None:
    a, b = whole(5, 8), whole(8, 3)
    first, second = arguments(a, b, out=unwritten(5, 3, dtype=torch.bfloat16)), arguments(a, b, out=unwritten(5, 3))
    (operator,) = ops.get_operators(first)
    assert operator.metadata.operands.out.dtype == torch.bfloat16
    assert "bfloat16" in operator.supports(second).reason
    with pytest.raises(UnsupportedError):
        operator.run(second)
    assert second.out.view.isnan().all()


def test_a_refused_or_failed_call_leaves_outputs_untouched(monkeypatch: pytest.MonkeyPatch) -> None:
    a, b = whole(3, 2), whole(2, 4)
    args = arguments(a, b, bias_relu, bias=1.0, alpha=1.0, D=unwritten(3, 4))
    (operator,) = ops.get_operators(args)
    other = arguments(a.half(), b.half(), bias_relu, bias=1.0, alpha=1.0, D=unwritten(3, 4))
    with pytest.raises(UnsupportedError):
        operator.run(other)
    monkeypatch.setattr(evaluate, "round_to", lambda *a: (_ for _ in ()).throw(MemoryError()))
    with pytest.raises(MemoryError):
        operator.run(args)
    assert other.outputs[0].isnan().all()
    assert args.outputs[0].isnan().all()


def test_refusals_have_reasons() -> None:
    args = arguments(whole(2, 2).half(), whole(2, 2).bfloat16())
    assert ops.get_operators(args) == []
    text = str(ops.explain(args))
    assert "A float16 is not multiplied with B bfloat16" in text
    fine = arguments(whole(2, 2), whole(2, 2))
    assert not CpuGemmOperator._explain(fine, ops.TargetSm("90a"))
    assert all(op.metadata.provider is not CpuProvider for op in ops.get_operators(fine, target_sm="100a"))
    (operator,) = ops.get_operators(fine)
    assert "sm_90a" in operator.supports(fine, "90a").reason


def test_all_that_is_registered() -> None:
    found = CpuProvider.generate_operators()
    assert len({op.metadata.operator_name for op in found}) == len(found)
    listed = {(m.A.dtype, m.B.dtype, m.accumulator_type) for m in (op.metadata.operands for op in found)}
    assert listed == set(combinations())
    halves = CpuProvider.generate_operators(metadata_filter=lambda m: m.operands.out.dtype == torch.float16)
    assert {op.metadata.operands.out.dtype for op in halves} == {dtypes.FLOAT16}
    assert CpuProvider.generate_operators(target_sm="90a") == []


def test_fake_tensors_discover_and_do_not_run() -> None:
    with FakeTensorMode():
        a, b, d = torch.empty(4, 3), torch.empty(3, 5), torch.empty(4, 5)
    args = arguments(a, b, bias_relu, bias=1.0, alpha=1.0, D=d)
    (operator,) = ops.get_operators(args)
    with pytest.raises(UnsupportedError, match="fake"):
        operator.run(args)
    real = arguments(whole(4, 3), whole(3, 5), bias_relu, bias=1.0, alpha=1.0, D=unwritten(4, 5))
    operator.run(real)
    assert torch.equal(real.outputs[0], (real.A.view @ real.B.view + 1).relu())


def test_threads_share_an_operator() -> None:
    a, b = torch.randn(40, 50, generator=GENERATOR), torch.randn(50, 30, generator=GENERATOR)
    many = [arguments(a, b, bias_relu, bias=0.5, alpha=1.5, D=unwritten(40, 30)) for _ in range(8)]
    (operator,) = ops.get_operators(many[0])
    threads = [threading.Thread(target=operator.run, args=(args,)) for args in many]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(torch.equal(args.outputs[0], many[0].outputs[0]) for args in many)
    assert not many[0].outputs[0].isnan().any()


def test_torch_state_does_not_leak_in() -> None:
    a, b, d = whole(3, 4), whole(4, 2), unwritten(3, 2)
    before = torch.get_default_dtype()
    try:
        torch.set_default_dtype(torch.float16)
        with torch.autocast("cpu", dtype=torch.bfloat16), torch.device("meta"):
            args = ops.GemmArguments(
                a, b, d, torch.float32, ops.EpilogueArguments(bias_relu, bias=1e-3, alpha=1.0, D=d)
            )
            ops.get_operators(args)[0].run(args)
    finally:
        torch.set_default_dtype(before)
    assert torch.equal(d, ((a @ b).double() + torch.tensor(1e-3).double()).relu().float())


def test_two_thousand_operations() -> None:
    text = "def f(accum):\n    D = accum" + " + 1.0" * 2000 + "\n    return D"
    d = unwritten(2, 3)
    run(torch.zeros(2, 1), torch.zeros(1, 3), text, D=d)
    assert (d == 2000).all()
