# SPDX-License-Identifier: Apache-2.0
"""The instructions, one file per chapter of the PTX ISA; INSTRUCTIONS finds the chapter by opcode."""

from __future__ import annotations

from ..builder import Builder, Handler, Step
from ..syntax import Instruction
from . import (
    atomics,
    comparison,
    conversion,
    copies,
    extended,
    floating,
    half,
    integer,
    launch_control,
    loads,
    logic,
    matrix,
    mbarrier,
    movement,
    synchronisation,
    tcgen05,
    wgmma,
)

_BY_TYPE: dict[str, tuple[Handler | None, Handler | None, Handler | None]] = {
    "add": (integer.binary, floating.arithmetic, half.arithmetic),
    "sub": (integer.binary, floating.arithmetic, half.arithmetic),
    "mul": (integer.binary, floating.arithmetic, half.arithmetic),
    "mad": (integer.mad, floating.arithmetic, None),
    "fma": (None, floating.arithmetic, half.arithmetic),
    "div": (integer.binary, floating.arithmetic, None),
    "min": (integer.binary, floating.extremum, half.extremum),
    "max": (integer.binary, floating.extremum, half.extremum),
    "neg": (integer.unary, floating.sign, half.sign),
    "abs": (integer.unary, floating.sign, half.sign),
}


def _by_type(builder: Builder, instruction: Instruction) -> Step:
    if instruction.has("cc"):
        return extended.handle(builder, instruction)
    type_name = instruction.modifiers[-1] if instruction.modifiers else ""
    chapters = (integer.TYPES, floating.TYPES, half.TYPES)
    for handler, types in zip(_BY_TYPE[instruction.opcode], chapters, strict=True):
        if type_name in types and handler is not None:
            return handler(builder, instruction)
    raise builder.unknown(instruction)


INSTRUCTIONS: dict[str, Handler] = {
    **dict.fromkeys(_BY_TYPE, _by_type),
    **integer.INSTRUCTIONS,
    **extended.INSTRUCTIONS,
    **floating.INSTRUCTIONS,
    **half.INSTRUCTIONS,
    **comparison.INSTRUCTIONS,
    **logic.INSTRUCTIONS,
    **movement.INSTRUCTIONS,
    **loads.INSTRUCTIONS,
    **conversion.INSTRUCTIONS,
    **synchronisation.INSTRUCTIONS,
    **mbarrier.INSTRUCTIONS,
    **copies.INSTRUCTIONS,
    **matrix.INSTRUCTIONS,
    **wgmma.INSTRUCTIONS,
    **tcgen05.INSTRUCTIONS,
    **atomics.INSTRUCTIONS,
    **launch_control.INSTRUCTIONS,
}
