# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: PLC0415 - the DSL is imported when something is compiled
"""Kernels of the CuTe DSL on the emulated device: their own host code runs, its CUDA calls are answered by us.

A compiled kernel belongs either to the real device or to the emulated one, by the execution engine of its host code:
only the engine of an emulated one has our functions in the place of the run-time library's. Nothing is exchanged in
the process, so that kernels of a real GPU go on as they were.
"""

from __future__ import annotations

import contextlib
import ctypes
import tempfile
import threading
from collections.abc import Iterator
from typing import Any

from epifuse.emulator import EmulatedDevice, EmulatorError, NoDeviceError, current, interpose
from epifuse.emulator.driver import Driver
from epifuse.emulator.hostabi import address_of, c_function
from epifuse.emulator.queries import active_clusters

from . import compat
from .devicetensors import DeviceTensor, allow, is_cpu_tensor, span

_CUDA_PREFIX = "_cu"
_LIBRARY_SLOTS = 8


def compile_key() -> tuple[object, ...]:
    """What of the emulated device a compiled kernel depends on; empty where the real device answers."""
    device = current()
    return () if device is None else ("emulated", device.chip.name, device.chip.sm_count)


def compile_emulated(function: Any, *args: Any, **kwargs: Any) -> EmulatedFunction:
    """`cute.compile(function, *args, **kwargs)` for the device that is entered; its calls run in the emulator."""
    from cutlass import cute

    return _compile(cute.compile, function, *args, **kwargs)


@contextlib.contextmanager
def every_compile() -> Iterator[None]:
    """Inside, whoever calls `cute.compile`, `from_dlpack` or `HardwareInfo` meets the device that is entered, if any.

    For kernels that are not ours: a vendor's operators compile themselves.
    """
    with compat.in_front_of_the_dsl(compat.Hook(_hardware, _compile_hook, _as_device_tensor)):
        yield


def adopt_library(library: ctypes.CDLL, ptx: str) -> Driver:
    """Let a shared object that was linked from exported host code run in the emulator; `ptx` belongs to its kernels.

    Only this loaded copy is affected. After each call of it, `driver.failures.raise_pending()` raises what went wrong.
    """
    driver = Driver()
    driver.add_image(ptx)
    runtime = HostRuntime(driver)
    names = [name for name in interpose.imported(library) if compat.is_runtime_call(name)]
    functions = {name: runtime.function(name) for name in names}
    interpose.redirect(library, {name: address_of(function) for name, function in functions.items()})
    library.keeps_alive = runtime, functions  # type: ignore[attr-defined]
    return driver


class EmulatedFunction:
    """A compiled host function whose kernels run in the emulator; called as the DSL's own object is.

    CPU tensors are passed as tensors of the device, and their memory is open to the kernel while it runs. What a
    kernel does wrong, and what the driver refuses, is raised to the caller. Other attributes are the DSL object's.
    """

    def __init__(self, compiled: Any, driver: Driver, *, has_host_code: bool = True) -> None:
        self._compiled = compiled
        self._driver = driver
        self._has_host_code = has_host_code

    def __getattr__(self, name: str) -> Any:
        return getattr(self._compiled, name)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the host function, and with it the kernels it launches, to their end."""
        device = current()
        if device is None:
            raise NoDeviceError(
                "a kernel compiled for an emulated device was called while no device is emulated",
                where=str(getattr(self._compiled, "function_name", "")),
                advice="call it inside `with epifuse.emulator.device(...)`, or compile it again for the real device",
            )
        if not self._has_host_code:
            raise EmulatorError(
                f"the DSL built no host code that runs on the emulated {device.chip.name}",
                where=str(getattr(self._compiled, "function_name", "")),
                advice="compile for the emulated chip's own target, with the DSL's default compiler backend",
            )
        self._driver.failures.take()
        with contextlib.ExitStack() as visible:
            args = tuple(_argument(value, f"argument {index}", device, visible) for index, value in enumerate(args))
            kwargs = {name: _argument(value, name, device, visible) for name, value in kwargs.items()}
            try:
                result = self._compiled(*args, **kwargs)
            except Exception:
                failure = self._driver.failures.take()
                if failure is None:
                    raise
                raise failure from None
            self._driver.failures.raise_pending()
        return result


class HostRuntime:
    """The functions that the DSL's run-time library would give one piece of host code, answered by a driver."""

    def __init__(self, driver: Driver) -> None:
        self.engines_built = 0
        self._driver = driver
        self._loaded: dict[int, Any] = {}
        self._names: dict[int, bytes] = {}
        self._functions: dict[str, Any] = {
            "cuda_dialect_init_library_once": self._c("pppp->i", self._init_library_once),
            "cuda_dialect_get_error_name": self._c("i->p", self._error_name),
            # Runs while an engine dies, perhaps after Python has: plain C that does nothing.
            "cuda_dialect_unload_library_once": ctypes.CDLL(None).abs,
            "CuteDSLRT_TVMFFISetRaisedCudaError": self._c("pi->v", self._set_raised_error),
        }

    def engine(self, module: Any) -> Any:
        """An execution engine for host code that calls us instead of the run-time library."""
        functions = {name: self.function(name) for name in compat.runtime_calls(module)}
        engine = compat.build_engine(module, {name: address_of(function) for name, function in functions.items()})
        engine.keeps_alive = functions
        self.engines_built += 1
        return engine

    def function(self, name: str) -> Any:
        """The C function that stands for one of the run-time library's."""
        if name.startswith(_CUDA_PREFIX):
            return self._driver.c_function(name[1:])
        return self._functions.get(name) or self._driver.c_function(name)

    def _c(self, signature: str, answer: Any) -> Any:
        return c_function(signature, answer, self._driver.failures)

    def _init_library_once(self, state: int, load: int, load_to_device: int, set_error: int) -> int:
        """Load the image that belongs to `state` on the first call, and its kernels for the one device."""
        if state in self._loaded:
            return 0
        libraries = (ctypes.c_void_p * _LIBRARY_SLOTS)()
        where = ctypes.addressof(libraries)
        pointer, status = ctypes.c_void_p, ctypes.c_int32
        code = ctypes.CFUNCTYPE(status, pointer)(load)(where)
        code = code or ctypes.CFUNCTYPE(status, pointer, status)(load_to_device)(where, 0)
        if code:
            self._raise_in_host(ctypes.CFUNCTYPE(None, ctypes.c_char_p, ctypes.c_char_p)(set_error), code)
            return -1
        self._loaded[state] = libraries
        return 0

    def _raise_in_host(self, set_error: Any, code: int) -> None:
        set_error(b"RuntimeError", self._message(code))

    def _set_raised_error(self, set_error_from_parts: int, code: int) -> None:
        """Let the host code's failure be an exception of TVM-FFI; without one the process would end."""
        parts = (ctypes.c_char_p * 1)(self._message(code))
        prototype = ctypes.CFUNCTYPE(None, ctypes.c_char_p, ctypes.c_void_p, ctypes.c_int32)
        prototype(set_error_from_parts)(b"RuntimeError", ctypes.addressof(parts), 1)

    def _message(self, code: int) -> bytes:
        pending = self._driver.failures.pending
        return (str(pending) if pending is not None else f"CUDA status {code}").encode()

    def _error_name(self, code: int) -> int:
        text = self._names.setdefault(code, f"CUDA status {code}".encode())
        return int(ctypes.cast(ctypes.c_char_p(text), ctypes.c_void_p).value or 0)


