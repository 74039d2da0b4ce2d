# SPDX-License-Identifier: Apache-2.0
"""Global memory. Addresses are bytes (Int64); a load whose predicate is false gives zero and reads nothing.

Without a predicate (None) nothing is asked, and nothing zeroed before.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cutlass import Int32, Int64

from epifuse_cutedsl.kernels.ptx.asm import at, braced, emit, vector

_LOCAL = {1: "b16", 2: "b16", 4: "b32", 8: "b64"}


def ld_global_bits(address: Any, size: int, predicate: Any, displacement: int = 0) -> Any:
    """One element of ``size`` bytes, widened with zeros: an Int32 (1, 2, 4 bytes) or an Int64 (8)."""
    local = _LOCAL[size]
    kind = {1: "u8", 2: "u16", 4: "b32", 8: "b64"}[size]
    widen = "cvt.u32.u16" if size < 4 else f"mov.{local}"
    load = f"ld.global.{kind} t, {at('{$r0}', displacement)};\n{widen} {{$w0}}, t;\n}}"
    text = f"{{\n.reg .{local} t;\n{_guard(local, ['t'], predicate)}{load}"
    return emit(text, [Int64 if size == 8 else Int32], _with(address, predicate))[0]


def ld_global_words(address: Any, count: int, predicate: Any, displacement: int = 0) -> tuple[Any, ...]:
    """``count`` (1, 2, 4) 32-bit words as Int32, aligned to their total size."""
    words = [f"t{i}" for i in range(count)]
    operand = f"{{{', '.join(words)}}}" if count > 1 else words[0]
    load = f"{_guard('b32', words, predicate)}ld.global{vector(count)}.b32 {operand}, {at('{$r0}', displacement)};"
    lines = [f".reg .b32 {', '.join(words)};", load]
    lines += [f"mov.b32 {{$w{i}}}, {word};" for i, word in enumerate(words)]
    return emit("{\n" + "\n".join(lines) + "\n}", [Int32] * count, _with(address, predicate))


def _guard(kind: str, registers: Sequence[str], predicate: Any) -> str:
    """Before a load: its registers are zero, where the predicate does not hold."""
    if predicate is None:
        return ""
    return "".join(f"mov.{kind} {register}, 0;\n" for register in registers) + "@{$r1} "


def _with(address: Any, predicate: Any) -> list[Any]:
    return [address] if predicate is None else [address, predicate]


def st_global_words(address: Any, values: Any, predicate: Any, displacement: int = 0) -> None:
    """Write 1, 2 or 4 32-bit words, aligned to their total size, where the predicate holds."""
    values = list(values)
    text = f"@{{$r1}} st.global{vector(len(values))}.b32 {at('{$r0}', displacement)}, {braced('r', len(values), 2)};"
    emit(text, (), [address, predicate, *values])


def st_global_bits(address: Any, value: Any, size: int, predicate: Any, displacement: int = 0) -> None:
    """Write the low ``size`` (1, 2, 4) bytes of an Int32, or an Int64 (8), where the predicate holds."""
    target = at("{$r0}", displacement)
    if size < 4:
        kind = {1: "u8", 2: "u16"}[size]
        emit(
            f"{{\n.reg .b16 t;\ncvt.u16.u32 t, {{$r2}};\n@{{$r1}} st.global.{kind} {target}, t;\n}}",
            (),
            [address, predicate, value],
        )
    else:
        emit(f"@{{$r1}} st.global.b{8 * size} {target}, {{$r2}};", (), [address, predicate, value])
