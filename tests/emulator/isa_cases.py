# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: E501 - PTX instructions stay on their lines
"""Instructions whose results are recorded on a GPU and compared with the emulator: numpy only, PTX for sm_90a."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np
import ptxvalues

ROWS = 256


def _rows(values: np.ndarray) -> np.ndarray:
    return np.resize(values, ROWS)


def _pairs(pair: tuple[np.ndarray, np.ndarray]) -> list[np.ndarray]:
    picks = np.random.default_rng(9).permutation(pair[0].size)
    return [_rows(column[picks]) for column in pair]


def tables() -> dict[str, np.ndarray]:
    """The input columns by name, `ROWS` long; the same on every machine."""
    rng = np.random.default_rng(4)
    found = {
        "f": _rows(ptxvalues.floats(32, 300)),
        "g": np.roll(_rows(ptxvalues.floats(32, 300, 1)), 5),
        "near": np.concatenate((np.linspace(-9, 9, ROWS // 2), rng.standard_normal(ROWS // 2))).astype(np.float32),
        "angle": np.linspace(-np.pi, np.pi, ROWS).astype(np.float32),
        "positive": np.exp(np.linspace(-40, 40, ROWS)).astype(np.float32),
        "wide": _rows(ptxvalues.floats(64, 300)),
        "halves": rng.integers(0, 1 << 32, ROWS, np.uint32),
        "other": rng.integers(0, 1 << 32, ROWS, np.uint32),
        "third": rng.integers(0, 1 << 32, ROWS, np.uint32),
        "ones": (0x3C003C00 + rng.integers(0, 0x400, ROWS) * 0x10001).astype(np.uint32),
        "i64": _rows(ptxvalues.integers(64, 300)),
        "bits": rng.integers(0, 70, ROWS, np.uint32),
        "length": rng.integers(0, 40, ROWS, np.uint32),
        "few": rng.integers(0, 4, ROWS, np.uint32),
    }
    found["i"], found["j"] = _pairs(ptxvalues.integer_pairs(32, 300))
    found["f1"], found["f2"] = _pairs(ptxvalues.float_pairs(32, 600))
    found["d1"], found["d2"] = _pairs(ptxvalues.float_pairs(64, 600))
    return found


@dataclasses.dataclass(frozen=True)
class Case:
    """One column kernel. `bound` is the allowed error relative to the larger of the result and `floor`; 0 is exact.

    `floats` says how the outputs are read when they are compared: "" as bits, else a numpy type (all NaN are one).
    """

    name: str
    code: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    floats: str = ""
    bound: float = 0.0
    floor: float = 0.0
    shared: int = 0


def _simple(text: str, out: str, *inputs: str, floats: str = "", bound: float = 0.0, floor: float = 0.0) -> Case:
    listed = ", ".join(f"%i{index}" for index in range(len(inputs)))
    return Case(text, f"{text} %o0, {listed};", inputs, (out,), floats, bound, floor)


def _conversions() -> list[Case]:
    found = []
    for flags in ("rn", "rz", "rn.relu", "rz.relu"):
        for name in ("f16", "bf16"):
            found.append(_simple(f"cvt.{flags}.{name}.f32", "b16", "f", floats="f16" if name == "f16" else "bf16"))
            found.append(_simple(f"cvt.{flags}.{name}x2.f32", "b32", "f", "g"))
    found += [
        _simple(f"cvt.rn.satfinite{relu}.{kind}x2.f32", "b16", "f", "g")
        for relu in ("", ".relu")
        for kind in ("e4m3", "e5m2")
    ]
    found += [
        Case(f"cvt.rn.f16x2.{kind}x2", f"cvt.u16.u32 %h1, %i0;\ncvt.rn.f16x2.{kind}x2 %o0, %h1;", ("halves",), ("b32",))
        for kind in ("e4m3", "e5m2")
    ]
    found.append(_simple("cvt.rna.tf32.f32", "b32", "f", floats="f32"))
    for mode in ("rni", "rzi", "rmi", "rpi"):
        found += [
            _simple(f"cvt.{mode}.{kind}.f32", f"b{kind[1:]}", "f")
            for kind in ("s32", "u32", "s64", "u64", "s16", "u16")
        ]
        found += [_simple(f"cvt.{mode}.{kind}.f64", f"b{kind[1:]}", "wide") for kind in ("s32", "s64")]
        found.append(_simple(f"cvt.{mode}.f32.f32", "b32", "f", floats="f32"))
    found += [
        _simple(f"cvt.{mode}.f32.{kind}", "b32", "i64" if "64" in kind else "i", floats="f32")
        for mode in ("rn", "rz", "rm", "rp")
        for kind in ("s32", "u32", "s64", "u64")
    ]
    found += [_simple(f"cvt.{mode}.f32.f64", "b32", "wide", floats="f32") for mode in ("rn", "rz", "rm", "rp")]
    found += [_simple(f"cvt.rzi.{kind}.f32", "b16", "f") for kind in ("s8", "u8")]
    found += [_simple(f"cvt.sat.{kind}.s32", "b16", "i") for kind in ("s8", "u8", "s16", "u16")]
    found += [
        _simple("cvt.sat.f32.f32", "b32", "f", floats="f32"),
        _simple("cvt.rn.f16.f64", "b16", "wide", floats="f16"),
    ]
    return found


def _floating() -> list[Case]:
    found = []
    for mode in ("rn", "rz", "rm", "rp"):
        found += [_simple(f"{name}.{mode}.f32", "b32", "f1", "f2", floats="f32") for name in ("add", "mul", "div")]
        found.append(_simple(f"fma.{mode}.f32", "b32", "f1", "f2", "g", floats="f32"))
    found += [_simple(f"{name}.rn.f64", "b64", "d1", "d2", floats="f64") for name in ("add", "mul", "div")]
    found.append(_simple("fma.rn.f64", "b64", "d1", "d2", "wide", floats="f64"))
    found += [_simple(f"{name}.ftz.f32", "b32", "f1", "f2", floats="f32") for name in ("add", "mul")]
    found += [
        _simple(f"{name}{nan}.f32", "b32", "f1", "f2", floats="f32") for name in ("min", "max") for nan in ("", ".NaN")
    ]
    found += [
        _simple("copysign.f32", "b32", "f1", "f2"),
        _simple("fma.rn.sat.f32", "b32", "f1", "f2", "g", floats="f32"),
    ]
    for kind in ("f16", "bf16"):
        found += [_simple(f"{name}.rn.{kind}x2", "b32", "halves", "other", floats=kind) for name in ("add", "mul")]
        found.append(_simple(f"fma.rn.{kind}x2", "b32", "halves", "other", "ones", floats=kind))
        found.append(_simple(f"fma.rn.relu.{kind}x2", "b32", "halves", "other", "ones", floats=kind))
        found += [
            _simple(f"{name}{nan}.{kind}x2", "b32", "halves", "other", floats=kind)
            for name in ("min", "max")
            for nan in ("", ".NaN")
        ]
    ulp = 2.0**-23
    normal = 2.0**-126
    found += [
        _simple("rcp.approx.f32", "b32", "f", floats="f32", bound=2 * ulp, floor=normal),
        _simple("rcp.rn.f32", "b32", "f", floats="f32"),
        _simple("sqrt.rn.f32", "b32", "f", floats="f32"),
        _simple("sqrt.approx.f32", "b32", "f", floats="f32", bound=2 * ulp, floor=normal),
        _simple("rsqrt.approx.f32", "b32", "f", floats="f32", bound=3 * ulp, floor=normal),
        _simple("ex2.approx.f32", "b32", "near", floats="f32", bound=3 * ulp),
        _simple("ex2.approx.ftz.f32", "b32", "f", floats="f32", bound=3 * ulp, floor=normal),
        _simple("lg2.approx.f32", "b32", "positive", floats="f32", bound=2.0**-21.5, floor=1.0),
        _simple("lg2.approx.f32 special", "b32", "f", floats="f32", bound=2.0**-21.5, floor=1.0),
        _simple("tanh.approx.f32", "b32", "near", floats="f32", bound=2.0**-10.9),
        _simple("sin.approx.f32", "b32", "angle", floats="f32", bound=2.0**-20.4, floor=1.0),
        _simple("cos.approx.f32", "b32", "angle", floats="f32", bound=2.0**-20.4, floor=1.0),
        _simple("div.full.f32", "b32", "near", "angle", floats="f32", bound=3 * ulp),
        _simple("div.approx.f32", "b32", "near", "angle", floats="f32", bound=3 * ulp),
        _simple("ex2.approx.f16x2", "b32", "ones", floats="f16", bound=2.0**-9),
        _simple("tanh.approx.f16x2", "b32", "halves", floats="f16", bound=2.0**-9.9, floor=2.0**-14),
        _simple("tanh.approx.bf16x2", "b32", "halves", floats="bf16", bound=2.0**-6.9, floor=2.0**-100),
    ]
    return [dataclasses.replace(case, code=case.code.replace(" special", "")) for case in found]


def _integer() -> list[Case]:
    found = [_simple(f"{name}.{kind}", "b32", "i", "j") for name in ("mul.hi", "min", "max") for kind in ("u32", "s32")]
    # Division by zero gives an unspecified value.
    odd = "or.b32 %r1, %i1, 1;\n"
    found += [
        Case(f"{name}.{kind} odd", f"{odd}{name}.{kind} %o0, %i0, %r1;", ("i", "j"), ("b32",))
        for name in ("div", "rem")
        for kind in ("u32", "s32")
    ]
    found += [_simple(f"{name}.b32", "b32", "i") for name in ("popc", "clz", "brev")]
    found += [_simple(f"bfind{form}.{kind}", "b32", "i") for form in ("", ".shiftamt") for kind in ("u32", "s32")]
    found += [_simple(f"bfe.{kind}", "b32", "i", "bits", "length") for kind in ("u32", "s32")]
    found += [_simple("bfi.b32", "b32", "i", "j", "bits", "length")]
    found += [
        _simple(f"shf.{mode}.b32", "b32", "i", "j", "bits") for mode in ("l.wrap", "l.clamp", "r.wrap", "r.clamp")
    ]
    found += [_simple(f"{name}", "b32", "i", "bits") for name in ("shl.b32", "shr.u32", "shr.s32")]
    found += [
        _simple(f"prmt.b32{mode}", "b32", "halves", "other", "few")
        for mode in ("", ".f4e", ".b4e", ".rc8", ".ecl", ".ecr", ".rc16")
    ]
    found += [
        _simple("prmt.b32 any", "b32", "halves", "other", "third"),
        _simple("dp4a.s32.u32", "b32", "i", "j", "third"),
    ]
    found += [_simple(f"sad.{kind}", "b32", "i", "j", "third") for kind in ("u32", "s32")]
    carry = "add.cc.u32 %o0, %i0, %i1;\naddc.u32 %o1, %i0, 0;\nsub.cc.u32 %o2, %i0, %i1;\nsubc.u32 %o3, %i0, 0;"
    found.append(Case("carries", carry, ("i", "j"), ("b32",) * 4))
    found += [Case("lop3", "lop3.b32 %o0, %i0, %i1, %i2, 0x1B;", ("halves", "other", "third"), ("b32",))]
    return [dataclasses.replace(case, code=case.code.replace(" any", "")) for case in found]


def _warp() -> list[Case]:
    found = []
    for mode in ("up", "down", "bfly", "idx"):
        for width in (32, 8):
            clamp = (32 - width) << 8 | (0 if mode == "up" else 31)
            code = f"shfl.sync.{mode}.b32 %o0|%p1, %i0, %i1, {clamp}, -1;\nselp.u32 %o1, 1, 0, %p1;"
            found.append(Case(f"shfl.{mode}.{width}", code, ("halves", "bits"), ("b32", "b32")))
    found += [
        Case(f"redux.{name}", f"redux.sync.{name} %o0, %i0, -1;", ("i",), ("b32",))
        for name in ("add.s32", "min.s32", "max.u32", "xor.b32")
    ]
    found.append(Case("match", "match.any.sync.b32 %o0, %i0, -1;", ("few",), ("b32",)))
    ballot = "setp.lt.s32 %p1, %i0, %i1;\nvote.sync.ballot.b32 %o0, %p1, -1;"
    found.append(Case("ballot", ballot, ("i", "j"), ("b32",)))
    for name in ("eq", "ne", "lt", "le", "gt", "ge", "equ", "neu", "ltu", "leu", "gtu", "geu", "num", "nan"):
        found.append(
            Case(f"setp.{name}", f"setp.{name}.f32 %p1, %i0, %i1;\nselp.u32 %o0, 1, 0, %p1;", ("f1", "f2"), ("b32",))
        )
    place = "mov.u32 %r1, smem; mad.lo.u32 %r2, %r252, 16, %r1; xor.b32 %r3, %r252, 1; mad.lo.u32 %r3, %r3, 16, %r1;\n"
    put = "st.shared.v4.u32 [%r2], {%i0, %i1, %i2, %i3}; bar.sync 0;\n"
    four = ("halves", "other", "third", "i")
    for trans in ("", ".trans"):
        code = place + put + f"ldmatrix.sync.aligned.m8n8.x4{trans}.shared.b16 {{%o0, %o1, %o2, %o3}}, [%r3];"
        found.append(Case(f"ldmatrix{trans}", code, four, ("b32",) * 4, shared=2048))
        code = place + f"stmatrix.sync.aligned.m8n8.x4{trans}.shared.b16 [%r3], {{%i0, %i1, %i2, %i3}}; bar.sync 0;\n"
        code += "ld.shared.v4.u32 {%o0, %o1, %o2, %o3}, [%r2];"
        found.append(Case(f"stmatrix{trans}", code, four, ("b32",) * 4, shared=2048))
    outs, a, b = "{%o0, %o1, %o2, %o3}", "{%i0, %i1, %i2, %i3}", "{%i1, %i2}"
    start = "mov.b32 %o0, 0; mov.b32 %o1, 0; mov.b32 %o2, 0; mov.b32 %o3, 0;\n"
    for kind in ("s8.s8", "u8.s8"):
        code = start + f"mma.sync.aligned.m16n8k32.row.col.s32.{kind}.s32 {outs}, {a}, {b}, {outs};"
        found.append(Case(f"mma.{kind}", code, four, ("b32",) * 4))
    # Halves of 1 or 0, 2 or 0, 1 or 0, -1 or 0: sums are exact.
    small = "\n".join(
        f"and.b32 %r{5 + i}, %i{i}, 0x00010001; mul.lo.u32 %r{1 + i}, %r{5 + i}, {code};"
        for i, code in enumerate((0x3C00, 0x4000, 0x3C00, 0xBC00))
    )
    for shape, left in (("m16n8k16", "{%r1, %r2, %r3, %r4}, {%r2, %r1}"), ("m16n8k8", "{%r1, %r2}, {%r4}")):
        code = start + small + f"mma.sync.aligned.{shape}.row.col.f32.f16.f16.f32 {outs}, {left}, {outs};"
        found.append(Case(f"mma.{shape} whole", code, four, ("b32",) * 4, "f32"))
    return found


def cases() -> Sequence[Case]:
    """Every case; names are unique."""
    return [*_conversions(), *_floating(), *_integer(), *_warp()]
