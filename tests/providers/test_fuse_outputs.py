# SPDX-License-Identifier: Apache-2.0
"""Outputs of an epilogue on the portable kernel: every dtype and stride, many at once, in place, gated, constant."""

import pytest
import torch

import epifuse as ops
from epifuse.check import guard

M, N = 33, 40
DTYPES = [torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2]
DTYPES += [torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64, torch.bool]
NAMES = ["D", *(f"D{i}" for i in range(1, len(DTYPES)))]
LAYOUTS = ["row", "odd", "strided", "column"]


def hard_values(dtype: torch.dtype) -> torch.Tensor:
    """Values at which stores round, saturate, overflow or meet NaN."""
    torch.manual_seed(2)
    x = torch.randn(M, N, dtype=torch.float64) * torch.exp(torch.randn(M, N, dtype=torch.float64) * 5)
    edges = [0.0, -0.0, float("inf"), -float("inf"), float("nan"), 0.5, 1.5, 2.5, -0.5, 127.5, 128.0, -128.5, 255.5]
    edges += [256.0, 32767.5, -32768.5, 2.0**31, -(2.0**31) - 1, 2.0**63, -(2.0**63), 448.0, 464.0, 465.0, 57344.0]
    edges += [61440.0, 65504.0, 65519.0, 65520.0, 2049.0, 2051.0, 257.0, 259.0, 1e-8, 6e-8, 2.0**-10, 2.0**-17, 3e38]
    x.view(-1)[: len(edges)] = torch.tensor(edges, dtype=torch.float64)
    return x.to(dtype)


def stored(body: str, names: list[str] = NAMES) -> str:
    return f"def epi(accum, x): {' = '.join(names)} = {body}; return {', '.join(names)}"


@pytest.mark.parametrize("accumulator", [torch.float32, torch.float64, torch.int32])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_dtype_in_every_layout_rounds_once(fused, accumulator, layout):
    if accumulator == torch.int32:
        x = torch.randint(-(2**31), 2**31 - 1, (M, N), dtype=torch.int32) >> torch.randint(0, 31, (M, N)).int()
    else:
        x = hard_values(accumulator)
    outputs = [(name, dtype, layout) for name, dtype in zip(NAMES, DTYPES, strict=True)]
    fused(stored("x"), M, N, accumulator=accumulator, outputs=outputs, x=x).exact()


@pytest.mark.parametrize("n", [37, 1, 70])
def test_ragged_tiles_write_nothing_outside(fused, n):
    x = hard_values(torch.float32)[:, :1].expand(M, n).contiguous()
    kinds = [torch.float32, torch.float16, torch.int8, torch.int64]
    outputs = [(f"D{i}" if i else "D", dtype, LAYOUTS[i]) for i, dtype in enumerate(kinds)]
    result = fused(stored("x", [o[0] for o in outputs]), M, n, outputs=outputs, x=x).exact()
    assert all(not guarded.unwritten()[5:].any() for guarded in result.guards.values())


def test_many_tiles_and_batches(fused, fuse_tools):
    outputs = [("D", torch.float16, "odd"), ("E", torch.float32, "column"), ("F", torch.int8, "row")]
    c = fuse_tools.integers(2, 70, 131, dtype=torch.float32)
    text = "def epi(accum, c): D = accum + c; E = D * 2.0; F = E - c; return D, E, F"
    for tile in ((16, 64), (64, 64)):
        fused(text, 70, 131, batches=2, outputs=outputs, tile=tile, c=c).exact()


def test_the_accumulator_inputs_and_constants_are_returned(fused, fuse_tools):
    text = "def epi(accum, bias, c, alpha): D = 3.0; E = accum; F = bias; G = c; H = alpha * 2.0; J = -1; "
    text += "return D, E, F, G, H, J"
    outputs = ["D", ("E", torch.float16, "row"), ("F", torch.float16, "column"), "G", "H", ("J", torch.int8, "odd")]
    operands = {"bias": fuse_tools.integers(N), "c": fuse_tools.integers(M, 1), "alpha": 0.25}
    result = fused(text, M, N, batches=2, outputs=outputs, **operands).exact()
    assert bool((result.got["D"] == 3.0).all())
    fused("def epi(accum): D = accum; return D, accum", M, N, outputs=["D", "accum"]).exact()


@pytest.mark.parametrize("layout", ["row", "odd", "column"])
def test_in_place(fused, fuse_tools, layout):
    memory = guard.filled(fuse_tools.integers(M, N, dtype=torch.float32), torch.float16, layout)
    before = memory.view.clone()
    text = "def epi(accum, C, row): D = accum * 2.0 + C * row; return D"
    result = fused(text, M, N, C=memory.view, D=memory.view, row=fuse_tools.integers(N)).exact()
    assert memory.broken() is None
    assert not torch.equal(result.got["D"], before)


def test_k_of_zero_runs_the_epilogue_on_zeros(fused, fuse_tools):
    bias = fuse_tools.integers(N, dtype=torch.float32)
    result = fused("def epi(accum, bias): D = relu(accum + bias); return D", M, N, 0, outputs=["D"], bias=bias).exact()
    assert torch.equal(result.got["D"], bias.relu().expand(M, N))


