# SPDX-License-Identifier: Apache-2.0
"""What the names of an epilogue mean: looked up as Python would, at every call of ``parse``.

A ``Template`` is what depends on the code alone: its tree and the outer names that it uses. A ``Closure`` adds what
these names mean now. Closures compare by value (numbers exactly, functions by their code and their own outer names), so
that a graph kept for one is never taken for a function whose closure or globals have changed since.
"""

from __future__ import annotations

import ast
import enum
import functools
import math
import threading
from collections.abc import Callable
from dataclasses import field
from types import BuiltinFunctionType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np
import torch

from epifuse.dtypes import TABLE, DType
from epifuse.dtypes import find as find_dtype
from epifuse.errors import EpifuseError, EpilogueSyntaxError, Place, SourceError, UnknownNameError
from epifuse.fusion import vocabulary
from epifuse.fusion.frontend import refuse, source
from epifuse.fusion.frontend.source import Source
from epifuse.fusion.ir.node import Literal
from epifuse.fusion.vocabulary import table
from epifuse.fusion.vocabulary.table import Operation
from epifuse.records import dataclass

Reference = tuple[str, ...]
"""An outer name and the attributes read of it: ``("torch", "relu")``."""

MISSING = object()

_MOST_TEMPLATES = 1024
_DEEPEST_INLINING = 32
_LIBRARIES = ("torch", "numpy", "math")
"""Functions of these are never inlined."""
_LARGEST_BITS = 1024
_known: dict[int, tuple[Any, Operation]] = {}
"""By identity: the callables of other libraries that stand for an operation (as many as the vocabulary names)."""
_TEXT_NAMES: dict[str, Any] = {"torch": torch, "F": torch.nn.functional, "nn": torch.nn, "math": math}


class Origin(enum.Enum):
    """By which name an operation was reached; some arguments are read differently."""

    ROW = "row"
    TORCH = "torch"
    BUILTIN = "builtin"
    VOCABULARY = "vocabulary"


_ORIGINS = {"builtins": Origin.BUILTIN, "math": Origin.ROW, "_operator": Origin.ROW}
"""By the library that a callable comes from; torch where none is said."""


@dataclass(frozen=True, slots=True)
class Callee:
    """An operation, and how the user came to it; ``on_numbers`` computes it where all operands are numbers."""

    operation: Operation
    origin: Origin
    on_numbers: Callable[..., Any] | None = None


@dataclass(frozen=True, slots=True)
class Plain:
    """A value that can be a flag or a dimension, and never an operand."""

    kind: str
    value: None | bool | str | tuple[int, ...]

    @classmethod
    def of(cls, value: None | bool | str | tuple[int, ...]) -> Plain:
        """The record of a value."""
        return cls(type(value).__name__, value)


@dataclass(frozen=True, slots=True, eq=False)
class Refused:
    """A name whose value cannot be used; raised where the function uses it."""

    sentence: str
    advice: str | None = None
    kind: type[EpilogueSyntaxError] = EpilogueSyntaxError

    def error(self, place: Place) -> EpifuseError:
        """The error to raise at a place."""
        return self.kind(self.sentence, place=place, advice=self.advice)


