# SPDX-License-Identifier: Apache-2.0
"""``NamedTuple`` and frozen ``dataclass`` as the standard library has them, made in a fraction of the time.

A type checker sees the standard library's own. They compile source text for every class: 0.2 ms for a named tuple (a
forward reference for each annotation, too), 1 ms for a frozen dataclass (six functions). ``import epifuse`` makes 60
dataclasses and a first call 40 named tuples, which was 60 of 100 ms and 10 of 43. Here functions are shared, and those
that must have a class's own parameters are copies of one for each number of fields.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
import operator
from collections.abc import Sequence
from types import CodeType, FunctionType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dataclasses import dataclass
    from typing import NamedTuple

__all__ = ["NamedTuple", "dataclass"]

# --- named tuples -----------------------------------------------------------------------------------------------------

_MOST_FIELDS = 24
_WIDE: Any = collections.namedtuple("_WIDE", [f"f{place}" for place in range(_MOST_FIELDS)])  # type: ignore[misc]  # noqa: PYI024
_GETTERS = [vars(_WIDE)[f"f{place}"] for place in range(_MOST_FIELDS)]
"""What reads a field by its place, in C; classes may share them."""


@functools.cache
def _new_of(count: int) -> FunctionType:
    """``__new__`` of so many fields."""
    names = ", ".join(f"f{place}" for place in range(count))
    comma = "," if count == 1 else ""
    found: FunctionType = eval(f"lambda _cls, {names}: new(_cls, ({names}{comma}))", {"new": tuple.__new__})
    return found


def _made(cls: Any, iterable: Any) -> Any:
    """Make a new object from a sequence or iterable."""
    found = tuple.__new__(cls, iterable)
    if len(found) != len(cls._fields):
        raise TypeError(f"Expected {len(cls._fields)} arguments, got {len(found)}")
    return found


def _replace(self: Any, /, **changes: Any) -> Any:
    """Return a new object replacing specified fields with new values."""
    found = self._make(map(changes.pop, self._fields, self))
    if changes:
        raise ValueError(f"Got unexpected field names: {list(changes)!r}")
    return found


def _asdict(self: Any) -> dict[str, Any]:
    """Return a new dict which maps field names to their values."""
    return dict(zip(self._fields, self, strict=True))


def _shown_tuple(self: Any) -> str:
    """Return a nicely formatted representation string."""
    fields = ", ".join(f"{name}={value!r}" for name, value in zip(self._fields, self, strict=True))
    return f"{self.__class__.__name__}({fields})"


def _getnewargs(self: Any) -> tuple[Any, ...]:
    """Return self as a plain tuple.  Used by copy and pickle."""
    return tuple(self)


_OF_ALL = {
    "_make": classmethod(_made),
    "_replace": _replace,
    "_asdict": _asdict,
    "__repr__": _shown_tuple,
    "__getnewargs__": _getnewargs,
    "__slots__": (),
}


class _Maker(type):
    def __new__(cls, name: str, bases: tuple[type, ...], body: dict[str, Any]) -> Any:
        if not bases:  # NamedTuple itself
            return super().__new__(cls, name, bases, body)
        fields = tuple(body.get("__annotations__", ()))
        defaults = {field: body.pop(field) for field in fields if field in body}
        if len(fields) > _MOST_FIELDS or tuple(defaults) != fields[len(fields) - len(defaults) :]:
            raise TypeError(f"{name} has a field without a default behind one with a default, or too many fields")
        like = _new_of(len(fields))
        code = like.__code__.replace(co_varnames=("_cls", *fields), co_name="__new__")
        new = FunctionType(code, like.__globals__, "__new__", tuple(defaults.values()))
        new.__qualname__ = f"{name}.__new__"
        own = {"__new__": new, "_fields": fields, "_field_defaults": defaults, "__match_args__": fields}
        return type(name, (tuple,), _OF_ALL | own | dict(zip(fields, _GETTERS, strict=False)) | body)


if not TYPE_CHECKING:

    class NamedTuple(metaclass=_Maker):
        """``typing.NamedTuple``, but for generic ones."""


# --- frozen dataclasses -----------------------------------------------------------------------------------------------


@functools.cache
def _init_of(count: int, post: bool) -> CodeType:
    """The code of ``__init__`` with so many parameters, and whether ``__post_init__`` follows."""
    names = [f"f{place}" for place in range(count)]
    lines = [f" put(self, '{name}', {name})" for name in names] + [" self.__post_init__()"] * post
    space: dict[str, Any] = {}
    exec("\n".join([f"def new({', '.join(('self', *names))}):", *lines, " return None"]), space)
    code: CodeType = space["new"].__code__
    return code


def _init(cls: Any, fields: Sequence[Any]) -> FunctionType:
    """``__init__`` of a class whose fields are all parameters."""
    fields = sorted(fields, key=lambda f: f.kw_only)
    keywords = sum(f.kw_only for f in fields)
    names = {f"f{place}": f.name for place, f in enumerate(fields)}
    code = _init_of(len(fields), hasattr(cls, "__post_init__"))
    code = code.replace(
        co_name="__init__",
        co_varnames=("self", *names.values()),
        co_consts=tuple(names.get(const, const) for const in code.co_consts),
        co_argcount=1 + len(fields) - keywords,
        co_kwonlyargcount=keywords,
    )
    init = FunctionType(code, {"put": object.__setattr__}, "__init__")
    given = [f for f in fields if f.default is not dataclasses.MISSING]
    init.__defaults__ = tuple(f.default for f in given if not f.kw_only)
    init.__kwdefaults__ = {f.name: f.default for f in given if f.kw_only}
    init.__annotations__ = {**{f.name: f.type for f in fields}, "return": None}
    init.__qualname__ = f"{cls.__qualname__}.__init__"
    return init


def _values_of(names: tuple[str, ...]) -> Any:
    """What gives an object's values as a tuple."""
    if len(names) > 1:
        return operator.attrgetter(*names)
    return (lambda self: (getattr(self, names[0]),)) if names else lambda self: ()


