# SPDX-License-Identifier: Apache-2.0
"""What a row of the vocabulary is, and the table that all rows stand in.

A row is the only place where an operation is described. Parser, inference, expansion to primitives, reference,
emission, error suggestions, documentation and tests all read it. A row is callable: on torch tensors, on numpy
arrays and numbers, and on the symbolic values from which a graph is built.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterator
from dataclasses import field
from typing import Any, Protocol, runtime_checkable

import torch

from epifuse.records import dataclass


class Level(enum.Enum):
    """Who has to know an operation."""

    PRIMITIVE = "primitive"
    """Every backend emits it."""
    COMPOSITE = "composite"
    """Written in primitives; no backend knows it."""
    REDUCTION = "reduction"
    """Folds positions; only its result's store sees it."""
    GATED = "gated"
    """Takes pairs of adjacent columns; its result has half the columns."""


class Role(enum.Enum):
    """What may stand at a parameter of an operation."""

    OPERAND = "operand"
    """Any value of the epilogue, or a number."""
    OPTIONAL = "optional"
    """As OPERAND, or None (``clamp(x, min=None)``)."""
    NUMBER = "number"
    """A number known when the function is parsed (the exponent of ``pow``)."""
    FLAG = "flag"
    """One of ``choices``, known when the function is parsed."""
    DTYPE = "dtype"
    """A dtype of ``epifuse.dtypes``."""
    DIMENSIONS = "dimensions"
    """None, an int, or a tuple or list of ints, known when the function is parsed."""


@dataclass(frozen=True, slots=True)
class Parameter:
    """One parameter of an operation, by position and by name."""

    name: str
    role: Role = Role.OPERAND
    default: Any = ...
    """``...`` where there is none."""
    choices: tuple[Any, ...] = ()


class Result(enum.Enum):
    """How the dtype of the result follows from the dtypes of the operands (after widening; see ``ir.infer``)."""

    SAME = "same"
    """The common compute dtype of the operands; integers stay integers."""
    FLOAT = "float"
    """The floating compute dtype, also for integer operands."""
    BOOL = "bool"
    """A condition."""
    CAST = "cast"
    """The dtype named by the operation's DTYPE parameter."""


class CostClass(enum.Enum):
    """Which unit of an SM a primitive keeps busy, for ranking."""

    FREE = "free"
    ALU = "alu"
    FMA = "fma"
    SPECIAL = "special"


@dataclass(frozen=True, slots=True)
class Accuracy:
    """The stated error in float32: at most ``ulp`` units in the last place, or ``absolute`` where that is larger."""

    ulp: float = 0.5
    absolute: float = 0.0
    note: str = ""


@runtime_checkable
class Symbolic(Protocol):
    """A value of a graph under construction: hands operations to its builder instead of computing."""

    def emit(self, operation: Operation, operands: tuple[Any, ...], attributes: dict[str, Any]) -> Any:
        """Append the operation to the graph and return the symbolic result."""


@dataclass(frozen=True, slots=True, eq=False)
class Operation:
    """One row. Rows compare by identity; ``name`` is unique in the table.

    ``on_torch`` computes on torch tensors as torch does (the independent reference, in any floating dtype, with
    autograd); ``on_numpy`` on numpy arrays and numbers. ``body`` writes a composite in other rows, called with
    operands (tensors, arrays or symbolic values) by position and attributes by name. ``derivative`` likewise gives
    d result / d first operand. ``torch_names`` are the dotted names of torch callables that mean this operation, with
    ``Tensor.<method>`` for methods.
    """

    name: str
    level: Level
    parameters: tuple[Parameter, ...]
    summary: str
    on_torch: Callable[..., Any] = field(repr=False)
    on_numpy: Callable[..., Any] = field(repr=False)
    body: Callable[..., Any] | None = field(default=None, repr=False)
    derivative: Callable[..., Any] | None = field(default=None, repr=False)
    torch_names: tuple[str, ...] = field(default=(), repr=False)
    result: Result = Result.SAME
    accuracy: Accuracy = Accuracy()
    cost: CostClass = CostClass.FMA
    commutative: bool = False

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Compute on tensors, arrays and numbers, or emit into the graph that a symbolic operand belongs to."""
        operands, attributes = self.bind(args, kwargs)
        for value in operands:
            if isinstance(value, torch.Tensor):
                return self.on_torch(*operands, **attributes)
            if isinstance(value, Symbolic):
                return value.emit(self, operands, attributes)
        return self.on_numpy(*operands, **attributes)

    def bind(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Sort a call's arguments into operands (by position, None where optional) and attributes (by name).

        Raises:
            TypeError: an argument is missing, unexpected or given twice, or a flag is none of its choices.
        """
        if len(args) > len(self.parameters):
            raise TypeError(f"{self.signature} takes {len(self.parameters)} arguments, {len(args)} were given")
        given = dict(zip((p.name for p in self.parameters), args, strict=False))
        for name, value in kwargs.items():
            if name in given:
                raise TypeError(f"{self.signature}: argument '{name}' is given twice")
            given[name] = value
        operands: list[Any] = []
        attributes: dict[str, Any] = {}
        for parameter in self.parameters:
            value = given.pop(parameter.name, parameter.default)
            if value is ...:
                raise TypeError(f"{self.signature}: argument '{parameter.name}' is missing")
            if parameter.choices and value not in parameter.choices:
                allowed = ", ".join(repr(c) for c in parameter.choices)
                raise TypeError(f"{self.signature}: {parameter.name} must be one of {allowed}, not {value!r}")
            if parameter.role in (Role.OPERAND, Role.OPTIONAL):
                operands.append(value)
            else:
                attributes[parameter.name] = value
        if given:
            raise TypeError(f"{self.signature} has no argument '{next(iter(given))}'")
        return tuple(operands), attributes

    @property
    def signature(self) -> str:
        """The call as a user writes it, e.g. ``gelu(x, approximate='none')``."""
        parts = [p.name if p.default is ... else f"{p.name}={p.default!r}" for p in self.parameters]
        return f"{self.name}({', '.join(parts)})"

    @property
    def __doc__(self) -> str:  # type: ignore[override]
        return f"{self.signature}\n\n{self.summary}"

    @property
    def __name__(self) -> str:
        return self.name

    def __repr__(self) -> str:
        return f"<operation {self.signature}>"

    def __reduce__(self) -> tuple[object, ...]:
        return (lookup, (self.name,))


_TABLE: dict[str, Operation] = {}


def register(operation: Operation) -> Operation:
    """Add a row to the table.

    Raises:
        ValueError: the name is taken.
    """
    if operation.name in _TABLE:
        raise ValueError(f"operation {operation.name!r} stands in the vocabulary already")
    _TABLE[operation.name] = operation
    return operation


def unregister(name: str) -> None:
    """Take a row out again (for tests that add a throw-away operation)."""
    del _TABLE[name]


def lookup(name: str) -> Operation:
    """The row of that name.

    Raises:
        KeyError: there is none.
    """
    return _TABLE[name]


def find(name: str) -> Operation | None:
    """The row of that name, or None."""
    return _TABLE.get(name)


def rows(level: Level | None = None) -> Iterator[Operation]:
    """All rows, or those of one level, in the order in which they were registered."""
    return (row for row in tuple(_TABLE.values()) if level is None or row.level is level)