@dataclass(frozen=True, slots=True, eq=False)
class Template:
    """What a function's code says without its surroundings. Compared by identity.

    ``code`` is None for a text. ``local`` are the names that the function binds, ``references`` the outer ones it
    reads, ``cells`` for each of these the index of its closure cell or -1.
    """

    source: Source
    code: CodeType | None
    name: str
    local: frozenset[str]
    references: tuple[Reference, ...]
    cells: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Closure:
    """A template with the meaning of its outer names and the values of its parameters' defaults."""

    template: Template
    outer: tuple[Resolved, ...]
    defaults: tuple[tuple[str, Resolved], ...] = ()
    _hash: int = field(default=0, compare=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_hash", hash((self.template, self.outer, self.defaults)))

    def __hash__(self) -> int:
        return self._hash


Resolved = Literal | Callee | Closure | DType | Plain | Refused


_lock = threading.Lock()
_templates: dict[int | str, Template] = {}


def clear() -> None:
    """Forget every template."""
    with _lock:
        _templates.clear()


def _keep(key: int | str, template: Template) -> Template:
    with _lock:
        if len(_templates) >= _MOST_TEMPLATES:
            for old in list(_templates)[: _MOST_TEMPLATES // 4]:
                del _templates[old]
        return _templates.setdefault(key, template)


def of_text(text: str) -> Closure:
    """The closure of a function given as text: it knows the vocabulary, torch, F, nn and math."""
    template = _templates.get(text)
    if template is None:
        template = _keep(text, _scan(source.of_text(text), None))
    return Closure(
        template, tuple(_resolve(r, -1, None, Visit()) for r in template.references), _text_defaults(template)
    )


class Visit:
    """The functions that are being resolved, outermost first, and those that have been."""

    __slots__ = ("active", "done")

    def __init__(self) -> None:
        self.active: list[CodeType] = []
        self.done: dict[int, Closure] = {}


def of_function(function: FunctionType, visit: Visit | None = None) -> Closure:
    """The closure of a function object, with what its outer names mean now."""
    if visit is None:
        visit = Visit()
    code = function.__code__
    template = _templates.get(id(code))
    if template is None or template.code is not code:
        template = _keep(id(code), _scan(source.of_function(function), code))
    visit.active.append(code)
    outer = tuple([_resolve(r, cell, function, visit) for r, cell in zip(template.references, template.cells)])  # noqa: B905
    visit.active.pop()
    defaults = _defaults(function) if function.__defaults__ or function.__kwdefaults__ else ()
    return Closure(template, outer, defaults)


def _defaults(function: FunctionType) -> tuple[tuple[str, Resolved], ...]:
    code = function.__code__
    values = function.__defaults__ or ()
    names = code.co_varnames[code.co_argcount - len(values) : code.co_argcount]
    pairs = [*zip(names, values, strict=True), *(function.__kwdefaults__ or {}).items()]
    return tuple((name, classify(value, f"The default of '{name}'", Visit())) for name, value in pairs)


def _text_defaults(template: Template) -> tuple[tuple[str, Resolved], ...]:
    arguments = template.source.node.args
    positional = [*arguments.posonlyargs, *arguments.args]
    first = len(positional) - len(arguments.defaults)
    pairs = [*zip(positional[first:], arguments.defaults, strict=True)]
    pairs += [(a, d) for a, d in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True) if d is not None]
    result: list[tuple[str, Resolved]] = []
    for argument, default in pairs:
        try:
            value = classify(ast.literal_eval(default), f"The default of '{argument.arg}'", Visit())
        except (ValueError, TypeError, SyntaxError, RecursionError):
            value = Refused(f"The default of '{argument.arg}' in a text must be a number.", "Pass the value instead.")
        result.append((argument.arg, value))
    return tuple(result)


def _scan(found: Source, code: CodeType | None) -> Template:
    """Walk a tree once, without recursion, and list the names that it binds and the outer names that it reads."""
    node = found.node
    arguments = node.args
    local = {a.arg for a in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)}
    local.update(a.arg for a in (arguments.vararg, arguments.kwarg) if a is not None)
    reads: list[Reference] = []
    stack: list[ast.AST] = [node.body] if isinstance(node, ast.Lambda) else list(reversed(node.body))
    while stack:
        item = stack.pop()
        if isinstance(item, ast.Name):
            if isinstance(item.ctx, ast.Load):
                reads.append((item.id,))
            else:
                local.add(item.id)
        elif isinstance(item, ast.Attribute):
            chain = chain_of(item)
            if chain is None:
                stack.append(item.value)
            else:
                reads.append(chain)
        elif isinstance(item, ast.AnnAssign):
            stack.extend(child for child in (item.value, item.target) if child is not None)
        elif not isinstance(item, ast.Constant | ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Lambda):
            stack.extend(reversed(list(ast.iter_child_nodes(item))))
    references = tuple(r for r in dict.fromkeys(reads) if r[0] not in local)
    free = code.co_freevars if code is not None else ()
    cells = tuple(free.index(r[0]) if r[0] in free else -1 for r in references)
    name = "lambda" if isinstance(node, ast.Lambda) else node.name
    return Template(found, code, name, frozenset(local), references, cells)


