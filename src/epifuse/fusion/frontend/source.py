# SPDX-License-Identifier: Apache-2.0
"""The syntax tree of one function, from a function object or from text, with places in the user's own file.

A function object is read back from its file. What is read counts only when it compiles to the very code that the
object has, so a file edited after its import, or a wrong lambda of several on a line, is never taken for it.
"""

from __future__ import annotations

import ast
import linecache
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import field
from types import CodeType, FunctionType, ModuleType
from typing import TypeVar

from epifuse.errors import EpilogueSyntaxError, Place, SourceError
from epifuse.fusion.frontend import refuse
from epifuse.records import dataclass

Definition = ast.FunctionDef | ast.Lambda

_R = TypeVar("_R")

_LAMBDA = re.compile(r"\blambda\b")
_MOST_CLOSERS = 8
"""How many brackets around a lambda's body are tried before the whole file is parsed instead."""


@dataclass(frozen=True, slots=True)
class Text:
    """The lines of a file. A tree's line number plus ``shift`` is the 1-based number of a line."""

    lines: Sequence[str] = field(repr=False)
    shift: int
    file: str

    def place(self, node: ast.AST) -> Place:
        """Where ``node`` stands in the user's file; a span of several lines ends with its first line."""
        line: int = node.lineno + self.shift  # type: ignore[attr-defined]
        text = self.lines[line - 1].rstrip("\r\n") if line <= len(self.lines) else ""
        start: int = node.col_offset  # type: ignore[attr-defined]
        end = len(text.rstrip())
        if node.end_lineno == node.lineno:  # type: ignore[attr-defined]
            end = node.end_col_offset  # type: ignore[attr-defined]
        if not text.isascii():  # the tree counts bytes of UTF-8
            raw = text.encode()
            start, end = len(raw[:start].decode(errors="ignore")), len(raw[:end].decode(errors="ignore"))
        return Place(line, start, end, text, self.file)


@dataclass(frozen=True, slots=True, eq=False)
class Source:
    """One function's tree, and the text that it was read from."""

    node: Definition
    origin: Text

    def place(self, node: ast.AST) -> Place:
        """Where ``node`` stands in the user's file."""
        return self.origin.place(node)

    @property
    def text(self) -> str:
        """The function's own lines."""
        shift = self.origin.shift
        first, last = self.node.lineno + shift, (self.node.end_lineno or self.node.lineno) + shift
        return "".join(line.rstrip("\r\n") + "\n" for line in self.origin.lines[first - 1 : last])


def _with_room(function: Callable[..., _R], *arguments: object) -> _R:
    """Call Python's parser; once more on a fresh stack where this one is too full (its depth counts the caller's)."""
    try:
        return function(*arguments)
    except RecursionError:
        with ThreadPoolExecutor(1) as pool:
            return pool.submit(function, *arguments).result()


def of_text(text: str) -> Source:
    """The one ``def`` (or lambda) that ``text`` holds, which may be indented.

    Raises:
        EpilogueSyntaxError: the text is not Python, or is not one plain function.
    """
    lines = text.removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n").split("\n")
    first = next((line for line in lines if line.strip() and not line.lstrip().startswith("#")), "")
    prefix = "if 1:\n" if first[:1].isspace() else ""
    shift = -1 if prefix else 0
    try:
        body = _with_room(ast.parse, prefix + "\n".join(lines) + "\n").body
    except SyntaxError as error:
        raise _not_python(error, lines, shift) from None
    except (RecursionError, MemoryError):
        raise EpilogueSyntaxError(refuse.TOO_DEEP, advice=refuse.SPLIT) from None
    except ValueError as error:
        raise EpilogueSyntaxError(f"The text of the epilogue is not Python: {error}.") from None
    if prefix and body:
        assert isinstance(body[0], ast.If)
        body = body[0].body
    origin = Text(lines, shift, "<epilogue>")
    node = _only_function(body, origin)
    if isinstance(node, ast.FunctionDef) and node.decorator_list:
        raise EpilogueSyntaxError(
            "A decorator in a text is never applied.",
            place=origin.place(node.decorator_list[0]),
            advice="Leave it out, or pass the decorated function itself.",
        )
    return Source(node, origin)


def _not_python(error: SyntaxError, lines: list[str], shift: int) -> EpilogueSyntaxError:
    line = (error.lineno or 1) + shift
    text = lines[line - 1] if 0 < line <= len(lines) else ""
    column = max(0, (error.offset or 1) - 1)
    end = (error.end_offset or 0) - 1 if error.end_lineno == error.lineno else len(text)
    place = Place(max(1, line), column, max(column + 1, end), text)
    return EpilogueSyntaxError(f"The text of the epilogue is not Python: {error.msg}.", place=place)


