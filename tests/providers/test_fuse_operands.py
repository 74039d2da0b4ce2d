# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: PLC0415 - the DSL is imported where something is compiled
"""Operands of an epilogue on the portable kernel: every broadcast, dtype, stride and alignment that torch can have."""

import numpy as np
import pytest
import torch

import epifuse as ops
from epifuse.check import guard
from epifuse.dtypes import BOOL, FLOAT32, FLOAT64, INT32
from epifuse.errors import BroadcastWarning, OperandError
from epifuse_cutedsl.fuse.params import number_of

M, N = 33, 40
FLOATS = [torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2]
INTEGERS = [torch.int8, torch.uint8, torch.int16, torch.int32]


def summed(*names: str) -> str:
    """D = accum plus operands that are multiplied by different numbers, so that a swap shows."""
    terms = "".join(f" + {i}.0 * {name}" for i, name in enumerate(names, start=2))
    return f"def epi(accum, {', '.join(names)}): D = accum{terms}; return D"


def values(tools, shape, dtype):
    """Integers that the dtype holds exactly."""
    if dtype == torch.bool:
        return tools.integers(*shape, dtype=torch.int32, low=0, high=1) == 1
    low = 0 if dtype == torch.uint8 else -6
    return tools.integers(*shape, dtype=torch.float32, low=low, high=7).to(dtype)


@pytest.mark.parametrize("dtype", [*FLOATS, *INTEGERS, torch.bool])
@pytest.mark.parametrize("n", [40, 37])
def test_every_dtype_in_every_broadcast(fused, fuse_tools, dtype, n):
    shapes = {"one": (1,), "row": (n,), "column": (M, 1), "full": (M, n)}
    operands = {name: values(fuse_tools, shape, dtype) for name, shape in shapes.items()}
    fused(summed(*shapes), M, n, outputs=["D"], **operands).exact()


@pytest.mark.parametrize("layout", ["row", "odd", "strided", "column"])
def test_every_layout_of_a_full_operand_of_every_width(fused, fuse_tools, layout):
    dtypes = [torch.float32, torch.float16, torch.float8_e4m3fn, torch.int8]
    operands = {f"c{i}": guard.filled(values(fuse_tools, (M, N), d), d, layout).view for i, d in enumerate(dtypes)}
    fused(summed(*operands), M, N, outputs=[("D", torch.float32, "row")], **operands).exact()


@pytest.mark.parametrize("layout", ["row", "column"])
def test_mixed_majors_and_vectors_with_strides_in_one_epilogue(fused, fuse_tools, layout):
    operands = {
        "a": guard.filled(fuse_tools.integers(M, N, dtype=torch.float32), torch.float32, "row").view,
        "b": guard.filled(fuse_tools.integers(M, N, dtype=torch.float32), torch.float16, "column").view,
        "row": fuse_tools.integers(2 * N, dtype=torch.float32)[1::2],
        "column": fuse_tools.integers(M, 3, dtype=torch.float32)[:, 1:2],
        "flat": fuse_tools.integers(1, N, dtype=torch.bfloat16),
    }
    outputs = [("D", torch.float16, layout), ("E", torch.float32, "row"), ("F", torch.bfloat16, "column")]
    text = f"def epi(accum, {', '.join(operands)}): D = accum + a * row + flat; E = D * column; F = E - b * 3.0; "
    fused(text + "return D, E, F", M, N, outputs=outputs, **operands).exact()


def test_broadcasts_of_batches(fused, fuse_tools):
    shapes = {
        "one": (1, 1, 1), "each": (2, 1, 1), "row": (N,), "rows": (2, 1, N), "column": (M, 1), "columns": (2, M, 1),
        "full": (M, N), "fulls": (2, M, N),
    }  # fmt: skip
    operands = {name: fuse_tools.integers(*shape, dtype=torch.float32) for name, shape in shapes.items()}
    operands["spread"] = fuse_tools.integers(1, M, 1, dtype=torch.float32).expand(2, M, N)
    operands["turned"] = fuse_tools.integers(N, M, 2, dtype=torch.float32).permute(2, 1, 0)
    fused(summed(*operands), M, N, batches=2, outputs=["D"], **operands).exact()


