# SPDX-License-Identifier: Apache-2.0
"""The statements of a PTX function body: declarations, labels, instructions and their operands.

Nested `{ }` scopes declare registers and labels of their own; they are renamed `name#n`, so that the rest of the
emulator sees one flat function.
"""

from __future__ import annotations

import struct

from .reports import Place, PtxSyntaxError
from .syntax import (
    Address,
    Discard,
    Group,
    Immediate,
    Instruction,
    Label,
    Operand,
    Pair,
    Register,
    Symbol,
    Variable,
    Vector,
)
from .tokens import Token

_SIZES = {"8": 1, "16": 2, "32": 4, "64": 8, "128": 16}


def type_bytes(type_name: str) -> int:
    """Size in bytes of a fundamental type such as `b32` or `f16x2`; `pred` counts as 1."""
    if type_name == "pred":
        return 1
    if type_name.endswith("x2"):
        return 2 * type_bytes(type_name[:-2])
    return _SIZES[type_name.lstrip("busf")]


class Cursor:
    """A position in a list of tokens."""

    def __init__(self, tokens: list[Token]) -> None:
        self.tokens = tokens
        self.position = 0

    def peek(self, ahead: int = 0) -> Token:
        """The token `ahead` of the position, without moving."""
        return self.tokens[min(self.position + ahead, len(self.tokens) - 1)]

    def next(self) -> Token:
        """The token at the position; moves past it."""
        token = self.tokens[self.position]
        if token.kind == "end":
            raise PtxSyntaxError("the text ends inside a statement", Place(line=token.line))
        self.position += 1
        return token

    def accept(self, text: str) -> bool:
        """Move past `text` if it comes next."""
        if self.tokens[self.position].text == text:
            self.position += 1
            return True
        return False

    def expect(self, text: str) -> None:
        """Move past `text`, or raise PtxSyntaxError."""
        token = self.peek()
        if not self.accept(text):
            raise PtxSyntaxError(f"expected {text!r}, found {token.text!r}", Place(line=token.line))

    def integer(self) -> int:
        """An integer with optional sign."""
        sign = -1 if self.accept("-") else 1
        token = self.next()
        if token.kind != "integer":
            raise PtxSyntaxError(f"expected a number, found {token.text!r}", Place(line=token.line))
        return sign * parse_integer(token.text)

    def skip_line(self, line: int) -> None:
        """Move past every token of a line, and a `;` that ends it."""
        while self.peek().line == line and self.peek().kind != "end":
            self.position += 1

    def skip_block(self) -> None:
        """Move past the next balanced `{ }`."""
        while self.next().text != "{":
            pass
        depth = 1
        while depth:
            depth += {"{": 1, "}": -1}.get(self.next().text, 0)


def parse_integer(text: str) -> int:
    """The value of a PTX integer literal: decimal, hexadecimal, binary or octal, with an optional U."""
    digits = text.rstrip("U")
    if len(digits) > 1 and digits[0] == "0" and digits.isdigit():
        return int(digits, 8)
    return int(digits, 0)


def parse_float(text: str) -> Immediate:
    """A PTX floating literal as its bits: `0f` gives 32, anything else 64."""
    if text[:2] in ("0f", "0F"):
        return Immediate(int(text[2:], 16), 32)
    if text[:2] in ("0d", "0D"):
        return Immediate(int(text[2:], 16), 64)
    return Immediate(struct.unpack("<Q", struct.pack("<d", float(text)))[0], 64)


def read_variable(cursor: Cursor, space: str, extern: bool, terminated: bool = True) -> Variable:
    """A declaration after its state space: `.align 8 .b8 name[24]`, also with an initialiser."""
    align = 0
    type_name = ""
    while cursor.peek().text.startswith("."):
        word = cursor.next().text
        if word == ".align":
            align = cursor.integer()
        elif word == ".ptr":
            while cursor.peek().text in (".global", ".shared", ".const", ".local", ".param"):
                cursor.next()
        else:
            type_name = word[1:]
    name = cursor.next().text
    count = 1
    while cursor.accept("["):
        count *= cursor.integer() if cursor.peek().text != "]" else 0
        cursor.expect("]")
    size = type_bytes(type_name) * count
    initial = _read_initial(cursor, type_bytes(type_name), size) if cursor.accept("=") else None
    if terminated:
        cursor.expect(";")
    return Variable(name, space, type_name, size, align or type_bytes(type_name), extern, initial)


def _read_initial(cursor: Cursor, element_bytes: int, size: int) -> bytes:
    values: list[int] = []
    braced = cursor.accept("{")
    while True:
        values.append(cursor.integer())
        if not (braced and cursor.accept(",")):
            break
    if braced:
        cursor.expect("}")
    mask = (1 << (8 * element_bytes)) - 1
    return b"".join((value & mask).to_bytes(element_bytes, "little") for value in values).ljust(size, b"\0")