def _only_function(body: list[ast.stmt], origin: Text) -> Definition:
    """The single function among the statements of a text."""
    if not body:
        raise EpilogueSyntaxError("The text of the epilogue holds no function.", advice=refuse.ONE_DEF)
    first = body[0]
    if len(body) > 1:
        what = "more than one function" if _is_function(first) and _is_function(body[1]) else "more than one statement"
        raise EpilogueSyntaxError(
            f"The text of the epilogue holds {what}.", place=origin.place(body[1]), advice=refuse.ONE_DEF
        )
    if isinstance(first, ast.FunctionDef):
        return first
    if isinstance(first, ast.Expr) and isinstance(first.value, ast.Lambda):
        return first.value
    if isinstance(first, ast.AsyncFunctionDef):
        raise EpilogueSyntaxError(refuse.ASYNC, place=origin.place(first), advice=refuse.ONE_DEF)
    what = refuse.name_of(first)
    raise EpilogueSyntaxError(
        f"The text of the epilogue holds {what}, not a function.", place=origin.place(first), advice=refuse.ONE_DEF
    )


def _is_function(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef)


def of_function(function: FunctionType) -> Source:
    """The tree of a function object, read from its file (or from ``linecache``, where notebooks keep their cells).

    Raises:
        SourceError: there is no source, or none that compiles to this function's code.
        EpilogueSyntaxError: an ``async def``.
    """
    code = function.__code__
    file = code.co_filename
    lines = linecache.getlines(file, function.__globals__)
    source = _Reader(function, lines).find() if lines else None
    if source is None and lines:
        linecache.checkcache(file)
        newer = linecache.getlines(file, function.__globals__)
        if newer != lines:
            lines = newer
            source = _Reader(function, lines).find() if lines else None
    if source is not None:
        return source
    name = code.co_name
    if not lines:
        raise SourceError(f"The source of function '{name}' is not available (its file is given as {file!r}).")
    raise SourceError(
        f"The source of function '{name}' in {file!r} (line {code.co_firstlineno}) no longer matches the function.",
        advice="Import the file anew after an edit, or pass the function's text: "
        "EpilogueArguments('def epi(accum): ...', ...).",
    )


