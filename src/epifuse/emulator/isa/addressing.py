# SPDX-License-Identifier: Apache-2.0
"""Addresses: from an operand to the bytes it names, in each state space (PTX ISA, "State Spaces")."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ..builder import Builder, Registers
from ..lanes import Array, Value
from ..memory import SHARED_WINDOW
from ..reports import MemoryFaultError
from ..shared import CTA_SHIFT, OFFSET_MASK, SharedMemory
from ..state import Cta, Warp
from ..syntax import Address, Instruction, Operand

Locate = Callable[[Registers], Value]


def address(builder: Builder, operand: Operand, bits: int = 64) -> Locate:
    """A function that computes the address of a bracketed operand, modulo 2 to the `bits`."""
    if not isinstance(operand, Address):
        raise TypeError(operand)
    slot = builder.source(operand.base, bits)
    offset = operand.offset_bytes
    mask = (1 << bits) - 1
    if bits == 32 and builder.register_bits(operand.base, 32) == 64:
        return lambda registers: _add(registers[slot], offset, mask, np.uint64)
    if not offset:
        return lambda registers: registers[slot]
    dtype = np.uint32 if bits == 32 else np.uint64
    return lambda registers: _add(registers[slot], offset, mask, dtype)


def _add(value: Value, offset: int, mask: int, dtype: Any) -> Value:
    if type(value) is int:
        return value + offset & mask
    return value + dtype(offset & mask) & dtype(mask)


def require_address(builder: Builder, instruction: Instruction, index: int) -> Address:
    """The bracketed operand at a position, or UnknownInstructionError."""
    operand = instruction.operands[index]
    if not isinstance(operand, Address):
        raise builder.unknown(instruction, f"operand {index} is not an address")
    return operand


def shared_at(warp: Warp, value: int, cluster: bool = False) -> tuple[SharedMemory, int]:
    """The memory and offset of one shared address; `cluster` allows other CTAs' memory."""
    cta = cta_at(warp, value >> CTA_SHIFT, cluster)
    return cta.shared, value & OFFSET_MASK


def cta_at(warp: Warp, rank: int, cluster: bool = True) -> Cta:
    """The CTA of a rank in the warp's cluster. Raises MemoryFaultError if it is not allowed or does not exist."""
    own = warp.cta
    if rank == own.rank:
        return own
    ctas = own.cluster.ctas
    if not cluster or rank >= len(ctas):
        raise MemoryFaultError(
            f"shared address of CTA rank {rank} used by rank {own.rank} of {len(ctas)}"
            + ("" if cluster else " with an instruction that reaches only its own CTA")
        )
    return ctas[rank]


def check_aligned(addresses: Array | int, size_bytes: int) -> None:
    """Raise MemoryFaultError unless every address is a multiple of `size_bytes` (a power of two)."""
    if type(addresses) is int:
        wrong = addresses & (size_bytes - 1)
    else:
        misaligned = addresses & addresses.dtype.type(size_bytes - 1)  # type: ignore[union-attr]
        wrong = int(misaligned.max(initial=0))
    if wrong:
        position = None if type(addresses) is int else int(np.flatnonzero(misaligned)[0])
        shown = addresses if position is None else int(addresses[position])  # type: ignore[index]
        error = MemoryFaultError(f"address {shown:#x} is not aligned to the access of {size_bytes} bytes")
        error.position = position
        raise error


def shared_words(offsets: Array, size_bytes: int) -> Array:
    """Indices of the words that accesses of `size_bytes` bytes at the offsets touch: shape (lanes, words)."""
    first = (offsets >> 2).astype(np.int64)
    return first[:, None] + np.arange(max(1, size_bytes // 4))


def split_generic(value: int) -> tuple[str, int]:
    """A generic address as (space, address)."""
    if value >= SHARED_WINDOW:
        return "shared", value - SHARED_WINDOW
    return "global", value
