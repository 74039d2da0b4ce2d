# SPDX-License-Identifier: Apache-2.0
"""Short forms: where a plan asks for them, and what they lose. The emulator's approximations are rounded correctly."""

import math

import pytest
import torch

import epifuse as ops
from epifuse.check.ulp import ulp_error
from epifuse.dtypes import INT32
from epifuse_cutedsl.fuse.shortcuts import Precision, Way, is_fast, ways_of

M, N = 16, 40
HALF, BF16 = torch.float16, torch.bfloat16
FULL, SHORT, FLUSHED = Precision.FULL, Precision.SHORT, Precision.FLUSHED


def plan_of(tools, expression, names=(), dtype=HALF, accumulator=torch.float32):
    """The plan of ``D = expression``, with (M, N) operands of ``names``, and of F where it says ``; F = ...``."""
    operands = {name: torch.zeros(M, N) for name in names}
    outputs = ["D"] + (["F"] if "F = " in expression else [])
    operands |= {name: torch.zeros(M, N, dtype=dtype) for name in outputs}
    text = f"def epi({', '.join(['accum', *names])}): D = {expression}; return {', '.join(outputs)}"
    return tools.arguments(text, M, N, 8, 0, accumulator, operands).plan


def found(plan, primitive):
    """The ways of one primitive's computes."""
    return [way for step, way in zip(plan.computes, ways_of(plan), strict=True) if step.primitive == primitive]


@pytest.mark.parametrize(
    ("expression", "factor"),
    [("sigmoid(accum)", -1.0), ("silu(accum * 3.0)", -3.0), ("1.0 + exp(accum)", 1.0),
     ("2.0 + exp(-(accum * 0.5))", -0.5), ("gelu(accum, approximate='tanh')", 1.0),
     ("-1e-3 + exp2(-accum * 4.0)", -4.0), ("elu(accum)", 1.0),
     ("1.0 - exp(accum * 2.0)", 2.0)],
)  # fmt: skip
def test_powers_that_are_only_added_are_flushed_and_take_factors(fuse_tools, expression, factor):
    plan = plan_of(fuse_tools, expression)
    (power,) = found(plan, "exp") + found(plan, "exp2")
    assert power.precision is FLUSHED
    assert power.factor == pytest.approx(factor)
    accumulated = next(load.slot for load in plan.loads)
    assert power.operands == (accumulated,) or "gelu" in expression


@pytest.mark.parametrize(
    "expression",
    ["exp(accum)", "exp(accum) + accum", "exp(accum) + 1e-31", "exp(accum) * 2.0 + 1.0",
     "exp(accum) + exp(accum) * accum", "1.0 + exp(accum); F = exp(accum)", "multiply_add(accum, exp(accum), 1.0)",
     "where(accum > 0, exp(accum) + 1.0, exp(accum))"],
)  # fmt: skip
def test_powers_that_may_matter_below_the_normal_range_are_not_flushed(fuse_tools, expression):
    plan = plan_of(fuse_tools, expression, dtype=BF16)
    assert {way.precision for way in found(plan, "exp")} == {SHORT}


@pytest.mark.parametrize(
    ("expression", "precision"),
    [("reciprocal(exp(accum) + 1.0)", FLUSHED), ("reciprocal(exp(accum) - 1.0)", SHORT), ("reciprocal(accum)", SHORT),
     ("reciprocal(exp(accum) + -1.0)", SHORT), ("reciprocal(accum + 1.0)", SHORT), ("mish(accum)", FLUSHED),
     ("reciprocal(exp(accum) + 1.0) * exp(accum)", SHORT), ("reciprocal(exp(accum) + 1e-31)", SHORT),
     ("reciprocal(minimum(accum * accum, 9.0) + 1.0)", FLUSHED), ("reciprocal(accum * accum + 1.0)", SHORT),
     ("reciprocal(minimum(abs(accum), 9.0))", SHORT), ("reciprocal(tanh(accum) + 2.0)", FLUSHED)],
)  # fmt: skip
def test_reciprocals_are_flushed_where_they_and_their_operands_are_normal_numbers(fuse_tools, expression, precision):
    assert [way.precision for way in found(plan_of(fuse_tools, expression), "reciprocal")] == [precision]


