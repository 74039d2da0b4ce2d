# SPDX-License-Identifier: Apache-2.0
"""The nodes of an epilogue's graph: frozen, comparable, and free of any framework or backend."""

from __future__ import annotations

import enum
from dataclasses import field

from epifuse.dtypes import DType
from epifuse.errors import Place
from epifuse.records import dataclass


class Kind(enum.Enum):
    """What a node does."""

    ACCUM = "accum"
    LOAD = "load"
    CONSTANT = "constant"
    COMPUTE = "compute"
    REDUCE = "reduce"
    STORE = "store"

    __hash__ = object.__hash__  # members are singletons; Enum hashes their names, which is slow


@dataclass(frozen=True, slots=True)
class Literal:
    """A number written in the function or folded into it, kept so that 0.0, -0.0, 0 and False stay four things.

    ``text`` is ``str(int)``, ``float.hex()`` or ``"nan"``; ``integer`` tells which.
    """

    text: str
    integer: bool

    @classmethod
    def of(cls, value: int | float) -> Literal:
        """The literal of a Python number (bool is taken as int)."""
        if isinstance(value, int):
            return cls(str(int(value)), True)
        return cls(float(value).hex(), False)

    @property
    def value(self) -> int | float:
        """The number."""
        return int(self.text) if self.integer else float.fromhex(self.text)


Attribute = None | bool | int | float | str | tuple[int, ...] | Literal | DType
"""What an attribute of a node may be; numbers that enter arithmetic are ``Literal``."""


@dataclass(frozen=True, slots=True)
class Node:
    """One node; it names its inputs by their indices in the graph, all smaller than its own.

    ``op`` is a vocabulary name (COMPUTE, REDUCE), ``attributes`` are sorted by name, ``name`` is the user's name of an
    operand (LOAD) or output (STORE). An optional operand that is absent is -1 among the inputs. ``place`` takes no
    part in comparison.
    """

    kind: Kind
    op: str = ""
    inputs: tuple[int, ...] = ()
    attributes: tuple[tuple[str, Attribute], ...] = ()
    name: str = ""
    place: Place | None = field(default=None, compare=False, repr=False)

    def attribute(self, name: str) -> Attribute:
        """The attribute of that name.

        Raises:
            KeyError: there is none.
        """
        for key, value in self.attributes:
            if key == name:
                return value
        raise KeyError(name)

    @property
    def literal(self) -> Literal:
        """The number of a CONSTANT node."""
        value = self.attribute("value")
        assert isinstance(value, Literal)
        return value


class Broadcast(enum.Enum):
    """Along which of (L, M, N) a value varies; the member's value is (l, m, n), and so are its attributes."""

    SCALAR = (False, False, False)
    ROW = (False, False, True)
    COLUMN = (False, True, False)
    MATRIX = (False, True, True)
    BATCH = (True, False, False)
    BATCH_ROW = (True, False, True)
    BATCH_COLUMN = (True, True, False)
    BATCH_MATRIX = (True, True, True)

    def __init__(self, l: bool, m: bool, n: bool) -> None:  # noqa: E741 - the batch's name everywhere
        self.l = l
        self.m = m
        self.n = n

    __hash__ = object.__hash__  # members are singletons; Enum hashes their names, which is slow

    @classmethod
    def of(cls, l: bool, m: bool, n: bool) -> Broadcast:  # noqa: E741 - as above
        """The member that varies along these."""
        return _BY_AXES[l, m, n]

    def __or__(self, other: Broadcast) -> Broadcast:
        return _JOINED[self, other]


_BY_AXES = {(b.l, b.m, b.n): b for b in Broadcast}
_JOINED = {(a, b): Broadcast.of(a.l or b.l, a.m or b.m, a.n or b.n) for a in Broadcast for b in Broadcast}


@dataclass(frozen=True, slots=True)
class ValueType:
    """What inference finds for a node: its compute dtype, how it varies, and whether it has N/2 columns."""

    dtype: DType
    broadcast: Broadcast
    halved: bool = False
