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
def fold_range(first: Any, end: Any, step: Any, body: Callable[[Any, Any], Any], value: Any) -> Any:
    """``value = body(i, value)`` for i from ``first`` to ``end`` by ``step``; four bodies at a time, so that their
    loads overlap."""
    for i in cutlass.range(first, end, step, unroll=4):
        value = body(i, value)
    return value
