# SPDX-License-Identifier: Apache-2.0
"""``epifuse bench``: honest timings, as a table and as JSON."""

from __future__ import annotations

import json
from pathlib import Path

from rich.text import Text

from epifuse.bench import host
from epifuse.commands import screen
from epifuse.errors import UnsupportedError


def run(op: str, output: Path | None, rounds: int, peer: bool) -> None:
    """Measure, print, and write JSON to ``output``.

    Raises:
        UnsupportedError: (a ValueError) ``op`` is not ``host``.
    """
    if op != "host":
        raise UnsupportedError(f"There is no benchmark {op!r}.", advice="This version has --op host.")
    result = host.run(rounds, peer=peer)
    made = screen.table("what", "whose", "median", "p90", "allowed", "", title="Host cost in microseconds, one core")
    for row in result.measurements:
        within = row.limit_us is None or row.median_us <= row.limit_us
        verdict = Text("" if row.limit_us is None else "ok" if within else "OVER", style="green" if within else "red")
        limit = "" if row.limit_us is None else f"{row.limit_us:g}"
        made.add_row(row.name, row.contender, f"{row.median_us:.1f}", f"{row.p90_us:.1f}", limit, verdict)
    console = screen.console()
    console.print(made)
    for line in result.notes:
        console.print(Text(line))
    if output is not None:
        output.write_text(json.dumps(result.as_json(), indent=2) + "\n", encoding="utf-8")
        console.print(f"written to {output}")