@pytest.mark.parametrize("sizes", [(0, 5, 3), (5, 0, 3)])
def test_empty_problems_launch_nothing(fuse_tools, sizes):
    out = torch.empty(sizes[0], sizes[1])
    args = fuse_tools.arguments("def epi(accum): D = accum; return D", *sizes, 0, torch.float32, {"D": out})
    with ops.emulator.device("90a") as device:
        found = ops.get_operators(args)
        found[0].run(args)
        assert found
        assert not device.reports


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.int8])
@pytest.mark.parametrize(("n", "layout"), [(40, "row"), (70, "odd"), (36, "column"), (2, "row")])
def test_gated_outputs_have_half_the_columns(fused, fuse_tools, dtype, n, layout):
    half = n // 2
    outputs = {name: guard.blank((M, half), kind, layout) for name, kind in (("D", dtype), ("E", torch.float32))}
    operands = {
        "row": fuse_tools.integers(half, dtype=torch.float32), "column": fuse_tools.integers(M, 1),
        "c": guard.filled(fuse_tools.integers(M, half, dtype=torch.float32), torch.float16, layout).view,
        "bias": fuse_tools.integers(n, dtype=torch.float32), "P": guard.blank((M, n), torch.float16, layout).view,
    }  # fmt: skip
    text = (
        "def epi(accum, row, column, c, bias): P = accum + bias; D = reglu(P) * row + column; E = D + c; return D, E, P"
    )
    operands |= {name: made.view for name, made in outputs.items()}
    result = fused(text, M, n, **operands).exact()
    assert all(made.broken() is None for made in outputs.values())
    assert not outputs["E"].unwritten().any()
    assert result.got["D"].shape == (M, half)


def test_swiglu_of_a_column_major_output_keeps_pairs_together(fused):
    out = guard.blank((M, 20), torch.float32, "column")
    result = fused("def epi(accum): D = swiglu(accum); return D", M, 40, D=out.view)
    assert out.broken() is None
    assert torch.allclose(result.got["D"], result.want["D"][0], rtol=1e-6, atol=0)


MOVES = [
    ("row", torch.float16, 128, None), ("row", torch.float16, 64, None), ("row", torch.float16, 16, None),
    ("row", torch.float16, 8, "num_bits_per_copy=8"), ("odd", torch.float16, 16, None),
    ("odd", torch.float16, 32, "num_bits_per_copy=32"), ("strided", torch.float32, 64, "num_bits_per_copy=64"),
    ("row", torch.float32, 128, None), ("column", torch.float16, 32, "num_bits_per_copy=32"),
]  # fmt: skip


@pytest.mark.parametrize(("layout", "dtype", "bits", "reason"), MOVES)
def test_a_users_width_is_kept_or_refused(fused, fuse_tools, layout, dtype, bits, reason):
    n = 40
    c = guard.filled(fuse_tools.integers(M, n, dtype=torch.float32), dtype, layout).view
    out = guard.blank((M, n), dtype, "row").view
    text = "def epi(accum, C): D = accum + C; return D"
    operands = {"C": ops.Load(c, via="async_gmem_load", num_bits_per_copy=bits), "D": out}
    if reason is not None:
        args = fuse_tools.arguments(text, M, n, 8, 0, torch.float32, operands)
        with ops.emulator.device("90a"):
            assert ops.get_operators(args) == []
            assert reason in str(ops.explain(args))
        return
    result = fused(text, M, n, **operands).exact()
    widest = {8: ".u8", 16: ".u16", 32: ".b32", 64: ".v2.b32", 128: ".v4.b32"}
    assert f"ld.global{widest[bits]}" in result.ptx
    assert not any(f"ld.global{text}" in result.ptx for width, text in widest.items() if width > max(bits, 32))


def test_a_users_width_of_a_store_is_kept(fused, fuse_tools):
    text = "def epi(accum): D = accum; return D"
    for via, bits, access in ((None, None, "v4"), ("sync_gmem_store", None, "v4"), ("sync_gmem_store", 64, "v2")):
        out = guard.blank((M, N), torch.float16, "row").view
        result = fused(text, M, N, D=ops.Store(out, via=via, num_bits_per_copy=bits)).exact()
        assert f"st.global.{access}.b32" in result.ptx
        assert (access == "v4") == ("st.global.v4.b32" in result.ptx)


@pytest.mark.parametrize("name", ["C", "D", "s"])
def test_tma_is_refused_with_the_operands_name(fuse_tools, name):
    c, out, s = torch.zeros(M, N, dtype=torch.float16), torch.empty(M, N, dtype=torch.float16), torch.empty(M)
    operands = {"C": c, "D": out, "s": s}
    operands[name] = (ops.Load if name == "C" else ops.Store)(operands[name], via="tma")
    text = "def epi(accum, C): D = accum + C; s = sum(D, dim=1); return D, s"
    args = fuse_tools.arguments(text, M, N, 8, 0, torch.float32, operands)
    with ops.emulator.device("80"):
        assert ops.get_operators(args) == []
        assert f"{name} was asked to move by TMA, which the portable kernel" in str(ops.explain(args))
