# SPDX-License-Identifier: Apache-2.0
"""What README.md shows is true: its programs run, its files exist, its picture is what `epifuse draw` makes."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from epifuse.commands.functions import load_function
from epifuse.fusion import frontend
from epifuse.fusion.ir import show

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
PROGRAMS = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
LINKS = [link for link in re.findall(r"\]\(([^)#]+)\)", README) if "://" not in link]
TARGETS = re.findall(r"\bmake ([a-z-]+)", README + (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8"))


def test_there_is_a_program_and_a_picture():
    assert PROGRAMS
    assert any(link.endswith(".svg") for link in LINKS)


@pytest.mark.parametrize("number", range(len(PROGRAMS)))
def test_program_runs(number, tmp_path):
    path = tmp_path / "program.py"
    path.write_text(PROGRAMS[number], encoding="utf-8")
    run = subprocess.run(
        [sys.executable, str(path)], capture_output=True, text=True, check=False, timeout=300, cwd=tmp_path
    )
    assert run.returncode == 0, run.stderr


def test_the_picture_is_what_draw_makes(capsys):
    function = load_function(str(ROOT / "examples/draw.py:feed_forward"))
    picture = show.graph_svg(frontend.parse(function))
    assert (ROOT / "docs/feed_forward.svg").read_text(encoding="utf-8").strip() == picture.strip()


@pytest.mark.parametrize("link", LINKS)
def test_link_leads_to_a_file(link):
    assert (ROOT / link).exists()


@pytest.mark.parametrize("target", sorted(set(TARGETS)))
def test_make_target_exists(target):
    assert re.search(rf"^{target}:", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
