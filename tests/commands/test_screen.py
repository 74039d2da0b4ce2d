# SPDX-License-Identifier: Apache-2.0
"""Discovery's answers on the screen: every reason whole, with the user's line."""

import io

from rich.console import Console

from epifuse.commands import screen
from epifuse.discovery import Explanation, Row
from epifuse.errors import Place
from epifuse.status import Status
from epifuse.target import TargetSm


def shown(explanation):
    console = Console(file=io.StringIO(), width=100)
    console.print(screen.explanation(explanation))
    return console.file.getvalue()


def test_a_refusal_shows_reason_line_and_caret():
    place = Place(line=2, column=4, end_column=12, text="    D = tanh(accum)", file="mine.py")
    row = Row("toy", "ToyGemm", Status.fail("toy knows no [tanh]"), 0, place)
    out = shown(Explanation(TargetSm("90a"), (row, Row("cpu", "CpuGemm", Status.success(), 3))))
    assert "Operators for sm_90a" in out
    assert "toy knows no [tanh]" in out
    assert "D = tanh(accum)" in out
    assert "^^^^^^^^" in out
    assert out.count("mine.py") == 1
    assert "│ 3 " in out


def test_a_place_that_the_reason_shows_already_is_not_repeated():
    place = Place(line=1, column=0, end_column=1, text="D", file="mine.py")
    out = shown(Explanation(None, (Row("toy", "ToyGemm", Status.fail(f"no:\n{place.draw()}"), 0, place),)))
    assert out.count("mine.py") == 1
    assert "this machine's CPU" in out