@pytest.mark.parametrize(
    ("expression", "lifted"),
    [("sigmoid(accum)", 1.0), ("silu(accum)", 1.0), ("accum * reciprocal(exp2(accum * -3.0 * accum) + 1.0)", 1.0),
     ("reciprocal(3.0 + exp2(accum))", 3.0), ("1.0 / (1.0 + exp(-accum))", 1.0), ("accum / (exp(-accum) + 1.0)", 1.0),
     ("accum / (exp(-accum) + 2.0)", None), ("accum / (exp2(-accum) + 1.0)", None),
     ("exp(accum) / (1.0 + exp(accum))", None), ("reciprocal(exp(accum) + 1e-3)", None),
     ("reciprocal(exp(accum) + 300.0)", None), ("reciprocal(exp(accum) + 1.0) + exp(accum)", None),
     ("reciprocal(exp(accum) + 1.0); F = exp(accum) + 1.0", None), ("reciprocal(exp(accum) + accum)", None)],
)  # fmt: skip
def test_reciprocals_of_a_power_and_a_number_are_lifted_where_nothing_else_reads_them(fuse_tools, expression, lifted):
    plan = plan_of(fuse_tools, expression, dtype=BF16)
    (power,) = found(plan, "exp") + found(plan, "exp2")
    (inverse,) = found(plan, "reciprocal") + found(plan, "div")
    sums = [way for way in found(plan, "add") if len(way.operands) == 1]
    if lifted is None:
        assert power.addend == 0.0
        assert inverse.scale == 1.0
        assert not sums
    else:
        assert (power.addend, inverse.scale) == (-14.0, 2.0**-14)
        assert [way.addend for way in sums] == [lifted * 2.0**-14]


@pytest.mark.parametrize(
    ("expression", "flushed"),
    [("gelu(accum, approximate='tanh')", True), ("reciprocal(exp2((accum * accum + 2.0) * accum) + 1.0) * accum", True),
     ("accum * reciprocal(exp2((accum * accum + 1.5) * accum) + 1.0)", False),
     ("accum * reciprocal(exp((accum * accum + 2.0) * accum) + 1.0)", False),
     ("(accum + 1.0) * reciprocal(exp2((accum * accum + 2.0) * accum) + 1.0)", False),
     ("reciprocal(exp2((accum * accum + 2.0) * accum) + 1.0) + accum", False)],
)  # fmt: skip
def test_reciprocals_are_flushed_where_their_products_vanish_with_them(fuse_tools, expression, flushed):
    plan = plan_of(fuse_tools, expression, dtype=BF16)
    (power,) = found(plan, "exp") + found(plan, "exp2")
    (inverse,) = found(plan, "reciprocal")
    assert inverse.precision is FLUSHED
    assert (power.addend, inverse.scale) == ((0.0, 1.0) if flushed else (-14.0, 2.0**-14))


@pytest.mark.parametrize(
    ("expression", "joined"),
    [("gelu(accum)", 1), ("ndtr(accum) * accum", 1), ("gelu(accum) * gelu(accum - 1.0)", 2), ("gelu(accum) + accum", 1),
     ("ndtr(accum)", 0), ("gelu(accum) + ndtr(accum)", 0), ("ndtr(accum) * (accum + 1.0)", 0),
     ("ndtr(accum) * ndtr(accum)", 0), ("gelu(accum); F = ndtr(accum)", 0), ("gelu(accum, approximate='tanh')", 0),
     ("exp(gelu(1.5)) + accum", 0), ("sigmoid(gelu(accum))", 1)],
)  # fmt: skip
def test_a_number_times_its_normal_distribution_is_one_function(fuse_tools, expression, joined):
    plan = plan_of(fuse_tools, expression)
    for beside_wgmma, name in ((False, "ndtr_product"), (True, "ndtr_product_beside_wgmma")):
        ways = list(zip(plan.computes, ways_of(plan, beside_wgmma=beside_wgmma), strict=True))
        products = [(step, way) for step, way in ways if way.form]
        assert [way.form for _, way in products] == [name] * joined
        left_out = {step.slot for step, way in ways if not way.operands}
        assert len(left_out) == joined
        for step, way in products:
            (factor,) = set(step.operands) & left_out
            assert way.operands == tuple(set(step.operands) - {factor})
        read = {slot for _, way in ways for slot in way.operands} | {store.operand for store in plan.stores}
        assert not read & left_out
    wide = plan_of(fuse_tools, expression, dtype=torch.float32)
    assert not any(way.form for way in ways_of(wide))


