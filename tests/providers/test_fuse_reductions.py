# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: PLC0415 - the DSL is imported where something is compiled
"""Reductions on the portable kernel: every axis, dtype and destination, in one launch, always the same bits."""

import math

import pytest
import torch

import epifuse as ops
from epifuse.check import guard
from epifuse.errors import OperandError
from epifuse.workspace import Workspace

M, N = 37, 70  # three rows and two columns of 16 x 64 tiles, both ragged

ALL_WAYS = (
    "def epi(accum): D = accum; r = sum(accum, dim=1); c = max(accum, dim=0); a = min(accum); "
    "m = mean(accum, dim=-1, keepdim=True); n = amax(accum, dim=-2, keepdim=True); t = sum(accum * 2); "
    "return D, r, c, a, m, n, t"
)


def poisoned(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.full(shape, 93.0).to(dtype)


def all_ways(dtype: torch.dtype, m: int = M, n: int = N) -> dict[str, torch.Tensor]:
    shapes = {"r": (m,), "c": (n,), "a": (1,), "m": (m, 1), "n": (1, n), "t": ()}
    return {name: poisoned(*shape, dtype=dtype) for name, shape in shapes.items()}


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.float16, torch.bfloat16, torch.float64, torch.int32, torch.int8]
)
def test_rows_columns_and_all_together_beside_a_store(fused, dtype):
    fused(ALL_WAYS, M, N, outputs=[("D", torch.float16, "odd")], **all_ways(dtype)).exact()


@pytest.mark.parametrize("accumulator", [torch.float64, torch.int32])
@pytest.mark.parametrize("layout", ["row", "column"])
def test_other_accumulators_along_either_axis(fused, accumulator, layout):
    dtype = accumulator if accumulator != torch.int32 else torch.int64
    fused(ALL_WAYS, M, N, accumulator=accumulator, outputs=[("D", dtype, layout)], **all_ways(dtype)).exact()


@pytest.mark.parametrize("tile", [(16, 64), (64, 64), (128, 128)])
def test_every_tile_gives_exact_sums_of_integers(fused, tile):
    fused(
        ALL_WAYS, 70, 131, tile=tile, outputs=[("D", torch.float32, "column")], **all_ways(torch.float32, 70, 131)
    ).exact()


@pytest.mark.parametrize("sizes", [(1, 1), (1, 70), (37, 1), (16, 64), (17, 65)])
def test_ragged_and_single_extents(fused, sizes):
    m, n = sizes
    outputs = all_ways(torch.float32, m, n)
    fused(ALL_WAYS, m, n, outputs=["D"], **outputs).exact()


def test_without_an_elementwise_output(fused):
    text = "def epi(accum): D = sum(accum); r = max(accum, dim=1); c = mean(accum, dim=0); return D, r, c"
    fused(text, M, N, D=poisoned(1), r=poisoned(M), c=poisoned(N)).exact()


BATCHED = {
    "each": ("sum(accum, dim=(1, 2))", (2,)), "kept": ("max(accum, dim=(1, 2), keepdim=True)", (2, 1, 1)),
    "rows": ("sum(accum, dim=2)", (2, M)), "columns": ("min(accum, dim=1, keepdim=True)", (2, 1, N)),
    "all": ("sum(accum)", (1,)), "m": ("mean(accum, dim=(0, 2))", (M,)), "n": ("max(accum, dim=(0, 1))", (N,)),
    "mk": ("sum(accum, dim=(0, 2), keepdim=True)", (1, M, 1)), "own": ("mean(accum)", (2,)),
}  # fmt: skip


def test_batches_apart_and_together(fused):
    body = "; ".join(f"{name} = {call}" for name, (call, _) in BATCHED.items())
    text = f"def epi(accum): D = accum; {body}; return D, {', '.join(BATCHED)}"
    outputs = {name: poisoned(*shape) for name, (_, shape) in BATCHED.items()}
    fused(text, M, N, batches=2, outputs=["D"], **outputs).exact()


