# SPDX-License-Identifier: Apache-2.0
"""mbarrier objects in shared memory (PTX ISA, "Parallel Synchronization and Communication Instructions: mbarrier")."""

from __future__ import annotations

from typing import Any

from epifuse_cutedsl.kernels.ptx.asm import elected, emit

BYTES = 8


def init(barrier: Any, count: int) -> None:
    """Make an mbarrier at a shared address whose phase completes after ``count`` arrivals (and pending bytes)."""
    emit(f"mbarrier.init.shared::cta.b64 [{{$r0}}], {count};", (), [barrier])


def fence_init() -> None:
    """Make this thread's ``init`` visible to the cluster and to the asynchronous proxy."""
    emit("fence.mbarrier_init.release.cluster;")


def arrive(barrier: Any, predicate: Any) -> None:
    """One arrival, with release semantics, where the predicate (Boolean) holds."""
    emit("@{$r1} mbarrier.arrive.release.cta.shared::cta.b64 _, [{$r0}];", (), [barrier, predicate])


def arrive_cluster(barrier: Any, rank: Any, predicate: Any) -> None:
    """One arrival at the mbarrier at the same shared address of the cluster's CTA ``rank`` (Int32), where the predicate
    holds.

    It releases in CTA scope, enough for shared memory that was read and is to be overwritten by a tensor copy or
    ``st.async``. Cluster scope is a fence of the whole GPU: sm_90's assembler makes MEMBAR.ALL.GPU and CCTL.IVALL of
    it, and products in clusters ran at half speed.
    """
    emit(
        "{\n.reg .b32 there;\nmapa.shared::cluster.u32 there, {$r0}, {$r1};\n"
        "@{$r2} mbarrier.arrive.release.cta.shared::cluster.b64 _, [there];\n}",
        (),
        [barrier, rank, predicate],
    )


def arrive_at(address: Any, predicate: Any) -> None:
    """``arrive_cluster`` at an address that ``cluster.address`` gave, where the predicate holds."""
    emit("@{$r1} mbarrier.arrive.release.cta.shared::cluster.b64 _, [{$r0}];", (), [address, predicate])


def arrive_expect_tx(barrier: Any, size_bytes: Any, *, elects: bool = False) -> None:
    """One arrival (``elects``: of one of a warp's lanes, all of which come here), and ``size_bytes`` (an int or Int32)
    that asynchronous copies are to bring before the phase completes."""
    known = isinstance(size_bytes, int)
    text = f"mbarrier.arrive.expect_tx.release.cta.shared::cta.b64 _, [{{$r0}}], {size_bytes if known else '{$r1}'};"
    emit(elected(text) if elects else text, (), [barrier, *(() if known else (size_bytes,))])


def wait_parity(barrier: Any, parity: Any) -> None:
    """Wait until the phase of this parity (Int32, 0 for the first) has completed; acquires what it released, in CTA
    scope (see ``arrive_cluster``).

    On a new mbarrier a wait for parity 1, the phase before the first, returns at once.
    """
    emit(
        "{\n.reg .pred complete;\nAGAIN:\n"
        "mbarrier.try_wait.parity.acquire.cta.shared::cta.b64 complete, [{$r0}], {$r1};\n"
        "@complete bra DONE;\nbra AGAIN;\nDONE:\n}",
        (),
        [barrier, parity],
    )
