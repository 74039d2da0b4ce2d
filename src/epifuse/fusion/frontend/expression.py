# SPDX-License-Identifier: Apache-2.0
"""Expressions of an epilogue -> nodes of its graph, with a stack of its own instead of recursion.

A value is the index of a node, a ``Literal`` (a number that no node stands for yet, so that numbers among themselves
follow Python's rules), a tuple of values (what an inlined function returned), or a ``Plain`` (an inlined function's
flag).
"""

from __future__ import annotations

import ast
from collections.abc import Callable
from typing import Any

from epifuse.errors import EpilogueSyntaxError, Place, ReductionUseError, UnknownNameError
from epifuse.fusion.frontend import call, names, refuse
from epifuse.fusion.frontend.names import Callee, Closure, Plain, Refused, Resolved
from epifuse.fusion.ir.graph import GraphBuilder
from epifuse.fusion.ir.node import Attribute, Kind, Literal
from epifuse.fusion.vocabulary import table
from epifuse.fusion.vocabulary.table import Operation, Result, Role
from epifuse.records import dataclass

Value = int | Literal | Plain | tuple[Any, ...]

BINARY: dict[type[ast.AST], str] = {ast.Add: "add", ast.Sub: "sub", ast.Mult: "mul", ast.Div: "div"}
COMPARISON: dict[type[ast.AST], str] = {
    ast.Lt: "less",
    ast.LtE: "less_equal",
    ast.Gt: "greater",
    ast.GtE: "greater_equal",
    ast.Eq: "equal",
    ast.NotEq: "not_equal",
}
_LARGEST_BITS = 1024


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter of the epilogue itself that nothing has read yet."""

    name: str
    place: Place


class Frame:
    """One function while it is converted: its closure, and what its own names stand for so far."""

    __slots__ = ("closure", "env", "local", "outer", "source")

    def __init__(self, closure: Closure) -> None:
        self.closure = closure
        self.source = closure.template.source
        self.local = closure.template.local
        self.outer: dict[names.Reference, Resolved] = dict(zip(closure.template.references, closure.outer, strict=True))
        self.env: dict[str, Value | Parameter | Refused | Resolved] = {}

    def place(self, node: ast.AST) -> Place:
        """Where a node stands in the user's file."""
        return self.source.place(node)

    def error(self, node: ast.AST, sentence: str, advice: str | None = None) -> EpilogueSyntaxError:
        """The error of something at a node that is not accepted."""
        return EpilogueSyntaxError(sentence, place=self.place(node), advice=advice)

    def construct_error(self, node: ast.AST) -> EpilogueSyntaxError:
        """The error of a construct that the language does not have."""
        what, advice = refuse.describe(node)
        return self.error(node, f"{what[0].upper()}{what[1:]} is not part of the epilogue's language.", advice)


@dataclass(frozen=True, slots=True)
class _Finish:
    """What is to be done with the values of ``count`` subexpressions once these are there."""

    act: Callable[[Frame, Any, list[Value], Any], Value]
    node: ast.expr
    count: int
    payload: Any = None


