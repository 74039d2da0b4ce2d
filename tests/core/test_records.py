# SPDX-License-Identifier: Apache-2.0
"""``epifuse.records`` makes what the standard library makes."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import pickle
import typing
from typing import Any, ClassVar

import pytest

from epifuse import records


class Pair(records.NamedTuple):
    """Two fields and a method."""

    first: int
    second: str | None = "two"

    def both(self) -> tuple[Any, ...]:
        return (self.first, self.second)


class LibraryPair(typing.NamedTuple):
    """Two fields and a method."""

    first: int
    second: str | None = "two"


class Nothing(records.NamedTuple):
    pass


class One(records.NamedTuple):
    only: int = 1


@records.dataclass(frozen=True, slots=True)
class Slotted:
    """A record."""

    name: str
    parts: tuple[int, ...] = ()
    note: str = dataclasses.field(default="", compare=False, repr=False)
    kind: ClassVar[str] = "slotted"


@dataclasses.dataclass(frozen=True, slots=True)
class LibrarySlotted:
    """A record."""

    name: str
    parts: tuple[int, ...] = ()
    note: str = dataclasses.field(default="", compare=False, repr=False)
    kind: ClassVar[str] = "slotted"


@records.dataclass(frozen=True, kw_only=True)
class Base:
    value: float = 0.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "value", float(self.value))


@records.dataclass(frozen=True)
class Derived(Base):
    """Takes the library's way, as it inherits."""

    more: tuple[int, ...] = dataclasses.field(default_factory=tuple, kw_only=True)


@records.dataclass(frozen=True, slots=True, eq=False)
class Identity:
    value: int


def message(call: Any, *args: Any, **kwargs: Any) -> str:
    with pytest.raises((TypeError, ValueError, AttributeError)) as raised:
        call(*args, **kwargs)
    return f"{type(raised.value).__name__}: {raised.value}".replace("Library", "")


def test_a_named_tuple_is_what_typing_makes():
    ours, theirs = Pair(1), LibraryPair(1)
    assert ours == theirs == (1, "two")
    assert repr(ours) == repr(theirs).replace("Library", "")
    assert ours.both() == (ours.first, ours.second) == (1, "two")
    assert ours._replace(second="x") == Pair(1, second="x") == Pair._make([1, "x"])
    assert ours._asdict() == theirs._asdict()
    for name in ("_fields", "_field_defaults", "__match_args__", "__doc__", "__slots__"):
        assert str(getattr(Pair, name)) == str(getattr(LibraryPair, name))
    assert str(inspect.signature(Pair.__new__)).replace("_cls, ", "").startswith("(first")
    assert hash(ours) == hash(theirs)
    assert type(ours.__class__) is type
    assert not hasattr(ours, "__dict__")


def test_a_named_tuple_refuses_what_typing_refuses():
    assert message(Pair) == message(LibraryPair)
    assert message(Pair, 1, 2, 3) == message(LibraryPair, 1, 2, 3)
    assert message(Pair, 1, third=2) == message(LibraryPair, 1, third=2)
    assert message(Pair(1)._replace, third=2) == message(LibraryPair(1)._replace, third=2)
    assert message(Pair._make, [1]) == message(LibraryPair._make, [1])
    assert "can" in message(setattr, Pair(1), "first", 2)
    with pytest.raises(TypeError, match="without a default behind"):
        type(records.NamedTuple)("X", (records.NamedTuple,), {"__annotations__": {"a": int, "b": int}, "a": 1})


def test_named_tuples_of_no_field_and_of_one():
    assert (Nothing(), One(), One(2)) == ((), (1,), (2,))
    assert repr(One(2)) == "One(only=2)"


def test_a_dataclass_is_what_the_library_makes():
    ours, theirs = Slotted("a", (1,), "n"), LibrarySlotted("a", (1,), "n")
    assert repr(ours) == repr(theirs).replace("Library", "")
    assert dataclasses.asdict(ours) == dataclasses.asdict(theirs)
    assert [f.name for f in dataclasses.fields(ours)] == [f.name for f in dataclasses.fields(theirs)]
    assert str(inspect.signature(Slotted)) == str(inspect.signature(LibrarySlotted))
    assert Slotted.__match_args__ == LibrarySlotted.__match_args__
    assert Slotted.__slots__ == LibrarySlotted.__slots__
    assert Slotted.__init__.__qualname__ == "Slotted.__init__"
    assert ours == Slotted("a", (1,), "another note")
    assert hash(ours) == hash(Slotted("a", (1,)))
    assert ours != theirs
    assert dataclasses.replace(ours, name="b") == Slotted("b", (1,))
    assert Slotted.kind == "slotted"


def test_a_dataclass_refuses_what_the_librarys_refuses():
    assert message(Slotted) == message(LibrarySlotted)
    assert message(Slotted, 1, 2, 3, 4) == message(LibrarySlotted, 1, 2, 3, 4)
    assert message(Slotted, "a", other=1) == message(LibrarySlotted, "a", other=1)
    assert message(setattr, Slotted("a"), "name", 1) == message(setattr, LibrarySlotted("a"), "name", 1)
    assert message(delattr, Slotted("a"), "name") == message(delattr, LibrarySlotted("a"), "name")
    with pytest.raises(dataclasses.FrozenInstanceError):
        Slotted("a").name = "b"  # type: ignore[misc]


@pytest.mark.parametrize("made", [Slotted("a", (1,), "n"), Base(value=2), Derived(value=2, more=(3,)), Pair(1)])
def test_records_survive_copies_and_pickles(made):
    for again in (copy.copy(made), copy.deepcopy(made), pickle.loads(pickle.dumps(made))):
        assert again == made
        assert repr(again) == repr(made)


def test_keywords_inheritance_and_what_follows_the_fields():
    assert repr(Base(value=1)) == "Base(value=1.0)"
    assert "takes 1 positional argument but 2 were given" in message(Base, 1)
    assert Derived(value=1) == Derived(value=1.0, more=())
    assert Derived() != Base()
    assert repr(Derived()) == "Derived(value=0.0, more=())"

    @dataclasses.dataclass(frozen=True)
    class Users(Base):
        own: int = dataclasses.field(default=1, kw_only=True)

    assert Users(value=2).own == 1
    with pytest.raises(dataclasses.FrozenInstanceError):
        Users().own = 2  # type: ignore[misc]
    with pytest.raises(TypeError, match="cannot inherit non-frozen dataclass from a frozen one"):
        dataclasses.dataclass(type("Thawed", (Base,), {}))


def test_records_without_equality_compare_by_identity():
    one = Identity(1)
    assert one == one  # noqa: PLR0124
    assert one != Identity(1)
    assert hash(one) == object.__hash__(one)