@pytest.mark.parametrize(
    ("primitive", "expression", "precision"),
    [("div", "accum / (1.0 + exp(-accum))", FLUSHED), ("div", "accum / (2.0 + exp(-accum))", SHORT),
     ("div", "accum / (1.0 + exp2(-accum))", SHORT), ("div", "accum / (1.0 + abs(accum))", SHORT),
     ("div", "(1.0 + exp(-accum)) / accum", SHORT), ("div", "accum / 3.0", FLUSHED), ("div", "accum / -3.0", SHORT),
     ("sqrt", "sqrt(accum * accum + 1e-6)", FLUSHED), ("sqrt", "sqrt(accum * accum)", SHORT),
     ("rsqrt", "rsqrt(maximum(accum, 0.5))", FLUSHED), ("rsqrt", "rsqrt(minimum(accum, 0.5))", SHORT),
     ("log", "softplus(accum)", FLUSHED), ("log", "log(accum)", SHORT), ("log2", "log2(1.0 + sqrt(accum))", FLUSHED)],
)  # fmt: skip
def test_roots_logarithms_and_quotients_of_normal_numbers_are_not_scaled(fuse_tools, primitive, expression, precision):
    assert [way.precision for way in found(plan_of(fuse_tools, expression), primitive)] == [precision]


def test_a_power_that_is_only_stored_is_flushed_where_the_store_holds_no_number_as_small(fuse_tools):
    for dtype, precision in ((HALF, FLUSHED), (torch.float8_e5m2, FLUSHED), (BF16, SHORT)):
        (way,) = found(plan_of(fuse_tools, "exp(accum)", dtype=dtype), "exp")
        assert way.precision is precision, dtype


def test_a_factor_beside_a_constant_of_no_moderate_size_stays_a_product(fuse_tools):
    for constant in (0.0, math.inf, 1e30, 1e-30):
        (way,) = found(
            plan_of(fuse_tools, f"exp(accum * {constant!r})" if constant < 1e31 else "exp(accum * 1e999)"), "exp"
        )
        assert way.factor == 1.0, constant


@pytest.mark.parametrize(
    ("dtype", "accumulator", "fast"),
    [(HALF, torch.float32, True), (BF16, torch.float32, True), (torch.float32, torch.float32, False),
     (torch.float64, torch.float64, False), (torch.int8, torch.float32, False),
     (torch.float8_e4m3fn, torch.float32, True)],
    ids=str,
)  # fmt: skip
def test_wide_and_integer_outputs_are_computed_in_full(fuse_tools, dtype, accumulator, fast):
    plan = plan_of(fuse_tools, "silu(accum)", dtype=dtype, accumulator=accumulator)
    assert is_fast(plan) is fast
    if fast:
        assert {way.precision for way in ways_of(plan)} == {SHORT, FLUSHED}
    else:
        assert list(ways_of(plan)) == [Way(FULL, step.operands) for step in plan.computes]


def test_one_wide_output_or_a_reduction_is_enough(fuse_tools):
    operands = {"D": torch.zeros(M, N, dtype=HALF), "F": torch.zeros(M, N)}
    text = "def epi(accum): D = exp(accum); F = accum; return D, F"
    assert not is_fast(fuse_tools.arguments(text, M, N, 8, 0, torch.float32, operands).plan)
    operands = {"D": torch.zeros(M, N, dtype=HALF), "s": torch.zeros(M, 1, dtype=HALF)}
    text = "def epi(accum): D = exp(accum); s = sum(D, dim=-1, keepdim=True); return D, s"
    assert not is_fast(fuse_tools.arguments(text, M, N, 8, 0, torch.float32, operands).plan)


