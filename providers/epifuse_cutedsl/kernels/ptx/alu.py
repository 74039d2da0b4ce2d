# SPDX-License-Identifier: Apache-2.0
"""Arithmetic on registers of bits: ``mov``, ``prmt``, ``add``, ``fma``, ``cvt``."""

from __future__ import annotations

from typing import Any

from cutlass import Int32, Int64

from epifuse_cutedsl.kernels.ptx.asm import emit


def zero(bits: int = 32) -> Any:
    """A register of zeros that the compiler does not fold: vector operands of PTX take no immediate."""
    return emit(f"mov.b{bits} {{$w0}}, 0;", [Int64 if bits == 64 else Int32])[0]


def computed_here(value: Any) -> Any:
    """The Int32 again; compilers then do not put off what it is computed from to where it is used."""
    return emit("mov.b32 {$w0}, {$r0};", [Int32], [value])[0]


def mul_hi(a: Any, b: Any) -> Any:
    """The upper 32 bits of the product of two words without signs (Int32)."""
    return emit("mul.hi.u32 {$w0}, {$r0}, {$r1};", [Int32], [Int32(a), Int32(b)])[0]


def prmt(low: Any, high: Any, selector: int) -> Any:
    """``prmt.b32``: four bytes picked of eight; a hexadecimal digit of the selector, lowest first, names each."""
    return emit(f"prmt.b32 {{$w0}}, {{$r0}}, {{$r1}}, {selector:#06x};", [Int32], [low, high])[0]


def add_f32(a: Any, b: Any) -> Any:
    """``add.rn.f32`` on bits."""
    return add("float32", a, b)


def add(dtype: str, a: Any, b: Any) -> Any:
    """The sum of two float32 (as bits) or int32 values: ``add.rn.f32``, ``add.s32``."""
    form = {"float32": "add.rn.f32", "int32": "add.s32"}[dtype]
    return emit(f"{form} {{$w0}}, {{$r0}}, {{$r1}};", [Int32], [a, b])[0]


def widen_f16x2(word: Any) -> tuple[Any, ...]:
    """The two float16 of a word, low one first, as float32 bits."""
    text = "{\n.reg .b16 l, h;\nmov.b32 {l, h}, {$r0};\ncvt.f32.f16 {$w0}, l;\ncvt.f32.f16 {$w1}, h;\n}"
    return emit(text, [Int32, Int32], [word])


def fma_f32(a: Any, b: Any, c: Any) -> Any:
    """``fma.rn.f32`` on bits."""
    return emit("fma.rn.f32 {$w0}, {$r0}, {$r1}, {$r2};", [Int32], [a, b, c])[0]


def fma_f64(a: Any, b: Any, c: Any) -> Any:
    """``fma.rn.f64`` on bits."""
    return emit("fma.rn.f64 {$w0}, {$r0}, {$r1}, {$r2};", [Int64], [a, b, c])[0]


def cvt_rna_tf32(x: Any) -> Any:
    """``cvt.rna.tf32.f32``: float32 bits with 10 explicit mantissa bits, ties away from zero."""
    return emit("cvt.rna.tf32.f32 {$w0}, {$r0};", [Int32], [x])[0]


def and_b32(x: Any, mask: int) -> Any:
    """``and.b32``, of which the compiler does not know that the result is at most ``mask``: it would fold comparisons
    with it, and inline PTX takes no constant for a predicate."""
    return emit(f"and.b32 {{$w0}}, {{$r0}}, {mask};", [Int32], [x])[0]