def chain_of(node: ast.expr) -> Reference | None:
    """``a.b.c`` as a tuple, or None where the root is no name."""
    attributes: list[str] = []
    while isinstance(node, ast.Attribute):
        attributes.append(node.attr)
        node = node.value
    return (node.id, *reversed(attributes)) if isinstance(node, ast.Name) else None


def _resolve(reference: Reference, cell: int, function: FunctionType | None, visit: Visit) -> Resolved:
    """What an outer name (with the attributes read of it) means now."""
    root = reference[0]
    value: Any = MISSING
    if function is None:
        value = _TEXT_NAMES.get(root, MISSING)
    elif cell >= 0:
        assert function.__closure__ is not None
        try:
            value = function.__closure__[cell].cell_contents
        except ValueError:  # not assigned yet
            value = MISSING
    else:
        value = function.__globals__.get(root, MISSING)
        if value is MISSING:
            value = getattr(function, "__builtins__", {}).get(root, MISSING)
    if value is MISSING:
        operation = table.find(root) if len(reference) == 1 else None
        if operation is not None:
            return Callee(operation, Origin.VOCABULARY)
        where = "" if function is not None else "A text knows the vocabulary, torch, F, nn and math alone.\n"
        return Refused(f"'{root}' is not defined.", where + refuse.nearest(root), UnknownNameError)
    for attribute in reference[1:]:
        if not isinstance(value, ModuleType) and value is not torch.Tensor:
            return _not_a_module(root, value)
        owner, value = value, getattr(value, attribute, MISSING)
        if value is MISSING:
            others = [dtype.name for dtype in TABLE] if owner is torch else []
            nearest = refuse.nearest(reference[-1], others)
            return Refused(f"'{'.'.join(reference)}' does not exist.", nearest, UnknownNameError)
    return classify(value, f"'{'.'.join(reference)}'", visit)


def _not_a_module(root: str, value: Any) -> Refused:
    if isinstance(value, torch.Tensor | np.ndarray):
        return _tensor(f"'{root}'", value)
    return Refused(
        f"'{root}' is {kind_of(value)}: attributes are read of modules only.",
        "Bind the attribute to a name of its own outside of the epilogue, or pass it as a parameter.",
    )


def classify(value: Any, what: str, visit: Visit) -> Resolved:
    """What a Python value means in an epilogue; ``what`` names it in a message."""
    kind = type(value)
    if kind is float or kind is int:
        return _number(value, what)
    if kind is Operation:
        return Callee(value, Origin.ROW)
    if kind is bool or kind is str or value is None:
        return Plain.of(value)
    if callable(value) and not isinstance(value, type):
        library = library_of(value)
        operation = None if kind is FunctionType and library != "torch" else known_operation(value)
        if operation is not None:
            return Callee(operation, _ORIGINS.get(library, Origin.TORCH), value if library == "math" else None)
    if isinstance(value, torch.dtype | DType | np.dtype) or (isinstance(value, type) and find_dtype(value) is not None):
        dtype = find_dtype(value)
        return dtype if dtype is not None else Refused(f"{what} is {value!r}, a dtype that is not known.")
    if isinstance(value, int | float | np.integer | np.floating):
        return _number(int(value) if isinstance(value, int | np.integer) else float(value), what)
    if isinstance(value, tuple | list) and all(type(item) is int for item in value):
        return Plain.of(tuple(value))
    return _classify_other(value, what, visit)


