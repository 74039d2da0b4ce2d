# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: PLC0415 - the DSL is imported where something is compiled
"""What the portable kernel takes and refuses, each refusal with its reason; what is accepted compiles and is right."""

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import epifuse as ops
from epifuse.check import guard
from epifuse.errors import UnsupportedError
from epifuse_cutedsl import support
from epifuse_cutedsl.operators import Sm80GemmOperator

M, N, K = 33, 40, 8


def gemm(a, b, out, accumulator=torch.float32, text=None, **operands):
    epi = None if text is None else ops.EpilogueArguments(text, **operands)
    return ops.GemmArguments(a, b, out, accumulator, epi)


def half(*shape):
    return torch.zeros(shape, dtype=torch.float16)


def test_float8_needs_capability_89(fuse_tools):
    cases = [
        ("def epi(accum): D = accum; return D", {"D": torch.empty(M, N, dtype=torch.float8_e4m3fn)}),
        ("def epi(accum, c): D = accum + c; return D", {"D": half(M, N), "c": torch.empty(N, dtype=torch.float8_e5m2)}),
        ("def epi(accum): D = cast(accum, 'float8_e5m2'); return D", {"D": half(M, N)}),
        (
            "def epi(accum): D = accum; s = sum(D); return D, s",
            {"D": half(M, N), "s": torch.empty(1).to(torch.float8_e5m2)},
        ),
    ]
    for text, operands in cases:
        args = fuse_tools.arguments(text, M, N, K, 0, torch.float32, operands)
        for target, expected in (("80", False), ("86", False), ("89", True), ("90a", True)):
            with ops.emulator.device(target):
                found = ops.get_operators(args)
                assert bool(found) is expected, (target, text)
                if not expected:
                    assert "compute capability 8.9" in str(ops.explain(args))


def test_dtype_pairs_without_a_main_loop_are_refused_with_what_there_is():
    out = torch.empty(M, N)
    mixed = gemm(half(M, K), torch.zeros(K, N, dtype=torch.bfloat16), out)
    with ops.emulator.device("90a"):
        assert ops.get_operators(mixed) == []
        assert "does not multiply float16 by bfloat16 into float32" in str(ops.explain(mixed))


def test_a_primitive_that_nobody_emits_is_refused_by_name(monkeypatch, fuse_tools):
    monkeypatch.setattr(support, "PRIMITIVES", {k: v for k, v in support.PRIMITIVES.items() if k != "tanh"})
    args = fuse_tools.arguments(
        "def epi(accum):\n  D = tanh(accum)\n  return D", M, N, K, 0, torch.float32, {"D": half(M, N)}
    )
    with ops.emulator.device("90a"):
        assert ops.get_operators(args) == []
        shown = str(ops.explain(args))
    assert "no primitive tanh" in shown
    assert "D = tanh(accum)" in shown


def test_extents_beyond_a_grid_are_refused():
    def strided(*shape):
        return torch.empty_strided(shape, (0,) * len(shape), dtype=torch.float16, device="meta")

    rows = 2**31
    args = ops.GemmArguments(strided(rows, K), strided(K, 8), torch.empty(rows, 8, device="meta"), torch.float32)
    assert "2^31" in str(support.refusal(args, ops.TargetSm("90a")))
    side = 2**22  # 2^22 by 2^22 are 2^34 tiles of 16 x 64, and 2^28 of 128 x 128
    large = ops.GemmArguments(
        strided(side, K), strided(K, side), torch.empty(side, side, dtype=torch.float16, device="meta"), torch.float32
    )
    assert support.refusal(large, ops.TargetSm("90a")) is None
    fits = {c.tile_m * c.tile_n for c in _configurations() if Sm80GemmOperator.fits_grid(c, large)}
    assert fits
    assert 16 * 64 not in fits


def _configurations():
    from epifuse_cutedsl.configs.sm80 import configurations

    return configurations("half", 4, 90)


def test_another_emulated_chip_gets_another_kernel(fuse_tools):
    out = torch.empty(M, N)
    args = fuse_tools.arguments("def epi(accum): D = accum + 1.0; return D", M, N, K, 0, torch.float32, {"D": out})
    targets = []
    for target in ("80", "90a", "80"):
        with ops.emulator.device(target):
            operator = fuse_tools.pick(args, (16, 64))
            operator.run(args)
            targets.append(operator.compile(args).compiled_obj.launcher.image.target)
    assert targets == ["80", "90a", "80"]
    assert torch.equal(out.double(), args.A.view.double() @ args.B.view.double() + 1)


