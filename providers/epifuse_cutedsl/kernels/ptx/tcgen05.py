# SPDX-License-Identifier: Apache-2.0
"""tcgen05 (PTX ISA, "TensorCore 5th Generation Family Instructions"): tensor memory, its products, their descriptors.

A tensor memory address (Int32) has the lane in its high half and the column in its low half. ``ctas`` is the CTA group,
1 or 2: with 2, a pair of CTAs (ranks ``2 i`` and ``2 i + 1`` of a cluster) allocates and multiplies together.
"""

from __future__ import annotations

from typing import Any

from cutlass import Int32, Int64

from epifuse_cutedsl.kernels.ptx.asm import emit

PEER_BIT = 1 << 24
"""In a shared address: which CTA of a pair it is of."""
_ADDRESS_MASK = 0x3FFFF
_VERSION = 0b001 << 46
_SWIZZLE_128B = 2 << 61
_WAIT = "tcgen05.wait::ld.sync.aligned;"


def instruction(codes: tuple[int, int, int], m: int, n: int, *, a_k_major: bool, b_k_major: bool) -> int:
    """The instruction descriptor of an ``m`` by ``n`` product (``m`` of both CTAs of a pair).

    ``codes`` are those of the dtypes of A, B and D. PTX ISA, "Instruction descriptor" of tcgen05: the code of D at bit
    4, of A at 7, of B at 10, MN-major A at 15 and B at 16, N / 8 at 17, M / 16 at 24.
    """
    a, b, d = codes
    majors = int(not a_k_major) << 15 | int(not b_k_major) << 16
    return d << 4 | a << 7 | b << 10 | majors | n >> 3 << 17 | m >> 4 << 24


def matrix(leading_bytes: int, stride_bytes: int) -> int:
    """The descriptor of a matrix at shared address 0 with 128-byte swizzle.

    PTX ISA, "Shared memory descriptor" of tcgen05: start address, leading and stride byte offset, each without its 4
    lowest bits, at bits 0, 16 and 32; 0b001 at bit 46; base offset 0 (matrices lie on 1024 bytes); the swizzle at bit
    61. The offsets mean what they mean for ``wgmma.descriptor``.
    """
    return (leading_bytes >> 4) << 16 | (stride_bytes >> 4) << 32 | _VERSION | _SWIZZLE_128B


def at(bits: int, address: Any) -> Any:
    """The descriptor of the matrix at a shared address (Int32) of this CTA, as an Int64."""
    signed = bits - (1 << 64) if bits >> 63 else bits
    return Int64((address & _ADDRESS_MASK) >> 4) + signed


def moved(descriptor: Any, size_bytes: int) -> Any:
    """The descriptor of the matrix ``size_bytes`` behind."""
    return descriptor + (size_bytes >> 4) if size_bytes else descriptor


def alloc(target: Any, columns: int, ctas: int = 1) -> None:
    """Allocate columns (a power of two from 32 to 512) and write their address to the shared address ``target``; then
    give up the right to allocate. One warp calls it; of a pair, one of each CTA."""
    emit(f"tcgen05.alloc.cta_group::{ctas}.sync.aligned.shared::cta.b32 [{{$r0}}], {columns};", (), [target])
    emit(f"tcgen05.relinquish_alloc_permit.cta_group::{ctas}.sync.aligned;")


def dealloc(address: Any, columns: int, ctas: int = 1) -> None:
    """Give columns back. One warp calls it; of a pair, one of each CTA."""
    emit(f"tcgen05.dealloc.cta_group::{ctas}.sync.aligned.b32 {{$r0}}, {columns};", (), [address])


def mma(kind: str, ctas: int, d: Any, a: Any, b: Any, bits: int, more: Any, predicate: Any) -> None:
    """``D = A B`` where ``more`` (Int32) is 0, ``D += A B`` elsewhere, by the thread whose predicate holds.

    ``d`` is a tensor memory address, ``a`` and ``b`` are matrix descriptors, ``bits`` the instruction descriptor.
    """
    emit(
        "{\n.reg .pred more;\nsetp.ne.b32 more, {$r3}, 0;\n"
        f"@{{$r4}} tcgen05.mma.cta_group::{ctas}.kind::{kind} [{{$r0}}], {{$r1}}, {{$r2}}, {bits}, more;\n}}",
        (),
        [d, a, b, more, predicate],
    )


