# SPDX-License-Identifier: Apache-2.0
"""Shared memory: ``ld.shared``, ``st.shared`` and ``ldmatrix``. Addresses are bytes in the shared window (Int32)."""

from __future__ import annotations

from typing import Any

from cutlass import Float32, Float64, Int32, Int64

from epifuse_cutedsl.kernels.ptx.asm import at, braced, emit, vector

_TYPES = {"b32": Int32, "b64": Int64, "f32": Float32, "f64": Float64, "s32": Int32}


def ld_shared(address: Any, displacement: int = 0, *, kind: str = "b32", count: int = 1) -> tuple[Any, ...]:
    """``count`` (1, 2, 4) registers of ``kind`` (b32, b64, f32, f64, s32), aligned to their total size."""
    text = f"ld.shared{vector(count)}.{kind} {braced('w', count)}, {at('{$r0}', displacement)};"
    return emit(text, [_TYPES[kind]] * count, [address])


def ld_shared_bits(address: Any, size_bytes: int, displacement: int = 0) -> Any:
    """One or two bytes, widened with zeros to an Int32."""
    kind = f"u{8 * size_bytes}"
    text = f"{{\n.reg .b16 h;\nld.shared.{kind} h, {at('{$r0}', displacement)};\ncvt.u32.u16 {{$w0}}, h;\n}}"
    return emit(text, [Int32], [address])[0]


def st_shared_bits(address: Any, word: Any, size_bytes: int, displacement: int = 0) -> None:
    """Write the lowest one or two bytes of a word."""
    kind = f"b{8 * size_bytes}"
    text = f"{{\n.reg .b16 h;\ncvt.u16.u32 h, {{$r1}};\nst.shared.{kind} {at('{$r0}', displacement)}, h;\n}}"
    emit(text, (), [address, word])


def ld_shared_f16x2(address: Any, displacement: int = 0, *, count: int = 1) -> tuple[Any, ...]:
    """``2 * count`` float16 elements from ``count`` (1, 2, 4) words, widened to Float32."""
    words = [f"w{i}" for i in range(count)]
    operand = f"{{{', '.join(words)}}}" if count > 1 else words[0]
    lines = [
        ".reg .b16 l, h;",
        f".reg .b32 {', '.join(words)};",
        f"ld.shared{vector(count)}.b32 {operand}, {at('{$r0}', displacement)};",
    ]
    for index, word in enumerate(words):
        lines.append(f"mov.b32 {{l, h}}, {word};")
        lines += [f"cvt.f32.f16 {{$w{2 * index}}}, l;", f"cvt.f32.f16 {{$w{2 * index + 1}}}, h;"]
    return emit("{\n" + "\n".join(lines) + "\n}", [Float32] * (2 * count), [address])


def st_shared(address: Any, values: Any, displacement: int = 0, *, kind: str = "b32", predicate: Any = None) -> None:
    """Write 1, 2 or 4 registers of ``kind`` (b32, b64), aligned to their total size, where the predicate holds."""
    values = list(values)
    guard = "" if predicate is None else f"@{{$r{len(values) + 1}}} "
    text = f"{guard}st.shared{vector(len(values))}.{kind} {at('{$r0}', displacement)}, {braced('r', len(values), 1)};"
    emit(text, (), [address, *values] if predicate is None else [address, *values, predicate])


def st_shared_halves(address: Any, word: Any, displacements: tuple[int, int]) -> None:
    """Write the low half of a word at one displacement and its high half at another."""
    text = (
        "{\n.reg .b16 l, h;\nmov.b32 {l, h}, {$r1};\n"
        f"st.shared.b16 {at('{$r0}', displacements[0])}, l;\nst.shared.b16 {at('{$r0}', displacements[1])}, h;\n}}"
    )
    emit(text, (), [address, word])


def ldmatrix(address: Any, displacement: int = 0, *, count: int = 4, transposed: bool = False) -> tuple[Any, ...]:
    """``ldmatrix.sync.aligned.m8n8.xN[.trans].shared.b16``: 2 or 4 registers, 16-byte rows at the lanes' addresses."""
    trans = ".trans" if transposed else ""
    operands = f"{braced('w', count)}, {at('{$r0}', displacement)}"
    return emit(f"ldmatrix.sync.aligned.m8n8.x{count}{trans}.shared.b16 {operands};", [Int32] * count, [address])


def ld_shared_f16(address: Any, displacement: int = 0) -> tuple[Any, ...]:
    """One float16 element, widened to Float32."""
    text = f"{{\n.reg .b16 h;\nld.shared.b16 h, {at('{$r0}', displacement)};\ncvt.f32.f16 {{$w0}}, h;\n}}"
    return emit(text, [Float32], [address])


def stmatrix(address: Any, words: Any, displacement: int = 0) -> None:
    """``stmatrix.sync.aligned.m8n8.xN.shared.b16`` (sm_90): 1, 2 or 4 registers to 16-byte rows at lanes' addresses."""
    words = list(words)
    operands = f"{at('{$r0}', displacement)}, {braced('r', len(words), 1)}"
    emit(f"stmatrix.sync.aligned.m8n8.x{len(words)}.shared.b16 {operands};", (), [address, *words])
