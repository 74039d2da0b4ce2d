# SPDX-License-Identifier: Apache-2.0
"""The workshop's sweep: the whole space is listed, with a reason where a point did not run; wrong ones do not win."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from epifuse.bench import fused_gemm, peers
from epifuse.bench.fused_gemm import BASELINE, FUSED_BY_TORCH
from epifuse.bench.kernels import Budget
from epifuse.bench.suites import WORKSHOP
from epifuse.check.subjects import load_lesson
from epifuse.metadata import BLASDesignMetadata

SOLUTION = Path(__file__).resolve().parents[2] / "examples/workshop/solution.py"
BUDGET = Budget(seconds=3.0, rounds=5)
SPACE = [(m, g) for m in (16, 32, 64) for g in (1, 4, 8)]


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def sweep(lesson=None):
    return fused_gemm.run("cpu", BUDGET, lesson, problems=WORKSHOP[:1])


def test_without_a_gpu_all_points_are_listed_as_not_offered():
    result = sweep()
    points = result.sweeps[0].points
    assert [(p.block_m, p.group) for p in points] == SPACE
    assert {p.skipped for p in points} == {"not offered on the CPU"}
    assert result.sweeps[0].best() is None
    beside = {row.contender: row for row in result.sweeps[0].beside}
    assert set(beside) == {"epifuse", FUSED_BY_TORCH, BASELINE}
    assert all(row.right for row in beside.values())
    notes = " ".join(result.notes)
    assert "There is no GPU here" in notes
    assert "nothing here counts cache hits" in notes
    assert json.loads(json.dumps(result.as_json()))["sweeps"][0]["best"] is None


def test_a_learners_function_is_swept_and_the_best_stated():
    result = sweep(load_lesson(SOLUTION))
    mine = [p for p in result.sweeps[0].points if p.whose == "solution.py"]
    assert [(p.block_m, p.group) for p in mine] == SPACE
    assert all(p.row is not None and p.row.right for p in mine)
    best = result.sweeps[0].best("solution.py")
    assert best.row.us.median == min(p.row.us.median for p in mine)
    assert all(p.row.us.low <= best.row.us.high for p in result.sweeps[0].ties(best))


def test_a_wrong_function_is_not_timed(tmp_path):
    text = SOLUTION.read_text().replace("min((m + 1) * block_m, M)", "min((m + 1) * block_m, M) - (group == 4)")
    path = tmp_path / "mine.py"
    path.write_text(text)
    mine = [p for p in sweep(load_lesson(path)).sweeps[0].points if p.whose == "mine.py"]
    assert {p.group for p in mine if p.row is None} == {4}
    assert all("wrong: " in p.skipped for p in mine if p.row is None)


def test_a_slow_function_is_left_out(tmp_path, monkeypatch):
    monkeypatch.setattr(fused_gemm, "TOO_LONG_S", 0.05)
    text = SOLUTION.read_text().replace(
        "    return D\n", "    import time\n    time.sleep(0.2 * (M == 37))\n    return D\n"
    )
    path = tmp_path / "mine.py"
    path.write_text(text)
    mine = [p for p in sweep(load_lesson(path)).sweeps[0].points if p.whose == "mine.py"]
    assert {p.skipped for p in mine} == {"not timed: a call takes more than 0.05 s"}


def test_a_function_without_out_pays_for_a_copy(tmp_path):
    text = SOLUTION.read_text().replace("group, out=None)", "group)").replace(" if out is None else out", "")
    path = tmp_path / "mine.py"
    path.write_text(text)
    mine = [p for p in sweep(load_lesson(path)).sweeps[0].points if p.whose == "mine.py"]
    assert all(p.row.right for p in mine)
    assert {p.row.note for p in mine} == {"with a copy, as it takes no out"}


def test_points_are_found_by_tile_and_group():
    design = BLASDesignMetadata(tile_shape=(32, 64, 32), group=4)
    data = fused_gemm.make(WORKSHOP[0], "cpu", 0)
    metadata = replace(peers.get_operators(peers.arguments(data))[0].metadata, design=design)
    assert fused_gemm.matches(metadata, 32, 4)
    for block_m, group in SPACE:
        assert fused_gemm.matches(metadata, block_m, group) == ((block_m, group) == (32, 4))
    other = replace(metadata, design=replace(design, tile_shape=(32, 64, 64)))
    assert not fused_gemm.matches(other, 32, 4)
    assert not fused_gemm.matches(replace(metadata, design=None), 32, 4)


def test_time_that_is_over_leaves_problems_and_names_them():
    result = fused_gemm.run("cpu", Budget(0.0), problems=WORKSHOP[:2])
    assert result.sweeps == []
    assert result.left == [p.name for p in WORKSHOP[:2]]


def test_the_baseline_multiplies_in_full_float32():
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    try:
        with fused_gemm._full_float32():
            assert torch.get_float32_matmul_precision() == "highest"
        assert torch.get_float32_matmul_precision() == "high"
    finally:
        torch.set_float32_matmul_precision(before)