def _compared(cls: Any, fields: Sequence[Any], own: dict[str, Any]) -> None:
    values = _values_of(tuple(f.name for f in fields if f.compare))

    def equal(self: Any, other: Any) -> Any:
        return values(self) == values(other) if other.__class__ is self.__class__ else NotImplemented

    if "__eq__" not in own:
        cls.__eq__ = equal
    if own.get("__hash__") is None:  # also where the class has an __eq__ of its own
        cls.__hash__ = lambda self: hash(values(self))


def _freeze(cls: Any, fields: Sequence[Any], own: dict[str, Any]) -> None:
    """As a frozen dataclass refuses changes, and with slots pickles all the same."""
    names = {f.name for f in fields}

    def refuse_set(self: Any, name: str, value: Any) -> None:
        if type(self) is cls or name in names:
            raise dataclasses.FrozenInstanceError(f"cannot assign to field {name!r}")
        super(cls, self).__setattr__(name, value)

    def refuse_delete(self: Any, name: str) -> None:
        if type(self) is cls or name in names:
            raise dataclasses.FrozenInstanceError(f"cannot delete field {name!r}")
        super(cls, self).__delattr__(name)

    cls.__setattr__, cls.__delattr__ = refuse_set, refuse_delete
    cls.__dataclass_params__.frozen = True  # so that a user's frozen dataclass may inherit from it
    if "__slots__" in vars(cls) and not own.keys() & {"__getstate__", "__setstate__", "__reduce__"}:
        cls.__getstate__, cls.__setstate__ = _state, _set_state


def _state(self: Any) -> list[Any]:
    return [getattr(self, f.name) for f in dataclasses.fields(self)]


def _set_state(self: Any, state: list[Any]) -> None:
    for f, value in zip(dataclasses.fields(self), state, strict=True):
        object.__setattr__(self, f.name, value)


def _shown(fields: Sequence[Any]) -> Any:
    names = [f.name for f in fields if f.repr]

    def shown(self: Any) -> str:
        return f"{self.__class__.__qualname__}({', '.join([f'{name}={getattr(self, name)!r}' for name in names])})"

    return shown


def _is_plain(cls: Any) -> bool:
    """Whether the class inherits from no dataclass, and its fields are just parameters."""
    if any(dataclasses.is_dataclass(base) for base in cls.__mro__[1:]):
        return False
    if any(str(kind).startswith("InitVar") for kind in cls.__annotations__.values()):
        return False
    special = [value for value in vars(cls).values() if isinstance(value, dataclasses.Field)]
    return all(value.init and value.default_factory is dataclasses.MISSING for value in special)


def _dataclass(cls: Any, *, slots: bool, init: bool, eq: bool, kw_only: bool) -> Any:
    own, plain = dict(vars(cls)), _is_plain(cls)
    options = {"repr": False, "eq": False, "slots": slots, "kw_only": kw_only}
    # For a class that is not plain the library makes three functions, of six.
    cls = dataclasses.dataclass(frozen=not plain, init=init and not plain, **options)(cls)
    fields = dataclasses.fields(cls)
    if plain:
        _freeze(cls, fields, own)
    if plain and init:
        cls.__init__ = _init(cls, fields)
    if eq:
        _compared(cls, fields, own)
    if "__repr__" not in own:
        cls.__repr__ = _shown(fields)
    return cls


if not TYPE_CHECKING:

    def dataclass(*, frozen: bool, slots=False, init=True, eq=True, kw_only=False):
        """``dataclasses.dataclass`` for frozen ones, with these of its options."""
        assert frozen
        return functools.partial(_dataclass, slots=slots, init=init, eq=eq, kw_only=kw_only)
