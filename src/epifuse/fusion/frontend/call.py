# SPDX-License-Identifier: Apache-2.0
"""Calls in an epilogue: which operation or function is meant, and which argument goes to which of its parameters."""

from __future__ import annotations

import ast
import difflib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from epifuse.dtypes import TABLE as DTYPES
from epifuse.dtypes import DType
from epifuse.dtypes import find as find_dtype
from epifuse.errors import EpilogueSyntaxError, UnknownNameError
from epifuse.fusion.frontend import names, refuse
from epifuse.fusion.frontend.names import Callee, Closure, Origin, Plain, Refused, Resolved
from epifuse.fusion.ir.node import Attribute, Literal
from epifuse.fusion.vocabulary import table
from epifuse.fusion.vocabulary.table import Level, Operation, Parameter, Role
from epifuse.records import dataclass

if TYPE_CHECKING:
    from epifuse.fusion.frontend.expression import Frame

Slot = ast.expr | Literal | Plain | Resolved | None
"""What stands at a parameter: an expression still to convert, or a value."""

_OPERANDS = (Role.OPERAND, Role.OPTIONAL, Role.NUMBER)
_ALIASES = {"input": 0, "other": 1}
_CASTS = {
    "half": "float16",
    "bfloat16": "bfloat16",
    "float": "float32",
    "double": "float64",
}
"""Tensor methods without arguments that are casts."""


@dataclass(frozen=True, slots=True)
class Bound:
    """A call of an operation: ``slots`` for operands and numbers in the row's order, the other arguments read."""

    operation: Operation
    slots: list[tuple[Parameter, ast.expr | Literal | None]]
    expressions: list[ast.expr]
    attributes: dict[str, Attribute]
    on_numbers: Callable[..., Any] | None


def callee(frame: Frame, node: ast.Call) -> tuple[Callee | Closure, ast.expr | None]:
    """What is called, and the operand before the dot where it is called as a method."""
    function = node.func
    if isinstance(function, ast.Name):
        name = function.id
        if name in frame.local:
            found: object = frame.env.get(name)
            if not isinstance(found, Callee | Closure):
                raise frame.error(function, f"'{name}' is a value of the epilogue and cannot be called.")
            return found, None
        return _callable(frame, function, name, frame.outer[(name,)]), None
    if not isinstance(function, ast.Attribute):
        raise frame.error(
            function, f"{_capital(refuse.name_of(function))} cannot be called.", "Call operations by name."
        )
    chain = names.chain_of(function)
    if chain is not None and chain[0] not in frame.local:
        return _callable(frame, function, ".".join(chain), frame.outer[chain]), None
    operation = names.method(function.attr)
    if operation is None and function.attr in ("to", *_CASTS):
        operation = table.lookup("cast")
    if operation is None:
        name = function.attr
        known = table.find(name) is not None
        raise UnknownNameError(
            f"torch's tensors have no method '.{name}()'."
            if known
            else f"'.{name}()' is not an operation of the vocabulary.",
            place=frame.place(function),
            advice=f"Write {name}(x)." if known else refuse.nearest(name),
        )
    return Callee(operation, Origin.TORCH), function.value


def _callable(frame: Frame, node: ast.expr, name: str, found: Resolved) -> Callee | Closure:
    if isinstance(found, Callee | Closure):
        return found
    if isinstance(found, Refused):
        raise found.error(frame.place(node))
    raise frame.error(node, f"'{name}' is not a function and cannot be called.")


def bind_operation(frame: Frame, node: ast.Call, found: Callee, receiver: ast.expr | None) -> Bound:
    """Sort a call's arguments by the parameters of an operation."""
    operation = found.operation
    _check_two_values(frame, node, found, receiver)
    positional = list(node.args) if receiver is None else [receiver, *node.args]
    parameters = operation.parameters
    if len(positional) > len(parameters):
        first = positional[len(parameters)]
        raise _call_error(frame, first, operation, f"takes {_count(len(parameters))}, {len(positional)} were given")
    given: dict[str, ast.expr] = dict(zip((p.name for p in parameters), positional, strict=False))
    for keyword in node.keywords:
        name = _parameter_name(operation, keyword.arg or "", found.origin)
        if name is None:
            close = difflib.get_close_matches(keyword.arg or "", [p.name for p in parameters], 1)
            hint = f" (did you mean {close[0]}?)" if close else ""
            raise _call_error(frame, keyword, operation, f"has no argument '{keyword.arg}'{hint}")
        if name in given:
            raise _call_error(frame, keyword, operation, f"is given '{name}' twice")
        given[name] = keyword.value
    bound = Bound(operation, [], [], {}, found.on_numbers)
    for parameter in parameters:
        _place_argument(frame, node, operation, parameter, given.get(parameter.name), bound)
    optional = [p.name for p in parameters if p.role is Role.OPTIONAL]
    if optional and all(slot is None for p, slot in bound.slots if p.role is Role.OPTIONAL):
        raise _call_error(frame, node, operation, f"needs {' or '.join(optional)}")
    return bound


