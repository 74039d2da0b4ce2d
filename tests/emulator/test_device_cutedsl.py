# SPDX-License-Identifier: Apache-2.0
"""Kernels of the CuTe DSL on an emulated device: their own host code, our answers."""

import struct
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch

from epifuse.emulator import EmulatorError, HostCallError, NoDeviceError, chips, current, memory
from epifuse.emulator.device import EmulatedDevice, entered

cutlass = pytest.importorskip("cutlass")

from cuda.bindings.driver import CUstream  # noqa: E402
from cutlass import cute  # noqa: E402
from cutlass.cute.runtime import from_dlpack, make_fake_compact_tensor, make_fake_stream, make_ptr  # noqa: E402
from cutlass.cutlass_dsl import CuTeDSL  # noqa: E402
from cutlass.utils import HardwareInfo  # noqa: E402

from epifuse_cutedsl import compat, emulate  # noqa: E402

SIZE, THREADS = 300, 128


@cute.kernel
def add_kernel(a: cute.Tensor, b: cute.Tensor, c: cute.Tensor, size: cutlass.Int32):
    thread, _, _ = cute.arch.thread_idx()
    block, _, _ = cute.arch.block_idx()
    index = block * THREADS + thread
    if index < size:
        c[index] = a[index] + b[index]


