# SPDX-License-Identifier: Apache-2.0
"""NVIDIA's own operators, plain and fused, on the emulated chips they are written for: exact on whole numbers."""

import pytest
import torch

from epifuse import emulator

ops = pytest.importorskip("cutlass.operators")

from epifuse_cutedsl import emulate  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # the vendor's own


def whole(shape, dtype, low=-2):
    return torch.randint(max(low, 0 if dtype == torch.uint8 else low), 3, shape).to(dtype)


def operands(m, n, k, batches=(), dtype=torch.float16, transposed=False):
    torch.manual_seed(m + n + k)
    a = whole((*batches, m, k), dtype)
    b = whole((*batches, n, k), dtype).transpose(-1, -2) if transposed else whole((*batches, k, n), dtype)
    return a, b


def run(chip, args, name="", seed=3, sm_count=None):
    """Compile and run the first operator whose name has `name`."""
    found = [each for each in ops.get_operators(args, target_sm=chip) if name in each.metadata.operator_name]
    assert found, f"no operator for {chip} with {name!r}"
    with emulator.device(chip, seed=seed, sm_count=sm_count) as device, emulate.every_compile():
        found[0].run(args, found[0].compile(args, chip))
        assert device.reports


PLAIN = [
    ("80", "Sm80", (130, 72, 72), (), torch.float16, False, torch.float32),
    ("80", "Sm80", (64, 128, 96), (2,), torch.bfloat16, True, torch.float32),
    ("90a", "Sm90", (192, 136, 72), (), torch.bfloat16, True, torch.float32),
    ("90a", "Sm90", (128, 128, 128), (2,), torch.float16, False, torch.float32),
    ("90a", "Sm90", (128, 128, 128), (), torch.int8, True, torch.int32),
    ("100a", "1cta", (192, 136, 72), (), torch.float16, False, torch.float32),
    ("100a", "2cta", (256, 256, 128), (), torch.bfloat16, True, torch.float32),
    ("100a", "1cta", (128, 128, 128), (2,), torch.int8, True, torch.int32),
    ("100a", "1cta", (128, 128, 256), (), torch.float8_e4m3fn, True, torch.float32),
]


@pytest.mark.parametrize(("chip", "name", "sizes", "batches", "dtype", "transposed", "accumulator"), PLAIN)
def test_plain(monkeypatch, chip, name, sizes, batches, dtype, transposed, accumulator):
    monkeypatch.setenv("CUTE_DSL_ARCH", f"sm_{chip}")
    a, b = operands(*sizes, batches, dtype, transposed)
    out = torch.full((*batches, *sizes[:2]), 77).to(torch.int32 if accumulator == torch.int32 else torch.float32)
    args = ops.GemmArguments(A=a, B=b, out=out, accumulator_type=accumulator)
    if not ops.get_operators(args, target_sm=chip):
        out = out.to(dtype)
        args = ops.GemmArguments(A=a, B=b, out=out, accumulator_type=accumulator)
    run(chip, args, name)
    assert torch.equal(out.double(), a.double() @ b.double())


ROW_BIAS = "def epi(accum, bias, alpha): D = relu(alpha * accum + bias); return D"
RESIDUAL = "def epi(accum, C, alpha, beta): D = alpha * accum + beta * C; return D"
TWO_OUTPUTS = "def epi(accum, C): D = relu(accum + C); aux = accum; return D, aux"


@pytest.fixture
def fused(monkeypatch):
    monkeypatch.setenv("CUTE_DSL_ARCH", "sm_100a")


@pytest.mark.usefixtures("fused")
@pytest.mark.parametrize(("shape", "name"), [((1, 1, 136), "bias of a row"), ((1, 192, 1), "bias of a column")])
def test_bias_and_relu(shape, name):
    a, b = operands(192, 136, 64, (1,))
    bias, out = whole(shape, torch.float16), torch.full((1, 192, 136), torch.nan, dtype=torch.float16)
    epilogue = ops.EpilogueArguments(ROW_BIAS, bias=bias, alpha=0.5, D=out)
    run("100a", ops.GemmArguments(A=a, B=b, out=out, accumulator_type=torch.float32, epilogue=epilogue))
    assert torch.equal(out.double(), (0.5 * (a.double() @ b.double()) + bias.double()).relu())


@pytest.mark.usefixtures("fused")
@pytest.mark.parametrize("seed", [0, 5])
def test_residual_over_several_tiles_of_one_sm(seed):
    a, b = operands(256, 256, 64, (2,))
    residual, out = whole((2, 256, 256), torch.float16), torch.full((2, 256, 256), torch.nan, dtype=torch.float16)
    epilogue = ops.EpilogueArguments(RESIDUAL, C=residual, alpha=0.5, beta=2.0, D=out)
    args = ops.GemmArguments(A=a, B=b, out=out, accumulator_type=torch.float32, epilogue=epilogue)
    run("100a", args, seed=seed, sm_count=2)
    assert torch.equal(out.double(), 0.5 * (a.double() @ b.double()) + 2 * residual.double())


@pytest.mark.usefixtures("fused")
def test_two_outputs():
    a, b = operands(128, 128, 64, (1,))
    residual = whole((1, 128, 128), torch.float16)
    out, aux = (torch.full((1, 128, 128), torch.nan, dtype=torch.float16) for _ in "ab")
    epilogue = ops.EpilogueArguments(TWO_OUTPUTS, C=residual, D=out, aux=aux)
    run("100a", ops.GemmArguments(A=a, B=b, out=out, accumulator_type=torch.float32, epilogue=epilogue))
    product = a.double() @ b.double()
    assert torch.equal(out.double(), (product + residual.double()).relu())
    assert torch.equal(aux.double(), product)