def _place_argument(
    frame: Frame, node: ast.Call, operation: Operation, parameter: Parameter, value: ast.expr | None, bound: Bound
) -> None:
    role = parameter.role
    if value is None:
        default = parameter.default
        function = node.func
        if role is Role.DTYPE and isinstance(function, ast.Attribute) and function.attr in _CASTS:
            default = find_dtype(_CASTS[function.attr])
        if default is ...:
            raise _call_error(frame, node, operation, f"lacks its argument '{parameter.name}'")
        if role is Role.OPERAND or role is Role.OPTIONAL:
            bound.slots.append((parameter, default if default is None else Literal.of(default)))
        else:
            bound.attributes[parameter.name] = Literal.of(default) if role is Role.NUMBER else default
    elif role in _OPERANDS:
        if role is Role.OPTIONAL and _static(frame, value) == Plain.of(None):
            bound.slots.append((parameter, None))
            return
        bound.slots.append((parameter, value))
        bound.expressions.append(value)
    elif role is Role.DTYPE:
        bound.attributes[parameter.name] = _dtype(frame, value, operation)
    elif role is Role.DIMENSIONS:
        bound.attributes[parameter.name] = _dimensions(frame, value, operation)
    else:
        bound.attributes[parameter.name] = _flag(frame, value, operation, parameter)


def _check_two_values(frame: Frame, node: ast.Call, found: Callee, receiver: ast.expr | None) -> None:
    """``max(a, b)`` means the larger of two in Python, and is a reduction here."""
    row = found.operation
    if row.level is not Level.REDUCTION or receiver is not None or len(node.args) < 2:
        return
    second = node.args[1]
    static = _static(frame, second)
    dimensions = _as_dimensions(static) is not None
    if row.name in ("max", "min") and (not dimensions or found.origin in (Origin.BUILTIN, Origin.VOCABULARY)):
        raise frame.error(
            node,
            f"{row.name}(x) is a reduction; use {row.name}imum(a, b).",
            f"For a reduction over one dimension name it: {row.name}(x, dim=1).",
        )
    if found.origin is Origin.BUILTIN:
        raise frame.error(
            second,
            f"The second argument of Python's {row.name} is not a dimension.",
            f"Name it: {row.name}(x, dim=1).",
        )


def _parameter_name(operation: Operation, given: str, origin: Origin) -> str | None:
    """The row's name for a keyword; torch's own names for the first operands are known where torch is called."""
    parameters = operation.parameters
    if any(p.name == given for p in parameters):
        return given
    if origin is Origin.TORCH:
        if given == "axis":
            return next((p.name for p in parameters if p.role is Role.DIMENSIONS), None)
        position = _ALIASES.get(given, -1)
        if position >= 0:
            position += operation.name == "where"
            if position < len(parameters) and parameters[position].role is Role.OPERAND:
                return parameters[position].name
    return None


def _static(frame: Frame, node: ast.expr) -> Resolved | ast.expr:
    """A flag, dimension, number or dtype that an argument names; the expression itself where it is something else."""
    if isinstance(node, ast.Constant):
        value: Any = node.value
        if value is None or isinstance(value, bool | str):
            return Plain.of(value)
        return Literal.of(value) if isinstance(value, int | float) else node
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        inner = _static(frame, node.operand)
        return Literal.of(-inner.value) if isinstance(inner, Literal) else node
    if isinstance(node, ast.Tuple | ast.List):
        items = [_static(frame, item) for item in node.elts]
        if all(isinstance(item, Literal) and item.integer for item in items):
            return Plain.of(tuple(int(item.value) for item in items if isinstance(item, Literal)))
        return node
    chain = names.chain_of(node)
    if chain is None:
        return node
    found: object = frame.env.get(chain[0]) if chain[0] in frame.local else frame.outer.get(chain)
    if len(chain) > 1 and chain[0] in frame.local:
        return node
    return found if isinstance(found, Literal | Plain | DType | Callee | Closure | Refused) else node