class _Hardware:
    """The questions that the DSL asks about the chip while compiling."""

    def __init__(self, device: EmulatedDevice) -> None:
        self.sm_count = device.chip.sm_count
        self.l2_bytes = device.chip.l2_bytes
        self._chip = device.chip

    def active_clusters(self, size: int) -> int:
        return active_clusters(self._chip, size)


def _hardware() -> _Hardware | None:
    device = current()
    return None if device is None else _Hardware(device)


def _hardware_in_this_thread(device: EmulatedDevice) -> compat.Hook:
    """Other threads may be compiling for the real device."""
    hardware, thread = _Hardware(device), threading.get_ident()
    return compat.Hook(lambda: hardware if threading.get_ident() == thread else None)


def _as_device_tensor(tensor: Any) -> Any:
    return DeviceTensor(tensor) if current() is not None and is_cpu_tensor(tensor) else tensor


def _compile_hook(compiler: Any, function: Any, *args: Any, **kwargs: Any) -> Any:
    if current() is None:
        return compat.original_compile(compiler, function, *args, **kwargs)
    return _compile(compiler, function, *args, **kwargs)


def _compile(compiler: Any, function: Any, *args: Any, **kwargs: Any) -> EmulatedFunction:
    device = current()
    if device is None:
        raise NoDeviceError(
            "there is no emulated device to compile for", advice="enter `with epifuse.emulator.device(...)` first"
        )
    arch = f"sm_{device.chip.name}"
    driver = Driver()
    runtime = HostRuntime(driver)
    with compat.COMPILE_LOCK, tempfile.TemporaryDirectory(prefix="epifuse-ptx-") as directory:
        compiler, options = compat.keeping_ptx(compiler, kwargs.pop("options", None), directory, arch)
        if options is not None:
            kwargs["options"] = options
        with (
            compat.target_arch(arch),
            compat.engines_built_by(runtime.engine),
            compat.in_front_of_the_dsl(_hardware_in_this_thread(device)),
        ):
            compiled = compat.original_compile(compiler, function, *args, **kwargs)
    compat.leave_unloading_to_us(compiled)
    ptx = compiled.__ptx__
    if ptx:
        driver.add_image(ptx)
    return EmulatedFunction(compiled, driver, has_host_code=runtime.engines_built > 0)


def _argument(value: Any, name: str, device: EmulatedDevice, visible: contextlib.ExitStack) -> Any:
    """The argument as the host code takes it: a CPU tensor, however deep in tuples and lists, is one of the device."""
    if isinstance(value, tuple | list):
        parts = [_argument(part, f"{name}.{index}", device, visible) for index, part in enumerate(value)]
        return type(value)(*parts) if hasattr(value, "_fields") else type(value)(parts)
    converted = compat.runtime_tensor(value)
    if converted is not None:
        allow(device, span(*converted), name, visible)
    if not is_cpu_tensor(value):
        return value
    import tvm_ffi

    tensor = DeviceTensor(value)
    allow(device, tensor.extent, name, visible)
    return tvm_ffi.from_dlpack(tensor)