def test_integer_arithmetic_beside_a_half_output_is_left_alone(fuse_tools):
    operands = {"D": torch.zeros(M, N, dtype=HALF)}
    args = fuse_tools.arguments("def epi(accum): D = abs(accum) + 1; return D", M, N, 8, 0, torch.int32, operands)
    integers = [w for s, w in zip(args.plan.computes, ways_of(args.plan), strict=True) if s.operand_dtype is INT32]
    assert integers
    assert all(way.precision is FULL for way in integers)


def spread_out(low, high, m=M):
    """(m, N) numbers from low to high, the ends among them."""
    return torch.linspace(low, high, m * N, dtype=torch.float64).to(torch.float32).reshape(m, N)


@pytest.mark.parametrize(
    ("function", "reference", "low", "high", "bound"),
    [
        ("ndtr(x)", lambda x: torch.special.erfc(x * -math.sqrt(0.5)) / 2, -6.0, 6.0, 2e-7),
        ("tanh(x)", torch.tanh, -10.0, 10.0, 2.5e-6),
        ("sigmoid(x)", torch.sigmoid, -20.0, 20.0, 2e-7),
        ("log(x)", torch.log, 0.5, 2.0, 1e-6),
        ("erf(x)", torch.erf, -4.0, 4.0, 1.2e-7),
    ],
)
def test_short_forms_are_near_everywhere(fused, function, reference, low, high, bound):
    """What is left of the result when the right one is taken from it, enlarged into float16's range."""
    x = spread_out(low, high)
    y = reference(x.double()).float()
    text = f"def epi(accum, x, y): D = ({function} - y) * 1048576.0; return D"
    got = fused(text, M, N, outputs=[("D", HALF, "row")], x=x, y=y).got["D"]
    assert (got.double().abs() / 1048576.0).max() <= bound + 6e-8


@pytest.mark.parametrize(
    ("function", "reference", "low", "high", "bound"),
    [
        ("ndtr(x)", lambda x: torch.special.erfc(x * -math.sqrt(0.5)) / 2, -8.0, 3.0, 1e-5),
        ("tanh(x)", torch.tanh, 1e-3, 9.0, 3e-6),
        ("tanh(x)", torch.tanh, -1e-4, -1e-9, 2e-6),
        ("exp(x)", torch.exp, -60.0, 60.0, 5e-6),
        ("exp(x * -0.5)", lambda x: torch.exp(x * -0.5), -60.0, 60.0, 3e-6),
        ("exp2(x)", torch.exp2, -60.0, 60.0, 2e-7),
        ("rsqrt(x)", torch.rsqrt, 1e-3, 1e3, 2e-7),
        ("sqrt(x)", torch.sqrt, 1e-3, 1e3, 1e-7),
        ("gelu(x)", torch.nn.functional.gelu, -1.0, 4.0, 7e-6),
        ("gelu(x)", torch.nn.functional.gelu, -5.0, -1.0, 6e-5),
        ("gelu(x)", torch.nn.functional.gelu, -6.0, -5.0, 2e-4),
        ("gelu(x)", lambda x: x * torch.special.erfc(x * -math.sqrt(0.5)) / 2, -12.0, -6.0, 2e-3),
        ("gelu(x, approximate='tanh')", lambda x: torch.nn.functional.gelu(x, approximate="tanh"), -4.0, 4.0, 2e-6),
        ("log(x)", torch.log, 1.0001, 1.2, 4e-6),
        ("log(x)", torch.log, 0.8, 0.9999, 4e-6),
        ("log2(x)", torch.log2, 0.5, 0.9999, 4e-6),
        ("log(x)", torch.log, 1e-42, 1e-37, 2e-7),
        ("softplus(x)", torch.nn.functional.softplus, -10.0, 10.0, 4e-6),
        ("mish(x)", torch.nn.functional.mish, -10.0, 10.0, 3e-6),
    ],
)
def test_short_forms_keep_their_relative_error(fused, function, reference, low, high, bound):
    x = spread_out(low, high)
    y = reference(x.double()).float()
    text = f"def epi(accum, x, y, inverse): D = ({function} - y) * inverse * 65536.0; return D"
    operands = {"x": x, "y": y, "inverse": 1.0 / y.where(y != 0, torch.ones(()))}
    got = fused(text, M, N, outputs=[("D", HALF, "row")], **operands).got["D"]
    worst = (got.double().abs() / 65536.0).max().item()
    assert worst <= bound, worst


