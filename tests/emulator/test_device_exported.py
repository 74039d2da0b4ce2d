# SPDX-License-Identifier: Apache-2.0
"""Host code that was exported and linked into a shared object runs in the emulator too."""

import ctypes
import shutil
import struct
import subprocess

import pytest
import torch

from epifuse.emulator import EmulatorError
from epifuse.emulator.device import entered

cutlass = pytest.importorskip("cutlass")

from cutlass import cute  # noqa: E402
from cutlass.cute.runtime import make_ptr  # noqa: E402

from epifuse_cutedsl import compat, emulate  # noqa: E402

pytestmark = pytest.mark.skipif(shutil.which("ld") is None, reason="there is no linker")

THREADS = 128


@cute.kernel
def double_kernel(tensor: cute.Tensor):
    thread, _, _ = cute.arch.thread_idx()
    tensor[thread] = tensor[thread] + tensor[thread]


@cute.jit
def double(pointer: cute.Pointer):
    tensor = cute.make_tensor(pointer, cute.make_layout(THREADS))
    double_kernel(tensor).launch(grid=[1, 1, 1], block=[THREADS, 1, 1])


@pytest.fixture(scope="module")
def linked(tmp_path_factory):
    """A shared object made as for a real GPU, and the PTX of its kernel."""
    folder = tmp_path_factory.mktemp("exported")
    pointer = make_ptr(cutlass.Float32, 16, cute.AddressSpace.gmem, assumed_align=16)
    with compat.COMPILE_LOCK:
        compat.load_runtime_library()
        options = f"--gpu-arch sm_90a --keep-ptx --dump-dir={folder}"
        compiled = cute.compile(double, pointer, options=options)
        compiled.export_to_c(str(folder), "double", function_prefix="double")
    subprocess.run(["ld", "-shared", "-o", folder / "double.so", folder / "double.o"], check=True)
    entry = f"_mlir_double__mlir_ciface_{compiled.function_name}"
    return ctypes.CDLL(str(folder / "double.so")), compiled.__ptx__, entry


def packed_call(function, *values):
    function((ctypes.c_void_p * len(values))(*(ctypes.addressof(value) for value in values)))


def test_its_calls_are_answered_and_its_failures_come_back(linked, recording_device, executor):
    library, ptx, entry = linked
    driver = emulate.adopt_library(library, ptx)
    handle, status, ordinal = ctypes.c_void_p(), ctypes.c_int32(-1), ctypes.c_int32(0)
    tensor = torch.ones(THREADS)
    argument = ctypes.c_void_p(tensor.data_ptr())
    with entered(recording_device("90a")):
        packed_call(library._mlir_double_cuda_init, ctypes.pointer(handle), status)
        assert status.value == 0
        packed_call(library._mlir_double_cuda_load_to_device, ctypes.pointer(handle), ordinal, status)
        assert status.value == 0
        packed_call(library[entry], argument, status)
        driver.failures.raise_pending()
        executor.fail_with = EmulatorError("a race")
        packed_call(library[entry], argument, status)
        assert status.value == 999
        with pytest.raises(EmulatorError, match="a race"):
            driver.failures.raise_pending()
    (launch,) = executor.launches
    assert (launch.grid, launch.block) == ((1, 1, 1), (THREADS, 1, 1))
    assert launch.params[0][:8] == struct.pack("<Q", tensor.data_ptr())
