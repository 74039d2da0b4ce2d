# SPDX-License-Identifier: Apache-2.0
"""The parsed form of PTX: frozen records, nothing executed, nothing resolved across functions."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any


@dataclass(frozen=True)
class Register:
    """A register operand, `%r12`; `negated` for `!%p3` as a source predicate."""

    name: str
    negated: bool = False


@dataclass(frozen=True)
class Immediate:
    """A constant: an integer as written (may be negative), or the bits of a float with `float_bits` 32 or 64."""

    value: int
    float_bits: int = 0


@dataclass(frozen=True)
class Symbol:
    """The address of a variable, parameter or function; also the name of a special register."""

    name: str
    offset_bytes: int = 0


@dataclass(frozen=True)
class Vector:
    """`{a, b, ...}`."""

    elements: tuple[Operand, ...]


@dataclass(frozen=True)
class Pair:
    """`%r1|%p2`: a destination and its predicate companion."""

    first: Operand
    second: Operand


@dataclass(frozen=True)
class Address:
    """`[base + offset_bytes]`, or `[base, {coordinates}]` of a tensor access with optional im2col offsets."""

    base: Register | Symbol | Immediate
    offset_bytes: int = 0
    extra: tuple[Operand, ...] = ()


@dataclass(frozen=True)
class Group:
    """`( a, b )` in a call."""

    elements: tuple[Operand, ...]


@dataclass(frozen=True)
class Discard:
    """`_`: a destination that is thrown away."""


Operand = Register | Immediate | Symbol | Vector | Pair | Address | Group | Discard


@dataclass(frozen=True)
class Instruction:
    """One instruction. `modifiers` are the dotted parts after the opcode, in order; `line` counts from 1."""

    opcode: str
    modifiers: tuple[str, ...]
    operands: tuple[Operand, ...]
    line: int
    guard: Register | None = None

    @property
    def name(self) -> str:
        """Opcode with all modifiers, as written."""
        return ".".join((self.opcode, *self.modifiers))

    def has(self, *modifiers: str) -> bool:
        """Whether all of these modifiers are present."""
        return all(modifier in self.modifiers for modifier in modifiers)


@dataclass(frozen=True)
class Label:
    """A branch target."""

    name: str
    line: int


@dataclass(frozen=True)
class Variable:
    """A variable in a state space: `.shared`, `.global`, `.const`, `.local` or `.param`.

    `size_bytes` is 0 for `.extern` arrays of unknown size.
    """

    name: str
    space: str
    type: str
    size_bytes: int
    align_bytes: int
    extern: bool = False
    initial: bytes | None = None


@dataclass(frozen=True, eq=False)
class Function:
    """An `.entry` or `.func`. `registers` maps each register to its type without the dot (`b32`, `pred`, ...).

    `shared_offsets` places every shared variable, relative to the start of the CTA's allocation; a dynamic (extern)
    array stands after the static ones, whose total is `static_shared_bytes`.
    """

    name: str
    entry: bool
    params: tuple[Variable, ...]
    results: tuple[Variable, ...]
    registers: dict[str, str]
    variables: tuple[Variable, ...]
    body: tuple[Instruction | Label, ...]
    directives: dict[str, tuple[int, ...]] = field(default_factory=dict)
    line: int = 0
    shared_offsets: dict[str, int] = field(default_factory=dict)
    static_shared_bytes: int = 0
    executable: list[Any] = field(default_factory=list, init=False, repr=False)
    """What `program.build` made of it, or nothing yet: it refers to the function, so a table elsewhere, even one with
    weak keys, would keep both for good."""

    @property
    def max_threads(self) -> tuple[int, int, int] | None:
        """`.maxntid`, missing dimensions as 1."""
        return self._triple("maxntid")

    @property
    def required_threads(self) -> tuple[int, int, int] | None:
        """`.reqntid`, missing dimensions as 1."""
        return self._triple("reqntid")

    @property
    def required_cluster(self) -> tuple[int, int, int] | None:
        """`.reqnctapercluster`, missing dimensions as 1."""
        return self._triple("reqnctapercluster")

    def local_offsets(self) -> dict[str, int]:
        """Where each variable of a thread's local memory starts, in bytes; the entry "" is the total."""
        offsets: dict[str, int] = {}
        end = 0
        for variable in self.variables:
            if variable.space == "local":
                offsets[variable.name] = -(-end // variable.align_bytes) * variable.align_bytes
                end = offsets[variable.name] + variable.size_bytes
        return {**offsets, "": end}

    def param_offsets(self) -> dict[str, int]:
        """Where each parameter starts in the parameter space, in bytes."""
        offsets: dict[str, int] = {}
        end = 0
        for param in self.params:
            offsets[param.name] = -(-end // param.align_bytes) * param.align_bytes
            end = offsets[param.name] + param.size_bytes
        return offsets

    def _triple(self, directive: str) -> tuple[int, int, int] | None:
        numbers = self.directives.get(directive)
        if numbers is None:
            return None
        x, y, z = (*numbers, 1, 1, 1)[:3]
        return x, y, z


@dataclass(frozen=True, eq=False)
class Module:
    """One PTX module. `target` as written: `sm_100a`."""

    version: str
    target: str
    functions: dict[str, Function]
    variables: tuple[Variable, ...]
    text: str

    @property
    def entries(self) -> dict[str, Function]:
        """The kernels by name."""
        return {name: function for name, function in self.functions.items() if function.entry}

    def line_text(self, line: int) -> str:
        """The text of a line, counted from 1, without surrounding blanks."""
        return self._lines[line - 1].strip() if line > 0 else ""

    @cached_property
    def _lines(self) -> list[str]:
        return self.text.splitlines()
