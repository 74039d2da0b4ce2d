# SPDX-License-Identifier: Apache-2.0
"""The code that the engine makes: wide accesses, vectors loaded once, nothing in local memory, no needless copies."""

import re

import pytest
import torch

from epifuse.check import guard

M, N = 32, 64


def loop_of(ptx: str) -> str:
    """The epilogue's loop: from the last label that a later branch goes back to, to that branch."""
    lines = ptx.splitlines()
    labels = {line.rstrip(":"): i for i, line in enumerate(lines) if re.match(r"\$L__BB\w+:", line)}
    backward = []
    for i, line in enumerate(lines):
        target = re.search(r"bra(?:\.uni)?\s+(\$L__BB\w+);", line)
        if target and labels.get(target[1], i) < i:
            backward.append((labels[target[1]], i))
    first, last = backward[-1]
    return "\n".join(lines[first:last])


def accesses(text: str, kind: str) -> list[str]:
    return re.findall(rf"{kind}\.global(\S*)", text)


@pytest.mark.parametrize(
    ("dtype", "access"), [(torch.float16, ".v4.b32"), (torch.float32, ".v4.b32"), (torch.int8, ".v2.b32")]
)
@pytest.mark.parametrize("layout", ["row", "column"])
def test_contiguous_outputs_and_operands_move_in_the_widest_accesses(fused, fuse_tools, dtype, access, layout):
    c = guard.filled(fuse_tools.integers(M, N, dtype=torch.float32), dtype, layout).view
    text = "def epi(accum, C): D = accum + C; return D"
    result = fused(text, M, N, outputs=[("D", dtype, layout)], C=c).exact()
    loop = loop_of(result.ptx)
    assert set(accesses(loop, "st")) == {access}
    assert set(accesses(loop, "ld")) == {access}


def test_what_alignment_forbids_moves_narrower_and_the_rest_stays_wide(fused, fuse_tools):
    wide = guard.filled(fuse_tools.integers(M, N, dtype=torch.float32), torch.float16, "row").view
    odd = fuse_tools.integers(M, N + 2, dtype=torch.float16)[:, 2:]
    text = "def epi(accum, C, E): D = accum + C + E; return D"
    loop = loop_of(fused(text, M, N, outputs=[("D", torch.float16, "row")], C=wide, E=odd).exact().ptx)
    assert set(accesses(loop, "ld")) == {".v4.b32", ".b32"}
    assert set(accesses(loop, "st")) == {".v4.b32"}


def test_vectors_along_the_axis_and_scalars_are_loaded_once_a_tile(fused, fuse_tools):
    operands = {
        "bias": fuse_tools.integers(N, dtype=torch.float32),
        "one": torch.tensor([2.0]),
        "scale": fuse_tools.integers(M, 1),
    }
    text = "def epi(accum, bias, one, scale): D = relu(accum * one + bias) * scale; return D"
    result = fused(text, M, N, outputs=[("D", torch.float16, "row")], **operands).exact()
    loop = loop_of(result.ptx)
    assert accesses(loop, "ld") == [".u16"]  # the column's value, once a row
    assert accesses(result.ptx.replace(loop, ""), "ld").count(".v4.b32") == 2  # eight floats of the bias


@pytest.mark.parametrize(
    "call", ["relu(accum + bias)", "gelu(accum + bias)", "gelu(accum + bias, approximate='tanh')", "silu(accum) * bias"]
)
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_activations_use_no_local_memory_and_few_instructions(fused, fuse_tools, call, dtype):
    bias = fuse_tools.integers(N, dtype=torch.float32)
    result = fused(f"def epi(accum, bias): D = {call}; return D", M, N, outputs=[("D", dtype, "row")], bias=bias)
    assert ".local" not in result.ptx
    # An accumulator costs at most 64 instructions, whatever the activation (relu: 4).
    count = len([line for line in loop_of(result.ptx).splitlines() if line.strip().endswith(";")])
    run = 8 if dtype == torch.float16 else 4
    assert count <= 60 + run * (4 if "relu" in call else 64)


def test_what_varies_along_one_direction_is_computed_once_for_it(fused, fuse_tools):
    """Eight elements of a row share the column's square root, and all rows the row's."""
    operands = {"row": fuse_tools.integers(N, dtype=torch.float32, low=1), "column": fuse_tools.integers(M, 1, low=1)}
    text = "def epi(accum, row, column): D = accum * sqrt(column) * row; return D"
    result = fused(text, M, N, outputs=[("D", torch.float16, "row")], **operands)
    assert loop_of(result.ptx).count("rsqrt.approx.ftz.f32") == 1


def test_plans_that_mean_the_same_share_a_kernel(fused, fuse_tools):
    bias = fuse_tools.integers(N, dtype=torch.float32)
    first = fused("def epi(accum, bias): D = relu(accum + bias); return D", M, N, outputs=["D"], bias=bias)
    second = fused("def other(accum, b): x = accum + b; D = relu(x); return D", M + 1, N, outputs=["D"], b=bias).exact()
    assert first.ptx == second.ptx