def test_a_single_batch_with_and_without_its_dimension(fused):
    shapes = {"D": (M, N), "r": (1, M), "s": (M,), "t": (1, M, 1), "v": (1, 1, N), "w": (M, 1), "x": (1, 1)}
    text = "def epi(accum): D = accum; r = sum(accum, dim=2); s = max(accum, dim=-1); t = min(accum, dim=2); "
    text += "v = sum(accum, dim=1); w = mean(accum, dim=(0, 2)); x = sum(accum); return D, r, s, t, v, w, x"
    fused(text, M, N, batches=1, **{n: poisoned(*s) for n, s in shapes.items()}).exact()


def test_one_row_in_many_batches_is_no_column(fused):
    text = "def epi(accum): D = sum(accum, dim=2); c = sum(accum, dim=1); return D, c"
    fused(text, 1, N, batches=3, D=poisoned(3, 1), c=poisoned(3, N)).exact()
    fused("def epi(accum): D = sum(accum, dim=1); return D", 5, N, D=poisoned(1, 5)).exact()


def test_gated_values_are_reduced_over_half_the_columns(fused):
    text = "def epi(accum): G = reglu(accum); D = G; r = sum(G, dim=2); c = max(G, dim=1); a = sum(G); "
    shapes = {"D": (2, M, 35), "r": (2, M), "c": (2, 35), "a": (1,), "m": (M,)}
    text += "m = mean(G, dim=(0, 2)); return D, r, c, a, m"
    fused(text, M, N, batches=2, **{n: poisoned(*s) for n, s in shapes.items()}).exact()


@pytest.mark.parametrize("layout", ["odd", "strided"])
def test_destinations_with_strides_and_guard_bands(fused, layout):
    shapes = {"r": (M,), "c": (N,), "m": (M, 1), "n": (1, N), "a": (1,)}
    made = {name: guard.blank(shape, torch.float32, layout) for name, shape in shapes.items()}
    text = "def epi(accum): D = accum; r = sum(accum, dim=1); c = sum(accum, dim=0); m = max(accum, dim=1); "
    text += "n = min(accum, dim=0); a = mean(accum); return D, r, c, m, n, a"
    fused(text, M, N, outputs=["D"], **{name: g.view for name, g in made.items()}).exact()
    assert all(g.broken() is None and not g.unwritten().any() for g in made.values())


def test_nan_and_infinities_reach_every_result_that_holds_them(fused):
    x = torch.arange(M * N, dtype=torch.float32).reshape(M, N) - 1000
    x[3, 5], x[20, 5], x[30, 66] = float("nan"), float("inf"), -float("inf")
    text = "def epi(accum, x): D = x; r = max(x, dim=1); c = min(x, dim=0); a = max(x); b = min(x * 0.5); "
    text += "s = sum(x, dim=1); k = sum(x, dim=0); return D, r, c, a, b, s, k"
    shapes = {"r": (M,), "c": (N,), "a": (1,), "b": (1,), "s": (M,), "k": (N,)}
    result = fused(text, M, N, outputs=["D"], x=x, **{n: poisoned(*s) for n, s in shapes.items()}).exact()
    assert result.got["r"][3].isnan()
    assert result.got["c"][5].isnan()
    assert result.got["k"][66] == -float("inf")
    assert result.got["a"].isnan()


def test_sums_of_integers_beyond_a_float64(fused):
    x = torch.full((M, N), 2**31 - 1, dtype=torch.int32)
    x[0, 0] = 2**31 - 2
    y = torch.full((M, N), -(2**31), dtype=torch.int32)
    shapes = {"a": ((1,), torch.int64), "b": ((1,), torch.int32), "c": ((M,), torch.int64), "d": ((N,), torch.float32)}
    shapes |= {
        "e": ((1,), torch.float64),
        "f": ((N,), torch.int64),
        "g": ((M,), torch.float16),
        "h": ((1,), torch.uint8),
    }
    text = "def epi(accum, x, y): D = x; a = sum(x); b = sum(x); c = sum(x, dim=1); d = sum(x, dim=0); e = mean(x); "
    text += "f = sum(y, dim=0); g = sum(y, dim=1); h = sum(y); return D, a, b, c, d, e, f, g, h"
    outputs = {n: poisoned(*s, dtype=d) for n, (s, d) in shapes.items()}
    result = fused(
        text, M, N, accumulator=torch.int32, outputs=[("D", torch.int32, "row")], x=x, y=y, **outputs
    ).exact()
    assert result.got["a"].item() == (2**31 - 1) * M * N - 1
    assert result.got["b"].item() == 2**31 - 1


