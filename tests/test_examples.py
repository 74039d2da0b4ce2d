# SPDX-License-Identifier: Apache-2.0
"""Each example runs as it is, with exact checks of its own, and prints something."""

import runpy
import sys
from pathlib import Path

import pytest

import epifuse as ops

FOLDER = Path(__file__).resolve().parents[1] / "examples"
IMPORTED = {"own_kernel": "own_operator"}
"""Examples that do nothing by themselves, and the one that imports them."""
EXAMPLES = [path for path in sorted(FOLDER.glob("*.py")) if path.stem not in IMPORTED]


@pytest.fixture
def as_a_script(monkeypatch, tmp_path):
    """The folder, modules and providers as `python examples/x.py` finds them, and as they were afterwards."""
    before = set(ops.available_providers)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(FOLDER))
    yield
    for name in set(ops.available_providers) - before:
        ops.available_providers.remove(name)
    for name in IMPORTED:
        sys.modules.pop(name, None)


def test_there_are_examples():
    assert len(EXAMPLES) >= 9
    for name, user in IMPORTED.items():
        assert f"from {name} import" in (FOLDER / f"{user}.py").read_text(encoding="utf-8")


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_example_runs(path, as_a_script, capsys):
    runpy.run_path(str(path), run_name="__main__")
    printed = capsys.readouterr()
    assert printed.out.strip()
    assert not printed.err
