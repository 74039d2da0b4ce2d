# SPDX-License-Identifier: Apache-2.0
"""A laboratory for single instructions: PTX text around a few lines of code, for the emulator and for a real GPU alike.

`column_text` and `Column` need numpy only, so that the script that records on a GPU can use them; `run_columns` and
`run_kernel` execute in the emulator.
"""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

CHIPS = {"80": "8.0", "90a": "8.3", "100a": "8.7"}
"""The chips tried, with a PTX version that knows them."""
_REGISTER = {1: "b16", 2: "b16", 4: "b32", 8: "b64"}
_SPECIAL = ".reg .pred %p<32>;\n.reg .b16 %h<32>;\n.reg .b32 %r<256>;\n.reg .f32 %f<64>;\n.reg .b64 %d<64>;\n"
BLOCK = 128


def head(target: str) -> str:
    """The first lines of a module."""
    return f".version {CHIPS[target]}\n.target sm_{target}\n.address_size 64\n"


def module_text(
    body: str, params: Sequence[str], target: str = "100a", threads: int = 32, shared: int = 0, extra: str = ""
) -> str:
    """A module with one kernel `k` of 64-bit parameters, registers %p %h %r %f %d, and `shared` bytes at `smem`."""
    listed = ",\n".join(
        f".param .align 64 .b8 {name}[128]" if name.startswith("map") else f".param .u64 {name}" for name in params
    )
    variable = f".shared .align 1024 .b8 smem[{shared}];\n" if shared else ""
    bounds = f".reqntid {threads}, 1, 1\n{extra}"
    return f"{head(target)}{variable}.visible .entry k(\n{listed}\n)\n{bounds}{{\n{_SPECIAL}{body}\nret;\n}}\n"


def column_text(code: str, inputs: Sequence[Any], outputs: Sequence[str], target: str, shared: int = 0) -> str:
    """A kernel that gives each thread one row of the inputs in %i0, %i1, ... and stores %o0, %o1, ...

    `inputs` are numpy types; `outputs` register types ("b16", "b32", "b64", "b8"). %r250 is the row's number.
    """
    lines = ["mov.u32 %r251, %ctaid.x;", f"mov.u32 %r252, %tid.x;\nmad.lo.u32 %r250, %r251, {BLOCK}, %r252;"]
    lines.append("cvt.u64.u32 %d60, %r250;")
    for index, kind in enumerate(inputs):
        size = np.dtype(kind).itemsize
        lines += [f".reg .{_REGISTER[size]} %i{index};", f"ld.param.b64 %d61, [i{index}];"]
        lines += [f"mad.lo.s64 %d61, %d60, {size}, %d61;", f"ld.global.b{8 * size} %i{index}, [%d61];"]
    lines += [f".reg .{'b16' if kind == 'b8' else kind} %o{index};" for index, kind in enumerate(outputs)]
    lines.append(code)
    for index, kind in enumerate(outputs):
        lines.append(f"ld.param.b64 %d61, [o{index}];")
        lines.append(f"mad.lo.s64 %d61, %d60, {int(kind[1:]) // 8}, %d61;")
        lines.append(f"st.global.{kind} [%d61], %o{index};")
    params = [f"i{index}" for index in range(len(inputs))] + [f"o{index}" for index in range(len(outputs))]
    return module_text("\n".join(lines), params, target, BLOCK, shared)


def padded(column: Any, rows: int) -> np.ndarray:
    """A column made `rows` long by repeating it."""
    found = np.ascontiguousarray(column)
    return np.resize(found.reshape(-1), rows)


