# SPDX-License-Identifier: Apache-2.0
"""``parse``: an epilogue function -> its ``Graph``; and the statements of the epilogue's language.

A graph is kept for each closure (see ``names``): a function seen before costs one look at its outer names.
"""

from __future__ import annotations

import ast
import threading
from collections.abc import Callable
from types import FunctionType
from typing import Any

from epifuse.errors import EpilogueError, EpilogueSyntaxError, Place, SsaError
from epifuse.fusion.frontend import names, refuse
from epifuse.fusion.frontend.expression import Expressions, Frame, Parameter, Value
from epifuse.fusion.frontend.names import Callee, Closure, Refused
from epifuse.fusion.ir.graph import Graph, GraphBuilder
from epifuse.fusion.ir.node import Kind, Literal
from epifuse.fusion.vocabulary import table
from epifuse.fusion.vocabulary.table import Result

_MOST_GRAPHS = 2048

_lock = threading.Lock()
_graphs: dict[Closure, Graph] = {}


def parse(function: Callable[..., Any] | str) -> Graph:
    """The graph of an epilogue: a def, a lambda, or the text of one def.

    The function is read, never called. Its closure and globals are looked at anew in each call.

    Raises:
        EpilogueSyntaxError: a construct outside of the epilogue's language, with the user's line and a caret.
        EpilogueError: not a function; no ``accum`` among its parameters; no ``D`` among its outputs.
        SourceError: the source cannot be had, or no longer matches the function.
    """
    closure = _closure(function)
    graph = _graphs.get(closure)
    if graph is None:
        graph = _Body().graph(closure)
        with _lock:
            if len(_graphs) >= _MOST_GRAPHS:
                for old in list(_graphs)[: _MOST_GRAPHS // 4]:
                    del _graphs[old]
            graph = _graphs.setdefault(closure, graph)
    return graph


def clear() -> None:
    """Forget every function and graph."""
    with _lock:
        _graphs.clear()
    names.clear()


def _closure(function: Callable[..., Any] | str) -> Closure:
    if isinstance(function, str):
        return names.of_text(function)
    plain = names.unwrap(function)
    if isinstance(plain, FunctionType):
        return names.of_function(plain)
    found = names.classify(plain, "The epilogue", names.Visit())
    advice = refuse.ONE_DEF
    if isinstance(found, Callee):
        what = f"the operation {found.operation.name}"
        advice = f"Write lambda accum: {found.operation.name}(accum)."
    else:
        what = names.kind_of(plain)
    raise EpilogueError(f"The epilogue is {what}, not a plain function.", advice=advice)


class _Body:
    """Converts one epilogue, with the functions that it inlines, into one graph."""

    def __init__(self) -> None:
        self._builder = GraphBuilder()
        self._expressions = Expressions(self._builder, self._inline)
        self._inlined: dict[tuple[Closure, tuple[Value, ...]], Value] = {}

    def graph(self, closure: Closure) -> Graph:
        """The graph of the epilogue itself."""
        frame = Frame(closure)
        parameters = _parameters(frame)
        _check_accum(frame, parameters)
        defaults = _number_defaults(frame)
        for parameter in parameters:
            frame.env[parameter.arg] = Parameter(parameter.arg, frame.place(parameter))
        returned = self._run(frame)
        outputs = self._outputs(frame, returned)
        if "D" not in outputs:
            raise EpilogueError(
                "Output node D is not found in the epilogue function.",
                place=frame.place(returned),
                advice=refuse.main_output(list(outputs)),
            )
        for name, (value, node) in outputs.items():
            self._builder.store(name, value, frame.place(node))
        return Graph(
            tuple(self._builder.nodes),
            tuple(p.arg for p in parameters[1:]),
            tuple(outputs),
            defaults,
            frame.source.text,
        )

    def _inline(self, closure: Closure, arguments: list[Value], place: Place) -> Value:
        """The value that a plain function returns for these arguments."""
        key = (closure, tuple(arguments))
        if key not in self._inlined:
            frame = Frame(closure)
            frame.env = dict(zip((p.arg for p in _parameters(frame)), arguments, strict=True))
            try:
                self._inlined[key] = self._helper_value(frame)
            except EpilogueSyntaxError as error:
                line = f'Inlined from "{place.file}", line {place.line}: {place.text.strip()}'
                raise type(error)(error.sentence, place=error.place, advice=f"{error.hint}\n{line}") from None
        return self._inlined[key]

    def _helper_value(self, frame: Frame) -> Value:
        returned = self._run(frame)
        if isinstance(returned, ast.Tuple):
            return tuple(self._expressions.convert(frame, element) for element in returned.elts)
        return self._expressions.convert(frame, returned)

    def _run(self, frame: Frame) -> ast.expr:
        """Convert the statements before the return; what is returned."""
        definition = frame.source.node
        if isinstance(definition, ast.Lambda):
            return definition.body
        for position, statement in enumerate(definition.body):
            if isinstance(statement, ast.Return):
                if position + 1 < len(definition.body):
                    after = definition.body[position + 1]
                    what = "a second return" if isinstance(after, ast.Return) else "a statement after the return"
                    raise frame.error(after, f"There is {what}.", "The one return of names is the last statement.")
                if statement.value is None:
                    raise frame.error(statement, "The return returns nothing.", refuse.RETURN_NAMES)
                return statement.value
            if isinstance(statement, ast.Assign):
                self._assign(frame, statement.targets, statement.value)
            elif isinstance(statement, ast.AnnAssign):
                self._annotated(frame, statement)
            elif position or not _is_docstring(statement):
                _refuse_statement(frame, statement)
        raise frame.error(definition, "The epilogue function returns nothing.", refuse.RETURN_NAMES)

    def _annotated(self, frame: Frame, statement: ast.AnnAssign) -> None:
        if statement.value is None:
            raise frame.error(
                statement, "An annotation without a value does nothing.", "Assign a value, or leave it out."
            )
        self._assign(frame, [statement.target], statement.value)

    def _assign(self, frame: Frame, targets: list[ast.expr], value: ast.expr) -> None:
        """``a = x``, ``a = b = x``, ``a, (b, c) = x, (y, z)``: the right side is converted before any name is bound."""
        result = self._assigned_value(frame, targets, value)
        pairs: list[tuple[ast.expr, Value]] = [(target, result) for target in reversed(targets)]
        while pairs:
            target, part = pairs.pop()
            if isinstance(target, ast.Name):
                if target.id in frame.env:
                    raise SsaError(f"Variable '{target.id}' cannot be defined twice.", place=frame.place(target))
                if isinstance(part, tuple):
                    raise frame.error(target, "A tuple cannot be the value of a name.", "Unpack it: `a, b = ...`.")
                frame.env[target.id] = part
            elif isinstance(target, ast.Tuple):
                starred = next((e for e in target.elts if isinstance(e, ast.Starred)), None)
                if starred is not None:
                    raise frame.construct_error(starred)
                if not isinstance(part, tuple) or len(part) != len(target.elts):
                    count = len(part) if isinstance(part, tuple) else 1
                    raise frame.error(
                        target,
                        f"{len(target.elts)} names stand before {count} value{'' if count == 1 else 's'}.",
                        refuse.ONE_EACH,
                    )
                pairs.extend(zip(reversed(target.elts), reversed(part), strict=True))
            else:
                what = refuse.name_of(target)
                raise frame.error(target, f"Assignment to {what}: only names can be assigned.", refuse.NO_EFFECT)

    def _assigned_value(self, frame: Frame, targets: list[ast.expr], value: ast.expr) -> Value:
        """The right side; tuples, also nested, only where every target is a tuple."""
        if not isinstance(value, ast.Tuple) or not all(isinstance(t, ast.Tuple) for t in targets):
            return self._expressions.convert(frame, value)

        def convert(node: ast.expr, target: ast.expr) -> Value:
            if isinstance(node, ast.Tuple) and isinstance(target, ast.Tuple) and len(node.elts) == len(target.elts):
                return tuple(convert(n, t) for n, t in zip(node.elts, target.elts, strict=True))
            return self._expressions.convert(frame, node)

        if len(value.elts) != len(targets[0].elts):  # type: ignore[attr-defined]
            count = len(targets[0].elts)  # type: ignore[attr-defined]
            raise frame.error(value, f"{count} names stand before {len(value.elts)} values.", refuse.ONE_EACH)
        return convert(value, targets[0])

    def _outputs(self, frame: Frame, returned: ast.expr) -> dict[str, tuple[int, ast.expr]]:
        """Each returned name with its node's index."""
        if isinstance(returned, ast.List | ast.Set | ast.Dict):
            what = refuse.name_of(returned)
            raise frame.error(returned, f"The epilogue returns {what}.", "Return names, with commas: `return D, F`.")
        is_lambda = isinstance(frame.source.node, ast.Lambda)
        if is_lambda and isinstance(returned, ast.Tuple) and not _names_d(returned):
            advice = "Use a def, and assign each output to a name: `D = ...`, `F = ...`, then `return D, F`."
            raise frame.error(returned, "A lambda gives one output, D, and this one returns a tuple.", advice)
        if not isinstance(returned, ast.Tuple) and (is_lambda or not isinstance(returned, ast.Name)):
            if "D" in frame.env:
                raise SsaError(
                    "Variable 'D' cannot be defined twice.",
                    place=frame.place(returned),
                    advice="A returned expression without a name is D: give it a name of its own, or return D.",
                )
            return {"D": (self._output(frame, returned), returned)}
        outputs: dict[str, tuple[int, ast.expr]] = {}
        for element in returned.elts if isinstance(returned, ast.Tuple) else [returned]:
            if not isinstance(element, ast.Name):
                what = "Only names can be returned where several values are."
                raise frame.error(element, what, refuse.RETURN_NAMES)
            if element.id not in frame.local:
                raise frame.error(
                    element, f"'{element.id}' is not assigned in the epilogue function.", refuse.RETURN_NAMES
                )
            if element.id in outputs:
                raise frame.error(element, f"'{element.id}' is returned twice.", "Return each name once.")
            outputs[element.id] = (self._output(frame, element), element)
        return outputs

    def _output(self, frame: Frame, node: ast.expr) -> int:
        """The node of a returned value; a reduction is one only here."""
        value = self._expressions.convert(frame, node)
        if isinstance(value, int):
            found = self._builder.nodes[value]
            if found.kind is Kind.REDUCE:
                return value
            if found.kind is Kind.COMPUTE and table.lookup(found.op).result is Result.BOOL:
                raise frame.error(node, "A comparison cannot be returned.", "Return where(condition, 1.0, 0.0).")
        return self._expressions.operand(frame, node, value)


def _names_d(returned: ast.Tuple) -> bool:
    """Whether a tuple holds names alone, and D among them: a lambda may give its operands back."""
    names = [element.id for element in returned.elts if isinstance(element, ast.Name)]
    return len(names) == len(returned.elts) and "D" in names


def _parameters(frame: Frame) -> list[ast.arg]:
    """All parameters in order."""
    arguments = frame.source.node.args
    for extra, star in ((arguments.vararg, "*"), (arguments.kwarg, "**")):
        if extra is not None:
            raise frame.error(
                extra,
                f"The parameter {star}{extra.arg} is not part of the epilogue's language.",
                "Name each operand in the signature.",
            )
    parameters = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
    seen: set[str] = set()
    for parameter in parameters:  # a text is not compiled, so Python has not looked at this yet
        if parameter.arg in seen:
            raise SsaError(f"Variable '{parameter.arg}' cannot be defined twice.", place=frame.place(parameter))
        seen.add(parameter.arg)
    return parameters


def _check_accum(frame: Frame, parameters: list[ast.arg]) -> None:
    every = [p.arg for p in parameters]
    sentence = "accum must be an input to the epilogue function"
    advice = "Make accum the first parameter: it is the GEMM's result before the epilogue."
    if "accum" not in every:
        raise EpilogueError(sentence, place=frame.place(frame.source.node), advice=advice)
    if every[0] != "accum":
        place = frame.place(parameters[every.index("accum")])
        raise EpilogueError(f"{sentence}, and its first parameter.", place=place, advice=advice)


def _number_defaults(frame: Frame) -> tuple[tuple[str, Literal], ...]:
    arguments = frame.source.node.args
    places = {a.arg: a for a in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)}
    numbers: list[tuple[str, Literal]] = []
    for name, value in frame.closure.defaults:
        place = frame.place(places[name])
        if name == "accum":
            raise EpilogueSyntaxError("accum has a default.", place=place, advice="The GEMM always provides accum.")
        if isinstance(value, Refused):
            raise value.error(place)
        if not isinstance(value, Literal):
            raise EpilogueSyntaxError(
                f"The default of '{name}' is not a number.",
                place=place,
                advice="Leave it out, and pass the operand to EpilogueArguments.",
            )
        numbers.append((name, value))
    return tuple(numbers)


