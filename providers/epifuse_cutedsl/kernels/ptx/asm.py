# SPDX-License-Identifier: Apache-2.0
"""``emit``: one inline PTX statement, with a tuple of results whatever their number."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cutlass.cute import arch


def emit(text: str, outputs: Sequence[Any] = (), inputs: Sequence[Any] = ()) -> tuple[Any, ...]:
    """The results of ``text``, in which ``{$w0}``... are outputs of the given types and ``{$r0}``... the inputs."""
    results = arch.inline_ptx(text, write_only_types=list(outputs), read_only_args=list(inputs))
    if not outputs:
        return ()
    return results if len(outputs) > 1 else (results,)


def elected(text: str) -> str:
    """``text``, one instruction, done by one lane of a warp, always the same one; all lanes come here (PTX ISA,
    "elect.sync"). The assembler needs no branch for it, nor a loop over lanes round tensor copies."""
    return f"{{\n.reg .pred mine;\nelect.sync _|mine, 0xffffffff;\n@mine {text}\n}}"


def braced(prefix: str, count: int, first: int = 0) -> str:
    """``{{$r0}, {$r1}}`` for a vector operand of several registers, ``{$r0}`` for one of one."""
    names = ", ".join(f"{{${prefix}{first + i}}}" for i in range(count))
    return f"{{{names}}}" if count > 1 else names


def at(register: str, displacement: int) -> str:
    """``[register+displacement]``."""
    return f"[{register}{displacement:+d}]" if displacement else f"[{register}]"


def vector(count: int) -> str:
    """The suffix of an access of ``count`` elements: "", ".v2" or ".v4"."""
    return f".v{count}" if count > 1 else ""
