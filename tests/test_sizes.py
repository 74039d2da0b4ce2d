# SPDX-License-Identifier: Apache-2.0
"""The line budgets: a file 500, a function 60, a kernel's role 150, an example 40."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
FILE_LINES, FUNCTION_LINES, ROLE_LINES, EXAMPLE_LINES = 500, 60, 150, 40
FOLDERS = ("src", "providers", "tests", "examples")


def oversized(root: Path) -> list[str]:
    """Every file and function under ``root`` that is over its budget, as ``place: found > budget``."""
    found = []
    for path in sorted(p for folder in FOLDERS for p in (root / folder).rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        place = path.relative_to(root)
        budget = EXAMPLE_LINES - 1 if place.parts[0] == "examples" else FILE_LINES
        lines = len(text.splitlines())
        if lines > budget:
            found.append(f"{place}: {lines} lines > {budget}")
        budget = ROLE_LINES if place.parts[0] == "providers" and "kernels" in place.parts else FUNCTION_LINES
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                lines = node.end_lineno - node.lineno + 1
                if lines > budget:
                    found.append(f"{place}:{node.lineno} {node.name}: {lines} lines > {budget}")
    return found


def test_every_file_and_function_is_within_its_budget():
    assert oversized(ROOT) == []


def function(lines: int) -> str:
    return "def f():\n" + "    pass\n" * (lines - 1)


@pytest.mark.parametrize(
    ("place", "text", "is_over"),
    [
        ("src/epifuse/a.py", "x = 1\n" * 500, False),
        ("src/epifuse/a.py", "x = 1\n" * 501, True),
        ("tests/deep/er/a.py", "x = 1\n" * 501, True),
        ("src/epifuse/a.py", function(60), False),
        ("src/epifuse/a.py", function(61), True),
        ("src/epifuse/a.py", "class C:\n" + "".join(f"    {line}\n" for line in function(61).splitlines()), True),
        ("src/epifuse/kernels/a.py", function(61), True),
        ("providers/epifuse_new/kernels/sm90/roles.py", function(150), False),
        ("providers/epifuse_new/kernels/sm90/roles.py", function(151), True),
        ("providers/epifuse_new/fuse/load.py", function(61), True),
        ("examples/a.py", "x = 1\n" * 39, False),
        ("examples/a.py", "x = 1\n" * 40, True),
    ],
)
def test_a_planted_violation_is_found(tmp_path, place, text, is_over):
    path = tmp_path / place
    path.parent.mkdir(parents=True)
    path.write_text(text)
    found = oversized(tmp_path)
    assert len(found) == int(is_over), found
    assert all(place in line for line in found)