class _Reader:
    """Looks for one function in the lines of its file; only what compiles to the function's own code is found."""

    def __init__(self, function: FunctionType, lines: Sequence[str]) -> None:
        self._code = code = function.__code__
        self._lines = lines
        self._head = f"def _({', '.join(code.co_freevars)}):"
        used = (*code.co_names, *code.co_varnames, *code.co_freevars)
        known = [name for name in used if name in function.__globals__ and name.isidentifier()]
        modules = [name for name in known if isinstance(function.__globals__[name], ModuleType)]
        # A call a.b() compiles differently where the file imports a, so what it imports is guessed.
        self._imports = list(dict.fromkeys(_import_line(names) for names in (modules, [], known)))

    def find(self) -> Source | None:
        """The function where its code says that it is, else anywhere in the file."""
        is_lambda = self._code.co_name == "<lambda>"
        return (self._lambda_in_place() if is_lambda else self._def_in_place()) or self._anywhere(is_lambda)

    def _def_in_place(self) -> Source | None:
        code, lines = self._code, self._lines
        first = code.co_firstlineno - 1
        if first >= len(lines):
            return None
        head = lines[first]
        indent = head[: len(head) - len(head.lstrip())]
        # Statements after a return have no instructions, so the block goes on while lines are deeper than the def.
        last = max((end for _, end, _, _ in code.co_positions() if end), default=first + 1) - 1
        depth = len(indent)
        for index in range(last + 1, len(lines)):
            line = lines[index]
            if line.startswith(indent) and line[depth : depth + 1].isspace() and line.strip():
                last = index
            elif line.strip() and not line.lstrip().startswith("#"):
                break
        block = "".join(lines[first : last + 1])
        # The lines before the block: the imports, and where it is indented the enclosing function.
        text = f"{self._head}\n{block}" if indent else block
        tree = self._compile(text) or self._asserting(text)
        if tree is None:
            return None
        statement: ast.AST = tree.body[-1]
        if indent:
            assert isinstance(statement, ast.FunctionDef)
            statement = statement.body[0]
        return self._source(statement, first - (2 if indent else 1))

    def _asserting(self, text: str) -> ast.Module | None:
        """The tree of a def of that name that holds an ``assert``: pytest compiles it otherwise, and it is refused."""
        try:
            tree: ast.Module = _with_room(ast.parse, self._imports[0] + text)
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            return None
        nodes = list(ast.walk(tree))
        named = any(isinstance(n, ast.FunctionDef) and n.name == self._code.co_name for n in nodes)
        return tree if named and any(isinstance(n, ast.Assert) for n in nodes) else None

    def _lambda_in_place(self) -> Source | None:
        """From the last ``lambda`` before the first instruction to the end of the last; brackets closed by trial."""
        code, lines = self._code, self._lines
        span = _span(code)
        if span is None or span[1][0] > len(lines):
            return None
        (start_line, start_byte), (end_line, end_byte) = span
        for line in range(start_line, code.co_firstlineno - 1, -1):
            raw = lines[line - 1].encode()
            head = (raw[:start_byte] if line == start_line else raw).decode(errors="ignore")
            for match in reversed(list(_LAMBDA.finditer(head))):
                byte = len(head[: match.start()].encode())
                chosen = [text.encode() for text in lines[line - 1 : end_line]]
                chosen[-1] = chosen[-1][:end_byte]
                chosen[0] = b" " * byte + chosen[0][byte:]
                text = b"".join(chosen).decode(errors="ignore")
                for closers in range(_MOST_CLOSERS):
                    tree = self._compile(f"{self._head} return (\n{text}{')' * closers}\n)")
                    if tree is not None:
                        returned = tree.body[-1].body[0]  # type: ignore[attr-defined]
                        return self._source(returned.value, line - 3)
        return None

    def _compile(self, text: str) -> ast.Module | None:
        """The tree of ``text`` below a line of imports, if it holds a function with exactly the code looked for."""
        for imports in self._imports:
            whole = imports + text
            try:
                module = _with_room(compile, whole, self._code.co_filename, "exec", 0, True)
                if any(_same(self._code, found) for found in _functions(module, 2)):
                    tree: ast.Module = _with_room(ast.parse, whole)
                    return tree
            except (SyntaxError, ValueError, RecursionError, MemoryError):
                return None
        return None

    def _source(self, node: ast.AST, shift: int) -> Source | None:
        origin = Text(self._lines, shift, self._code.co_filename)
        if isinstance(node, ast.AsyncFunctionDef):
            raise EpilogueSyntaxError(refuse.ASYNC, place=origin.place(node), advice=refuse.ONE_DEF)
        return Source(node, origin) if isinstance(node, ast.FunctionDef | ast.Lambda) else None

    def _anywhere(self, is_lambda: bool) -> Source | None:
        """The function in the whole file that compiles to the code, the nearest to its recorded line."""
        text = "".join(self._lines)
        try:
            tree = _with_room(ast.parse, text)
            module = _with_room(compile, text, self._code.co_filename, "exec", 0, True)
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            return None
        alike = [found for found in _functions(module, 100) if _same(self._code, found)]
        kinds = ast.Lambda if is_lambda else (ast.FunctionDef, ast.AsyncFunctionDef)
        nodes = [node for node in ast.walk(tree) if isinstance(node, kinds)]
        for code in sorted(alike, key=lambda c: abs(c.co_firstlineno - self._code.co_firstlineno)):
            for node in nodes:
                if self._stands_for(node, code):
                    return self._source(node, 0)
        return None

    def _stands_for(self, node: ast.AST, code: CodeType) -> bool:
        """Whether a function of the file's tree is the one that compiled to ``code``."""
        if isinstance(node, ast.Lambda):
            span = _span(code)
            if span is not None:
                return (node.body.lineno, node.body.col_offset) == span[0]
            # Without columns any lambda of that line will do that compiles to the same code: it means the same.
            alike = f"{self._head} return (\n{ast.unparse(node)}\n)"
            return node.lineno == code.co_firstlineno and self._compile(alike) is not None
        assert isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        return code.co_firstlineno == min([node.lineno, *(d.lineno for d in node.decorator_list)])


def _import_line(names: Iterable[str]) -> str:
    joined = ", ".join(dict.fromkeys(names))
    return f"import {joined}\n" if joined else "pass\n"


def _span(code: CodeType) -> tuple[tuple[int, int], tuple[int, int]] | None:
    """(line, byte) where the instructions' source starts and ends; None where Python kept no columns."""
    starts, ends = [], []
    for line, end_line, byte, end_byte in code.co_positions():
        if line and end_line and byte is not None and end_byte:
            starts.append((line, byte))
            ends.append((end_line, end_byte))
    return (min(starts), max(ends)) if starts else None


def _functions(code: CodeType, depth: int) -> Iterator[CodeType]:
    """The code objects inside of ``code``, at most ``depth`` levels down."""
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield constant
            if depth > 1:
                yield from _functions(constant, depth - 1)


def _same(a: CodeType, b: CodeType) -> bool:
    """Whether two code objects do the same with the same names and numbers, wherever they stand."""
    return (
        a.co_name == b.co_name
        and a.co_code == b.co_code
        and a.co_varnames == b.co_varnames
        and a.co_names == b.co_names
        and a.co_freevars == b.co_freevars
        and (a.co_argcount, a.co_posonlyargcount, a.co_kwonlyargcount)
        == (b.co_argcount, b.co_posonlyargcount, b.co_kwonlyargcount)
        and len(a.co_consts) == len(b.co_consts)
        and all(map(_same_constant, a.co_consts, b.co_consts))
    )


def _same_constant(a: object, b: object) -> bool:
    if isinstance(a, CodeType) and isinstance(b, CodeType):
        return _same(a, b)
    return type(a) is type(b) and repr(a) == repr(b)
