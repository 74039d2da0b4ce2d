# SPDX-License-Identifier: Apache-2.0
"""wgmma (PTX ISA, "Asynchronous Warpgroup Level Matrix Multiply-Accumulate Instructions").

Accumulators are bits (``Int32``). Every statement that reads, writes or waits for them takes them and gives them back,
so that the compiler moves no use of one across it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cutlass import Int32, Int64

from epifuse_cutedsl import compat
from epifuse_cutedsl.configs.sm90_products import ProductKind
from epifuse_cutedsl.kernels.ptx.asm import emit

INSTRUCTION_M = 64
_ADDRESS_MASK = 0x3FFFF
_SWIZZLE_128B = 1
"""In bits 62 and 63 of a matrix descriptor."""


def fence() -> None:
    """Order this warpgroup's accesses of registers before the products that follow (``wgmma.fence``)."""
    emit("wgmma.fence.sync.aligned;")


def commit_group() -> None:
    """All products issued since the last commit become a group."""
    emit("wgmma.commit_group.sync.aligned;")


def wait_group(pending: int, accumulators: Sequence[Any]) -> list[Any]:
    """Wait until at most ``pending`` groups are under way; the accumulators afterwards."""
    return compat.inline_asm_in_place(f"wgmma.wait_group.sync.aligned {pending};", accumulators)


def descriptor(leading_bytes: int, stride_bytes: int) -> int:
    """A matrix descriptor with 128-byte swizzle of a matrix at shared address 0.

    PTX ISA, "Matrix Descriptor Format" of wgmma: start address, leading and stride byte offset, each without its 4
    lowest bits, at bits 0, 16 and 32; base offset 0 (matrices lie on 1024 bytes); the swizzle at bit 62.

    K-major: ``stride_bytes`` from 8 rows to the next 8; the leading offset is not used. MN-major: ``leading_bytes``
    from 64 elements of M or N (16 bits each) to the next, ``stride_bytes`` from 8 positions of K to the next.
    """
    bits = (leading_bytes >> 4) << 16 | (stride_bytes >> 4) << 32 | _SWIZZLE_128B << 62
    return bits


def at(bits: int, address: Any) -> Any:
    """The descriptor of the matrix at a shared address (Int32), as an Int64.

    The address counts by its lowest 18 bits (PTX ISA: ``matrix-descriptor-encode``); in a cluster, those above are the
    CTA's rank.
    """
    return Int64((address & _ADDRESS_MASK) >> 4) + bits


def moved(matrix: Any, size_bytes: int) -> Any:
    """The descriptor of the matrix ``size_bytes`` behind."""
    return matrix + (size_bytes >> 4) if size_bytes else matrix


def mma_async(
    kind: ProductKind,
    n: int,
    accumulators: Sequence[Any],
    a: Any,
    b: Any,
    *,
    add: bool = True,
    a_k_major: bool = True,
    b_k_major: bool = True,
) -> list[Any]:
    """``accumulators + A B``, or ``A B`` alone without ``add``: 64 rows, ``n`` columns (8 to 256) and 32 bytes of K.

    ``a`` and ``b`` are descriptors (Int64). A thread has ``accumulator_registers`` accumulators.
    """
    count = accumulator_registers(kind, n)
    assert len(accumulators) == count
    assert n % 8 == 0
    registers = ", ".join(f"${i}" for i in range(count))
    first = 2 * count
    condition = "eq" if add else "ne"
    options = "" if kind.integer else ", 1, 1"
    if kind.element_bytes == 2:
        options += f", {int(not a_k_major)}, {int(not b_k_major)}"
    else:
        assert a_k_major
        assert b_k_major
    text = (
        f"{{\n.reg .pred add;\nsetp.{condition}.u32 add, 0, 0;\n"
        f"wgmma.mma_async.sync.aligned.m64n{n}k{kind.instruction_k}.{kind.types} {{{registers}}}, ${first}, "
        f"${first + 1}, add{options};\n}}"
    )
    return compat.inline_asm_in_place(text, accumulators, [a, b])


def accumulator_registers(kind: ProductKind, n: int) -> int:
    """Registers of a thread for 64 rows and ``n`` columns."""
    return n // 4 if kind.packed else n // 2


def undefined(count: int) -> list[Any]:
    """``count`` registers that hold anything, for products that do not add to them."""
    return list(emit(f"// {', '.join(f'{{$w{i}}}' for i in range(count))}", [Int32] * count))


def setmaxnreg(registers: int, *, increase: bool) -> None:
    """Change this warpgroup's registers a thread (``setmaxnreg``; a multiple of 8 from 24 to 256)."""
    emit(f"setmaxnreg.{'inc' if increase else 'dec'}.sync.aligned.u32 {registers};")