@cute.jit
def add_pointers(a: cute.Pointer, b: cute.Pointer, c: cute.Pointer, size: cutlass.Int32):
    layout = cute.make_layout(size)
    a, b, c = (cute.make_tensor(each, layout) for each in (a, b, c))
    add_kernel(a, b, c, size).launch(grid=[(size + THREADS - 1) // THREADS, 1, 1], block=[THREADS, 1, 1])


@cute.jit
def add_tensors(a: cute.Tensor, b: cute.Tensor, c: cute.Tensor, stream: CUstream):
    size = cute.size(a)
    add_kernel(a, b, c, size).launch(
        grid=[(size + THREADS - 1) // THREADS, 1, 1], block=[THREADS, 1, 1], smem=2048, stream=stream
    )


@cute.jit
def add_in_clusters(a: cute.Tensor, b: cute.Tensor, c: cute.Tensor, stream: CUstream):
    size = cute.size(a)
    blocks = (size + 2 * THREADS - 1) // (2 * THREADS) * 2
    add_kernel(a, b, c, size).launch(
        grid=[blocks, 1, 1], block=[THREADS, 1, 1], cluster=[2, 1, 1], smem=2048, stream=stream
    )


def pointer(tensor: torch.Tensor):
    return make_ptr(cutlass.Float32, tensor.data_ptr(), cute.AddressSpace.gmem, assumed_align=16)


def fake():
    return make_fake_compact_tensor(cutlass.Float32, (cute.SymInt(),), stride_order=(0,), assumed_align=16)


def compile_pointers():
    null = [make_ptr(cutlass.Float32, 16, cute.AddressSpace.gmem, assumed_align=16)] * 3
    return emulate.compile_emulated(add_pointers, *null, cutlass.Int32(1))


def compile_tensors(function=add_tensors):
    return emulate.compile_emulated(function, fake(), fake(), fake(), make_fake_stream(), options="--enable-tvm-ffi")


@pytest.fixture
def operands():
    torch.manual_seed(0)
    return [torch.randn(SIZE) for _ in range(3)]


@pytest.fixture(scope="module")
def compiled_for_90a():
    """Compiled once on an emulated device that was left again: what every later test starts from."""
    with entered(EmulatedDevice(chips.chip("90a"), None, memory.HostMemory(), None)):
        return compile_pointers(), compile_tensors()


def words(launch):
    return [struct.unpack_from("<Q", value)[0] for value in launch.params[:3]]


@pytest.mark.parametrize("chip", ["80", "90a", "100a"])
def test_a_launch_by_pointers_is_seen_with_all_it_says(recording_device, executor, operands, chip):
    with entered(recording_device(chip)):
        compile_pointers()(*map(pointer, operands), cutlass.Int32(SIZE))
    (launch,) = executor.launches
    assert f".target sm_{chip}" in launch.ptx
    assert f".entry {launch.kernel}" in launch.ptx
    assert "add_kernel" in launch.kernel
    assert (launch.grid, launch.block, launch.cluster) == ((3, 1, 1), (THREADS, 1, 1), (1, 1, 1))
    assert launch.dynamic_smem_bytes == 0
    assert words(launch) == [operand.data_ptr() for operand in operands]
    assert launch.params[3] == struct.pack("<i", SIZE)


@pytest.mark.parametrize("chip", ["80", "90a", "100a"])
def test_a_launch_by_tensors_is_seen_with_all_it_says(recording_device, executor, operands, chip):
    clusters = chip != "80"
    with entered(recording_device(chip)):
        compile_tensors(add_in_clusters if clusters else add_tensors)(*operands, 0)
    (launch,) = executor.launches
    assert f".target sm_{chip}" in launch.ptx
    assert (launch.grid, launch.cluster) == (((4, 1, 1), (2, 1, 1)) if clusters else ((3, 1, 1), (1, 1, 1)))
    assert launch.dynamic_smem_bytes == 2048
    assert words(launch) == [operand.data_ptr() for operand in operands]
    assert struct.unpack_from("<i", launch.params[0], 8)[0] == SIZE


def test_memory_of_tensors_is_open_to_the_kernel_while_it_runs(recording_device, executor, operands):
    with entered(recording_device("90a")) as device:
        compile_tensors()(*operands, 0)
        assert executor.launches[0].visible[:3] == [True] * 3
        assert device.memory.find(operands[0].data_ptr()) is None


def test_a_compiled_kernel_serves_device_after_device(recording_device, executor, operands, compiled_for_90a):
    by_pointers, by_tensors = compiled_for_90a
    for _ in range(2):
        with entered(recording_device("90a")) as device:
            by_pointers(*map(pointer, operands), cutlass.Int32(SIZE))
            by_tensors(*operands, 0)
            assert len(device.reports) == 2
    assert [len(launch.params) for launch in executor.launches] == [4] * 4
    assert [words(launch) for launch in executor.launches] == [[operand.data_ptr() for operand in operands]] * 4


def test_outside_a_device_a_call_is_refused(compiled_for_90a, operands):
    for compiled, arguments in zip(compiled_for_90a, [(1, 2, 3, 4), (*operands, 0)], strict=True):
        with pytest.raises(NoDeviceError, match="with epifuse.emulator.device"):
            compiled(*arguments)


def test_on_another_chip_a_call_is_refused(recording_device, executor, operands, compiled_for_90a):
    with entered(recording_device("90a")), entered(recording_device("100a")):
        for compiled, arguments in zip(
            compiled_for_90a, [(*map(pointer, operands), cutlass.Int32(SIZE)), (*operands, 0)], strict=True
        ):
            with pytest.raises(HostCallError, match="compiled for sm_90a and the emulated device is a 100a"):
                compiled(*arguments)
    assert executor.launches == []


def test_an_error_of_the_machine_reaches_the_caller_unchanged(recording_device, executor, operands, compiled_for_90a):
    by_pointers, by_tensors = compiled_for_90a
    executor.fail_with = EmulatorError("a race", where="PTX line 7", advice="wait first")
    with entered(recording_device("90a")):
        with pytest.raises(EmulatorError) as caught:
            by_pointers(*map(pointer, operands), cutlass.Int32(SIZE))
        assert caught.value is executor.fail_with
        with pytest.raises(EmulatorError) as caught:
            by_tensors(*operands, 0)
        assert caught.value is executor.fail_with
        executor.fail_with = None
        by_tensors(*operands, 0)
    assert len(executor.launches) == 1


def test_an_interrupt_during_a_launch_interrupts_the_caller(recording_device, executor, operands, compiled_for_90a):
    executor.fail_with = KeyboardInterrupt()
    with entered(recording_device("90a")), pytest.raises(KeyboardInterrupt):
        compiled_for_90a[1](*operands, 0)


def test_a_wrong_argument_is_the_dsls_own_error(recording_device, operands, compiled_for_90a):
    with entered(recording_device("90a")), pytest.raises((TypeError, ValueError)):
        compiled_for_90a[1](operands[0].double(), operands[1], operands[2], 0)


def test_threads_call_one_kernel_at_once(recording_device, executor, operands, compiled_for_90a):
    with entered(recording_device("90a")):
        threads = [threading.Thread(target=compiled_for_90a[1], args=(*operands, 0)) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len(executor.launches) == 8


def test_threads_compile_at_once(recording_device, executor, operands):
    def compile_and_call() -> None:
        compile_tensors()(*operands, 0)

    with entered(recording_device("100a")):
        threads = [threading.Thread(target=compile_and_call) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len(executor.launches) == 3


def test_kernels_compiled_outside_never_meet_the_emulator(recording_device, executor, operands):
    """Before, inside and after: here they fail as they do without a GPU, and no launch of theirs is recorded."""
    arguments = (*map(pointer, operands), cutlass.Int32(SIZE))
    null = [make_ptr(cutlass.Float32, 16, cute.AddressSpace.gmem, assumed_align=16)] * 3
    outside = cute.compile(add_pointers, *null, cutlass.Int32(1))
    with entered(recording_device("100a")):
        compile_pointers()(*arguments)
        also_outside = cute.compile(add_pointers, *null, cutlass.Int32(1))
    assert type(outside) is type(also_outside)
    assert not isinstance(also_outside, emulate.EmulatedFunction)
    assert len(executor.launches) == 1


def test_whether_a_kernel_is_emulated_and_for_which_chip_is_part_of_its_key(recording_device):
    keys = [emulate.compile_key()]
    for device in (recording_device("90a"), recording_device("100a"), recording_device("100a", sm_count=2)):
        with entered(device):
            keys.append(emulate.compile_key())
    assert keys[0] == ()
    assert len(set(keys)) == 4


def test_a_kernel_for_another_target_is_refused_when_it_is_called(recording_device, operands):
    with entered(recording_device("90a")):
        compiled = emulate.compile_emulated(
            add_tensors, fake(), fake(), fake(), make_fake_stream(), options="--enable-tvm-ffi --gpu-arch sm_100a"
        )
        with pytest.raises(EmulatorError, match="no host code that runs on the emulated 90a"):
            compiled(*operands, 0)


def test_nothing_to_compile_for_is_refused():
    with pytest.raises(NoDeviceError, match="no emulated device to compile for"):
        compile_pointers()


def test_a_vendors_compile_meets_the_device_only_inside_the_block(recording_device, executor, operands):
    original = (type(cute.compile)._compile, HardwareInfo.__init__, HardwareInfo.get_max_active_clusters)
    with emulate.every_compile():
        with entered(recording_device("90a", sm_count=6)), emulate.every_compile():
            assert HardwareInfo().get_max_active_clusters(2) == 3
            assert HardwareInfo().get_device_multiprocessor_count() == 6
            compiled = cute.compile[cute.GPUArch("sm_90a"), cute.EnableTVMFFI(True)](
                add_tensors, fake(), fake(), fake(), make_fake_stream()
            )
            compiled(*operands, 0)
        null = [make_ptr(cutlass.Float32, 16, cute.AddressSpace.gmem, assumed_align=16)] * 3
        assert not isinstance(cute.compile(add_pointers, *null, cutlass.Int32(1)), emulate.EmulatedFunction)
    assert len(executor.launches) == 1
    assert (type(cute.compile)._compile, HardwareInfo.__init__, HardwareInfo.get_max_active_clusters) == original


def test_tensors_that_the_dsl_converted_itself_are_the_devices(recording_device, executor, operands):
    with entered(recording_device("90a")) as device, emulate.every_compile():
        converted = [from_dlpack(operand, assumed_align=16).mark_layout_dynamic() for operand in operands]
        assert converted[0].memspace == cute.AddressSpace.gmem
        compiled = cute.compile(add_tensors, *converted, CUstream(0))
        compiled(*converted, CUstream(0))
        assert executor.launches[0].visible[:3] == [True] * 3
        assert device.memory.find(operands[0].data_ptr()) is None
    assert words(executor.launches[0]) == [operand.data_ptr() for operand in operands]
    assert from_dlpack(operands[0]).memspace != cute.AddressSpace.gmem


@cute.jit
def add_on_every_multiprocessor(a: cute.Pointer, size: cutlass.Int32):
    tensor = cute.make_tensor(a, cute.make_layout(size))
    blocks = cutlass.const_expr(HardwareInfo().get_device_multiprocessor_count())
    add_kernel(tensor, tensor, tensor, size).launch(grid=[blocks, 1, 1], block=[THREADS, 1, 1])


def test_the_hardware_that_host_code_asks_for_while_tracing_is_the_emulated(recording_device, executor, operands):
    with entered(recording_device("90a", sm_count=3)):
        null = make_ptr(cutlass.Float32, 16, cute.AddressSpace.gmem, assumed_align=16)
        compiled = emulate.compile_emulated(add_on_every_multiprocessor, null, cutlass.Int32(1))
        compiled(pointer(operands[0]), cutlass.Int32(SIZE))
    assert executor.launches[0].grid == (3, 1, 1)


def test_the_dsls_own_state_is_as_before(recording_device):
    dsl = CuTeDSL._get_dsl()
    before = dsl.envar._arch, dict(vars(dsl.compiler_provider)), compat.COMPILE_LOCK
    with entered(recording_device("100a")):
        compile_pointers()
    assert (dsl.envar._arch, dict(vars(dsl.compiler_provider)), compat.COMPILE_LOCK) == before
    assert current() is None


def test_a_failed_compile_leaves_the_dsl_as_it_was(recording_device):
    dsl = CuTeDSL._get_dsl()
    before = dsl.envar._arch, dict(vars(dsl.compiler_provider))
    with entered(recording_device("100a")), pytest.raises(Exception, match="arg"):
        emulate.compile_emulated(add_pointers, 1)
    assert (dsl.envar._arch, dict(vars(dsl.compiler_provider))) == before


AT_EXIT = """
import sys, torch
sys.path[:0] = {paths!r}
import importlib.util
spec = importlib.util.spec_from_file_location("kernels", {here!r})
kernels = importlib.util.module_from_spec(spec)
sys.modules["kernels"] = kernels
spec.loader.exec_module(kernels)
device = kernels.EmulatedDevice(kernels.chips.chip("90a"), None, kernels.memory.HostMemory(), None)
with kernels.entered(device):
    keep = kernels.compile_pointers(), kernels.compile_tensors()
    try:
        keep[1](torch.zeros(4), torch.zeros(4), torch.zeros(4).double(), 0)
    except (TypeError, ValueError):
        print("refused")
"""


def test_a_process_that_still_holds_kernels_ends_well():
    root = Path(__file__).resolve().parents[2]
    code = AT_EXIT.format(paths=[str(root / "src"), str(root / "providers")], here=__file__)
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stdout.strip()) == (0, "refused"), ended.stderr
