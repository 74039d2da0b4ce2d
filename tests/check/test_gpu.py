# SPDX-License-Identifier: Apache-2.0
"""The check on GPU kernels: on an emulated GPU everywhere, on a real one where it is."""

from pathlib import Path

import pytest
import torch

from epifuse.check import fused_gemm
from epifuse.check.fused_gemm import Plan, check_lesson, check_operators
from epifuse.check.subjects import load_lesson

WORKSHOP = Path(__file__).resolve().parents[2] / "examples/workshop"


@pytest.mark.slow
@pytest.mark.sm80
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_the_portable_kernel_passes_on_an_emulated_gpu(monkeypatch):
    pytest.importorskip("cutlass")
    monkeypatch.setattr(fused_gemm, "DTYPES", (torch.float16,))
    everything = fused_gemm.operators

    def a_small_tile(args, target, limit):
        return [subject for subject in everything(args, target, 0) if subject.tile[:2] == (16, 64)][:1]

    monkeypatch.setattr(fused_gemm, "operators", a_small_tile)
    report = check_operators(Plan(device="emulator", target="90a", tails=4))
    assert report, report.distinct(5)
    assert report.where == "an emulated sm_90a"
    names = " ".join(section.name for section in report.sections)
    assert "Sm80GemmOperator, tile 16x64" in names
    assert "tiles written once, counted on the device, float16" in names


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("file", ["solution", "solution_triton"])
def test_the_solutions_pass_on_a_gpu(file):
    if file == "solution_triton":
        pytest.importorskip("triton")
    report = check_lesson(load_lesson(WORKSHOP / f"{file}.py"), Plan(device="cuda"))
    assert report, report.distinct(5)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_the_best_operators_pass_on_a_gpu():
    report = check_operators(Plan(device="cuda", limit=1))
    assert report, report.distinct(5)