@pytest.mark.parametrize("target", ["80", "86", "89", "90a", "100a", "120a"])
def test_every_target_runs_every_part_of_the_engine(fused, fuse_tools, target):
    narrow = [torch.float8_e4m3fn, torch.float8_e5m2] if target not in ("80", "86") else [torch.int8, torch.int16]
    kinds = [torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.int64, torch.bool, *narrow]
    outputs = [(f"D{i}" if i else "D", dtype, LAYOUTS[i % 4]) for i, dtype in enumerate(kinds)]
    names = ", ".join(name for name, *_ in outputs)
    text = f"def epi(accum, c, row): {' = '.join(name for name, *_ in outputs)} = maximum(accum * 0.5 + row, c); "
    text += f"r = max(D, dim=1); s = sum(D, dim=0); a = mean(D); return {names}, r, s, a"
    folded = {"r": torch.empty(M), "s": torch.empty(N), "a": torch.empty(1)}
    c = fuse_tools.integers(M, N, dtype=torch.float32).to(narrow[0])
    fused(text, M, N, target=target, outputs=outputs, c=c, row=fuse_tools.integers(N), **folded).exact()


def test_an_artifact_serves_what_it_was_compiled_for_and_refuses_the_rest(fuse_tools):
    text = "def epi(accum, C): D = accum + C; return D"

    def made(m, n, layout="row", shift=0):
        c = torch.ones(m * n + shift, dtype=torch.float16)[shift:].reshape(m, n)
        out = guard.blank((m, n), torch.float32, layout).view
        return fuse_tools.arguments(text, m, n, K, 0, torch.float32, {"C": c, "D": out})

    first, other = made(M, N), made(M + 20, N + 8)
    with ops.emulator.device("90a"):
        operator = fuse_tools.pick(first, (16, 64))
        artifact = operator.compile(first)
        operator.run(other, artifact)
        assert torch.equal(other.outputs[0].double(), other.A.view.double() @ other.B.view.double() + 1)
        for refused in (made(M, N, "column"), made(M, N + 1), made(M, N, shift=1)):
            with pytest.raises(UnsupportedError, match="compiled for operands of other kinds"):
                operator.run(refused, artifact, assume_supported_args=True)
            operator.run(refused)
            assert torch.equal(refused.outputs[0].double(), refused.A.view.double() @ refused.B.view.double() + 1)


def test_no_device_means_a_reason_not_a_crash(fuse_tools):
    args = fuse_tools.arguments(
        "def epi(accum): D = accum; return D", M, N, K, 0, torch.float32, {"D": torch.empty(M, N)}
    )
    with ops.emulator.device("90a"):
        operator = fuse_tools.pick(args, (16, 64))
    artifact = operator.compile(args, "90a")
    with pytest.raises(UnsupportedError, match="emulator"):
        operator.run(args, artifact)


# --- random epilogues -------------------------------------------------------------------------------------------------

DTYPES = [torch.float32, torch.float16, torch.bfloat16, torch.int8, torch.int32, torch.float8_e5m2]
LAYOUTS = ["row", "odd", "strided", "column"]
UNARY = ["relu({0})", "abs({0})", "-{0}", "square({0})", "floor({0} * 0.5)", "clamp({0}, -4.0, 9.0)", "sign({0})"]
BINARY = ["{0} + {1}", "{0} - {1}", "{0} * {1}", "maximum({0}, {1})", "minimum({0}, {1})", "where({0} > {1}, {0}, {1})"]


