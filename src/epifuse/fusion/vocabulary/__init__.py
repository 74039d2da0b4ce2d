# SPDX-License-Identifier: Apache-2.0
"""The operations of the epilogue language. Importing this package registers every row of the table."""

from __future__ import annotations

import builtins
import difflib
import functools
import importlib
from typing import Any

import torch

from epifuse.fusion.vocabulary import composite, gated, power, primitive, reduction, table
from epifuse.fusion.vocabulary.table import Level, Operation, find, lookup, rows

__all__ = [
    "Level",
    "Operation",
    "clear",
    "composite",
    "find",
    "from_method",
    "from_torch",
    "gated",
    "lookup",
    "markdown",
    "nearest",
    "power",
    "primitive",
    "reduction",
    "rows",
    "table",
]

_MODULES = {"torch": torch, "builtins": builtins}


def _resolve(dotted: str) -> Any:
    """The object that a dotted name of ``Operation.torch_names`` stands for; None where this torch has none."""
    head, _, rest = dotted.partition(".")
    value: Any = torch.Tensor if head == "Tensor" else _MODULES.get(head) or importlib.import_module(head)
    for part in rest.split("."):
        value = getattr(value, part, None)
    return value


@functools.lru_cache(maxsize=4)
def _by_identity(operations: tuple[Operation, ...]) -> dict[int, tuple[Any, Operation]]:
    found: dict[int, tuple[Any, Operation]] = {}
    for row in operations:
        for dotted in row.torch_names:
            value = _resolve(dotted)
            if value is not None:
                found.setdefault(id(value), (value, row))  # keeping the object keeps its id its own
    return found


@functools.lru_cache(maxsize=4)
def _by_method(operations: tuple[Operation, ...]) -> dict[str, Operation]:
    prefix = "Tensor."
    pairs = ((name, row) for row in operations for name in row.torch_names if name.startswith(prefix))
    return {name.removeprefix(prefix): row for name, row in pairs}


def from_torch(function: Any) -> Operation | None:
    """The row that a callable of torch (or of builtins, operator, math) means, or the row itself; None otherwise."""
    if isinstance(function, Operation):
        return function
    entry = _by_identity(tuple(rows())).get(id(function))
    return entry[1] if entry is not None and entry[0] is function else None


def from_method(name: str) -> Operation | None:
    """The row that a method of ``torch.Tensor`` means, by its name; None where there is none."""
    return _by_method(tuple(rows())).get(name)


def nearest(name: str) -> str | None:
    """The row whose name, or whose name in torch, is most like ``name``; None where nothing is near."""
    names = {row.name: row.name for row in rows()}
    for row in rows():
        for dotted in row.torch_names:
            names.setdefault(dotted.rpartition(".")[2], row.name)
    close = difflib.get_close_matches(name.lower(), names, n=1)
    return names[close[0]] if close else None


def stated_error(row: Operation) -> str:
    """How far off an operation may be in float32, in words."""
    stated = row.accuracy
    text = "exact" if stated.ulp == 0 else f"{stated.ulp:g} ulp"
    if stated.absolute:
        text += f" or {stated.absolute:g}"
    if stated.short_absolute:
        text += f" ({stated.short_absolute:g} into 16 bits)"
    return f"{text} {stated.note}".rstrip()


def markdown() -> str:
    """The whole vocabulary as a Markdown table, one line a row, in the order of the levels."""
    lines = ["| operation | level | meaning | float32 error | torch |", "|---|---|---|---|---|"]
    for level in Level:
        for row in rows(level):
            meaning = " ".join(row.summary.split()).replace("|", "\\|")
            known = ", ".join(f"`{n}`" for n in row.torch_names if n.startswith(("torch.", "Tensor.")))
            lines.append(f"| `{row.signature}` | {level.value} | {meaning} | {stated_error(row)} | {known} |")
    return "\n".join(lines) + "\n"


def clear() -> None:
    """Forget the reverse maps (they are built again when asked for)."""
    _by_identity.cache_clear()
    _by_method.cache_clear()
