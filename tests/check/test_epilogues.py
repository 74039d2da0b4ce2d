# SPDX-License-Identifier: Apache-2.0
"""The check of the vocabulary covers every row, passes on the CPU provider, and finds planted faults."""

import pytest
import torch

import epifuse_cpu.operator as cpu
from epifuse.check import epilogues
from epifuse.check.fused_gemm import Plan
from epifuse.check.verdict import Kind
from epifuse.fusion.vocabulary import table

ONE_OF_EACH = ("relu", "gelu", "gelu tanh", "swiglu", "where", "sum(dim=-2)", "two outputs", "cast", "div")


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def test_every_row_of_the_vocabulary_is_asked():
    asked = {operation.partition("(")[0].partition(" ")[0] for operation, _ in epilogues.texts()}
    assert {row.name for row in table.rows()} <= asked
    cases = epilogues.cases(Plan())
    assert len(cases) == len(list(epilogues.texts())) * len(epilogues.OUTPUTS) * len(epilogues.LAYOUTS)


def test_the_cpu_provider_passes():
    report = epilogues.check(Plan(), ONE_OF_EACH)
    assert report, report.distinct(3)
    assert report.cases == len(ONE_OF_EACH) * len(epilogues.OUTPUTS) * len(epilogues.LAYOUTS)


def test_an_emulated_gpu_takes_one_of_each():
    cases = epilogues.cases(Plan(device="emulator"))
    assert [case.operation for case in cases] == [operation for operation, _ in epilogues.texts()]
    assert {case.layout for case in cases} == set(epilogues.LAYOUTS)
    assert {case.dtype for case in cases} == set(epilogues.OUTPUTS)


def planted(monkeypatch, change):
    """Let the CPU provider change its results, given the plan, before it stores them."""
    right = cpu.evaluate
    monkeypatch.setattr(cpu, "evaluate", lambda plan, accum, loads: change(right(plan, accum, loads)))


@pytest.mark.parametrize("layout", epilogues.LAYOUTS)
def test_a_single_wrong_element_is_found(monkeypatch, layout):
    def change(results):
        flat = results[0].reshape(-1)
        flat[flat.numel() // 2] += 0.05
        return [flat.reshape(results[0].shape), *results[1:]]

    planted(monkeypatch, change)
    monkeypatch.setattr(epilogues, "LAYOUTS", (layout,))
    report = epilogues.check(Plan(), ("sigmoid",))
    assert [finding.kind for finding in report.findings] == [Kind.VALUE] * 3
    assert "0 more of" in report.findings[0].where


def test_a_lost_nan_is_found(monkeypatch):
    planted(monkeypatch, lambda results: [r.nan_to_num(nan=0.0) for r in results])
    report = epilogues.check(Plan(), ("relu",))
    assert {finding.case.split()[-1] for finding in report.findings} == {"specials"}


def test_unwritten_outputs_are_found(monkeypatch):
    planted(monkeypatch, lambda results: [r * torch.nan for r in results])
    report = epilogues.check(Plan(), ("two outputs",))
    assert {finding.kind for finding in report.findings} == {Kind.UNWRITTEN}
    assert {finding.where[0] for finding in report.findings} == {"D", "F"}


def test_a_write_outside_is_found(monkeypatch):
    def change(results):
        return results

    planted(monkeypatch, change)
    right = cpu.CpuGemmOperator._run

    def run(self, args, *rest):
        right(self, args, *rest)
        out = args.outputs[0]
        out.as_strided((1,), (1,), out.storage_offset() - 1).fill_(0.0)

    monkeypatch.setattr(cpu.CpuGemmOperator, "_run", run)
    report = epilogues.check(Plan(), ("relu",))
    assert {finding.kind for finding in report.findings} == {Kind.OUTSIDE}
    assert report.findings[0].where.startswith("element -1 ")


def test_an_exception_of_the_provider_is_a_finding(monkeypatch):
    def change(results):
        raise RuntimeError("no memory")

    planted(monkeypatch, change)
    report = epilogues.check(Plan(), ("relu",))
    assert {finding.kind for finding in report.findings} == {Kind.RAISED}
    assert "no memory" in report.findings[0].hint
