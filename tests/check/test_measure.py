# SPDX-License-Identifier: Apache-2.0
"""The measure accepts what a right kernel may give, and nothing an ulp beyond it."""

import math

import pytest
import torch

import epifuse as ops
from epifuse.check import measure

TEXT = """
def epilogue(accum, bias, C, alpha):
    F = accum * alpha + bias
    D = gelu(F) + C
    s = sum(D, dim=1)
    m = max(accum, dim=0)
    a = mean(F)
    return D, F, s, m, a
"""


def arguments(dtype=torch.float16, m=33, n=70, k=300, accumulator=torch.float32, operand=torch.float16):
    generator = torch.Generator().manual_seed(3)

    def normal(*shape):
        return torch.randn(*shape, generator=generator)

    outputs = {
        "D": torch.full((m, n), math.nan, dtype=dtype),
        "F": torch.full((m, n), math.nan),
        "s": torch.full((m, 1), math.nan),
        "m": torch.full((n,), math.nan),
        "a": torch.full((1,), math.nan),
    }
    epilogue = ops.EpilogueArguments(TEXT, bias=normal(n), C=normal(m, n).half(), alpha=0.3, **outputs)
    a, b = normal(m, k).to(operand), normal(k, n).to(operand)
    return ops.GemmArguments(a, b, outputs["D"], accumulator_type=accumulator, epilogue=epilogue), outputs


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_the_cpu_provider_is_within_it_and_an_ulp_more_is_not(dtype):
    args, outputs = arguments(dtype)
    ops.get_operators(args)[0].run(args)
    wanted = measure.expected(args)
    for name, output in outputs.items():
        assert not wanted[name].wrong(output).any(), name
        assert wanted[name].share(output) <= 1.0
    # Half an ulp is nearly used up by the one rounding in 16 bits, so that the measure has no room to hide in.
    if dtype != torch.float32:
        assert wanted["D"].share(outputs["D"]) > 0.9
        moved = outputs["D"] * (1 + 2 * torch.finfo(dtype).eps)
        assert wanted["D"].wrong(moved).float().mean() > 0.9
    for name in ("F", "s", "m", "a"):
        assert wanted[name].wrong(outputs[name] * 1.001 + 0.001).float().mean() > 0.9, name


def test_float32_computing_by_another_order_of_summing_is_within_it():
    args, outputs = arguments(torch.float32, operand=torch.float32)
    accum = torch.zeros(33, 70)
    for k in range(300):  # one product after the other, the worst order
        accum += args.A.view[:, k : k + 1] * args.B.view[k : k + 1]
    bias, c = (args.epilogue.tensors[name] for name in ("bias", "C"))
    result = torch.nn.functional.gelu((accum * 0.3 + bias).double()).float() + c.float()
    wanted = measure.expected(args)["D"]
    assert not wanted.wrong(result).any()
    assert 0.05 < wanted.share(result) < 1.0


def test_rounding_before_the_bias_is_found():
    args, outputs = arguments()
    bias, c = (args.epilogue.tensors[name] for name in ("bias", "C"))
    accum = (args.A.view.double() @ args.B.view.double()).half().double()
    twice = (torch.nn.functional.gelu(accum * 0.3 + bias.double()) + c.double()).half()
    wrong = measure.expected(args)["D"].wrong(twice)
    assert 0.02 < wrong.float().mean() < 0.9


def test_integers_are_met_exactly():
    a, b = (torch.randint(-128, 128, shape, dtype=torch.int8) for shape in ((5, 40), (40, 9)))
    out = torch.empty(5, 9, dtype=torch.int32)
    epilogue = ops.EpilogueArguments(lambda accum: accum * 3 + 1, D=out)
    args = ops.GemmArguments(a, b, out, accumulator_type=torch.int32, epilogue=epilogue)
    ops.get_operators(args)[0].run(args)
    for wanted in (measure.exactly(args)["D"], measure.expected(args)["D"]):
        assert not wanted.wrong(out).any()
        assert wanted.wrong(out + 1).all()
        assert wanted.slack.abs().max() == 0


def test_nan_meets_nan_and_infinities_meet_their_own():
    a = torch.tensor([[math.nan, 1.0], [math.inf, 1.0], [-math.inf, 1.0], [60000.0, 60000.0]]).half()
    b = torch.ones(2, 1).half()
    out = torch.empty(4, 1, dtype=torch.float16)
    args = ops.GemmArguments(a, b, out, accumulator_type=torch.float32)
    wanted = measure.expected(args)["out"]
    right = torch.tensor([[math.nan], [math.inf], [-math.inf], [math.inf]]).half()
    assert not wanted.wrong(right).any()
    assert wanted.wrong(torch.tensor([[0.0], [65504.0], [math.nan], [65504.0]]).half()).all()
    assert wanted.share(right) <= 1.0
    assert wanted.share(right.nan_to_num(nan=0.0)) == math.inf