def test_expanded_views_and_unit_extents(fused, fuse_tools):
    operands = {
        "a": fuse_tools.integers(1, dtype=torch.float32).expand(M, N),
        "b": fuse_tools.integers(N, dtype=torch.float16).expand(M, N),
        "c": fuse_tools.integers(M, 1, dtype=torch.float16).expand(M, N),
        "d": torch.tensor(5.0),
    }
    fused(summed(*operands), M, N, outputs=["D"], **operands).exact()
    for m, n in ((1, N), (M, 1), (1, 1)):
        shapes = {"row": (n,), "column": (m, 1), "full": (m, n), "turned": (m, n)}
        operands = {name: fuse_tools.integers(*shape, dtype=torch.float32) for name, shape in shapes.items()}
        operands["turned"] = fuse_tools.integers(n, m, dtype=torch.float32).t()
        fused(summed(*operands), m, n, outputs=["D"], **operands).exact()


def test_a_vector_of_m_elements_is_a_column_and_warns(fused, fuse_tools):
    vector = fuse_tools.integers(M, dtype=torch.float16)
    strided = fuse_tools.integers(3 * M, dtype=torch.float32)[::3]
    with pytest.warns(BroadcastWarning):
        fused(summed("v", "w"), M, N, outputs=["D"], v=vector, w=strided).exact()
    square = fuse_tools.integers(M, dtype=torch.float16)
    fused(summed("v"), M, M, outputs=["D"], v=square).exact()


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.int8])
def test_addresses_that_only_one_element_divides(fused, fuse_tools, dtype):
    def shifted(*shape):
        numbers = values(fuse_tools, (torch.Size(shape).numel() + 1,), dtype)
        return numbers[1:].reshape(shape)

    operands = {"row": shifted(N), "full": shifted(M, N)}
    assert operands["full"].data_ptr() % (2 * operands["full"].element_size())
    result = fused(summed(*operands), M, N, outputs=["D"], **operands).exact()
    assert ("ld.global.u16" if dtype == torch.float16 else "ld.global") in result.ptx


def test_numbers_of_every_kind_and_another_number_compiles_nothing(fused, fuse_tools, monkeypatch):
    import epifuse_cutedsl.compile as compiler

    operands = {
        "a": 0.5,
        "b": 3,
        "c": np.float32(0.25),
        "d": np.int64(-2),
        "e": torch.tensor(4.0),
        "f": np.array(2.0, np.float32),
    }
    first = fused(summed(*operands), M, N, outputs=["D"], **operands).exact()
    monkeypatch.setattr(compiler, "_compile", None)
    other = {name: float(value) + 1 for name, value in operands.items()}
    other |= {"e": torch.tensor(7.0), "f": np.array(5.0, np.float32)}
    second = fused(summed(*operands), M, N, outputs=["D"], **other).exact()
    assert first.ptx == second.ptx
    assert not torch.equal(first.got["D"], second.got["D"])


@pytest.mark.parametrize(
    "number", [1e39, -1e39, float("inf"), float("nan"), 3.4028235677973366e38, 2**70, 2**24 + 1, 1e-46]
)
def test_numbers_at_the_edges_of_float32(fused, number):
    fused("def epi(accum, alpha): D = accum + alpha; return D", 3, 5, outputs=["D"], alpha=number).exact()


def test_scalars_of_the_host_become_numbers_of_the_slots_dtype():
    assert number_of(torch.tensor(True), BOOL) == 1
    assert number_of(torch.tensor(2.5, dtype=torch.float64), FLOAT32) == 2.5
    assert number_of(0.1, FLOAT64) == 0.1
    assert number_of(torch.tensor(7), INT32) == 7
    assert number_of(2**24 + 1, FLOAT32) == 2.0**24
    with pytest.raises(OperandError, match="int32"):
        number_of(torch.tensor(2**31), INT32)


def test_integers_and_masks_in_integer_arithmetic(fused, fuse_tools):
    shapes = {"a": (M, N), "b": (N,), "c": (M, 1), "mask": (M, N), "d": (1,)}
    kinds = [torch.int8, torch.int16, torch.uint8, torch.bool, torch.int32]
    operands = {n: values(fuse_tools, s, d) for (n, s), d in zip(shapes.items(), kinds, strict=True)}
    text = "def epi(accum, a, b, c, mask, d): D = where(mask != 0, accum * a + b, c - d) + mask; return D"
    outputs = [("D", torch.int32, "row")]
    fused(text, M, N, accumulator=torch.int32, outputs=outputs, **operands).exact()