class Body:
    """Reads one function body; afterwards `registers`, `variables` and `statements` hold it."""

    def __init__(self, cursor: Cursor) -> None:
        self.cursor = cursor
        self.registers: dict[str, str] = {}
        self.variables: list[Variable] = []
        self.statements: list[Instruction | Label] = []
        self._scopes: list[dict[str, str]] = []
        self._scope_count = 0

    def read(self) -> None:
        """Read statements up to the brace that closes the body."""
        self._scopes.append({})
        self._declare_labels()
        while True:
            token = self.cursor.peek()
            if token.text == "}":
                self.cursor.next()
                self._scopes.pop()
                return
            self._statement(token)

    def _statement(self, token: Token) -> None:
        cursor = self.cursor
        if token.text == "{":
            cursor.next()
            self._scope_count += 1
            self.read()
        elif token.text == ".reg":
            cursor.next()
            self._declare_registers()
        elif token.text in (".loc", ".file"):
            cursor.skip_line(token.line)
        elif token.text in (".pragma", ".branchtargets", ".calltargets", ".callprototype"):
            while cursor.next().text != ";":
                pass
        elif token.text in (".shared", ".local", ".param", ".global", ".const"):
            cursor.next()
            self.variables.append(read_variable(cursor, token.text[1:], extern=False))
        elif token.text == ";":
            cursor.next()
        elif cursor.peek(1).text == ":" and token.kind == "name":
            cursor.next()
            cursor.next()
            self.statements.append(Label(self._resolve(token.text), token.line))
        else:
            self.statements.append(self._instruction())

    def _declare_labels(self) -> None:
        # Labels may be used before they stand, so a scope learns its own first.
        if len(self._scopes) == 1:
            return
        depth, position, tokens = 0, self.cursor.position, self.cursor.tokens
        while depth >= 0 and tokens[position].kind != "end":
            text = tokens[position].text
            depth += {"{": 1, "}": -1}.get(text, 0)
            opens = tokens[position - 1].text in (";", "{", "}", ":")
            if depth == 0 and opens and tokens[position].kind == "name" and tokens[position + 1].text == ":":
                self._scopes[-1][text] = f"{text}#{self._scope_count}"
            position += 1

    def _declare_registers(self) -> None:
        cursor = self.cursor
        type_name = cursor.next().text[1:]
        if type_name in ("v2", "v4"):
            raise PtxSyntaxError("vector registers are not read", Place(line=cursor.peek().line))
        while True:
            name = cursor.next().text
            names = [name]
            if cursor.accept("<"):
                count = cursor.integer()
                cursor.expect(">")
                names = [f"{name}{index}" for index in range(count)]
            for each in names:
                unique = each if len(self._scopes) == 1 else f"{each}#{self._scope_count}"
                self._scopes[-1][each] = unique
                self.registers[unique] = type_name
            if not cursor.accept(","):
                break
        cursor.expect(";")

    def _resolve(self, name: str) -> str:
        for scope in reversed(self._scopes):
            if name in scope:
                return scope[name]
        return name

    def _instruction(self) -> Instruction:
        cursor = self.cursor
        guard = None
        if cursor.accept("@"):
            negated = cursor.accept("!")
            guard = Register(self._resolve(cursor.next().text), negated)
        word = cursor.next()
        if word.kind != "name":
            raise PtxSyntaxError(f"expected an instruction, found {word.text!r}", Place(line=word.line))
        opcode, *modifiers = word.text.split(".")
        operands: list[Operand] = []
        while not cursor.accept(";"):
            operands.append(self._operand())
            if not cursor.accept(","):
                cursor.expect(";")
                break
        return Instruction(opcode, tuple(modifiers), tuple(operands), word.line, guard)

    def _operand(self) -> Operand:
        cursor = self.cursor
        token = cursor.peek()
        if token.text == "{":
            return Vector(self._list("{", "}"))
        if token.text == "(":
            return Group(self._list("(", ")"))
        if token.text == "[":
            return self._address()
        first = self._scalar()
        if cursor.accept("|"):
            return Pair(first, self._scalar())
        return first

    def _list(self, opening: str, closing: str) -> tuple[Operand, ...]:
        self.cursor.expect(opening)
        found: list[Operand] = []
        while not self.cursor.accept(closing):
            found.append(self._operand())
            self.cursor.accept(",")
        return tuple(found)

    def _scalar(self) -> Operand:
        cursor = self.cursor
        if cursor.accept("!"):
            return Register(self._resolve(cursor.next().text), True)
        token = cursor.peek()
        if token.text == "-" or token.kind == "integer":
            if token.text == "-" and cursor.peek(1).kind == "float":
                cursor.next()
                literal = parse_float(cursor.next().text)
                return Immediate(literal.value ^ (1 << (literal.float_bits - 1)), literal.float_bits)
            return Immediate(cursor.integer())
        cursor.next()
        if token.kind == "float":
            return parse_float(token.text)
        if token.text == "_":
            return Discard()
        if token.kind != "name":
            raise PtxSyntaxError(f"unexpected operand {token.text!r}", Place(line=token.line))
        name = self._resolve(token.text)
        if name in self.registers:
            return Register(name)
        return Symbol(name, self._offset())

    def _offset(self) -> int:
        if self.cursor.accept("+"):
            return self.cursor.integer()
        if self.cursor.peek().text == "-":
            return self.cursor.integer()
        return 0

    def _address(self) -> Address:
        cursor = self.cursor
        cursor.expect("[")
        line = cursor.peek().line
        base = self._scalar()
        offset = 0
        if isinstance(base, Symbol):
            base, offset = Symbol(base.name), base.offset_bytes
        elif isinstance(base, Register):
            offset = self._offset()
        elif not isinstance(base, Immediate) or base.float_bits:
            raise PtxSyntaxError("an address is a register, a symbol or a number", Place(line=line))
        extra: list[Operand] = []
        while cursor.accept(","):
            extra.append(self._operand())
        cursor.expect("]")
        return Address(base, offset, tuple(extra))
