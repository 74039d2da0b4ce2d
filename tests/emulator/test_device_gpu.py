# SPDX-License-Identifier: Apache-2.0
"""A real GPU goes on as it was while another one is emulated in the same process."""

import pytest
import torch

from epifuse.emulator.device import entered

cutlass = pytest.importorskip("cutlass")

from cutlass import cute  # noqa: E402
from cutlass.cute.runtime import make_fake_compact_tensor, make_fake_stream, make_ptr  # noqa: E402

from epifuse_cutedsl import emulate  # noqa: E402

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU here"),
]

SIZE, THREADS = 1000, 128


@cute.kernel
def double_kernel(tensor: cute.Tensor, size: cutlass.Int32):
    thread, _, _ = cute.arch.thread_idx()
    block, _, _ = cute.arch.block_idx()
    index = block * THREADS + thread
    if index < size:
        tensor[index] = tensor[index] + tensor[index]


@cute.jit
def double_pointer(pointer: cute.Pointer, size: cutlass.Int32):
    tensor = cute.make_tensor(pointer, cute.make_layout(size))
    double_kernel(tensor, size).launch(grid=[(size + THREADS - 1) // THREADS, 1, 1], block=[THREADS, 1, 1])


@cute.jit
def double_tensor(tensor: cute.Tensor, stream):
    size = cute.size(tensor)
    double_kernel(tensor, size).launch(
        grid=[(size + THREADS - 1) // THREADS, 1, 1], block=[THREADS, 1, 1], stream=stream
    )


def pointer(tensor):
    return make_ptr(cutlass.Float32, tensor.data_ptr(), cute.AddressSpace.gmem, assumed_align=16)


def compile_both(compile_):
    fake = make_fake_compact_tensor(cutlass.Float32, (cute.SymInt(),), stride_order=(0,), assumed_align=16)
    null = make_ptr(cutlass.Float32, 16, cute.AddressSpace.gmem, assumed_align=16)
    by_pointer = compile_(double_pointer, null, cutlass.Int32(1))
    by_tensor = compile_(double_tensor, fake, make_fake_stream(), options="--enable-tvm-ffi")
    return by_pointer, by_tensor


def check_real(compiled):
    by_pointer, by_tensor = compiled
    tensor = torch.arange(SIZE, dtype=torch.float32, device="cuda")
    by_pointer(pointer(tensor), cutlass.Int32(SIZE))
    by_tensor(tensor, torch.cuda.current_stream().cuda_stream)
    assert torch.equal(tensor, 4 * torch.arange(SIZE, dtype=torch.float32, device="cuda"))


def call_emulated(compiled):
    by_pointer, by_tensor = compiled
    tensor = torch.zeros(SIZE)
    by_pointer(pointer(tensor), cutlass.Int32(SIZE))
    by_tensor(tensor, 0)


@pytest.mark.parametrize("chip", ["80", "90a", "100a"])
def test_real_and_emulated_kernels_alternate(recording_device, executor, chip):
    before = compile_both(cute.compile)
    check_real(before)
    with entered(recording_device(chip)):
        emulated = compile_both(emulate.compile_emulated)
        call_emulated(emulated)
        check_real(before)
        inside = compile_both(cute.compile)
        check_real(inside)
        call_emulated(emulated)
    check_real(before)
    check_real(inside)
    check_real(compile_both(cute.compile))
    with entered(recording_device(chip)):
        call_emulated(emulated)
    assert len(executor.launches) == 6
