# SPDX-License-Identifier: Apache-2.0
"""Small PTX kernels, written around a few lines of code, run by the executor on numpy arrays."""

import struct
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from epifuse.emulator import chips, machine, ptx

HEAD = ".version 9.0\n.target sm_{target}\n.address_size 64\n"
_WIDTHS = {"b8": np.uint8, "b16": np.uint16, "b32": np.uint32, "b64": np.uint64}
_REGISTERS = {"b8": "b16"}


def module_text(body: str, params: int, target: str, threads: int, shared: int) -> str:
    """A module with one kernel `k` of 64-bit parameters `p0`, `p1`, ... and `shared` bytes at `smem`."""
    listed = ",\n".join(f".param .u64 p{index}" for index in range(params))
    variable = f".shared .align 1024 .b8 smem[{shared}];\n" if shared else ""
    return (
        HEAD.format(target=target)
        + variable
        + f".visible .entry k(\n{listed}\n)\n.reqntid {threads}, 1, 1\n{{\n"
        + ".reg .pred %p<32>;\n.reg .b16 %h<32>;\n.reg .b32 %r<64>;\n.reg .b64 %d<32>;\n"
        + body
        + "\nret;\n}\n"
    )


def run_text(
    text: str,
    arrays: list[np.ndarray],
    target: str = "100a",
    grid: tuple[int, int, int] = (1, 1, 1),
    cluster: tuple[int, int, int] = (1, 1, 1),
    **options: Any,
) -> machine.LaunchReport:
    """Launch kernel `k` of a module with the addresses of arrays as its parameters."""
    module = ptx.parse(text)
    function = module.entries["k"]
    return machine.launch(
        module,
        "k",
        grid,
        function.required_threads or (32, 1, 1),
        cluster,
        0,
        [struct.pack("<Q", array.ctypes.data) for array in arrays],
        chip=chips.chip(target),
        options=machine.Options(**options),
    )


@pytest.fixture
def run_kernel() -> Callable[..., machine.LaunchReport]:
    """`run_kernel(body, arrays, threads=, shared=, target=, grid=, cluster=, seed=, strict=)`."""

    def run(
        body: str, arrays: list[np.ndarray], *, threads: int = 32, shared: int = 0, target: str = "100a", **more: Any
    ) -> machine.LaunchReport:
        return run_text(module_text(body, len(arrays), target, threads, shared), arrays, target, **more)

    return run


@pytest.fixture
def run_lanes() -> Callable[..., list[np.ndarray]]:
    """`run_lanes(code, inputs, outputs)`: one warp; arrays of 32 in %i0, %i1, ...; types of the results %o0, ..."""

    def run(code: str, inputs: list[Any], outputs: list[str], target: str = "100a", **more: Any) -> list[np.ndarray]:
        columns = [np.ascontiguousarray(np.broadcast_to(np.asarray(each), 32)) for each in inputs]
        results = [np.zeros(32, _WIDTHS[each]) for each in outputs]
        arrays = [*columns, *results]
        lines = ["mov.u32 %r60, %tid.x;", "cvt.u64.u32 %d30, %r60;"]
        for index, array in enumerate(columns):
            kind = f"b{8 * array.itemsize}"
            lines += [f".reg .{_REGISTERS.get(kind, kind)} %i{index};", f"ld.param.b64 %d31, [p{index}];"]
            lines += [f"mad.lo.s64 %d31, %d30, {array.itemsize}, %d31;", f"ld.global.{kind} %i{index}, [%d31];"]
        lines += [f".reg .{_REGISTERS.get(kind, kind)} %o{index};" for index, kind in enumerate(outputs)]
        lines.append(code)
        for index, array in enumerate(results):
            lines.append(f"ld.param.b64 %d31, [p{len(columns) + index}];")
            lines.append(f"mad.lo.s64 %d31, %d30, {array.itemsize}, %d31;")
            lines.append(f"st.global.{outputs[index]} [%d31], %o{index};")
        run_text(module_text("\n".join(lines), len(arrays), target, 32, 4096), arrays, target, **more)
        return results

    return run


@pytest.fixture
def run_module() -> Callable[..., Callable[..., machine.LaunchReport]]:
    """`run_module(text)` gives a function that launches kernel `k` of one parsed module, again and again."""

    def parse(text: str, target: str = "100a") -> Callable[..., machine.LaunchReport]:
        module = ptx.parse(HEAD.format(target=target) + text)

        def launch(arrays: list[np.ndarray], **options: Any) -> machine.LaunchReport:
            params = [struct.pack("<Q", array.ctypes.data) for array in arrays]
            shape = ((1, 1, 1), (32, 1, 1), (1, 1, 1), 0)
            chosen = machine.Options(**options)
            return machine.launch(module, "k", *shape, params, chip=chips.chip(target), options=chosen)

        return launch

    return parse
