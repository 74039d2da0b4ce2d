# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: PLC0415 - the DSL is imported when something is compiled
"""Every private or version-dependent name of the CuTe DSL, and the one lock around its compiler.

Written for CuTe DSL 4.8.1. When a release moves one of these names, this file is the only one to change.
"""

from __future__ import annotations

import contextlib
import copy
import ctypes
import os
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

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


def load_runtime_library() -> None:
    """Load the DSL's run-time library for everyone in the process.

    Exporting host code for an architecture that is not this machine's resolves the library's symbols, and fails
    without it. It needs no driver.
    """
    from cutlass.base_dsl.env_manager import get_prefix_dsl_libs

    for path in (get_prefix_dsl_libs("CUTE_DSL") or "").split(os.pathsep):
        if path:
            ctypes.CDLL(path, mode=ctypes.RTLD_GLOBAL)


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


def runtime_tensor(value: Any) -> tuple[int, list[int], list[int], int] | None:
    """The address, shape, strides and bits of an element of a tensor that `from_dlpack` made; None for other values."""
    runtime = sys.modules.get("cutlass.cute.runtime")
    if runtime is None or type(value) is not runtime._Tensor:
        return None
    return value.data_ptr, list(value.shape), list(value.stride), value.element_type.width


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


# --- standing in front of the DSL -----------------------------------------------------------------------------------


class Hook(NamedTuple):
    """What stands in front of the DSL: answers about the hardware, another `cute.compile`, another `from_dlpack`.

    `hardware()` gives None, which leaves the DSL its own answers, or an object with `active_clusters(size)`,
    `sm_count` and `l2_bytes`. `tensor(value)` gives what is to be converted in the place of a framework's tensor.
    """

    hardware: Callable[[], Any]
    compile: Callable[..., Any] | None = None
    tensor: Callable[[Any], Any] | None = None


class _Front:
    """The hooks in force, newest last; the DSL's own attributes are replaced while there are any."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._hooks: list[Hook] = []
        self._saved: list[tuple[type, str, Any]] = []

    def add(self, hook: Hook) -> None:
        with self._lock:
            if not self._hooks:
                self._replace()
            self._hooks.append(hook)

    def remove(self, hook: Hook) -> None:
        with self._lock:
            self._hooks.remove(hook)
            while not self._hooks and self._saved:
                setattr(*self._saved.pop())

    def hardware(self) -> Any:
        answers = (hook.hardware() for hook in reversed(self._hooks))
        return next((answer for answer in answers if answer is not None), None)

    def _replace(self) -> None:
        from cutlass import cute
        from cutlass.cute import runtime
        from cutlass.utils import HardwareInfo

        self._put(runtime._Tensor, "__init__", self._convert)
        self._put(type(cute.compile), "_compile", self._compile)
        self._put(HardwareInfo, "__init__", self._instead(lambda _, device_id=0: None))
        self._put(HardwareInfo, "get_max_active_clusters", self._instead(_active_clusters))
        self._put(HardwareInfo, "get_device_multiprocessor_count", self._instead(lambda chip: chip.sm_count))
        self._put(HardwareInfo, "get_l2_cache_size_in_bytes", self._instead(lambda chip: chip.l2_bytes))

    def _put(self, owner: type, name: str, make: Callable[[Any], Any]) -> None:
        original = vars(owner)[name]
        replacement = make(original)
        replacement.replaces = original
        self._saved.append((owner, name, original))
        setattr(owner, name, replacement)

    def _compile(self, original: Any) -> Any:
        def compile_(compiler: Any, function: Any, *args: Any, **kwargs: Any) -> Any:
            found = next((hook.compile for hook in reversed(self._hooks) if hook.compile), original)
            return found(compiler, function, *args, **kwargs)

        return compile_

    def _convert(self, original: Any) -> Any:
        def initialise(converted: Any, tensor: Any, *args: Any, **kwargs: Any) -> None:
            exchange = next((hook.tensor for hook in reversed(self._hooks) if hook.tensor), None)
            original(converted, tensor if exchange is None else exchange(tensor), *args, **kwargs)

        return initialise

    def _instead(self, answer: Callable[..., Any]) -> Callable[[Any], Any]:
        def make(original: Any) -> Any:
            def ask(info: Any, *args: Any, **kwargs: Any) -> Any:
                emulated = self.hardware()
                return original(info, *args, **kwargs) if emulated is None else answer(emulated, *args, **kwargs)

            return ask

        return make


def _active_clusters(chip: Any, cluster_size: int, stream: Any = None) -> int:
    return int(chip.active_clusters(cluster_size))


_FRONT = _Front()


@contextlib.contextmanager
def in_front_of_the_dsl(hook: Hook) -> Iterator[None]:
    """Let a hook act until the block ends, in all threads; blocks nest, and the newest is asked first."""
    _FRONT.add(hook)
    try:
        yield
    finally:
        _FRONT.remove(hook)


TENSOR_MAP_CODE = "128s"
"""The struct code of a tensor map among a kernel's parameters; tensor maps come before the numbers."""


