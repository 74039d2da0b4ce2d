# SPDX-License-Identifier: Apache-2.0
"""PTX text to tokens (PTX ISA, "Syntax"): kind, text and line of each."""

from __future__ import annotations

import re
from typing import NamedTuple

from .reports import Place, PtxSyntaxError

_PATTERN = re.compile(
    r"(?P<newline>\n)"
    r"|(?P<blank>[ \t\r\f]+|//[^\n]*)"
    r"|(?P<comment>/\*.*?\*/)"
    r"|(?P<float>0[fF][0-9a-fA-F]{8}(?![0-9a-fA-F])|0[dD][0-9a-fA-F]{16}|\d+\.\d*(?:[eE][+-]?\d+)?)"
    r"|(?P<integer>0[xX][0-9a-fA-F]+U?|0[bB][01]+U?|\d+U?)"
    r"|(?P<name>[A-Za-z_$%.](?:::|[\w$%.])*)"
    r"|(?P<string>\"[^\"]*\")"
    r"|(?P<mark>[][(){}<>,;:|@!=+\-*])",
    re.DOTALL,
)


class Token(NamedTuple):
    """`kind` is name, integer, float, string, mark or end."""

    kind: str
    text: str
    line: int


def tokenise(text: str) -> list[Token]:
    """All tokens of a module, ending with one of kind `end`. Raises PtxSyntaxError at an unknown character."""
    tokens: list[Token] = []
    append = tokens.append
    line = 1
    position = 0
    match = _PATTERN.match
    length = len(text)
    while position < length:
        found = match(text, position)
        if found is None:
            raise PtxSyntaxError(f"unexpected character {text[position]!r}", Place(line=line))
        position = found.end()
        kind = found.lastgroup
        if kind == "newline":
            line += 1
        elif kind == "comment":
            line += found.group().count("\n")
        elif kind != "blank":
            append(Token(str(kind), found.group(), line))
    append(Token("end", "", line))
    return tokens
