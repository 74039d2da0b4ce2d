# SPDX-License-Identifier: Apache-2.0
"""Each notebook runs from top to bottom and is committed without outputs."""

from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

ON_BLACKWELL = """
from epifuse import emulator
from epifuse.operator import Operator

emulated = emulator.device("100a")  # left when it is collected
emulated.__enter__()
ran, plain_run = [], Operator.run


def noted_run(operator, *given, **named):
    ran.append(type(operator).__name__)
    return plain_run(operator, *given, **named)


Operator.run = noted_run
"""
"""A cell before all others: CPU tensors are those of an emulated GPU, and the operators that run are noted."""
NOTEBOOKS = sorted((Path(__file__).resolve().parents[1] / "notebooks").glob("*.ipynb"))


def test_there_is_a_notebook():
    assert NOTEBOOKS


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_is_stripped(path):
    for cell in nbformat.read(path, as_version=4).cells:
        assert not cell.get("outputs"), "run nbstripout"
        assert cell.get("execution_count") is None, "run nbstripout"


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_runs(path, tmp_path):
    notebook = nbformat.read(path, as_version=4)
    NotebookClient(notebook, timeout=300, kernel_name="python3", resources={"metadata": {"path": tmp_path}}).execute()


@pytest.mark.slow
def test_the_first_notebooks_gemms_run_on_the_emulated_blackwell_kernel(tmp_path):
    pytest.importorskip("cutlass")
    notebook = nbformat.read(NOTEBOOKS[0], as_version=4)
    own = next(i for i, cell in enumerate(notebook.cells) if cell.source.startswith("## An operator of your own"))
    notebook.cells[own:own] = [nbformat.v4.new_code_cell("emulated.__exit__(None, None, None)")]  # it is the CPU's
    notebook.cells.insert(0, nbformat.v4.new_code_cell(ON_BLACKWELL))
    notebook.cells.append(nbformat.v4.new_code_cell("print(*ran)"))
    NotebookClient(notebook, timeout=300, kernel_name="python3", resources={"metadata": {"path": tmp_path}}).execute()
    ran = notebook.cells[-1].outputs[0].text.split()
    assert ran.count("Sm90GemmOperator") == ran.count("MyGemm") == 1  # the section on emulated GPUs, and the last one
    assert ran.count("Sm100GemmOperator") == len(ran) - 2 >= 10