def commit(barrier: Any, predicate: Any, ctas: int = 1, ranks: Any = None) -> None:
    """One arrival at an mbarrier when all products that this thread has issued are done.

    ``ranks``: a mask (Int32) of the cluster's CTAs at whose mbarriers of that shared offset to arrive.
    """
    head = f"tcgen05.commit.cta_group::{ctas}.mbarrier::arrive::one.shared::cluster"
    if ranks is None:
        emit(f"@{{$r1}} {head}.b64 [{{$r0}}];", (), [barrier, predicate])
        return
    text = f"@{{$r1}} {head}.multicast::cluster.b64 [{{$r0}}], ranks;"
    emit(f"{{\n.reg .b16 ranks;\ncvt.u16.u32 ranks, {{$r2}};\n{text}\n}}", (), [barrier, predicate, ranks])


def _ld(columns: int, split: int | None) -> str:
    shape = "32x32b" if split is None else "16x32bx2"
    return f"tcgen05.ld.sync.aligned.{shape}.x{columns}.b32"


def _of(split: int | None) -> str:
    return "" if split is None else f", {split}"


class Ahead:
    """Registers for ``columns`` (a power of two) successive columns of this warp's lanes, a row a thread, that may be
    read while others are worked on. With ``split``, of 16 lanes: thread ``t`` has lane ``t % 16``, and the upper half
    of the warp is ``split`` columns on.

    They are named in the PTX itself: the compiler cannot touch a register of which it does not know before the wait.
    """

    def __init__(self, name: str, columns: int, split: int | None = None) -> None:
        self._registers = [f"{name}{i}" for i in range(columns)]
        self._split = split
        self._name = name

    def declare(self) -> None:
        """Where the registers' scope begins: before all uses in the kernel's text, once."""
        emit(f".reg .b32 {self._name}<{len(self._registers)}>;")

    def start(self, address: Any, predicate: Any = None) -> None:
        """Read the columns from ``address`` on, where the predicate (the same in the whole warp) holds."""
        columns = len(self._registers)
        text = f"{_ld(columns, self._split)} {{{', '.join(self._registers)}}}, [{{$r0}}]{_of(self._split)};"
        if predicate is None:
            emit(text, (), [address])
        else:
            emit(f"@{{$r1}} {text}", (), [address, predicate])

    def wait(self) -> list[Any]:
        """The columns as bits (Int32), when all reads of this warp are done."""
        moves = [f"mov.b32 {{$w{i}}}, {register};" for i, register in enumerate(self._registers)]
        return list(emit("\n".join([_WAIT, *moves]), [Int32] * len(moves)))


def wait_ld() -> None:
    """Wait until all reads of this warp are done."""
    emit(_WAIT)


def st_zeros(address: Any, columns: int) -> None:
    """Zeros in ``columns`` (a power of two up to 32) successive columns of this warp's lanes, complete on return."""
    registers = ", ".join(["zero"] * columns)
    emit(
        "{\n.reg .b32 zero;\nmov.b32 zero, 0;\n"
        f"tcgen05.st.sync.aligned.32x32b.x{columns}.b32 [{{$r0}}], {{{registers}}};\n"
        "tcgen05.wait::st.sync.aligned;\n}",
        (),
        [address],
    )


def fence_before() -> None:
    """Order this thread's tcgen05 accesses before a synchronization that follows."""
    emit("tcgen05.fence::before_thread_sync;")


def fence_after() -> None:
    """Order this thread's tcgen05 accesses after a synchronization that came before."""
    emit("tcgen05.fence::after_thread_sync;")


def elect() -> Any:
    """Whether this thread is the one of its warp that issues (``elect.sync``); the whole warp calls it."""
    text = "{\n.reg .pred p;\nelect.sync _|p, 0xffffffff;\nselp.b32 {$w0}, 1, 0, p;\n}"
    return emit(text, [Int32])[0] != Int32(0)
