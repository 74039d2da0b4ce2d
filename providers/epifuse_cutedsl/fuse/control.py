# SPDX-License-Identifier: Apache-2.0
"""Branches and loops on the device around plain Python closures."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import cutlass
from cutlass import cute


@cute.jit
def when(condition: Any, body: Callable[[], None]) -> None:
    """Run ``body`` where the condition holds; it may change no scalar that is used afterwards."""
    if condition:
        body()


@cute.jit
def either(condition: Any, first: Callable[[], None], second: Callable[[], None]) -> None:
    """Run ``first`` where the condition holds, else ``second``; they may change no scalar that is used afterwards."""
    if condition:
        first()
    else:
        second()


@cute.jit
def choose(condition: Any, first: Callable[[], Any], second: Callable[[], Any], before: Any) -> Any:
    """What ``first`` gives where the condition holds, else what ``second`` gives: both as many scalars, of the same
    types, as ``before``."""
    found = before
    if condition:  # noqa: SIM108 - a branch on the device, which an expression is not
        found = first()
    else:
        found = second()
    return found


@cute.jit
def fold_range(first: Any, end: Any, step: Any, body: Callable[[Any, Any], Any], value: Any) -> Any:
    """``value = body(i, value)`` for i from ``first`` to ``end`` by ``step``; four bodies at a time, so that their
    loads overlap."""
    for i in cutlass.range(first, end, step, unroll=4):
        value = body(i, value)
    return value