def some_tensor_map(address: Any) -> Any:
    """A tensor map in a host entry that is traced and never run: our own host code makes the map that counts."""
    from cutlass import BFloat16
    from cutlass.experimental.cuda.tensor_map import create_tensor_map_tiled

    return create_tensor_map_tiled(address, BFloat16, (64, 64, 1), (128, 8192), (64, 64, 1))


def tensor_map_parameter() -> Any:
    """The annotation of a kernel's parameter that is a tensor map."""
    from cutlass import GridConstant
    from cutlass.experimental.cuda.tensor_map import TensorMap

    return GridConstant[TensorMap]


def inline_asm_in_place(text: str, registers: Sequence[Any], inputs: Sequence[Any] = ()) -> list[Any]:
    """One inline PTX statement that reads and writes 32-bit ``registers`` (Int32) in place; their new values.

    In ``text`` the registers are ``$0``, ``$1``...; each stands there twice, so input ``i`` is ``$(2 len + i)``.
    ``arch.inline_ptx`` cannot tie an output to an input.
    """
    from cutlass import Int32, Int64
    from cutlass._mlir import ir
    from cutlass._mlir.dialects import llvm

    count = len(registers)
    word = ir.IntegerType.get_signless(32)
    struct_type = ir.Type.parse(f"!llvm.struct<({', '.join(['i32'] * count)})>") if count > 1 else word
    kinds = {Int32: "r", Int64: "l"}
    constraints = ["=r"] * count + [str(i) for i in range(count)] + [kinds[type(value)] for value in inputs]
    operands = [value.ir_value() for value in (*registers, *inputs)]
    result = llvm.inline_asm(
        struct_type, operands, text, ",".join(constraints), has_side_effects=True, is_align_stack=False, asm_dialect=0
    )
    if count == 1:
        return [Int32(result)]
    return [Int32(llvm.extractvalue(word, result, [i])) for i in range(count)]


def compile_to_ptx_and_cubin(kernel: Any, codes: Sequence[str], target: str) -> tuple[str, bytes]:
    """PTX and cubin of a kernel object whose host entry takes one list of numbers, by their struct codes.

    Needs neither a GPU nor a driver. The caller holds the lock.
    """
    import tempfile

    from cutlass import Float32, Float64, Int32, Int64, cute

    kinds = {"q": Int64, "i": Int32, "f": Float32, "d": Float64}
    numbers = [kinds[code](1) for code in codes if code != TENSOR_MAP_CODE]
    with tempfile.TemporaryDirectory() as folder:
        options = f"--gpu-arch sm_{target} --keep-ptx --keep-cubin --dump-dir={folder}"
        compiled = cute.compile(kernel, numbers, options=options)
    return compiled.__ptx__, compiled.__cubin__
