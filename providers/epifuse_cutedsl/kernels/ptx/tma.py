# SPDX-License-Identifier: Apache-2.0
"""Tensor copies between global and shared memory (PTX ISA, "cp.async.bulk.tensor" and "prefetch.tensormap")."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cutlass import Int64

from epifuse_cutedsl.kernels.ptx.asm import braced, elected, emit


def prefetch_tensormap(tensor_map: Any) -> None:
    """Bring a tensor map (its generic address, Int64) into the descriptor cache."""
    emit("prefetch.tensormap [{$r0}];", (), [tensor_map])


def load(
    target: Any,
    tensor_map: Any,
    coordinates: Sequence[Any],
    barrier: Any,
    ctas: int = 1,
    *,
    ranks: Any = None,
    pair: bool = False,
    policy: Any = None,
    elects: bool = False,
) -> None:
    """Copy the box at ``coordinates`` (Int32, innermost dimension first) to the shared address ``target``.

    The mbarrier counts its bytes when they have come. What lies outside of the tensor becomes zero and counts too.
    With several ``ctas``, the box goes to the same address in each of the cluster's CTAs of ranks below that number, or
    in each of those in the mask ``ranks`` (Int32); and each one's mbarrier counts. ``pair``: the mbarrier may be that
    of the other CTA of a pair (``.cta_group::2``), and of each pair's CTAs the one of that parity counts. ``policy``:
    how long the second-level cache keeps what is read (of ``eviction``). ``elects``: as in ``store``.
    """
    rank = len(coordinates)
    several = ctas > 1 or ranks is not None
    to = (".multicast::cluster" if several else "") + (".cta_group::2" if pair else "")
    to += ".L2::cache_hint" if policy is not None else ""
    operands = [target, tensor_map, barrier, *coordinates, *(() if ranks is None else (ranks,))]
    hint = "" if policy is None else f", {{$r{len(operands)}}}"
    text = (
        f"cp.async.bulk.tensor.{rank}d.shared::cluster.global.mbarrier::complete_tx::bytes{to} "
        f"[{{$r0}}], [{{$r1}}, {braced('r', rank, 3)}], [{{$r2}}]{', ranks' if several else ''}{hint};"
    )
    if elects:
        text = elected(text)
    if several:
        made = f"mov.b16 ranks, {(1 << ctas) - 1};" if ranks is None else f"cvt.u16.u32 ranks, {{$r{3 + rank}}};"
        text = f"{{\n.reg .b16 ranks;\n{made}\n{text}\n}}"
    emit(text, (), [*operands, *(() if policy is None else (policy,))])


def prefetch(tensor_map: Any, coordinates: Sequence[Any], *, elects: bool = False) -> None:
    """Bring the box at ``coordinates`` (as in ``load``) into the second-level cache (PTX ISA,
    "cp.async.bulk.prefetch.tensor").

    Nothing is read by it: it may stand before a wait for those who write the tensor. ``elects``: as in ``store``.
    """
    rank = len(coordinates)
    text = f"cp.async.bulk.prefetch.tensor.{rank}d.L2.global [{{$r0}}, {braced('r', rank, 1)}];"
    emit(elected(text) if elects else text, (), [tensor_map, *coordinates])


def eviction(priority: str) -> Any:
    """A policy (Int64) of the second-level cache: ``evict_first``, ``evict_normal`` or ``evict_last`` (PTX ISA,
    "createpolicy")."""
    return emit(f"createpolicy.fractional.L2::{priority}.b64 {{$w0}}, 1.0;", [Int64])[0]


def store(tensor_map: Any, coordinates: Sequence[Any], source: Any, *, elects: bool = False) -> None:
    """Copy the box at the shared address ``source`` to ``coordinates``, as part of the thread's bulk group.

    What lies outside of the tensor is left out. ``elects``: all lanes of a warp come here, and one of them, always the
    same, makes the copy (PTX ISA, "elect.sync"): the assembler then needs no branch for it, nor a loop over lanes.
    """
    rank = len(coordinates)
    text = f"cp.async.bulk.tensor.{rank}d.global.shared::cta.bulk_group [{{$r0}}, {braced('r', rank, 2)}], [{{$r1}}];"
    if elects:
        text = elected(text)
    emit(text, (), [tensor_map, source, *coordinates])


def commit_group() -> None:
    """All of this thread's ``store``s since the last commit become a bulk group."""
    emit("cp.async.bulk.commit_group;")


def wait_group_read(pending: int) -> None:
    """Wait until all of this thread's bulk groups but the last ``pending`` have read their shared memory."""
    emit(f"cp.async.bulk.wait_group.read {pending};")


def fence_async_shared() -> None:
    """Order this thread's accesses to shared memory before those of copies that are issued later (``fence.proxy``)."""
    emit("fence.proxy.async.shared::cta;")