def test_int64_results_round_once_to_every_dtype():
    """The last step alone, where an int64 sum has more digits than float64 keeps."""
    from epifuse import dtypes
    from epifuse.runtime.rounding import round_to

    numbers = [2**60 + 1, -(2**60) - 1, 2**24 + 1, 2**53 + 1, -(2**63), 2**63 - 1, 0, 1, -1, 2049 * 2**40 + 1, 70000]
    numbers += [(2**12 + 1) * 2**41 + 1, (2**12 + 1) * 2**41, 65519, 65520, 257 * 2**40, 257 * 2**40 + 1, 449, 464, 465]
    values = torch.tensor(numbers, dtype=torch.int64)
    kinds = [d for d in dtypes.TABLE if d.name != "bool"]
    got = _packed_on_the_device(values, kinds)
    for dtype in kinds:
        want = round_to(values, dtype)
        assert torch.equal(got[dtype.name].double(), want.double()), dtype.name


def _packed_on_the_device(values, kinds):
    """``values`` (int64) packed to each dtype by one thread each in the emulator."""
    from cutlass import Boolean, Int64, cute

    from epifuse.dtypes import INT64
    from epifuse.emulator import machine, memory, ptx
    from epifuse.emulator.chips import chip
    from epifuse_cutedsl import compat
    from epifuse_cutedsl.compile import entry_name
    from epifuse_cutedsl.fuse.convert import pack
    from epifuse_cutedsl.fuse.store import store_elements
    from epifuse_cutedsl.kernels.ptx.gmem import ld_global_bits

    class Pack:
        @cute.jit
        def __call__(self, parameters: list) -> None:
            self.kernel(parameters).launch(grid=[1, 1, 1], block=[32, 1, 1])

        @cute.kernel
        def kernel(self, parameters: list) -> None:
            thread = cute.arch.thread_idx()[0]
            mine = Boolean(thread < len(values))
            value = ld_global_bits(parameters[0] + Int64(thread) * 8, 8, mine)
            for kind, address in zip(kinds, parameters[1:], strict=True):
                store_elements(address + Int64(thread) * kind.bytes, 0, kind.bytes, 1, pack([value], kind, INT64), mine)

    with compat.COMPILE_LOCK:
        text, _ = compat.compile_to_ptx_and_cubin(Pack(), ("q",) * (1 + len(kinds)), "90a")
    outputs = {kind.name: torch.zeros(len(values), dtype=kind.torch) for kind in kinds}
    space = memory.HostMemory()
    tensors = [values, *outputs.values()]
    for tensor in tensors:
        space.register(tensor.data_ptr(), tensor.numel() * tensor.element_size())
    params = [tensor.data_ptr().to_bytes(8, "little") for tensor in tensors]
    machine.launch(
        ptx.parse(text), entry_name(text), grid=(1, 1, 1), block=(32, 1, 1), cluster=(1, 1, 1), dynamic_smem_bytes=0,
        params=params, chip=chip("90a"), options=machine.Options(), memory=space,
    )  # fmt: skip
    return outputs


@pytest.mark.parametrize("scale", [1.0, 1e-3])
def test_the_same_bits_for_every_schedule(fused, scale):
    torch.manual_seed(4)
    x = torch.randn(M, N) * scale
    text = (
        "def epi(accum, x): D = x; r = sum(x, dim=1); c = sum(x, dim=0); a = sum(x); m = mean(x); return D, r, c, a, m"
    )
    found = []
    for seed in range(3):
        outputs = {"r": poisoned(M), "c": poisoned(N), "a": poisoned(1), "m": poisoned(1)}
        found.append(fused(text, M, N, seed=seed, outputs=["D"], x=x, **outputs))
    for name in "rcam":
        assert torch.equal(found[0].got[name], found[1].got[name]), name
        assert torch.equal(found[0].got[name], found[2].got[name]), name
        share = {"r": N, "c": M, "a": M * N, "m": 1}[name] * 2.0**-24 * scale
        want = found[0].want[name].reshape(found[0].got[name].shape)
        assert torch.allclose(found[0].got[name], want, rtol=1e-6, atol=4 * share), name


