# SPDX-License-Identifier: Apache-2.0
"""The workshop's check: right functions pass, and every planted fault is caught, named and placed."""

from pathlib import Path

import pytest
import torch

import epifuse as ops
import epifuse_cpu.operator as cpu
from epifuse.check import cases, fused_gemm, subjects
from epifuse.check.fused_gemm import Plan, check_lesson, check_operators
from epifuse.check.subjects import CheckError, LearnerSubject, load_lesson
from epifuse.check.verdict import Kind, Section
from epifuse.check.watch import OutOfTimeError, time_box

WORKSHOP = Path(__file__).resolve().parents[2] / "examples/workshop"
FEW = Plan(tails=40)
SOLUTION = (WORKSHOP / "solution.py").read_text(encoding="utf-8")


@pytest.fixture(autouse=True)
def one_thread_and_one_dtype(monkeypatch):
    """One thread, as the matrices are tiny; float16 alone, unless a test says otherwise."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    monkeypatch.setattr(fused_gemm, "DTYPES", (torch.float16,))
    yield
    torch.set_num_threads(before)


@pytest.fixture
def lesson(tmp_path):
    """The solution with a replacement made: what a learner may have written."""

    def make(*replacements):
        text = SOLUTION
        for old, new in replacements:
            assert old in text, old
            text = text.replace(old, new)
        path = tmp_path / "mine.py"
        path.write_text(text)
        return load_lesson(path)

    return make


# --- what is right passes ---------------------------------------------------------------------------------------------


def test_the_operators_of_this_machine_pass():
    report = check_operators(Plan())
    assert report, report.distinct(5)
    names = {section.name: section.cases for section in report.sections}
    assert names["tails [CpuGemmOperator], float16"] == 343
    assert names["rounding stage [CpuGemmOperator], float16"] == 2
    assert names["tiles written once, counted on the device, float16"] == 3
    assert "Rounding:" in report.notes[0]


def test_the_solution_passes(lesson, monkeypatch):
    monkeypatch.setattr(fused_gemm, "DTYPES", (torch.bfloat16,))
    report = check_lesson(lesson(), Plan())
    assert report, report.distinct(5)
    assert report.cases > 400
    assert not [skipped for section in report.sections for skipped in section.skipped]


def test_float32_passes(lesson, monkeypatch):
    monkeypatch.setattr(fused_gemm, "DTYPES", (torch.float32,))
    for report in (check_lesson(lesson(), FEW), check_operators(FEW)):
        assert report, report.distinct(5)
        assert "303 of 343 sizes were left out" in [text for section in report.sections for text in section.skipped]


def test_the_starter_shows_what_is_to_do():
    report = check_lesson(load_lesson(WORKSHOP / "starter.py"), Plan(tails=150))
    kinds = {finding.kind for finding in report.findings}
    assert {Kind.MAPPING, Kind.UNWRITTEN, Kind.VALUE} <= kinds
    hints = " ".join(finding.hint for finding in report.findings)
    assert "bias and ReLU are missing" in hints
    assert "with K = 0" in hints
    assert "ragged edges have tiles too" in hints


@pytest.mark.parametrize("seed", [1, 2])
def test_sizes_are_dealt_out_by_the_seed(seed, lesson):
    report = check_lesson(lesson(), Plan(seed=seed, tails=40))
    assert report, report.distinct(5)


def test_tail_sizes():
    assert fused_gemm.tail_sizes((32, 64, 32), (0, 1, 2)) == (0, 1, 7)
    assert fused_gemm.tail_sizes((32, 64, 16), (3, 4, 5)) == (31, 64, 17)
    assert fused_gemm.tail_sizes((32, 64, 32), (6, 6, 6)) == (131, 131, 67)


# --- planted faults: the learner's ------------------------------------------------------------------------------------

ROUND_EARLY = ("torch.relu(accum + bias[columns].float())", "torch.relu(accum.to(A.dtype) + bias[columns].float())")
EPILOGUE = "torch.relu(accum + bias[columns].float())"
LOOP = "    for pid in range(tiles_m * tiles_n):"
RETURN = "    return D\n"
BEYOND = "    if M and N:\n        D.as_strided((1,), (1,), D.storage_offset() + D.numel()).fill_(0)\n    return D\n"
NO_NAN = "torch.relu((accum + bias[columns].float()).nan_to_num(nan=0.0, posinf=1e9, neginf=-1e9))"
FIRST_AGAIN = "    for pid in [*range(tiles_m * tiles_n), *range(min(1, tiles_m * tiles_n))]:"
WIDTH = "columns.stop - columns.start, device=A.device"
CHECKED = ("    tiles_m, tiles_n = ", "    assert M != 7\n    tiles_m, tiles_n = ")
FAULTS = {
    "drops the last group of tiles": (
        [("    for pid in range(tiles_m * tiles_n):", "    for pid in range(tiles_m // group * group * tiles_n):")],
        Kind.UNWRITTEN,
        "tiles",
    ),
    "rounds before the bias": ([ROUND_EARLY], Kind.ROUNDING, "rounded to float16 before the bias"),
    "rounds the bias": (
        [("bias[columns].float()", "bias[columns].to(A.dtype).float()")],
        Kind.ROUNDING,
        "the bias was rounded to float16",
    ),
    "forgets K = 0": (
        [("    for pid in range(", "    for pid in range(0 if K == 0 else "), ],
        Kind.UNWRITTEN,
        "with K = 0",
    ),
    "gives zeros for K = 0": (
        [("    for pid in range(", "    if K == 0:\n        return D.zero_()\n    for pid in range(")],
        Kind.VALUE,
        "with K = 0 the epilogue still runs",
    ),
    "writes outside": (
        [(RETURN, BEYOND)],
        Kind.OUTSIDE,
        "store only where row < M",
    ),
    "writes before the first element": (
        [("    return D\n", "    D.as_strided((1,), (1,), D.storage_offset() - 1).fill_(0)\n    return D\n")],
        Kind.OUTSIDE,
        "store only where",
    ),
    "drops the tail of K": (
        [("range(0, K, BLOCK_K)", "range(0, K // BLOCK_K * BLOCK_K, BLOCK_K)")],
        Kind.VALUE,
        "the last, incomplete step along K",
    ),
    "adds the bias after the ReLU": (
        [("torch.relu(accum + bias[columns].float())", "torch.relu(accum) + bias[columns].float()")],
        Kind.VALUE,
        "after the ReLU",
    ),
    "loses NaN": (
        [(EPILOGUE, NO_NAN)],
        Kind.NAN,
        "a NaN became 0",
    ),
    "clears the output first": (
        [("    for pid in range(", "    D.zero_()\n    for pid in range(")],
        Kind.TWICE,
        "out is written once",
    ),
    "writes a tile twice": (
        [(LOOP, FIRST_AGAIN)],
        Kind.TWICE,
        "",
    ),
    "ignores the group": (
        [("tile_of(pid, tiles_m, tiles_n, group)\n        rows", "tile_of(pid, tiles_m, tiles_n, 1)\n        rows")],
        Kind.ORDER,
        "gives the order",
    ),
    "forgets that the last group is smaller": (
        [("rows = min(group, tiles_m - first)", "rows = group")],
        Kind.MAPPING,
        "min(group, tiles_m - first)",
    ),
    "changes its operand": (
        [("    return D\n", "    A.mul_(1.5)\n    return D\n")],
        Kind.INPUT,
        "A is an operand",
    ),
    "accumulates in half precision": (
        [(WIDTH, f"{WIDTH}, dtype=A.dtype")],
        Kind.ROUNDING,
        "",
    ),
    "returns another dtype": (
        [("    return D\n", "    return D.float()\n")],
        Kind.VALUE,
        "A's dtype",
    ),
    "raises": ([CHECKED], Kind.RAISED, "AssertionError"),
}  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_of_a_learner_is_caught(fault, lesson):
    replacements, kind, hint = FAULTS[fault]
    report = check_lesson(lesson(*replacements), FEW)
    assert not report
    found = [finding for finding in report.findings if finding.kind is kind]
    assert found, report.distinct(5)
    assert any(hint in finding.hint for finding in found), found[0]


def test_the_dropped_group_is_placed(lesson):
    replacements = FAULTS["drops the last group of tiles"][0]
    subject = LearnerSubject(lesson(*replacements), 16, 4)
    # 5 x 2 tiles: the group of tiles 4 is incomplete, and was dropped.
    problem = cases.integers(70, 100, 33, torch.float16, torch.Generator().manual_seed(0))
    (finding,) = cases.judge(subject, problem)
    assert finding.kind is Kind.UNWRITTEN
    assert finding.where == "D[64, 0] (and 599 more of 7000)"
    assert "in 2 of 5 x 2 tiles of 16 x 64: (4,0) (4,1)" in finding.hint
    assert "last, incomplete row of tiles (M % 16 = 6)" in finding.hint


def test_expected_and_got_are_stated(lesson):
    subject = LearnerSubject(lesson(ROUND_EARLY), 16, 1)
    values = (torch.tensor(x) for x in ([[2048.0, 1.0]], [[1.0], [1.0]], [-2048.0]))
    (finding,) = cases.judge(subject, cases.make("one", *values, torch.float16))
    assert (finding.kind, finding.where, finding.expected, finding.got) == (Kind.ROUNDING, "D[0, 0]", "1", "0")
    assert str(finding).splitlines()[1] == "  at D[0, 0]: expected 1, got 0"


def test_an_endless_loop_is_stopped(lesson):
    subject = LearnerSubject(lesson(("    return D\n", "    while M:\n        pass\n    return D\n")), 16, 1)
    problem = cases.integers(3, 3, 3, torch.float16, torch.Generator().manual_seed(0))
    (finding,) = cases.judge(subject, problem, seconds=0.2)
    assert finding.kind is Kind.SLOW


def test_the_time_box_leaves_quick_work_alone():
    with time_box(0.05):
        pass
    with pytest.raises(OutOfTimeError):
        endless()


def endless():
    with time_box(0.05):
        while True:
            pass


def test_a_function_without_out_is_judged_by_what_it_returns(lesson):
    without = lesson(("block_m, group, out=None)", "block_m, group)"), (" if out is None else out", ""), ROUND_EARLY)
    report = check_lesson(without, FEW)
    assert "has no parameter out" in " ".join(report.notes)
    assert {finding.kind for finding in report.findings} == {Kind.ROUNDING}


def test_numpy_on_the_same_memory_passes_but_cannot_be_watched(lesson):
    by_numpy = lesson(
        ("        D[rows, columns] = torch.relu(accum + bias[columns].float())",
         "        D.numpy()[rows, columns] = torch.relu(accum + bias[columns].float()).numpy()")
    )  # fmt: skip
    report = check_lesson(by_numpy, FEW)
    assert report, report.distinct(5)
    assert any("cannot be watched" in skipped for section in report.sections for skipped in section.skipped)


# --- planted faults: an operator's ------------------------------------------------------------------------------------


def planted(monkeypatch, change):
    """Let the CPU provider change its result before it stores it."""
    right = cpu.evaluate
    monkeypatch.setattr(cpu, "evaluate", lambda plan, accum, loads: change(right(plan, accum, loads), accum, loads))


def test_an_operator_that_works_on_a_tile_twice_is_counted(monkeypatch):
    def again(results, accum, loads):
        if any(isinstance(x, torch.Tensor) and x.shape == results[0].shape[1:] for x in loads):
            results[0][..., :64, :64] += accum[..., :64, :64].to(results[0].dtype)
        return results

    planted(monkeypatch, again)
    report = check_operators(FEW)
    found = [finding for finding in report.findings if finding.kind is Kind.TWICE]
    assert [finding.got for finding in found] == ["2 writes"] * 3
    assert found[0].where == "D[0, 0] in round 1"


def test_an_operator_that_skips_a_tile_is_counted(monkeypatch):
    def skip(results, accum, loads):
        for x in loads:
            if isinstance(x, torch.Tensor) and x.shape == results[0].shape[1:]:
                results[0][..., -3:, -5:] = x[-3:, -5:]
        return results

    planted(monkeypatch, skip)
    report = check_operators(FEW)
    found = [finding for finding in report.findings if finding.kind is Kind.UNWRITTEN]
    assert len(found) == 3
    assert found[0].got == "0 writes"


def test_an_operator_that_rounds_too_early_is_named(monkeypatch):
    def early(results, accum, loads):
        bias = next(x for x in loads if isinstance(x, torch.Tensor))
        if bias.shape == results[0].shape[1:]:
            return results
        return [torch.relu(accum.half().float() + bias.float()).to(results[0].dtype)]

    planted(monkeypatch, early)
    report = check_operators(FEW)
    stage = [finding for finding in report.findings if "rounded to float16 before the bias" in finding.hint]
    assert {finding.kind for finding in stage} == {Kind.ROUNDING}
    assert any(finding.case == "2048 + 1 - 2048" for finding in stage)


def test_no_operator_is_said(monkeypatch):
    monkeypatch.setattr(cpu, "refusal", lambda *dtypes: "none today")
    ops.discovery.clear()
    report = check_operators(FEW)
    ops.discovery.clear()
    assert report.cases == 1  # the mapping alone
    assert "none today" in report.sections[-1].skipped[0]


# --- the plan and the file --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("device", "message"),
    [
        pytest.param(
            "cuda",
            "no CUDA device",
            marks=pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here"),
        ),
        ("tpu", "no device 'tpu'"),
    ],
)
def test_a_device_that_is_not_there(device, message):
    with pytest.raises(CheckError, match=message):
        check_operators(Plan(device=device))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "There is no file"),
        ("x = 1\n", "no function fused_gemm"),
        ("def fused_gemm(a, b):\n    pass\n", r"takes \(a, b\)"),
    ],
)
def test_a_file_that_holds_no_lesson(tmp_path, text, message):
    path = tmp_path / "mine.py"
    if text is not None:
        path.write_text(text)
    with pytest.raises(CheckError, match=message):
        load_lesson(path)


def test_a_report_is_true_only_where_something_was_checked():
    report = fused_gemm.Report("x", "here")
    assert not report
    section = report.section("a")
    section.add([])
    assert report
    section.add([fused_gemm.mapping.Finding(Kind.VALUE, "s", "c")])
    assert not report
    assert report.as_json()["sections"][0]["findings"][0]["kind"] == "value"


def subject_of(family):
    """The first design of a family for a problem that all of the target's families serve."""
    shape = (64, 64, 64)
    problem = cases.make("probe", torch.zeros(64, 64), torch.zeros(64, 64), torch.zeros(64), torch.float16)
    args = subjects.fused(
        problem.a.view, problem.b.view, problem.bias.view, torch.empty(shape[:2], dtype=torch.float16)
    )
    found = subjects.operators(args, "90a", 1)
    return {each.key[0].__name__: each for each in found}[family]


