# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: PLC0415 - the DSL is imported when something is compiled
"""Every private or version-dependent name of the CuTe DSL, and the one lock around its compiler.

Written for CuTe DSL 4.8.1. When a release moves one of these names, this file is the only one to change.
"""

from __future__ import annotations

import contextlib
import copy
import ctypes
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any

# cute.compile aborts the process when two threads compile at once. Never held while a compiled function runs.
COMPILE_LOCK = threading.RLock()

# Prefixes of the functions that host code expects of the DSL's run-time library.
_RUNTIME_PREFIXES = ("_cuda", "_cu", "cuda_dialect_", "CuteDSLRT_")
_TVM_FFI_ENTRY = "__tvm_ffi_"
_IS_OURS = "_epifuse_engine"
_INT, _POINTER = ctypes.c_int32, ctypes.c_void_p

EngineBuilder = Callable[[Any], Any]


# --- host code ------------------------------------------------------------------------------------------------------


def is_runtime_call(name: str) -> bool:
    """Whether host code expects a function of the DSL's run-time library under this name."""
    return name.startswith(_RUNTIME_PREFIXES)


def runtime_calls(module: Any) -> list[str]:
    """The run-time functions that the host code of a compiled module calls and does not define."""
    found = []
    for operation in module.body.operations:
        if operation.operation.name != "llvm.func" or len(operation.regions[0].blocks):
            continue
        name = operation.attributes["sym_name"].value
        if is_runtime_call(name):
            found.append(name)
    return found


def build_engine(module: Any, functions: Mapping[str, int]) -> Any:
    """An execution engine for host code in which each name of `functions` is the C function at that address."""
    from cutlass._mlir.execution_engine import ExecutionEngine

    engine = ExecutionEngine(module, opt_level=2, shared_libs=[])
    for name, address in functions.items():
        engine.raw_register_runtime(name, _POINTER(address))
    setattr(engine, _IS_OURS, True)
    return engine


@contextlib.contextmanager
def engines_built_by(build: EngineBuilder) -> Iterator[None]:
    """Inside, what is compiled gets its execution engine from `build(module)`. The caller holds the lock."""
    from cutlass.cutlass_dsl import CuTeDSL
    from cutlass.cutlass_dsl.tvm_ffi_provider import TVMFFIJitCompiledFunctionBase as FfiFunction

    compiler = CuTeDSL._get_dsl().compiler_provider
    original = FfiFunction._create_tvm_ffi_function

    def jit(module: Any, opt_level: int = 2, shared_libs: Any = ()) -> Any:
        return build(module)

    def create_function(function: Any) -> Any:
        if getattr(function.engine, _IS_OURS, False):
            return _ffi_function(function.engine, function.function_name)
        return original(function)

    compiler.jit = jit  # on the instance, in front of the class's method
    FfiFunction._create_tvm_ffi_function = create_function
    try:
        yield
    finally:
        del compiler.jit
        FfiFunction._create_tvm_ffi_function = original


def _ffi_function(engine: Any, name: str) -> Any:
    """A TVM-FFI function for an engine whose look-up gives the packed form of an entry only."""
    import tvm_ffi

    packed = ctypes.CFUNCTYPE(None, _POINTER)(engine.raw_lookup(_TVM_FFI_ENTRY + name))

    def call(handle: int, arguments: int, count: int, result: int) -> int:
        status = _INT(-1)
        values = (_POINTER(handle), _POINTER(arguments), _INT(count), _POINTER(result), status)
        packed((_POINTER * len(values))(*(ctypes.addressof(value) for value in values)))
        return status.value

    entry = ctypes.CFUNCTYPE(_INT, _POINTER, _POINTER, _INT, _POINTER)(call)
    address = ctypes.cast(entry, _POINTER).value
    return tvm_ffi.Function.__from_extern_c__(address, keep_alive_object=(entry, engine))


def leave_unloading_to_us(compiled: Any) -> None:
    """Keep the real driver away from an emulated function: it has one device, and no library of it is unloaded."""
    load = getattr(compiled, "_load_cuda_library", None)
    if load is None:
        return

    def load_and_keep() -> list[Any]:
        load()
        return []

    compiled.num_devices = 1  # a cached property that would ask the real driver
    compiled._load_cuda_library = load_and_keep