class Expressions:
    """Converts expressions into ``builder``; ``inline`` converts the body of a plain function."""

    def __init__(self, builder: GraphBuilder, inline: Callable[[Closure, list[Value], Place], Value]) -> None:
        self.builder = builder
        self._inline = inline

    def convert(self, frame: Frame, root: ast.expr) -> Value:
        """The value of an expression."""
        work: list[ast.expr | _Finish] = [root]
        values: list[Value] = []
        while work:
            item = work.pop()
            kind = type(item)
            if kind is _Finish:
                assert isinstance(item, _Finish)
                start = len(values) - item.count
                arguments = values[start:]
                del values[start:]
                values.append(item.act(frame, item.node, arguments, item.payload))
            elif kind is ast.Name:
                values.append(self._name(frame, item))  # type: ignore[arg-type]
            elif kind is ast.Constant:
                values.append(_constant(frame, item))  # type: ignore[arg-type]
            elif kind is ast.Attribute:
                values.append(self._attribute(frame, item))  # type: ignore[arg-type]
            else:
                assert isinstance(item, ast.expr)
                finish, children = self._open(frame, item)
                work.append(finish)
                work.extend(reversed(children))
        return values.pop()

    def operand(self, frame: Frame, node: ast.expr, value: Value, condition: bool = False) -> int:
        """The node that stands for a value as an operand of another operation."""
        if isinstance(value, Literal):
            if condition:
                raise frame.error(
                    node, "The condition of where is a number.", "Write a comparison: where(a > b, x, y)."
                )
            return self.builder.constant(value.value, frame.place(node))
        if not isinstance(value, int):
            raise frame.error(node, "A tuple or a flag cannot be an operand.", "Unpack it first: `a, b = ...`.")
        found = self.builder.nodes[value]
        if found.kind is Kind.REDUCE:
            raise ReductionUseError(
                f"The result of {found.op}(...) cannot be used in another operation.", place=frame.place(node)
            )
        is_condition = found.kind is Kind.COMPUTE and table.lookup(found.op).result is Result.BOOL
        if is_condition and not condition:
            raise frame.error(
                node,
                "A comparison can only be the condition of where.",
                "Write where(condition, 1.0, 0.0) for a number.",
            )
        if condition and not is_condition and found.kind is not Kind.LOAD:
            raise frame.error(
                node, "The condition of where is not a comparison.", "Write a comparison: where(a > b, x, y)."
            )
        return value

    def emit(self, operation: Operation, inputs: list[int], attributes: dict[str, Attribute], place: Place) -> int:
        """Append an operation."""
        return self.builder.compute(operation, inputs, attributes, place)

    def _name(self, frame: Frame, node: ast.Name) -> Value:
        name = node.id
        found: object
        if name in frame.local:
            found = frame.env.get(name)
            if isinstance(found, int | Literal | tuple):
                return found
            if found is None:
                raise UnknownNameError(
                    f"Variable '{name}' is used before it is assigned.",
                    place=frame.place(node),
                    advice="Assign it on an earlier line.",
                )
            if isinstance(found, Parameter):
                index = self.builder.accum() if name == "accum" else self.builder.load(name, found.place)
                frame.env[name] = index
                return index
        else:
            found = frame.outer[(name,)]
        return _number_of(frame, node, name, found)

    def _attribute(self, frame: Frame, node: ast.Attribute) -> Value:
        chain = names.chain_of(node)
        if chain is None or chain[0] in frame.local:
            raise frame.error(
                node,
                f"Attribute access (.{node.attr}) is not part of the epilogue's language.",
                f"Call it if it is an operation: x.{node.attr}()."
                if names.method(node.attr)
                else refuse.instead_of(node.attr) or refuse.describe(node)[1],
            )
        return _number_of(frame, node, ".".join(chain), frame.outer[chain])

    def _open(self, frame: Frame, node: ast.expr) -> tuple[_Finish, list[ast.expr]]:
        """The subexpressions to convert first, and what to do then."""
        if isinstance(node, ast.BinOp):
            kind = type(node.op)
            if kind not in BINARY and kind is not ast.Pow:
                raise _operator_error(frame, node, node.op)
            return _Finish(self._binary, node, 2), [node.left, node.right]
        if isinstance(node, ast.UnaryOp):
            if not isinstance(node.op, ast.USub | ast.UAdd):
                raise _operator_error(frame, node, node.op)
            return _Finish(self._unary, node, 1), [node.operand]
        if isinstance(node, ast.Compare):
            if len(node.ops) > 1:
                raise frame.error(
                    node,
                    "A chained comparison is not part of the epilogue's language.",
                    "Nest two: where(a < x, where(x < b, y, z), z).",
                )
            if type(node.ops[0]) not in COMPARISON:
                raise _operator_error(frame, node, node.ops[0])
            return _Finish(self._compare, node, 2), [node.left, node.comparators[0]]
        if isinstance(node, ast.Call):
            return self._call(frame, node)
        if isinstance(node, ast.BoolOp):
            raise _operator_error(frame, node, node.op)
        raise frame.construct_error(node)

    def _binary(self, frame: Frame, node: ast.BinOp, values: list[Value], _: object) -> Value:
        left, right = values
        if isinstance(left, Literal) and isinstance(right, Literal):
            return _fold(frame, node, left.value, right.value)
        if isinstance(node.op, ast.Pow):
            base = self.operand(frame, node.left, left)
            if not isinstance(right, Literal):
                raise frame.error(
                    node.right,
                    "The exponent of ** must be a number.",
                    "For a varying exponent write exp2(y * log2(x)); for 2.0 ** y write exp2(y).",
                )
            return self.emit(table.lookup("pow"), [base], {"exponent": right}, frame.place(node))
        inputs = [self.operand(frame, node.left, left), self.operand(frame, node.right, right)]
        return self.emit(table.lookup(BINARY[type(node.op)]), inputs, {}, frame.place(node))

    def _unary(self, frame: Frame, node: ast.UnaryOp, values: list[Value], _: object) -> Value:
        value = values[0]
        negative = isinstance(node.op, ast.USub)
        if isinstance(value, Literal):
            return Literal.of(-value.value) if negative else value
        index = self.operand(frame, node.operand, value)
        return self.emit(table.lookup("neg"), [index], {}, frame.place(node)) if negative else index

    def _compare(self, frame: Frame, node: ast.Compare, values: list[Value], _: object) -> Value:
        sides = (node.left, node.comparators[0])
        inputs = [self.operand(frame, side, value) for side, value in zip(sides, values, strict=True)]
        return self.emit(table.lookup(COMPARISON[type(node.ops[0])]), inputs, {}, frame.place(node))

    def _call(self, frame: Frame, node: ast.Call) -> tuple[_Finish, list[ast.expr]]:
        callee, receiver = call.callee(frame, node)
        for argument in node.args:
            if isinstance(argument, ast.Starred):
                raise frame.construct_error(argument)
        for keyword in node.keywords:
            if keyword.arg is None:
                raise frame.error(keyword.value, "A call with ** is not part of the epilogue's language.")
        if isinstance(callee, Closure):
            slots = call.bind_helper(frame, node, callee)
            parts = [s for s in slots if isinstance(s, ast.expr)]
            return _Finish(self._finish_helper, node, len(parts), (callee, slots)), parts
        bound = call.bind_operation(frame, node, callee, receiver)
        return _Finish(self._finish_operation, node, len(bound.expressions), bound), bound.expressions

    def _finish_operation(self, frame: Frame, node: ast.Call, values: list[Value], bound: call.Bound) -> Value:
        operation = bound.operation
        if bound.on_numbers is not None and values and all(isinstance(value, Literal) for value in values):
            return _fold_call(frame, node, bound.on_numbers, values)
        attributes = dict(bound.attributes)
        given = iter(zip(bound.expressions, values, strict=True))
        inputs: list[int] = []
        for position, (parameter, slot) in enumerate(bound.slots):
            if not isinstance(slot, ast.expr):
                inputs.append(-1 if slot is None else self.builder.constant(slot.value, frame.place(node)))
                continue
            expression, value = next(given)
            if parameter.role is Role.NUMBER:
                if not isinstance(value, Literal):
                    raise frame.error(
                        expression,
                        f"{parameter.name} of {operation.name} must be a number that the function itself holds.",
                        f"Write {operation.signature} with a literal or a name bound to a number.",
                    )
                attributes[parameter.name] = value
            else:
                is_condition = operation.name == "where" and position == 0
                inputs.append(self.operand(frame, expression, value, is_condition))
        return self.emit(operation, inputs, attributes, frame.place(node))

    def _finish_helper(
        self, frame: Frame, node: ast.Call, values: list[Value], payload: tuple[Closure, list[call.Slot]]
    ) -> Value:
        callee, slots = payload
        given = iter(values)
        arguments = [next(given) if isinstance(slot, ast.expr) else slot for slot in slots]
        return self._inline(callee, arguments, frame.place(node))  # type: ignore[arg-type]


