# SPDX-License-Identifier: Apache-2.0
"""Asynchronous copies from global to shared memory: ``cp.async`` and its groups."""

from __future__ import annotations

from typing import Any

from epifuse_cutedsl.kernels.ptx.asm import at, emit


def cp_async(target: Any, source: Any, size: int, valid: Any, displacement: int = 0, *, predicate: Any = None) -> None:
    """Copy ``size`` (4, 8, 16) bytes, of which the first ``valid`` (Int32) are read and the rest become zero.

    ``valid`` = 0 reads nothing, so ``source`` may be any address then. Where ``predicate`` (Boolean) is false nothing
    is written either.
    """
    guard = "" if predicate is None else "@{$r3} "
    inputs = [target, source, valid] if predicate is None else [target, source, valid, predicate]
    emit(f"{guard}{_operation(size)} {at('{$r0}', displacement)}, [{{$r1}}], {size}, {{$r2}};", (), inputs)


def cp_async_or_zero(target: Any, source: Any, size: int, ignore: Any, displacement: int = 0) -> None:
    """Copy ``size`` bytes, or write zeros and read nothing where ``ignore`` (Boolean) holds.

    A size in a register costs four more instructions than this predicate (the hardware shifts the address by it).
    """
    emit(f"{_operation(size)} {at('{$r0}', displacement)}, [{{$r1}}], {size}, {{$r2}};", (), [target, source, ignore])


def _operation(size: int) -> str:
    return "cp.async.cg.shared.global.L2::128B" if size == 16 else "cp.async.ca.shared.global"


def cp_async_commit_group() -> None:
    """Everything issued since the last commit becomes a group."""
    emit("cp.async.commit_group;")


def cp_async_wait_group(pending: int) -> None:
    """Wait until at most ``pending`` of this thread's groups are under way."""
    emit(f"cp.async.wait_group {pending};")


def cp_async_wait_all() -> None:
    """Wait until none of this thread's copies is under way."""
    emit("cp.async.wait_all;")