def _is_docstring(statement: ast.stmt) -> bool:
    return (
        isinstance(statement, ast.Expr)
        and isinstance(statement.value, ast.Constant)
        and isinstance(statement.value.value, str)
    )


def _refuse_statement(frame: Frame, statement: ast.stmt) -> None:
    if isinstance(statement, ast.AugAssign):
        if not isinstance(statement.target, ast.Name):
            what = refuse.name_of(statement.target)
            raise frame.error(statement, f"Assignment to {what}: only names can be assigned.", refuse.NO_EFFECT)
        name, operator = statement.target.id, refuse.OPERATORS[type(statement.op)]
        raise SsaError(
            f"Variable '{name}' cannot be defined twice. ('{operator}=' defines it again.)",
            place=frame.place(statement),
            advice=refuse.FRESH.format(name, operator),
        )
    if isinstance(statement, ast.Expr):
        value = statement.value
        if isinstance(value, ast.NamedExpr | ast.Yield | ast.YieldFrom | ast.Await):
            raise frame.construct_error(value)
        if isinstance(value, ast.Call) and isinstance(value.func, ast.Name):
            raise frame.error(
                statement, f"The value of {value.func.id}(...) is not used.", f"Assign it. {refuse.NO_EFFECT}"
            )
    raise frame.construct_error(statement)
