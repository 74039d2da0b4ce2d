# SPDX-License-Identifier: Apache-2.0
"""Records what single instructions give on a real GPU: `python record_on_gpu.py FOLDER` writes FOLDER/isa_sm90.npz.

Needs numpy and the driver (libcuda) only: the driver compiles the PTX text. Copy the file to tests/data; the test
test_isa_recorded.py then compares the emulator with it. A kernel that the GPU refuses leaves a context that cannot be
opened again in the same process, so every kernel has a process of its own (`record_on_gpu.py FOLDER KERNEL FORM`).
"""

from __future__ import annotations

import concurrent.futures
import ctypes
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent))

import isa_cases
import ptxlab
import recorded_kernels

TARGET = "90a"


class Driver:
    """The few calls of the CUDA driver that are needed, through ctypes."""

    def __init__(self) -> None:
        self.cuda = ctypes.CDLL("libcuda.so.1")
        self.check(self.cuda.cuInit(0))
        self.device = ctypes.c_int()
        self.check(self.cuda.cuDeviceGet(ctypes.byref(self.device), 0))
        context = ctypes.c_void_p()
        self.check(self.cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), self.device))
        self.check(self.cuda.cuCtxSetCurrent(context))
        name = ctypes.create_string_buffer(128)
        self.check(self.cuda.cuDeviceGetName(name, 128, self.device))
        self.name = name.value.decode()

    def check(self, status: int) -> None:
        """Raise on an error, with its name."""
        if status:
            text = ctypes.c_char_p()
            self.cuda.cuGetErrorName(status, ctypes.byref(text))
            raise RuntimeError(f"CUDA error {status}: {(text.value or b'').decode()}")

    def upload(self, array: np.ndarray) -> int:
        """A copy of an array in device memory; its address."""
        pointer = ctypes.c_uint64()
        self.check(self.cuda.cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_size_t(max(array.nbytes, 16))))
        self.check(
            self.cuda.cuMemcpyHtoD_v2(pointer, ctypes.c_void_p(array.ctypes.data), ctypes.c_size_t(array.nbytes))
        )
        return pointer.value

    def download(self, array: np.ndarray, address: int) -> None:
        """Fetch into an array, and free the device memory."""
        source, size = ctypes.c_uint64(address), ctypes.c_size_t(array.nbytes)
        self.check(self.cuda.cuMemcpyDtoH_v2(ctypes.c_void_p(array.ctypes.data), source, size))
        self.check(self.cuda.cuMemFree_v2(source))

    def function(self, text: str) -> ctypes.c_void_p:
        """Compile PTX; the kernel `k`. The driver's own messages are part of the error."""
        module, function = ctypes.c_void_p(), ctypes.c_void_p()
        log = ctypes.create_string_buffer(8192)
        # CU_JIT_ERROR_LOG_BUFFER is 5, its size 6.
        options, values = (ctypes.c_int * 2)(5, 6), (ctypes.c_void_p * 2)(ctypes.addressof(log), len(log))
        status = self.cuda.cuModuleLoadDataEx(ctypes.byref(module), text.encode() + b"\0", 2, options, values)
        if status:
            raise RuntimeError(f"the driver refuses the module ({status}): {log.value.decode(errors='replace')}")
        self.check(self.cuda.cuModuleGetFunction(ctypes.byref(function), module, b"k"))
        return function

    def launch(self, text: str, arguments: Sequence[Any], grid: int, block: int) -> None:
        """Run kernel `k`; arrays go to the device and come back, bytes and ints are passed as they are."""
        function = self.function(text)
        addresses = {index: self.upload(each) for index, each in enumerate(arguments) if isinstance(each, np.ndarray)}
        cells: list[Any] = []
        for index, each in enumerate(arguments):
            if isinstance(each, bytes):
                cells.append(_aligned_bytes(each))
            else:
                cells.append(ctypes.c_uint64(addresses.get(index, each if isinstance(each, int) else 0)))
        pointers = (ctypes.c_void_p * len(cells))(*(ctypes.addressof(cell) for cell in cells))
        self.check(self.cuda.cuLaunchKernel(function, grid, 1, 1, block, 1, 1, 0, None, pointers, None))
        self.check(self.cuda.cuCtxSynchronize())
        for index, address in addresses.items():
            self.download(arguments[index], address)

    def encode(self, address: int, request: Any) -> bytes:
        """A tensor map by cuTensorMapEncodeTiled."""
        cell = _aligned_bytes(bytes(128))
        rank = len(request.sizes)
        sizes, strides = (ctypes.c_uint64 * rank)(*request.sizes), (ctypes.c_uint64 * rank)(*request.strides, 0)
        box, steps = (ctypes.c_uint32 * rank)(*request.box), (ctypes.c_uint32 * rank)(*request.steps)
        self.check(
            self.cuda.cuTensorMapEncodeTiled(
                ctypes.c_void_p(ctypes.addressof(cell)),
                request.data_type,
                rank,
                ctypes.c_void_p(address),
                sizes,
                strides,
                box,
                steps,
                0,
                request.swizzle,
                0,
                request.fill_nan,
            )  # fmt: skip
        )
        return bytes(cell)


def _aligned_bytes(data: bytes) -> Any:
    store = (ctypes.c_uint8 * (len(data) + 64))()
    skip = -ctypes.addressof(store) % 64
    cell = (ctypes.c_uint8 * len(data)).from_buffer(store, skip)
    ctypes.memmove(cell, data, len(data))
    return cell


