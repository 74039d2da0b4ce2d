# SPDX-License-Identifier: Apache-2.0
"""Reads the text of one PTX module (PTX ISA, "Syntax" and "Directive Statements")."""

from __future__ import annotations

from dataclasses import replace

from .reports import Place, PtxSyntaxError
from .statements import Body, Cursor, read_variable
from .syntax import Function, Module, Variable
from .tokens import tokenise

_LINKAGE = {".visible", ".extern", ".weak", ".common"}


def parse(text: str) -> Module:
    """Parse a module. Raises PtxSyntaxError with the line of whatever is not understood."""
    cursor = Cursor(tokenise(text))
    version, target = "", ""
    functions: dict[str, Function] = {}
    variables: list[Variable] = []
    linkage: set[str] = set()
    while cursor.peek().kind != "end":
        word = cursor.next()
        if word.text == ".version":
            version = cursor.next().text
        elif word.text == ".target":
            target = cursor.next().text
            while cursor.accept(","):
                cursor.next()
        elif word.text == ".address_size":
            cursor.next()
        elif word.text in (".file", ".loc", ".pragma", ".alias"):
            cursor.skip_line(word.line)
        elif word.text == ".section":
            cursor.skip_block()
        elif word.text in _LINKAGE:
            linkage.add(word.text)
            continue
        elif word.text in (".entry", ".func"):
            function = _read_function(cursor, word.text == ".entry", word.line)
            if function.body or function.name not in functions:
                functions[function.name] = function
        elif word.text in (".shared", ".global", ".const"):
            variables.append(read_variable(cursor, word.text[1:], extern=".extern" in linkage))
        else:
            raise PtxSyntaxError(f"unexpected {word.text!r} at module level", Place(line=word.line))
        linkage.clear()
    shared = tuple(variable for variable in variables if variable.space == "shared")
    placed = {name: _place_shared(function, shared) for name, function in functions.items()}
    return Module(version, target, placed, tuple(variables), text)


def _place_shared(function: Function, shared: tuple[Variable, ...]) -> Function:
    own = tuple(variable for variable in function.variables if variable.space == "shared")
    offsets: dict[str, int] = {}
    end = 0
    for variable in (*shared, *own):
        if not variable.extern:
            offsets[variable.name] = _align(end, variable.align_bytes)
            end = offsets[variable.name] + variable.size_bytes
    for variable in shared:
        if variable.extern:
            offsets[variable.name] = _align(end, max(variable.align_bytes, 16))
    return replace(function, shared_offsets=offsets, static_shared_bytes=end)


def _align(value: int, alignment: int) -> int:
    return -(-value // alignment) * alignment


def _read_function(cursor: Cursor, entry: bool, line: int) -> Function:
    results: tuple[Variable, ...] = ()
    if cursor.peek().text == "(":
        results = _read_parameters(cursor)
    name = cursor.next().text
    parameters = _read_parameters(cursor) if cursor.peek().text == "(" else ()
    directives = _read_directives(cursor)
    if cursor.accept(";"):
        return Function(name, entry, parameters, results, {}, (), (), directives, line)
    cursor.expect("{")
    body = Body(cursor)
    body.read()
    return Function(
        name,
        entry,
        parameters,
        results,
        body.registers,
        tuple(body.variables),
        tuple(body.statements),
        directives,
        line,
    )


def _read_parameters(cursor: Cursor) -> tuple[Variable, ...]:
    cursor.expect("(")
    found: list[Variable] = []
    while not cursor.accept(")"):
        word = cursor.next()
        if word.text not in (".param", ".reg"):
            raise PtxSyntaxError(f"expected .param, found {word.text!r}", Place(line=word.line))
        found.append(read_variable(cursor, "param", extern=False, terminated=False))
        cursor.accept(",")
    return tuple(found)


def _read_directives(cursor: Cursor) -> dict[str, tuple[int, ...]]:
    found: dict[str, tuple[int, ...]] = {}
    while cursor.peek().kind == "name" and cursor.peek().text.startswith("."):
        name = cursor.next().text[1:]
        numbers: list[int] = []
        while cursor.peek().kind == "integer":
            numbers.append(cursor.integer())
            cursor.accept(",")
        if cursor.peek().kind == "string":
            cursor.next()
        found[name] = tuple(numbers)
    return found
