# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: PLC0415 - what needs cutlass is imported by the tests that need it
"""Kernels without an epilogue: compiled for a target, and run on the emulated device."""

import struct
from types import SimpleNamespace

import pytest
import torch

from epifuse.dtypes import FLOAT16, DType
from epifuse.emulator import machine, memory, ptx
from epifuse.emulator.chips import chip
from epifuse_cutedsl import compat

PLAIN_CODES = ("q", "q", "q", "q")


class PlainEpilogue:
    """D = accum, element by element: parameters are D's address and its strides along m, n and l."""

    scratch_bytes = 0

    def __init__(self, accumulator: DType, axis: str = "n", run: int = 4) -> None:
        self.accumulator, self.axis, self.run = accumulator, axis, run

    def bind(self, parameters, tile, extents):
        """Take the tile."""
        self.parameters, self.tile, self.extents = parameters, tile, extents
        return self

    def tile_begin(self, places):
        """No state."""
        return []

    def load_step(self, places):
        """Nothing to load."""
        return []

    def visit(self, fragment, pieces, state):
        """Store every register that is inside."""
        from cutlass import Int64

        from epifuse_cutedsl.kernels.ptx.asm import emit

        address, stride_m, stride_n, stride_l = self.parameters
        store = f"st.global.b{self.accumulator.bits}"
        text = f"@{{$r1}} {store} [{{$r0}}], {{$r2}};"
        if self.accumulator == FLOAT16:
            text = f"{{ .reg .b16 h; cvt.rn.f16.f32 h, {{$r2}}; @{{$r1}} {store} [{{$r0}}], h; }}"
        for run in fragment.runs:
            for i in range(run.length):
                m, n = (run.m, run.n + i) if fragment.axis == "n" else (run.m + i, run.n)
                offset = Int64(m) * stride_m + Int64(n) * stride_n + Int64(self.tile.batch) * stride_l
                inside = (m < self.extents.m) & (n < self.extents.n)
                place = address + offset * self.accumulator.bytes
                emit(text, (), [place, inside, fragment.registers[run.offset + i]])
        return state

    def reduce_flush(self, state, scratch):
        """Nothing is reduced."""
        return state

    def tile_end(self, state):
        """Nothing is left."""


def gemm(config, a, b, accumulator, axis="n", run=4):
    """``Sm80Gemm`` with a plain epilogue."""
    from epifuse_cutedsl.kernels.sm80.kernel import Sm80Gemm

    return Sm80Gemm(config, a, b, accumulator, PlainEpilogue(accumulator, axis, run))


def compiled(kernel, target="90a"):
    """PTX and cubin."""
    from epifuse_cutedsl.kernels.sm80.kernel import PARAMETERS

    codes = tuple({"i64": "q", "i32": "i"}[kind] for _, kind in PARAMETERS) + PLAIN_CODES
    with compat.COMPILE_LOCK:
        return compat.compile_to_ptx_and_cubin(kernel, codes, target)


def launch(text, kernel, a, b, d, group=1, seed=0, target="90a"):
    """Run a grid; only the elements from the first to the last of each tensor may be touched."""
    config = kernel.config
    batches, m, k = a.shape
    n = b.shape[2]
    tiles_m, tiles_n = -(-m // config.tile_m), -(-n // config.tile_n)
    strides = [a.stride(1), a.stride(2), a.stride(0), b.stride(2), b.stride(1), b.stride(0)]
    values = [("q", a.data_ptr()), ("q", b.data_ptr()), ("i", m), ("i", n), ("i", k), ("i", batches)]
    values += [("q", s) for s in strides] + [("i", tiles_m), ("i", tiles_n), ("i", group)]
    values += [("q", d.data_ptr()), ("q", d.stride(1)), ("q", d.stride(2)), ("q", d.stride(0))]
    allowed = memory.HostMemory()
    for name, tensor in (("A", a), ("B", b), ("D", d)):
        last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
        allowed.register(tensor.data_ptr(), max(last + 1, 0) * tensor.element_size() if tensor.numel() else 16, name)
    module = ptx.parse(text)
    return machine.launch(
        module,
        next(name for name, function in module.functions.items() if function.entry),
        grid=(tiles_m * tiles_n * batches, 1, 1),
        block=kernel.block,
        cluster=(1, 1, 1),
        dynamic_smem_bytes=kernel.smem_bytes,
        params=[struct.pack("<" + code, value) for code, value in values],
        chip=chip(target),
        options=machine.Options(seed=seed),
        memory=allowed,
    )


def view(values: torch.Tensor, axis: int, vector: int, step: int, poison: float) -> torch.Tensor:
    """A copy of (l, r, c) ``values`` in which ``axis`` (1, 2) has the stride ``step`` and the largest access that base
    and other strides allow is ``vector`` elements; what lies between and around is ``poison``."""
    other = 3 - axis
    pitch = values.shape[axis] * step
    pitch += -pitch % vector
    while (pitch // vector) % 2 == 0:
        pitch += vector
    strides = [pitch * values.shape[other], 0, 0]
    strides[axis], strides[other] = step, pitch
    room = torch.full((64 + values.shape[0] * strides[0] + 64,), poison).to(values.dtype)
    first = 0
    while (room.data_ptr() + first * values.element_size()) % (32 * values.element_size()):
        first += 1
    placed = room.as_strided(values.shape, strides, first + vector)
    placed.copy_(values)
    return placed


@pytest.fixture
def portable() -> SimpleNamespace:
    """The functions of this file that tests of the portable kernel share."""
    return SimpleNamespace(gemm=gemm, compiled=compiled, launch=launch, view=view)