def rows_for(columns: Sequence[Any]) -> int:
    """How many rows (a multiple of the block) the longest column needs."""
    longest = max((np.size(column) for column in columns), default=1)
    return -(-longest // BLOCK) * BLOCK


def empty_columns(outputs: Sequence[str], rows: int) -> list[np.ndarray]:
    """Arrays for the outputs, filled with a pattern."""
    return [np.full(rows, 0xA5, f"u{int(kind[1:]) // 8}") for kind in outputs]


def aligned(size_bytes: int, to: int = 128) -> np.ndarray:
    """Zero bytes at an address that is a multiple of `to`."""
    store = np.zeros(size_bytes + to, np.uint8)
    skip = -store.ctypes.data % to
    return store[skip : skip + size_bytes]


@contextlib.contextmanager
def registered(arrays: Sequence[np.ndarray]) -> Iterator[Any]:
    """A HostMemory in which exactly these arrays may be touched."""
    from epifuse.emulator.memory import HostMemory  # noqa: PLC0415 - a GPU's machine may lack it

    memory = HostMemory()
    for index, array in enumerate(arrays):
        memory.register(array.ctypes.data, array.nbytes, f"array {index}")
    yield memory


def launch(
    text: str,
    arguments: Sequence[Any],
    *,
    grid: int = 1,
    cluster: int = 1,
    chip: str | None = None,
    dynamic: int = 0,
    **options: Any,
) -> Any:
    """Launch kernel `k` of a module: arrays are passed by address, bytes as they are, ints as 64 bits."""
    from epifuse.emulator import chips, machine, ptx  # noqa: PLC0415 - as above

    module = ptx.parse(text)
    function = module.entries["k"]
    arrays = [each for each in arguments if isinstance(each, np.ndarray)]
    params = [_packed(each) for each in arguments]
    with registered(arrays) as memory:
        return machine.launch(
            module,
            "k",
            (grid, 1, 1),
            function.required_threads or (32, 1, 1),
            (cluster, 1, 1),
            dynamic,
            params,
            chip=chips.chip(chip or module.target),
            options=machine.Options(**options),
            memory=memory,
        )


def _packed(argument: Any) -> bytes:
    if isinstance(argument, bytes):
        return argument
    return struct.pack("<Q", argument.ctypes.data if isinstance(argument, np.ndarray) else argument)


def run_columns(
    code: str, inputs: Sequence[Any], outputs: Sequence[str], target: str = "100a", shared: int = 0, **options: Any
) -> list[np.ndarray]:
    """Execute `code` once for each row; the outputs as unsigned integers, one array for each."""
    rows = rows_for(inputs)
    columns = [padded(column, rows) for column in inputs]
    results = empty_columns(outputs, rows)
    text = column_text(code, [column.dtype for column in columns], outputs, target, shared)
    launch(text, [*columns, *results], grid=rows // BLOCK, **options)
    longest = max((np.size(column) for column in inputs), default=rows)
    return [result[:longest] for result in results]


def run_one(code: str, *inputs: Any, out: str = "b32", target: str = "100a") -> np.ndarray:
    """The single output of `run_columns`."""
    return run_columns(code, inputs, [out], target)[0]


def run_warp(code: str, inputs: Sequence[Any], outputs: Sequence[str], target: str = "100a", **more: Any) -> Any:
    """As `run_columns` for one warp: the outputs' first 32 rows, computed by warp 0 alone."""
    inputs = [np.resize(np.ascontiguousarray(each), BLOCK) for each in inputs]
    return [column[:32] for column in run_columns(code, [*inputs, np.arange(BLOCK)], outputs, target, **more)]


def run_kernel(
    body: str,
    arrays: Sequence[Any],
    *,
    threads: int = 32,
    shared: int = 0,
    target: str = "100a",
    extra: str = "",
    maps: Sequence[bytes] = (),
    **more: Any,
) -> Any:
    """Launch a kernel around `body`; arrays are the parameters p0, p1, ..., tensor maps map0, map1, ..."""
    params = [f"p{index}" for index in range(len(arrays))] + [f"map{index}" for index in range(len(maps))]
    text = module_text(body, params, target, threads, shared, extra)
    return launch(text, [*arrays, *maps], **more)