@pytest.mark.parametrize("dtype", [HALF, BF16], ids=str)
def test_quotients_and_roots_of_integers_are_exact_also_halfway(fused, dtype):
    """Odd multiples of 257 and 2049 lie halfway between two numbers of 16 bits: nothing may push them off."""
    torch.manual_seed(4)
    quotient = torch.tensor([257.0, 771.0, 259.0, 2049.0, 4098.0, 3.0])[torch.randint(6, (M, N))]
    divisor = torch.randint(1, 4000, (M, N)).float() * torch.tensor([1.0, -1.0])[torch.randint(2, (M, N))]
    made = {"a": quotient * divisor, "b": divisor, "square": quotient.clamp(max=2049) ** 2}
    text = "def epi(accum, a, b, square): D = a / b; F = sqrt(square); G = square / (b * b + 1.0); "
    text += "H = sqrt(maximum(square, 1.0)); return D, F, G, H"
    fused(text, M, N, outputs=[(name, dtype, "row") for name in "DFGH"], **made).exact()


def test_results_below_the_normal_range_stay_right_in_bfloat16(fused):
    x = spread_out(-92.0, -86.0)
    names = ["exp(x)", "exp2(x * 1.44)", "reciprocal(y)", "x / y", "sqrt(z)", "rsqrt(z)", "z / w"]
    outputs = ["D", *(f"D{i}" for i in range(1, len(names)))]
    body = "; ".join(f"{o} = {n}" for o, n in zip(outputs, names, strict=True))
    y, z, w = spread_out(5e37, 3.4e38), spread_out(1e-45, 1e-38), spread_out(2e-45, 3e-38)
    text = f"def epi(accum, x, y, z, w): {body}; return {', '.join(outputs)}"
    result = fused(text, M, N, outputs=[(o, BF16, "row") for o in outputs], x=x, y=y, z=z, w=w)
    for output, name in zip(outputs, names, strict=True):
        got, want = result.got[output].double(), result.want[output].reshape(M, N).double()
        assert (want != 0).all(), name
        assert ((got - want).abs() <= torch.clamp(want.abs() * 2.0**-7, min=2.0**-133)).all(), name


def test_the_normal_distribution_in_full(fused):
    """Within 4 units in the last place from where float32 ends to 1; special values; float64."""
    x = spread_out(-14.0, 6.0, 60)
    special = torch.tensor([0.0, -0.0, math.inf, -math.inf, math.nan, -40.0, 40.0, 3e38, -3e38, 1e-40])
    x.view(-1)[: len(special)] = special
    text = "def epi(accum, x): D = ndtr(x); return D"
    result = fused(text, 60, N, outputs=["D"], x=x)
    got, want = result.got["D"], result.want["D"].reshape(60, N)
    torch.testing.assert_close(got.view(-1)[:10], want.view(-1)[:10], rtol=0, atol=0, equal_nan=True)
    exact = torch.special.erfc(x.double() * -math.sqrt(0.5)) / 2
    normal = exact >= 2.0**-126
    assert normal.sum() > 2000
    worst = ulp_error(got[normal], exact[normal]).max().item()
    assert worst <= 2.0, worst  # an H200's ex2.approx adds up to 1.7
    assert (got[~normal & ~exact.isnan()] <= 2.0**-126).all()
    wide = x[:7].double()
    result = fused(text, 7, N, accumulator=torch.float64, outputs=[("D", torch.float64, "row")], x=wide)
    torch.testing.assert_close(result.got["D"], result.want["D"].reshape(7, N), rtol=1e-13, atol=0, equal_nan=True)