def test_float64_operands_with_a_float64_accumulator(fused, fuse_tools):
    torch.manual_seed(1)
    operands = {
        "row": torch.randn(N, dtype=torch.float64), "full": torch.randn(M, N, dtype=torch.float64),
        "half": torch.randn(M, N).half(), "small": fuse_tools.integers(M, N, dtype=torch.int8), "alpha": 0.1,
        "mask": torch.rand(M, 1) < 0.5,
    }  # fmt: skip
    text = (
        "def epi(accum, row, full, half, small, alpha, mask): D = relu(accum * alpha); E = D * row; F = full * half; "
    )
    text += "G = where(mask, small * 1.0, 0.125); return D, E, F, G"
    outputs = [(name, torch.float64, "row") for name in "DEFG"]
    fused(text, M, N, accumulator=torch.float64, outputs=outputs, **operands).exact()


def test_half_accumulators(fused, fuse_tools):
    a, b = fuse_tools.integers(M, 8), fuse_tools.integers(8, N)
    out, bias = torch.empty(M, N, dtype=torch.float16), torch.randn(N)
    epi = ops.EpilogueArguments("def epi(accum, bias): D = accum * 0.5 + bias; return D", D=out, bias=bias)
    args = ops.GemmArguments(a, b, out, torch.float16, epi)
    want = torch.empty_like(out)
    twin = ops.EpilogueArguments("def epi(accum, bias): D = accum * 0.5 + bias; return D", D=want, bias=bias)
    reference = ops.GemmArguments(a, b, want, torch.float16, twin)
    ops.get_operators(reference)[0].run(reference)
    with ops.emulator.device("80"):
        ops.get_operators(args)[0].run(args)
    assert torch.equal(out, want)


def test_scalars_of_the_host_beside_operands_on_a_gpu(fused, monkeypatch):
    """Any tensor of one element is taken for one on the host, as those on the CPU are beside CUDA tensors."""
    from epifuse import binding

    monkeypatch.setattr(binding, "_host_scalar", lambda traits, device: traits.numel == 1)
    operands = {
        "flag": torch.tensor(True), "off": torch.tensor([False]), "half": torch.tensor(0.1).half(),
        "wide": torch.tensor(0.1, dtype=torch.float64), "small": torch.tensor([-3], dtype=torch.int8),
        "count": torch.tensor(7, dtype=torch.int64),
    }  # fmt: skip
    text = (
        f"def epi(accum, {', '.join(operands)}): D = where(flag, accum * half, 1.0); E = where(off, D, accum * wide); "
    )
    text += "F = maximum(E, small) * count; return D, E, F"
    result = fused(text, M, N, outputs=["D", "E", "F"], **operands).exact()
    assert result.args.plan.facts.load_bytes == 0
    integer = "def epi(accum, small, count): D = accum * small + count; return D"
    two = {"small": operands["small"], "count": operands["count"]}
    fused(integer, M, N, accumulator=torch.int32, outputs=[("D", torch.int32, "row")], **two).exact()


def test_offsets_beyond_32_bits(fused, fuse_tools):
    """Rows, columns and batches more than 2^31 elements apart; the memory between is never touched."""
    far = 2**31 + 64

    def sparse(shape, strides):
        size = sum((extent - 1) * stride for extent, stride in zip(shape, strides, strict=True)) + 1
        return torch.empty(size, dtype=torch.int8).as_strided(shape, strides)

    for shape, strides in (((2, 24), (far, 1)), ((24, 2), (1, far)), ((2, 3, 24), (far, 24, 1))):
        *lead, m, n = shape
        c, out = sparse(shape, strides), sparse(shape, strides)
        c.copy_(fuse_tools.integers(*shape, dtype=torch.int8))
        text = "def epi(accum, C): D = where(accum > C, 1, C); return D"
        fused(text, m, n, batches=lead[0] if lead else 0, C=c, D=out).exact()
