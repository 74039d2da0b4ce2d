# SPDX-License-Identifier: Apache-2.0
"""The primitives that the engine emits, and how: a table that needs no compiler, so that ``supports`` can ask it."""

from __future__ import annotations

import math
from typing import TypeAlias

from epifuse.records import NamedTuple


class Operator(NamedTuple):
    """An operator of the DSL's scalars (``operator.<name>``)."""

    name: str


class Instruction(NamedTuple):
    """One PTX instruction by the operands' dtype; None where inference never asks for it."""

    f32: str | None
    f64: str | None
    s32: str | None


class Library(NamedTuple):
    """A function of the DSL's mathematics library in its accurate form (at most 2 units in float32)."""

    name: str


class Own(NamedTuple):
    """Code of its own: a function ``emit_<primitive>`` of ``fuse.compute``, or a method of the driver's."""


Form: TypeAlias = Operator | Instruction | Library | Own

PRIMITIVES: dict[str, Form] = {
    "add": Operator("add"),
    "sub": Operator("sub"),
    "mul": Operator("mul"),
    "div": Operator("truediv"),
    "neg": Operator("neg"),
    "multiply_add": Instruction("fma.rn.f32", "fma.rn.f64", "mad.lo.s32"),
    "minimum": Own(),
    "maximum": Own(),
    "abs": Instruction("abs.f32", "abs.f64", "abs.s32"),
    "floor": Instruction("cvt.rmi.f32.f32", "cvt.rmi.f64.f64", "mov.b32"),
    "sqrt": Own(),
    "reciprocal": Own(),
    "rsqrt": Library("rsqrt"),
    "exp": Library("exp"),
    "exp2": Library("exp2"),
    "log": Library("log"),
    "log2": Library("log2"),
    "sin": Library("sin"),
    "cos": Library("cos"),
    "tanh": Library("tanh"),
    "erf": Library("erf"),
    "ndtr": Own(),
    "less": Operator("lt"),
    "less_equal": Operator("le"),
    "greater": Operator("gt"),
    "greater_equal": Operator("ge"),
    "equal": Operator("eq"),
    "not_equal": Operator("ne"),
    "where": Own(),
    "cast": Own(),
    "even_columns": Own(),
    "odd_columns": Own(),
}
"""Form by primitive. A test holds the keys against the vocabulary."""


class Short(NamedTuple):
    """One approximate instruction of float32, its operand multiplied by ``scale`` before. ``.ftz`` may be put in.

    ``squared``: where subnormal results count, it is a power, flushed, of half the operand, squared. That is two
    instructions and a predicate fewer than its own scaling, but inexact for odd powers of 2.
    """

    instruction: str
    scale: float = 1.0
    squared: bool = False

    def text(self, flushed: bool) -> str:
        """The instruction; ``flushed``: a subnormal operand or result becomes zero, which saves the scaling of both."""
        return self.instruction.replace(".approx.", ".approx.ftz.") if flushed else self.instruction


class OwnShort(NamedTuple):
    """A function of ``fuse.short``; ``scales``: it takes ``flushed``, as subnormal operands cost it instructions."""

    scales: bool = False


SHORT: dict[str, Short | OwnShort] = {
    "exp": Short("ex2.approx.f32", math.log2(math.e), squared=True),
    "exp2": Short("ex2.approx.f32"),
    "reciprocal": Short("rcp.approx.f32"),
    "rsqrt": Short("rsqrt.approx.f32"),
    "log": OwnShort(scales=True),
    "log2": OwnShort(scales=True),
    "sqrt": OwnShort(scales=True),
    "div": OwnShort(scales=True),
    "tanh": OwnShort(),
    "ndtr": OwnShort(),
    "ndtr_product": OwnShort(),
    "ndtr_product_beside_wgmma": OwnShort(),
}
"""Shorter forms of float32, for outputs of 16 bits, by primitive or ``Way.form``: relative error at most 2^-18 (2^-17
for ``exp`` far from 0), or what their functions state."""
