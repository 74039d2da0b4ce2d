# SPDX-License-Identifier: Apache-2.0
"""What several commands put on the screen."""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Callable
from typing import Any

from rich.console import Console
from rich.syntax import Syntax
from rich.table import Table
from rich.text import Text

from epifuse.discovery import REMARK, Explanation

WIDTH = 100
"""Columns where the output is no terminal, so that a log reads like a screen."""


def console() -> Console:
    """A console on standard output."""
    plain = Console()
    return plain if plain.is_terminal else Console(width=WIDTH)


def source(function: Callable[..., Any]) -> Syntax:
    """The function's source, highlighted."""
    text = textwrap.dedent(inspect.getsource(function)).rstrip()
    return Syntax(text, "python", theme="ansi_dark", background_color="default", line_numbers=False)


def table(*headings: str, title: str = "") -> Table:
    """An empty table with these headings."""
    made = Table(title=title or None, title_justify="left", header_style="bold", expand=False, min_width=len(title))
    for heading in headings:
        made.add_column(heading, overflow="fold")
    return made


def explanation(found: Explanation) -> Table:
    """What discovery answered, family by family, with the first operator or the reason of the refusal."""
    where = "this machine's CPU" if found.target is None else f"sm_{found.target}"
    made = table("provider", "family", "operators", REMARK, title=f"Operators for {where}")
    for row in found.rows:
        count = Text(str(row.operators), style="green" if row.operators else "yellow")
        why = row.remark
        if row.place is not None and row.place.draw() not in why:
            why = f"{why}\n{row.place.draw()}"
        made.add_row(row.provider, row.family, count, Text(why))
    return made