def record_instructions(driver: Driver) -> dict[str, np.ndarray]:
    """Every case's outputs by `name:index`; what the driver does not assemble is printed and left out."""
    tables = isa_cases.tables()
    found: dict[str, np.ndarray] = {}
    for case in isa_cases.cases():
        columns = [tables[name].copy() for name in case.inputs]
        results = ptxlab.empty_columns(case.outputs, isa_cases.ROWS)
        text = ptxlab.column_text(case.code, [column.dtype for column in columns], case.outputs, TARGET, case.shared)
        try:
            driver.launch(text, [*columns, *results], isa_cases.ROWS // ptxlab.BLOCK, ptxlab.BLOCK)
        except RuntimeError as error:
            print(f"{case.name}: {error}", flush=True)
            continue
        found.update({f"{case.name}:{index}": result for index, result in enumerate(results)})
    found.update({f"input:{name}": table for name, table in tables.items()})
    found["device"] = np.array(driver.name)
    return found


def record_kernel(driver: Driver, kernel: recorded_kernels.Kernel, form: str) -> dict[str, np.ndarray]:
    """The output of one kernel, and the first 64 bytes of its map, made for the address 0x7F0000000000."""
    arrays = [array.copy() for array in kernel.arrays]
    text = dict(kernel.others).get(form, kernel.text)
    if kernel.request is None:
        driver.launch(text, arrays, 1, kernel.threads)
        return {f"{kernel.name}:out": arrays[kernel.output]}
    data = driver.encode(driver.upload(arrays[1]), kernel.request)
    if form == "global":
        place = ptxlab.aligned(128)
        place[:] = np.frombuffer(data, np.uint8)
        driver.launch(text, [*arrays, place], 1, kernel.threads)
    else:
        driver.launch(text, [*arrays, data], 1, kernel.threads)
    shown = np.frombuffer(driver.encode(0x7F0000000000, kernel.request), np.uint8)[:64].copy()
    return {f"{kernel.name}:out": arrays[kernel.output], f"{kernel.name}:map": shown}


def part(folder: Path, name: str, form: str) -> None:
    """The work of one process: the instructions, or one form of one kernel, into a file of its own.

    What ends a kernel is recorded as `name:error`.
    """
    driver = Driver()
    if name == "instructions":
        found = record_instructions(driver)
    else:
        kernel = next(kernel for kernel in recorded_kernels.kernels() if kernel.name == name)
        try:
            found = record_kernel(driver, kernel, form)
        except RuntimeError as error:
            found = {f"{name}:error": np.array(str(error))}
    np.savez(_part_file(folder, name, form), **found)  # type: ignore[arg-type]


def _part_file(folder: Path, name: str, form: str) -> Path:
    return folder / f"part-{name}-{form.replace(' ', '-')}.npz"


def run_part(folder: Path, name: str, form: str = "parameter") -> dict[str, np.ndarray]:
    """What a process of its own records; its messages are printed."""
    path = _part_file(folder, name, form)
    try:
        done = subprocess.run(
            [sys.executable, __file__, str(folder), name, form], capture_output=True, text=True, timeout=40, check=False
        )
    except subprocess.TimeoutExpired:
        return {f"{name}:error": np.array("no end within 40 s")}
    sys.stdout.write(done.stdout)
    if not path.exists():
        return {f"{name}:error": np.array(f"the process ended with {done.returncode}: {done.stderr[-300:]}")}
    with np.load(path) as file:
        found = dict(file)
    path.unlink()
    return found


def run_kernel(folder: Path, kernel: recorded_kernels.Kernel) -> dict[str, np.ndarray]:
    """One kernel; where it fails, its other forms tell why."""
    found = run_part(folder, kernel.name)
    failed = found.get(f"{kernel.name}:error")
    if failed is not None:
        request = kernel.request and f"box {kernel.request.box} of {kernel.request.sizes}"
        print(f"{kernel.name}: {failed} ({request or 'no map'}; {'as' if kernel.refused else 'not'} expected)")
        for form, _ in kernel.others:
            other = run_part(folder, kernel.name, form).get(f"{kernel.name}:error", "works")
            print(f"  {kernel.name} {form}: {other}", flush=True)
    elif kernel.refused:
        print(f"{kernel.name}: works, which was not expected")
    return found


def main(folder: Path) -> None:
    """Record everything into FOLDER/isa_sm90.npz, eight processes at a time."""
    start = time.time()
    folder.mkdir(parents=True, exist_ok=True)
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        parts = [pool.submit(run_part, folder, "instructions")]
        parts += [pool.submit(run_kernel, folder, kernel) for kernel in recorded_kernels.kernels()]
    found: dict[str, np.ndarray] = {}
    for each in parts:
        found.update(each.result())
    path = folder / "isa_sm90.npz"
    np.savez_compressed(path, **found)  # type: ignore[arg-type]
    kernels = sum(name.endswith(":out") for name in found)
    print(f"{len(found)} arrays, {kernels} kernels on {found.get('device', '?')}", end=", ")
    print(f"{path.stat().st_size} bytes, {time.time() - start:.1f} s")


if __name__ == "__main__":
    if len(sys.argv) == 4:
        part(Path(sys.argv[1]), *sys.argv[2:])
    else:
        main(Path(sys.argv[1]))
