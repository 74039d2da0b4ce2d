# SPDX-License-Identifier: Apache-2.0
"""Clusters of CTAs, and grids that follow one another (PTX ISA, "barrier.cluster", "st.async", "griddepcontrol")."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cutlass import Int32

from epifuse_cutedsl.kernels.ptx.asm import at, braced, emit, vector


def sync() -> None:
    """All threads of the cluster that have not ended meet; what they did before is visible afterwards."""
    emit("barrier.cluster.arrive.release;\nbarrier.cluster.wait.acquire;")


def launch_dependents() -> None:
    """The next grid in the stream may start as soon as SMs are free for it, if it was launched so."""
    emit("griddepcontrol.launch_dependents;")


def wait_for_grids_before() -> None:
    """Wait until the grids before this one in the stream have ended and what they wrote is visible.

    Every CTA calls it, before its first access to global memory: a grid that ends has then waited for all before it.
    """
    emit("griddepcontrol.wait;")


def sync_warp() -> None:
    """All lanes of the warp meet; what they did to memory before is visible to one another afterwards."""
    emit("bar.warp.sync 0xffffffff;")


def address(own: Any, rank: Any) -> Any:
    """Where what lies at the shared address ``own`` (Int32) lies in CTA ``rank`` (an int or Int32): in the cluster's
    shared window."""
    return emit("mapa.shared::cluster.u32 {$w0}, {$r0}, {$r1};", [Int32], [own, Int32(rank)])[0]


def st_async(target: Any, values: Sequence[Any], barrier: Any, displacement: int = 0) -> None:
    """Write 1, 2 or 4 registers of 32 bits, aligned to their total size, to the shared memory of a CTA of the cluster.

    ``target`` and ``barrier`` are addresses in the cluster's shared window, of one CTA; its mbarrier counts the bytes
    when they have come. Like ``st.shared`` it needs no fence after accesses of threads (both use the generic proxy).
    """
    count = len(values)
    emit(
        f"st.async.weak.shared::cluster.mbarrier::complete_tx::bytes{vector(count)}.b32 "
        f"{at('{$r0}', displacement)}, {braced('r', count, 1)}, [{{$r{count + 1}}}];",
        (),
        [target, *values, barrier],
    )