def test_special_values_of_the_short_forms(fused):
    x = torch.tensor([0.0, -0.0, math.inf, -math.inf, math.nan, 90.0, -90.0, 3e38, -3e38, 1e-40]).repeat(M, N // 10)
    names = ["ndtr(x)", "tanh(x)", "exp(x)", "gelu(x)", "gelu(x, approximate='tanh')", "silu(x)", "sqrt(x)", "1.0 / x"]
    names += [
        "log(x)",
        "log2(x)",
        "softplus(x)",
        "logsigmoid(x)",
        "mish(x)",
        "x / (1.0 + exp(-x))",
        "sqrt(x * x + 1.0)",
    ]
    outputs = ["D", *(f"D{i}" for i in range(1, len(names)))]
    body = "; ".join(f"{o} = {n}" for o, n in zip(outputs, names, strict=True))
    text = f"def epi(accum, x): {body}; return {', '.join(outputs)}"
    result = fused(text, M, N, outputs=[(o, BF16, "row") for o in outputs], x=x)
    for output, name in zip(outputs, names, strict=True):
        got, want = result.got[output], result.want[output].reshape(M, N)
        torch.testing.assert_close(got, want, rtol=0, atol=1e-36, equal_nan=True, msg=name)
        finite = want.isfinite() & (want != 0)
        assert torch.equal(got[finite & (want.abs() > 1e-36)], want[finite & (want.abs() > 1e-36)]), name


@pytest.mark.parametrize("target", ["90a", "100a"])
def test_special_values_of_gelu_alone(fused, target):
    """Where nothing else reads the normal distribution, it is one function with its factor."""
    special = [0.0, -0.0, math.inf, -math.inf, math.nan, -13.0, -14.0, -15.0, -17.0, -21.0, -30.0, -90.0, -6e4, -3e38]
    x = torch.tensor([*special, 3e38, 1e-40, -1e4, 14.0, 15.0, 100.0]).repeat(M, N // 20)
    for dtype in (HALF, BF16):
        text = "def epi(accum, x): D = gelu(x); return D"
        result = fused(text, M, N, outputs=[("D", dtype, "row")], target=target, x=x)
        got, want = result.got["D"], result.want["D"].reshape(M, N)
        torch.testing.assert_close(got, want, rtol=0, atol=1e-36, equal_nan=True)
        assert torch.equal(got[x == 0].signbit(), x[x == 0].signbit())


def test_two_at_a_time_are_what_one_at_a_time_are(fused):
    x = spread_out(-14.0, 6.0)
    x[0, :5] = torch.tensor([math.inf, -math.inf, math.nan, -0.0, 0.0])
    text = "def epi(accum, x): D = gelu(x); F = (x - accum) * 3.0 + x; return D, F"
    outputs = [("D", BF16, "row"), ("F", BF16, "row")]
    one, two = (fused(text, M, N, outputs=outputs, target=target, x=x) for target in ("90a", "100a"))
    assert "fma.rn.f32x2" in two.ptx
    assert "f32x2" not in one.ptx
    for name in ("D", "F"):
        torch.testing.assert_close(two.got[name], one.got[name], rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize(
    ("expression", "exact"),
    [
        ("silu(accum)", lambda x: x * torch.sigmoid(x)),
        ("accum / (1.0 + exp(-accum))", lambda x: x * torch.sigmoid(x)),
        ("1.0 / (1.0 + exp(-accum))", torch.sigmoid),
        ("exp(accum - 1.0) * reciprocal(1.0 + exp(accum))", lambda x: torch.exp(x - 1.0) / (1.0 + torch.exp(x))),
    ],
)
def test_subnormal_reciprocals_that_are_multiplied_again_are_kept(expression, exact):
    # 1 / (1 + exp(88)) is subnormal; what it is multiplied by makes a normal number of it.
    values = torch.tensor([-88.0, -87.5, -86.0, -1.0, 0.5, 86.0, 87.5, 88.0])
    a, b = torch.zeros(64, 16), torch.zeros(16, len(values))
    a[:, 0], b[0] = 1.0, values
    out = torch.full((64, len(values)), float("nan"), dtype=torch.bfloat16)
    epilogue = ops.EpilogueArguments(f"def f(accum): D = {expression}; return D", D=out)
    args = ops.GemmArguments(a.bfloat16(), b.bfloat16(), out, torch.float32, epilogue)
    with ops.emulator.device("90a"):
        ops.get_operators(args)[0].run(args)
    want = exact(values.double()).bfloat16().expand_as(out)
    torch.testing.assert_close(out, want, rtol=2**-7, atol=0.0)
