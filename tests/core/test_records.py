# SPDX-License-Identifier: Apache-2.0
"""``epifuse.records`` makes what the standard library makes."""

from __future__ import annotations

import copy
import inspect
import pickle
import typing
from typing import Any

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
    with pytest.raises(TypeError, match="without a default follows"):
        type(records.NamedTuple)("X", (records.NamedTuple,), {"__annotations__": {"a": int, "b": int}, "a": 1})


def test_named_tuples_of_no_field_and_of_one():
    assert (Nothing(), One(), One(2)) == ((), (1,), (2,))
    assert repr(One(2)) == "One(only=2)"


def test_a_record_survives_copies_and_pickles():
    for again in (copy.copy(Pair(1)), copy.deepcopy(Pair(1)), pickle.loads(pickle.dumps(Pair(1)))):
        assert again == Pair(1)
        assert type(again) is Pair
