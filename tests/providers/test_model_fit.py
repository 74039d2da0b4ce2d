# SPDX-License-Identifier: Apache-2.0
"""Rows for the table of times from a suite's JSON: times that the model itself made give the model's rows back."""

import json

import pytest

from epifuse import discovery
from epifuse.bench.workloads import Problem
from epifuse.check.subjects import describe
from epifuse.target import TargetSm
from epifuse_cutedsl.configs import fit, times_sm90
from epifuse_cutedsl.configs.model import PersistentTimes

TARGET = TargetSm("90a")
SIZES = ((4096, 4096, 4096), (8192, 8192, 512), (1000, 1000, 1000), (128, 8192, 8192), (2048, 2048, 64))


@pytest.fixture(scope="module")
def measured():
    """The JSON of a suite whose times are what the model says, for two tiles, beside a peer and a wrong result."""
    problems = []
    for size in SIZES:
        problem = Problem(*size)
        args = fit._arguments(problem)
        rows = [{"contender": "quack", "right": True, "us": {"median": 1.0}}]
        for number, operator in enumerate(discovery.get_operators(args, target_sm=TARGET)):
            name = f"epifuse #{number}: {describe(operator.metadata)}"
            if "Sm90" in name and operator.metadata.design.tile_shape[:2] in ((128, 128), (64, 128)):
                us = operator._estimate_us(args, TARGET)
                rows.append({"contender": name, "right": True, "us": {"median": us}})
                rows.append({"contender": name, "right": False, "us": {"median": 100 * us}})
        described = {"m": size[0], "n": size[1], "k": size[2]}
        problems.append({"problem": described, "rows": rows})
    return {"problems": problems}


def test_rows_are_found_again(measured):
    found = fit.samples(measured, TARGET)
    assert {sample.problem for sample in found} == {Problem(*size).name for size in SIZES}
    key = (128, 128, 128, False, (1, 1), 2, 1)
    own = [sample for sample in found if sample.key == key]
    assert len(own) >= 2 * len(SIZES)
    row, error = fit.fitted(own, TARGET)
    assert error < 0.02
    assert row.step_us == pytest.approx(times_sm90.MEASURED[key].step_us, rel=0.1)
    worse = PersistentTimes(2 * row.step_us, row.tile_us, row.epilogue_us)
    assert all(sample.predicted(worse, TARGET) > sample.us for sample in own if sample.work.k > 500)


def test_the_command_prints_rows_and_what_the_first_choice_costs(measured, tmp_path, capsys):
    path = tmp_path / "times.json"
    path.write_text(json.dumps(measured))
    assert fit.main([str(path), "90a"]) == 0
    out = capsys.readouterr().out
    assert "(128, 128, 128, True, (1, 1), 2, 1): PersistentTimes(" in out
    assert out.count(" % above ") == len(SIZES)
    path.write_text(json.dumps({"problems": []}))
    assert fit.main([str(path), "90a"]) == 1
    assert fit.main([]) == 2
    assert "--suite ranking --peers operators" in capsys.readouterr().out