def test_a_workspace_of_the_users_serves_again_and_again(fused):
    sizes = []

    def garbage(size):
        sizes.append(size)
        return torch.full((size + 5,), 0x7F, dtype=torch.uint8)

    fused(ALL_WAYS, M, N, outputs=["D"], workspace=garbage, **all_ways(torch.float32)).exact()
    memory = torch.zeros(sizes[0] + 15, dtype=torch.uint8)
    address = -(-memory.data_ptr() // 16) * 16
    for _ in range(2):
        given = Workspace(address, leading_zero_bytes=sizes[0])
        fused(ALL_WAYS, M, N, outputs=["D"], workspace=lambda _, given=given: given, **all_ways(torch.float32)).exact()
    with pytest.raises(OperandError, match="workspace"):
        fused(
            ALL_WAYS,
            M,
            N,
            outputs=["D"],
            workspace=lambda size: torch.zeros(size - 1, dtype=torch.uint8),
            **all_ways(torch.float32),
        )


def test_how_much_workspace_is_asked_for(fuse_tools):
    with ops.emulator.device("90a"):
        plain = fuse_tools.arguments(
            "def epi(accum): D = accum; return D", M, N, 8, 0, torch.float32, {"D": torch.empty(M, N)}
        )
        assert fuse_tools.pick(plain, (16, 64)).get_workspace_size(plain).size_bytes == 0
        rows = {"D": torch.empty(M, N), "r": torch.empty(M)}
        args = fuse_tools.arguments(
            "def epi(accum): D = accum; r = sum(D, dim=1); return D, r", M, N, 8, 0, torch.float32, rows
        )
        # Three groups of tiles with a counter each (16 bytes), two partials of 16 numbers in each of them.
        assert fuse_tools.pick(args, (16, 64)).get_workspace_size(args).size_bytes == 16 + 3 * 2 * 16 * 8


@pytest.mark.parametrize("sizes", [(0, 5), (5, 0)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.float8_e4m3fn, torch.int32, torch.uint8])
def test_reductions_over_nothing_give_identities(fuse_tools, sizes, dtype):
    m, n = sizes
    outputs = {"D": torch.empty(m, n), **{x: poisoned(1, dtype=dtype) for x in "stuv"}, "r": poisoned(m, dtype=dtype)}
    text = "def epi(accum): D = accum; s = sum(accum); t = max(accum); u = min(accum); v = mean(accum); "
    args = fuse_tools.arguments(
        text + "r = sum(accum, dim=1); return D, s, t, u, v, r", m, n, 3, 0, torch.float32, outputs
    )
    with ops.emulator.device("90a"):
        ops.get_operators(args)[0].run(args)
    found = [outputs[x].double().item() for x in "stuv"]
    info = torch.finfo(dtype) if dtype.is_floating_point else torch.iinfo(dtype)
    bounded = not dtype.is_floating_point or dtype == torch.float8_e4m3fn
    highest = float(info.max) if bounded else math.inf
    lowest = float(info.min) if bounded else -math.inf
    assert found[:3] == [0.0, lowest, highest]
    assert math.isnan(found[3]) if dtype.is_floating_point else found[3] == 0
    assert bool((outputs["r"] == 0).all())


def test_k_of_zero_reduces_what_the_epilogue_makes_of_zeros(fused):
    text = "def epi(accum, b): D = accum + b; r = sum(D, dim=1); c = max(D, dim=0); return D, r, c"
    fused(text, M, N, 0, outputs=["D"], b=3.0, r=poisoned(M), c=poisoned(N)).exact()


def test_what_is_not_reduced_is_refused_with_its_name(fuse_tools):
    a, out, kept = torch.zeros(2, M, 8).half(), torch.empty(2, M, N), torch.empty(1, M, N)
    epi = ops.EpilogueArguments("def epi(accum): D = accum; s = sum(accum, dim=0); return D, s", D=out, s=kept)
    args = ops.GemmArguments(a, torch.zeros(2, 8, N).half(), out, torch.float32, epi)
    with ops.emulator.device("90a"):
        assert ops.get_operators(args) == []
        reason = next(row.status.reason for row in ops.explain(args) if row.family == "Sm80GemmOperator")
        assert "a reduction over the batch that keeps both rows and columns" in reason
        assert "reduce that with torch" in reason  # and not: ask explain