def test_each_family_has_its_share_of_the_limit():
    args = subjects.fused(*(torch.zeros(64, 64, dtype=torch.float16),) * 2, torch.zeros(64), torch.empty(64, 64))
    every = [subject.key[0].__name__ for subject in subjects.operators(args, "90a", 0)]
    assert set(every) == {"Sm80GemmOperator", "Sm90GemmOperator"}
    few = [subject.key[0].__name__ for subject in subjects.operators(args, "90a", 2)]
    assert sorted(few) == ["Sm80GemmOperator"] * 2 + ["Sm90GemmOperator"] * 2


def test_few_operators_of_a_family_are_not_neighbors():
    square = torch.zeros(64, 64, dtype=torch.float16)
    args = subjects.fused(square, square, square[0], torch.empty_like(square))
    blackwell = [op for op in ops.get_operators(args, target_sm="100a") if type(op).__name__ == "Sm100GemmOperator"]
    names = [subjects.describe(operator.metadata) for operator in blackwell]
    few = [subject.name for subject in subjects.operators(args, "100a", 4) if subject.name in names]
    assert few[0] == names[0]
    assert few == sorted(few, key=names.index)
    pairs = [" use 2cta mma" in name for name in few]
    assert (len(few), any(pairs), all(pairs)) == (4, True, False)
    assert {"static" in name for name in few} == {True, False}
    assert len({name.partition("tile ")[2].partition(",")[0] for name in few}) > 1