def _as_dimensions(value: Resolved | ast.expr) -> tuple[int, ...] | None:
    if isinstance(value, Literal) and value.integer:
        return (int(value.value),)
    if isinstance(value, Plain) and isinstance(value.value, tuple):
        return value.value
    return None


def _dimensions(frame: Frame, node: ast.expr, operation: Operation) -> tuple[int, ...] | None:
    value = _static(frame, node)
    if value == Plain.of(None):
        return None
    found = _as_dimensions(value)
    if found is None:
        _raise_refused(frame, node, value)
        raise frame.error(
            node,
            f"The dimensions of {operation.name} must be an int or a tuple of ints.",
            _row_signature(operation),
        )
    return found


def _dtype(frame: Frame, node: ast.expr, operation: Operation) -> DType:
    value = _static(frame, node)
    if isinstance(value, Plain) and isinstance(value.value, str):
        found = find_dtype(value.value)
    else:
        found = value if isinstance(value, DType) else None
    if found is None:
        _raise_refused(frame, node, value)
        known = ", ".join(row.name for row in DTYPES)
        raise frame.error(
            node, f"The dtype of {operation.name} is not known.", f"Write torch.float16, or one of {known}."
        )
    return found


def _flag(frame: Frame, node: ast.expr, operation: Operation, parameter: Parameter) -> Attribute:
    value = _static(frame, node)
    if isinstance(value, Plain | Literal):
        flag = value.value
        if not parameter.choices or any(type(c) is type(flag) and c == flag for c in parameter.choices):
            return flag
        allowed = " or ".join(repr(c) for c in parameter.choices)
        raise frame.error(
            node, f"{parameter.name} of {operation.name} must be {allowed}, not {flag!r}.", _row_signature(operation)
        )
    _raise_refused(frame, node, value)
    raise frame.error(
        node,
        f"{parameter.name} of {operation.name} must be known when the function is parsed.",
        _row_signature(operation),
    )


def _raise_refused(frame: Frame, node: ast.expr, value: object) -> None:
    if isinstance(value, Refused):
        raise value.error(frame.place(node))


def bind_helper(frame: Frame, node: ast.Call, found: Closure) -> list[Slot]:
    """Sort a call's arguments by the parameters of a plain function, in the order of its signature."""
    arguments = found.template.source.node.args
    name = found.template.name
    positional = [a.arg for a in (*arguments.posonlyargs, *arguments.args)]
    only_positional = {a.arg for a in arguments.posonlyargs}
    every = [*positional, *(a.arg for a in arguments.kwonlyargs)]
    if len(node.args) > len(positional):
        raise frame.error(
            node, f"{name}() takes {_count(len(positional))}, {len(node.args)} were given.", _signature(name, every)
        )
    given: dict[str, ast.expr] = dict(zip(positional, node.args, strict=False))
    for keyword in node.keywords:
        if keyword.arg not in every or keyword.arg in only_positional:
            raise frame.error(keyword, f"{name}() has no argument '{keyword.arg}'.", _signature(name, every))
        if keyword.arg in given:
            raise frame.error(keyword, f"{name}() is given '{keyword.arg}' twice.", _signature(name, every))
        given[keyword.arg] = keyword.value
    defaults = dict(found.defaults)
    slots: list[Slot] = []
    for parameter in every:
        if parameter in given:
            value = _static(frame, given[parameter])
            slots.append(value if isinstance(value, Plain | Callee | Closure) else given[parameter])
        elif parameter in defaults:
            slots.append(defaults[parameter])
        else:
            raise frame.error(node, f"{name}() lacks its argument '{parameter}'.", _signature(name, every))
    return slots


def _signature(name: str, parameters: list[str]) -> str:
    return f"Its signature is {name}({', '.join(parameters)})."


def _row_signature(operation: Operation) -> str:
    return f"Its signature is {operation.signature}."


def _count(number: int) -> str:
    return f"{number} argument{'' if number == 1 else 's'}"


def _capital(text: str) -> str:
    return text[0].upper() + text[1:]


def _call_error(frame: Frame, node: ast.AST, operation: Operation, what: str) -> EpilogueSyntaxError:
    return frame.error(node, f"{operation.name}() {what}.", _row_signature(operation))