@st.composite
def epilogues(draw):
    """A program over accum and up to four operands, its operands' kinds, and up to three outputs."""
    count = draw(st.integers(0, 4))
    operands = [
        (f"x{i}", draw(st.sampled_from(["one", "row", "column", "full", "number"])), draw(st.sampled_from(DTYPES)),
         draw(st.sampled_from(LAYOUTS)))
        for i in range(count)
    ]  # fmt: skip
    known = ["accum", *(name for name, *_ in operands)]
    lines = []
    for i in range(draw(st.integers(1, 5))):
        form = draw(st.sampled_from(UNARY + BINARY))
        terms = [draw(st.sampled_from(known)) for _ in range(2)]
        lines.append(f"t{i} = {form.format(*terms)}")
        known.append(f"t{i}")
    outputs = []
    for i in range(draw(st.integers(1, 3))):
        name = f"D{i}" if i else "D"
        lines.append(f"{name} = {draw(st.sampled_from(known))}")
        outputs.append((name, draw(st.sampled_from(DTYPES)), draw(st.sampled_from(LAYOUTS))))
    if draw(st.booleans()):
        axis = draw(st.sampled_from([0, 1]))
        lines.append(f"s = {draw(st.sampled_from(['sum', 'max', 'min']))}(accum, dim={axis})")
        outputs.append(("s", torch.float32, axis))
    names = ", ".join(name for name, *_ in outputs)
    text = f"def epi({', '.join(['accum', *(name for name, *_ in operands)])}): {'; '.join(lines)}; return {names}"
    sizes = draw(st.sampled_from([(33, 37), (17, 64), (1, 40), (40, 1), (16, 72), (5, 3)]))
    return text, operands, outputs, sizes, draw(st.sampled_from([1, 8, 13])), draw(st.sampled_from([0, 0, 2]))


@settings(max_examples=25, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck))
@given(epilogues())
def test_random_epilogues_agree_with_the_definition(fused, fuse_tools, drawn):
    text, operands, outputs, (m, n), k, batches = drawn
    lead = (batches,) if batches else ()
    shapes = {"one": (1,), "row": (n,), "column": (m, 1), "full": (*lead, m, n)}
    given_ = {}
    for name, kind, dtype, layout in operands:
        numbers = None if kind == "number" else fuse_tools.integers(*shapes[kind], dtype=torch.float32)
        given_[name] = 2.5 if numbers is None else guard.filled(numbers, dtype, layout).view
    folded = [axis for _, _, axis in outputs if isinstance(axis, int)]
    if folded:
        text = text.replace(f"dim={folded[0]}", f"dim={folded[0] - 2}")
        given_["s"] = torch.full((*lead, n if folded[0] == 0 else m), 7.0)
    made = [output for output in outputs if not isinstance(output[2], int)]
    fused(text, m, n, k, batches=batches, outputs=made, **given_).exact()


@pytest.mark.parametrize("target", ["90a", "100a", "120a"])
def test_an_operator_run_without_a_device_names_the_one_that_it_was_listed_for(target):
    args = gemm(half(M, K), half(K, N), half(M, N))
    for operator in (ops.get_operators(args, target_sm=target)[0], ops.get_operators(args, target_sm=target)[-1]):
        with pytest.raises(UnsupportedError, match=f"emulator.device.'{target}'.*target_sm='{target}'"):
            operator.run(args)


@pytest.mark.parametrize(("portable", "named"), [("90", "sm_90a"), ("80", None), ("100", None)])
def test_a_target_without_its_suffix_is_told_of_it(portable, named):
    found = str(ops.explain(gemm(half(M, K), half(K, N), half(M, N)), target_sm=portable))
    assert (f"name {named}, which such a GPU is" in found) is (named is not None), found


@pytest.fixture
def precision():
    """torch's switch, as it was afterwards."""
    before = torch.get_float32_matmul_precision()
    yield torch.set_float32_matmul_precision
    torch.set_float32_matmul_precision(before)


@pytest.mark.parametrize(("target", "family"), [("80", "Sm80"), ("90a", "Sm90"), ("100a", "Sm100")])
def test_an_operator_listed_while_tf32_was_allowed_asks_the_switch_again(precision, target, family):
    D = torch.empty(64, 32)
    args = gemm(torch.ones(64, 32), torch.ones(32, 32), D, text="def epi(accum): return accum + 1", D=D)
    precision("high")
    listed = [o for o in ops.get_operators(args, target_sm=target) if type(o).__name__.startswith(family)]
    with ops.emulator.device(target):
        in_tf32 = [o for o in listed if "tf32" in o.metadata.operator_name or family != "Sm80"]
        assert in_tf32
        assert all(o.supports(args, target) and o.supports(args) for o in in_tf32)
        precision("highest")
        for operator in in_tf32:
            assert not operator.supports(args, target)
            assert not operator.supports(args)