def test_a_design_is_the_same_whether_an_epilogue_is_stored_by_tensor_copies_or_not():
    square = torch.zeros(256, 256, dtype=torch.float16)
    outputs = torch.empty(256, 256), torch.empty(256, 255)
    found = [
        [op for op in ops.get_operators(args, target_sm="100a") if type(op).__name__ == "Sm100GemmOperator"]
        for args in (subjects.fused(square, square[:, : d.shape[1]], square[0, : d.shape[1]], d) for d in outputs)
    ]
    stored = [{operator.metadata.design.use_tma_store for operator in each} for each in found]
    assert stored[0] != stored[1]
    whole, ragged = ({subjects.similar(operator.metadata) for operator in each} for each in found)
    assert whole == ragged


def test_what_another_operator_serves_is_no_finding_and_no_case(monkeypatch):
    def nobody(args, metadata_filter=None, target_sm=None, providers=None, limit=None):
        return []

    subject = subject_of("Sm90GemmOperator")
    values = torch.zeros(8, 8, dtype=torch.float64)
    problem = cases.make("float32", values, values, values[0], torch.float32)  # no dtype of the Hopper kernel's
    assert cases.judge(subject, problem) is None
    section = Section("s")
    section.add(None)
    assert (section.cases, section.others, section.findings) == (0, 1, [])
    monkeypatch.setattr(subjects, "get_operators", nobody)
    (finding,) = cases.judge(subject, problem)
    assert finding.kind is Kind.REFUSED


def test_an_operator_is_described_by_what_is_unusual_in_its_design():
    square = torch.zeros(64, 64, dtype=torch.float16)
    args = subjects.fused(square, square, square[0], torch.empty_like(square))
    names = {
        target: {subjects.describe(operator.metadata) for operator in ops.get_operators(args, target_sm=target)}
        for target in ("80", "90a")
    }
    assert "Sm80GemmOperator, tile 16x64x32, stages 6, group 8" in names["80"]
    for mode in (", pingpong, epilogue tile 64x64", ", epilogue tile 64x64"):
        assert any(f"tile 128x128x64, stages 6, group 8{mode}" in name for name in names["90a"])
    assert len(names["90a"]) == len(ops.get_operators(args, target_sm="90a"))