def _number(value: int | float, what: str) -> Literal | Refused:
    if type(value) is int and value.bit_length() > _LARGEST_BITS:
        return Refused(f"{what} is an integer of more than {_LARGEST_BITS} bits.", "Write it as a float.")
    return Literal.of(value)


def _classify_other(value: Any, what: str, visit: Visit) -> Resolved:
    """Functions to inline, and everything that is refused."""
    if isinstance(value, torch.Tensor | np.ndarray):
        return _tensor(what, value)
    function = unwrap(value)
    if isinstance(function, FunctionType):
        if library_of(function) in _LIBRARIES:
            return _foreign(function, what)
        if any(function.__code__ is code for code in visit.active):
            return Refused(f"{what} calls itself: a recursive function cannot be inlined.", refuse.NO_LOOP)
        if id(function) in visit.done:
            return visit.done[id(function)]
        if len(visit.active) > _DEEPEST_INLINING:
            return Refused(f"{what} lies more than {_DEEPEST_INLINING} calls deep.", "Inline fewer functions.")
        try:
            closure = visit.done[id(function)] = of_function(function, visit)
            return closure
        except SourceError as error:
            return Refused(f"{what} cannot be inlined. {error.sentence}", "Define it in a file, or in the text.")
    is_function = isinstance(value, BuiltinFunctionType | np.ufunc)
    if is_function or (callable(value) and not isinstance(value, type) and library_of(value) in _LIBRARIES):
        return _foreign(value, what)
    return Refused(
        f"{what} is {kind_of(value)}.", "Outer names may be numbers, operations of the vocabulary and plain functions."
    )


def library_of(value: Any) -> str:
    """The top-level package that a callable comes from."""
    module = getattr(value, "__module__", None)
    return module.partition(".")[0] if isinstance(module, str) else ""


def _foreign(value: Any, what: str) -> Refused:
    name = getattr(value, "__name__", "")
    advice = f"Use {name}(...) of the vocabulary." if table.find(name) else refuse.nearest(name)
    return Refused(f"{what} is {kind_of(value)}, not an operation of the vocabulary.", advice, UnknownNameError)


def _tensor(what: str, value: Any) -> Refused:
    shape = tuple(value.shape)
    return Refused(
        f"{what} is a tensor of shape {shape} from outside of the epilogue.",
        "Pass it as a parameter: add it to the function's signature and to the keywords of EpilogueArguments.",
    )


def kind_of(value: Any) -> str:
    """A value in the words of a message."""
    if isinstance(value, ModuleType):
        return f"the module {value.__name__}"
    if isinstance(value, type):
        return f"the class {value.__name__}"
    if isinstance(value, MethodType):
        return f"a method of {kind_of(value.__self__)}"
    if isinstance(value, FunctionType | BuiltinFunctionType):
        return f"the function {value.__module__ or 'builtins'}.{value.__name__}"
    name = type(value).__name__
    return f"{'an' if name[:1].lower() in 'aeiou' else 'a'} {name} object"


def unwrap(value: Any) -> Any:
    """What ``functools.wraps`` says a decorator stands for; the value itself where it says nothing."""
    seen = 0
    while callable(value) and not isinstance(value, type | MethodType | functools.partial):
        inner = getattr(value, "__dict__", {}).get("__wrapped__")
        if inner is None or seen > 100:
            break
        value, seen = inner, seen + 1
    return value


def known_operation(value: Any) -> Operation | None:
    """The row that a callable of torch, math, operator or builtins stands for, or None."""
    kept = _known.get(id(value))
    if kept is not None and kept[0] is value and table.find(kept[1].name) is kept[1]:
        return kept[1]
    row = vocabulary.from_torch(value)
    if row is not None:
        _known[id(value)] = (value, row)
    return row


def method(name: str) -> Operation | None:
    """The row that the tensor method of that name stands for, or None."""
    row = vocabulary.from_method(name)
    if row is None and hasattr(torch.Tensor, name):
        row = table.find(name)
    return row
