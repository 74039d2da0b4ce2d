# SPDX-License-Identifier: Apache-2.0
"""Kernels run for real on the emulated machine: a vector add, and NVIDIA's own GEMM operators."""

import pytest
import torch

from epifuse import emulator

cutlass = pytest.importorskip("cutlass")

from cutlass import cute  # noqa: E402
from cutlass.cute.runtime import make_fake_compact_tensor, make_fake_stream, make_ptr  # noqa: E402

from epifuse_cutedsl import emulate  # noqa: E402
from epifuse_cutedsl.devicetensors import visible  # noqa: E402

SIZE, THREADS = 300, 128
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # the vendor's own

CHIPS = ["80", "90a", "100a"]


@cute.kernel
def add_kernel(a: cute.Tensor, b: cute.Tensor, c: cute.Tensor, size: cutlass.Int32, beyond: cutlass.Constexpr):
    thread, _, _ = cute.arch.thread_idx()
    block, _, _ = cute.arch.block_idx()
    index = block * THREADS + thread
    if index < size + beyond:
        c[index] = a[index] + b[index]


@cute.jit
def add_tensors(a: cute.Tensor, b: cute.Tensor, c: cute.Tensor, stream, beyond: cutlass.Constexpr):
    size = cute.size(a)
    blocks = (size + THREADS - 1) // THREADS
    add_kernel(a, b, c, size, beyond).launch(grid=[blocks, 1, 1], block=[THREADS, 1, 1], stream=stream)


@cute.jit
def add_pointers(a: cute.Pointer, b: cute.Pointer, c: cute.Pointer, size: cutlass.Int32):
    layout = cute.make_layout(size)
    a, b, c = (cute.make_tensor(each, layout) for each in (a, b, c))
    blocks = (size + THREADS - 1) // THREADS
    add_kernel(a, b, c, size, 0).launch(grid=[blocks, 1, 1], block=[THREADS, 1, 1])


def pointer(tensor: torch.Tensor):
    return make_ptr(cutlass.Float32, tensor.data_ptr(), cute.AddressSpace.gmem, assumed_align=16)


def compile_add(beyond=0):
    fake = make_fake_compact_tensor(cutlass.Float32, (cute.SymInt(),), stride_order=(0,), assumed_align=16)
    return emulate.compile_emulated(
        add_tensors, fake, fake, fake, make_fake_stream(), beyond, options="--enable-tvm-ffi"
    )


@pytest.fixture
def operands():
    torch.manual_seed(0)
    return torch.randn(SIZE), torch.randn(SIZE), torch.zeros(SIZE)


@pytest.mark.parametrize("chip", CHIPS)
def test_a_vector_add_by_tensors_adds(operands, chip):
    a, b, c = operands
    with emulator.device(chip, seed=7) as device:
        compile_add()(a, b, c, 0)
        assert len(device.reports) == 1
    assert torch.equal(c, a + b)


@pytest.mark.parametrize("chip", CHIPS)
def test_a_vector_add_by_pointers_adds(operands, chip):
    a, b, c = operands
    with emulator.device(chip) as device:
        compiled = emulate.compile_emulated(add_pointers, *map(pointer, operands), cutlass.Int32(1))
        with visible(device, a=a, b=b, c=c):
            compiled(*map(pointer, operands), cutlass.Int32(SIZE))
    assert torch.equal(c, a + b)


def test_an_element_too_far_is_reported_with_its_place_and_the_process_goes_on(operands):
    with emulator.device("90a"):
        with pytest.raises(emulator.EmulatorError, match=r"(?s)outside every allocation.*PTX line"):
            compile_add(beyond=1)(*operands, 0)
        compile_add()(*operands, 0)
    assert torch.equal(operands[2], operands[0] + operands[1])


VENDOR = [
    ("80", "Sm80TensorOpGemmOperator"),
    ("90a", "Sm90StaticPersistentGemmOperator"),
    ("100a", "PersistentDenseGemmOperator"),
    ("100a", "PersistentDenseGemmEFCOperator"),
]


@pytest.mark.parametrize(("chip", "operator"), VENDOR)
def test_a_vendors_gemm_gives_the_exact_product(monkeypatch, chip, operator):
    ops = pytest.importorskip("cutlass.operators")
    monkeypatch.setenv("CUTE_DSL_ARCH", f"sm_{chip}")
    torch.manual_seed(0)
    a = torch.randint(-2, 3, (256, 128)).to(torch.float16)
    b = torch.randint(-2, 3, (128, 256)).to(torch.float16)
    out = torch.full((256, 256), torch.nan, dtype=torch.float16)
    with emulator.device(chip, seed=7), emulate.every_compile():
        args = ops.GemmArguments(A=a, B=b, out=out, accumulator_type=torch.float32)
        found = ops.get_operators(args, lambda row: row.operator_class.__name__ == operator, target_sm=chip)
        found[0].run(args, found[0].compile(args, chip))
    assert torch.equal(out.float(), a.float() @ b.float())
