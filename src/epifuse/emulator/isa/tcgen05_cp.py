# SPDX-License-Identifier: Apache-2.0
"""tcgen05.cp (PTX ISA, "TensorCore 5th Generation: Data Movement, tcgen05.cp"): shared memory to tensor memory."""

from __future__ import annotations

import numpy as np

from ..builder import Builder, Registers, Step, check_modifiers
from ..lanes import Array
from ..reports import DivergenceError
from ..shared import SharedMemory
from ..state import Cta, Warp
from ..syntax import Instruction
from ..tensor_memory import TensorMemory
from . import descriptors
from .addressing import address, require_address
from .synchronisation import uniform
from .tcgen05_mma import pair_of
from .tensor_order import order_of
from .tensor_pipe import TensorPipe, pipe_of, tensor_memory_of

# Shape: rows, bytes of a row.
_SHAPES = {"128x256b": (128, 32), "128x128b": (128, 16), "64x128b": (64, 16), "32x128b": (32, 16)}
# Which 32 rows each quarter of the lanes gets.
_QUARTERS = {"": (0, 1, 2, 3), "warpx4": (0, 0, 0, 0), "warpx2::02_13": (0, 1, 0, 1), "warpx2::01_23": (0, 0, 1, 1)}
_MULTICASTS = {
    "128x256b": ("",),
    "128x128b": ("",),
    "64x128b": ("warpx2::02_13", "warpx2::01_23"),
    "32x128b": ("warpx4",),
}


def copy(builder: Builder, instruction: Instruction) -> Step:
    """tcgen05.cp without decompression."""
    shape = next((m for m in instruction.modifiers if m in _SHAPES), "")
    multicast = next((m for m in instruction.modifiers if m in _QUARTERS and m), "")
    check_modifiers(builder, instruction, {"cp", "cta_group::1", "cta_group::2", shape, multicast})
    if multicast not in _MULTICASTS.get(shape, ()):
        raise builder.unknown(instruction)
    locate = address(builder, require_address(builder, instruction, 0), 32)
    slot = builder.source(instruction.operands[1], 64)
    both = instruction.has("cta_group::2")

    def step(warp: Warp, registers: Registers) -> None:
        if warp.mask & (warp.mask - 1):
            raise DivergenceError(f"tcgen05.cp is issued by {warp.mask.bit_count()} lanes; each would issue one")
        target, value = uniform(locate(registers), warp), uniform(registers[slot], warp)
        pipe = pipe_of(warp)
        for cta in pair_of(warp) if both else [warp.cta]:
            _issue(warp, pipe, cta, target, value, _SHAPES[shape], _QUARTERS[multicast])

    return step


def _issue(
    warp: Warp, pipe: TensorPipe, cta: Cta, target: int, value: int, shape: tuple[int, int], quarters: tuple[int, ...]
) -> None:
    rows, row_bytes = shape
    column, columns = target & 0xFFFF, row_bytes // 4
    memory = tensor_memory_of(cta)
    memory.check(column, columns)
    where = descriptors.rows_of(descriptors.decode_tcgen05(value), rows, row_bytes, 1, True)
    descriptors.check_rows(cta.shared, where)
    operation = pipe.start(warp, "tcgen05.cp")
    words = descriptors.words_of(where)
    cta.shared.on_async_read(operation, words)
    halves = slice(0, 8)
    memory.on_write(order_of(warp).operation(operation, pipe.dimension), halves, column, columns, pipe.stamps)
    pipe.settle_later(operation, cta.shared.settle, words)
    pipe.settle_later(operation, memory.settle, halves, column, columns)
    warp.grid.queue.add(pipe.stream, operation.on_run(lambda: _carry_out(cta.shared, where, memory, column, quarters)))


def _carry_out(
    shared: SharedMemory, where: Array, memory: TensorMemory, column: int, quarters: tuple[int, ...]
) -> None:
    words = np.ascontiguousarray(descriptors.gather(shared, where, 4, True))
    blocks = words.reshape(-1, 32, words.shape[1])
    for quarter, block in enumerate(quarters):
        memory.cells[32 * quarter : 32 * quarter + 32, column : column + words.shape[1]] = blocks[block]