def _constant(frame: Frame, node: ast.Constant) -> Literal:
    value = node.value
    if type(value) is float:
        return Literal.of(value)
    if type(value) is int and value.bit_length() <= _LARGEST_BITS:
        return Literal.of(value)
    what = {
        bool: f"{value!r}",
        type(None): "None",
        str: "A string",
        bytes: "A bytes string",
        complex: "A complex number",
        int: f"An integer of more than {_LARGEST_BITS} bits",
    }.get(type(value), f"{value!r}")
    raise frame.error(node, f"{what} cannot be a value of an epilogue.", "Values are operands, numbers and operations.")


def _number_of(frame: Frame, node: ast.expr, name: str, found: object) -> Literal:
    """The number that a name stands for, where it stands for one."""
    if isinstance(found, Literal):
        return found
    if isinstance(found, Refused):
        raise found.error(frame.place(node))
    advice = "Values are operands, numbers and operations."
    if isinstance(found, Callee):
        what, advice = "an operation", f"Call it: {found.operation.signature}."
    elif isinstance(found, Closure):
        what, advice = "a function", "Call it with its arguments."
    elif isinstance(found, Plain):
        what = repr(found.value)
    else:
        what = f"a dtype ({found!r})"
    raise frame.error(node, f"'{name}' is {what}, which cannot be a value of an epilogue.", advice)


def _operator_error(frame: Frame, node: ast.expr, operator: ast.AST) -> EpilogueSyntaxError:
    text = refuse.OPERATORS[type(operator)]
    advice = refuse.OPERATOR_ADVICE.get(type(operator), "Accepted: + - * /, unary minus, ** with a constant exponent.")
    return frame.error(node, f"The operator '{text}' is not part of the epilogue's language.", advice)


def _fold_call(frame: Frame, node: ast.Call, function: Callable[..., Any], values: list[Value]) -> Literal:
    """A function of the math module on numbers, as Python computes it."""
    try:
        return Literal.of(function(*(value.value for value in values if isinstance(value, Literal))))
    except (ValueError, OverflowError) as error:
        raise frame.error(
            node, f"This arithmetic of numbers fails: {error}.", "Write the number that is meant."
        ) from None


def _fold(frame: Frame, node: ast.BinOp, left: int | float, right: int | float) -> Literal:
    """Arithmetic of two numbers, as Python does it."""
    try:
        if isinstance(node.op, ast.Add):
            result: Any = left + right
        elif isinstance(node.op, ast.Sub):
            result = left - right
        elif isinstance(node.op, ast.Mult):
            result = left * right
        elif isinstance(node.op, ast.Div):
            result = left / right
        else:
            if isinstance(left, int) and isinstance(right, int) and left.bit_length() * abs(right) > 4 * _LARGEST_BITS:
                raise OverflowError("the result is too large")
            result = left**right
        if isinstance(result, complex) or (isinstance(result, int) and result.bit_length() > _LARGEST_BITS):
            raise OverflowError("the result is complex" if isinstance(result, complex) else "the result is too large")
    except (ZeroDivisionError, OverflowError) as error:
        raise frame.error(
            node, f"This arithmetic of numbers fails: {error}.", "Write the number that is meant."
        ) from None
    return Literal.of(result)