# --- compiling ------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def target_arch(arch: str) -> Iterator[None]:
    """Inside, the DSL takes `arch` ("sm_100a") for this machine's. The caller holds the lock."""
    from cutlass.cutlass_dsl import CuTeDSL

    environment = CuTeDSL._get_dsl().envar
    before = environment._arch
    environment.arch = arch
    try:
        yield
    finally:
        environment._arch = before


def keeping_ptx(compiler: Any, options: str | None, directory: str, arch: str) -> tuple[Any, str | None]:
    """A compile callable and its option string that also keep the PTX in `directory` and have a target."""
    from cutlass import cute
    from cutlass.base_dsl.compiler import DumpDir, GPUArch, KeepPTX

    if options:
        target = "" if "--gpu-arch" in options else f" --gpu-arch {arch}"
        return compiler, f"{options} --keep-ptx --dump-dir={directory}{target}"
    ours = type(cute.compile)()
    ours._compile_options = copy.deepcopy(compiler._compile_options)
    chosen = ours._compile_options.options
    chosen[KeepPTX].value = True
    chosen[DumpDir].value = directory
    if not chosen[GPUArch].value:
        chosen[GPUArch].value = arch
    return ours, None


def original_compile(compiler: Any, function: Any, *args: Any, **kwargs: Any) -> Any:
    """Compile as the DSL does by itself, whatever stands in front of it now."""
    inner = type(compiler)._compile
    return getattr(inner, "replaces", inner)(compiler, function, *args, **kwargs)


class _Replacements:
    """Attributes that stand in front of the DSL's own, from the first entry to the last exit of any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._entries = 0
        self._saved: list[tuple[type, str, Any]] = []

    def enter(self, wanted: Callable[[], list[tuple[type, str, Callable[[Any], Any]]]]) -> None:
        with self._lock:
            self._entries += 1
            if self._entries > 1:
                return
            for owner, name, make in wanted():
                original = vars(owner)[name]
                replacement = make(original)
                replacement.replaces = original
                self._saved.append((owner, name, original))
                setattr(owner, name, replacement)

    def leave(self) -> None:
        with self._lock:
            self._entries -= 1
            while not self._entries and self._saved:
                owner, name, original = self._saved.pop()
                setattr(owner, name, original)


_REPLACEMENTS = _Replacements()


@contextlib.contextmanager
def replaced(compile_hook: Callable[..., Any], hardware: Callable[[], Any]) -> Iterator[None]:
    """Inside, every cute.compile goes through `compile_hook`, and HardwareInfo answers from `hardware()`.

    `hardware()` gives None, which leaves the DSL its own answers, or an object with `active_clusters(size)`,
    `sm_count` and `l2_bytes`.
    """
    _REPLACEMENTS.enter(lambda: _wanted(compile_hook, hardware))
    try:
        yield
    finally:
        _REPLACEMENTS.leave()


def _wanted(
    compile_hook: Callable[..., Any], hardware: Callable[[], Any]
) -> list[tuple[type, str, Callable[[Any], Any]]]:
    from cutlass import cute
    from cutlass.utils import HardwareInfo

    def instead(answer: Callable[..., Any]) -> Callable[[Any], Any]:
        def make(original: Any) -> Any:
            def ask(info: Any, *args: Any, **kwargs: Any) -> Any:
                emulated = hardware()
                return original(info, *args, **kwargs) if emulated is None else answer(emulated, *args, **kwargs)

            return ask

        return make

    def make_compile(original: Any) -> Any:
        def compile_(compiler: Any, function: Any, *args: Any, **kwargs: Any) -> Any:
            return compile_hook(compiler, function, *args, **kwargs)

        return compile_

    return [
        (type(cute.compile), "_compile", make_compile),
        (HardwareInfo, "__init__", instead(lambda _, device_id=0: None)),
        (HardwareInfo, "get_max_active_clusters", instead(lambda chip, size, stream=None: chip.active_clusters(size))),
        (HardwareInfo, "get_device_multiprocessor_count", instead(lambda chip: chip.sm_count)),
        (HardwareInfo, "get_l2_cache_size_in_bytes", instead(lambda chip: chip.l2_bytes)),
    ]
