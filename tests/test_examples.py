# SPDX-License-Identifier: Apache-2.0
"""Each example runs as it is, in a process of its own, and prints something."""

import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).resolve().parents[1] / "examples"
IMPORTED = {"own_kernel": "own_operator"}
"""Examples that do nothing by themselves, and the one that imports them."""
EXAMPLES = [path for path in sorted(FOLDER.glob("*.py")) if path.stem not in IMPORTED]


def test_there_are_examples():
    assert len(EXAMPLES) >= 9
    for name, user in IMPORTED.items():
        assert f"from {name} import" in (FOLDER / f"{user}.py").read_text(encoding="utf-8")


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_example_runs(path, tmp_path):
    run = subprocess.run(
        [sys.executable, str(path)], capture_output=True, text=True, check=False, timeout=300, cwd=tmp_path
    )
    assert run.returncode == 0, run.stderr
    assert run.stdout.strip()
    assert not run.stderr.strip(), run.stderr