def test_float8_saturates():
    out = torch.empty(1, 1, dtype=torch.float8_e4m3fn)
    args = ops.GemmArguments(torch.full((1, 1), 1e3).half(), torch.ones(1, 1).half(), out, torch.float32)
    wanted = measure.expected(args)["out"]
    assert not wanted.wrong(torch.tensor([[448.0]]).to(torch.float8_e4m3fn)).any()
    assert wanted.wrong(torch.tensor([[416.0]]).to(torch.float8_e4m3fn)).all()


@pytest.mark.parametrize(("m", "n", "k"), [(0, 3, 4), (3, 0, 4), (3, 4, 0), (0, 0, 0)])
def test_empty_problems(m, n, k):
    args, outputs = arguments(m=m, n=n, k=k) if m * n else arguments_of_nothing(m, n, k)
    ops.get_operators(args)[0].run(args)
    for name, wanted in measure.expected(args).items():
        assert not wanted.wrong(outputs[name]).any(), name


def arguments_of_nothing(m, n, k):
    out = torch.empty(m, n)
    args = ops.GemmArguments(torch.empty(m, k), torch.empty(k, n), out, accumulator_type=torch.float32)
    return args, {"out": out}


def test_the_two_columns_of_a_gated_output_are_off_independently():
    A, B = torch.eye(2), torch.tensor([[2.0, -3.0, 1.0, 5.0], [0.5, 4.0, -2.0, 1.0]])
    D = torch.empty(2, 2)
    epilogue = ops.EpilogueArguments("def epi(accum): D = even_columns(accum) * odd_columns(accum); return D", D=D)
    args = ops.GemmArguments(A, B, D, torch.float32, epilogue)
    slack = measure.expected(args)["D"].slack
    gate, up = B[:, ::2].double().abs(), B[:, 1::2].double().abs()
    # d(g u) = |u| dg + |g| du; moved together, opposite signs would cancel.
    least = 2 * measure.product_factor(2) * 2.0**-24 * gate * up
    assert (slack >= 0.99 * least).all()


def test_the_factor_of_the_product_grows_as_the_square_root():
    assert measure.product_factor(0) == 4.0
    assert measure.product_factor(4096) == 20.0


def test_products_of_8_bit_floats_may_be_off_by_what_promoted_sums_are_not_by_what_one_long_sum_is():
    """The sums that ``product_factor`` speaks of: 14 bits beside the largest term, 32 products at a time."""
    generator = torch.Generator().manual_seed(2)
    a, b = (
        torch.randn(shape, generator=generator).to(torch.float8_e4m3fn).double() for shape in ((8, 8192), (8192, 12))
    )
    unit = 2.0**-24 * (a.abs() @ b.abs())
    allowed = measure.product_factor(a.shape[1], float8=True)
    promoted, whole = ((_short_sum(a, b, interval) - a @ b).abs() / unit for interval in (128, a.shape[1]))
    assert allowed / 20 < promoted.max() < allowed
    assert whole.max() > allowed


def _short_sum(a: torch.Tensor, b: torch.Tensor, interval: int) -> torch.Tensor:
    total = part = torch.zeros(a.shape[0], b.shape[1], dtype=torch.float64)
    for k in range(0, a.shape[1], 32):
        if k % interval == 0:
            total, part = total + part, torch.zeros_like(part)
        terms = torch.cat([a[:, k : k + 32, None] * b[None, k : k + 32], part[:, None]], 1)
        steps = 2.0 ** (torch.frexp(terms.abs().amax(1)).exponent.double() - 14)
        part = ((terms / steps[:, None]).trunc() * steps[:, None]).sum(1)
    return total + part


def test_a_moved_node_changes_what_depends_on_it_alone():
    args, _ = arguments()
    graph = args.epilogue.graph
    add = next(i for i, node in enumerate(graph.nodes) if node.op == "add")
    moved = measure._moved(graph, add, 0.5, 0.0)
    assert len(moved.nodes) == len(graph.nodes) + 3
    accum = torch.ones(33, 70, dtype=torch.float64)
    operands = measure._operands(args, graph)
    shapes = {"s": (33, 1), "m": (70,), "a": (1,)}
    before, after = (measure.reference.evaluate(g, accum, operands, destinations=shapes) for g in (graph, moved))
    assert torch.allclose(after["F"], before["F"] * 1.5)
    assert torch.equal(after["m"], before["m"])
