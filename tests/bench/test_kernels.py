# SPDX-License-Identifier: Apache-2.0
"""Suites on the CPU: every workload right, wrong contenders never the best, reasons kept, time and order honest."""

import json
import math
import sys
import types
from dataclasses import replace

import pytest
import torch

from epifuse.bench import kernels, machine, peers, plot, timing
from epifuse.bench.kernels import Budget, ProblemResult, SuiteResult
from epifuse.bench.suites import SUITES, WORKSHOP
from epifuse.bench.timing import Contender
from epifuse.bench.workloads import TABLE, Problem, make

TINY = Budget(seconds=5.0, rounds=6)
HERE = [peer for peer in peers.PEERS if peer.name in ("epifuse", "cublaslt fused", "addmm and elementwise")]


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def test_the_suites_hold_what_is_asked_for():
    shapes = {(p.m, p.n, p.k) for p in SUITES["h200-bf16-bias-relu"]}
    assert len(shapes) == 14
    assert {(8192, 8192, 8192), (1000, 1000, 1000), (16, 8192, 8192), (8192, 8192, 512)} <= shapes
    assert {(p.workload, p.dtype, p.b_major) for p in SUITES["h200-bf16-bias-relu"]} == {("bias_relu", "bfloat16", "k")}
    assert {p.workload for p in SUITES["epilogues"]} == set(TABLE) - {"bias_relu"}
    assert any((p.m, p.n, p.k) == (512, 512, 512) for p in WORKSHOP)


@pytest.mark.parametrize("workload", TABLE)
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_contenders_agree_with_float64(workload, dtype):
    problem = Problem(48, 64, 40, workload=workload, dtype=dtype)
    result = kernels.run("test", [problem], HERE, "cpu", TINY).problems[0]
    names = [row.contender for row in result.rows]
    assert names[0] == "epifuse"
    assert "addmm and elementwise" in names
    assert all(row.right for row in result.rows)
    assert result.ours().error < (2e-6 if dtype == "float32" else 3e-3)
    assert ("cublaslt fused" in result.absent) == (workload not in ("bias_relu", "bias_gelu"))
    for row in result.rows:
        assert 0 < row.us.low <= row.us.median <= row.us.high
        assert row.tflops == pytest.approx(2 * 48 * 64 * 40 / row.us.median / 1e6)
        assert row.rounds == 6


def test_torch_forms_are_the_same_epilogues():
    for name, row in TABLE.items():
        data = make(Problem(16, 24, 8, workload=name, dtype="float64", b_major="n"), "cpu", 0)
        found = row.eager(data.a, data.b, data.operands)
        exact = data.reference(torch.arange(16))
        for value, wanted in zip(found if isinstance(found, tuple) else (found,), exact, strict=True):
            assert torch.allclose(value, wanted, rtol=1e-12, atol=1e-12), name


def test_bytes_that_must_move():
    assert TABLE["bias_relu"].bytes_of(10, 20, 30, 2) == 2 * (300 + 600 + 200 + 20)
    assert TABLE["swiglu"].bytes_of(10, 20, 30, 2) == 2 * (300 + 600 + 100)
    assert TABLE["aux_relu_store"].bytes_of(10, 20, 30, 2) == 2 * (300 + 600 + 600)
    assert TABLE["row_column_scale"].bytes_of(10, 20, 30, 4) == 4 * (300 + 600 + 200 + 30)


def wrong(data):
    def launch():
        data.outputs["D"].zero_()

    return launch


def missing(data):
    def launch():
        data.outputs["D"][:-1] = torch.relu(data.a.float() @ data.b.float() + data.operands["bias"])[:-1].to(
            data.a.dtype
        )

    return launch


def absent(data):
    raise peers.AbsentError("not here")


def broken(data):
    raise RuntimeError("first line\nsecond line")


def test_the_wrong_are_never_best_and_the_absent_say_why():
    chosen = [HERE[0], *(peers.Peer(f.__name__, f) for f in (wrong, missing, absent, broken))]
    result = kernels.run("test", [Problem(33, 64, 40)], chosen, "cpu", TINY).problems[0]
    rows = {row.contender: row for row in result.rows}
    assert not rows["wrong"].right
    assert rows["wrong"].error == pytest.approx(1.0)
    assert not rows["missing"].right
    assert math.isnan(rows["missing"].error)
    assert result.absent == {"absent": "not here", "broken": "RuntimeError: first line"}
    assert result.best().contender == "epifuse"
    assert result.best_peer() is None


def test_time_that_is_over_leaves_problems_and_names_them():
    kept = []
    problems = [Problem(8, 8, 8), Problem(9, 9, 9)]
    result = kernels.run("test", problems, HERE[:1], "cpu", Budget(0.0), keep=lambda r: kept.append(len(r.problems)))
    assert result.problems == []
    assert result.left == [p.name for p in problems]
    result = kernels.run("test", problems, HERE[:1], "cpu", TINY, keep=lambda r: kept.append(len(r.problems)))
    assert kept == [1, 2]
    assert json.loads(json.dumps(result.as_json()))["problems"][1]["problem"]["m"] == 9
    assert "nothing about a GPU" in result.notes[0]


def test_every_operator_of_the_list_can_be_measured():
    result = kernels.run("test", [Problem(8, 8, 8)], HERE[:1], "cpu", TINY, every_operator=True).problems[0]
    listed = [row.contender for row in result.rows if row.contender.startswith("epifuse #")]
    assert listed == ["epifuse #0: CpuGemmOperator"]
    assert result.best_of_ours().contender.startswith("epifuse")


def test_contenders_go_in_turn_in_changing_order():
    calls = []
    names = ("a", "b", "c")
    contenders = [Contender(n, [lambda n=n: calls.append(n)], []) for n in names]
    times = timing.run(contenders, "cpu", 8, 100.0, seed=1)
    assert {len(t.us) for t in times.values()} == {8}
    assert {t.graphed for t in times.values()} == {False}
    turns = [n for i, n in enumerate(calls) if i == 0 or calls[i - 1] != n]
    orders = {tuple(turns[i : i + 3]) for i in range(0, len(turns) - 2, 3)}
    assert len(orders) > 1


def test_operand_sets_rotate():
    seen = []
    contender = Contender("a", [lambda i=i: seen.append(i) for i in range(5)], [])
    launches = timing.run([contender], "cpu", 1, 1.0)["a"].launches
    assert launches % 5 == 0
    assert seen == [0, 0, 0, *(i % 5 for i in range(launches))]


@pytest.mark.parametrize("busy", [0, 1, 2])
def test_one_launch_that_seems_long_does_not_shorten_the_turns(monkeypatch, busy):
    took = [100_000, 100_000, 100_000, 1]  # nanoseconds; the last one is the turn's
    took[busy] = 3_000_000
    clock = iter([n for each in took for n in (0, each)])
    monkeypatch.setattr(timing.time, "perf_counter_ns", lambda: next(clock))
    times = timing.run([Contender("a", [lambda: None], [])], "cpu", 1, 1.0)
    assert times["a"].launches == timing.ROUND_US // 100


def test_peers_by_name():
    assert [p.name for p in peers.chosen("quack")[0]] == ["epifuse", "quack"]
    assert peers.chosen("quick, nobody")[1] == ["quick", "nobody"]
    assert {p.quick for p in peers.chosen("quick")[0]} == {True}
    assert peers.chosen("all")[0] == list(peers.PEERS)
    assert peers.chosen("operators") == ([peers.PEERS[0]], [])


def test_quack_is_told_that_cutlass_is_foreign(monkeypatch):
    """With a double that refuses as quack 0.6.5 does where the DSL is not in site-packages."""
    identity = types.ModuleType("quack.gemm_runtime.identity")
    identity._is_extern_function = lambda function: function.__module__ == "known"
    interface = types.ModuleType("quack.gemm_interface")
    for name, module in (
        ("quack", types.ModuleType("quack")),
        ("quack.gemm_runtime", types.ModuleType("quack.gemm_runtime")),
        ("quack.gemm_runtime.identity", identity),
        ("quack.gemm_interface", interface),
    ):
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setattr(peers.importlib.util, "find_spec", lambda name: object())
    peers.quack.cache_clear()
    assert peers.quack() is interface
    answers = []
    for module in ("cutlass._mlir_helpers.op", "cutlass", "known", "quack.activation", "cutlassian", None):
        answers.append(identity._is_extern_function(types.SimpleNamespace(__module__=module)))
    assert answers == [True, True, True, False, False, False]
    peers.quack.cache_clear()


def test_quack_says_why_it_is_absent(monkeypatch):
    monkeypatch.setattr(peers.importlib.util, "find_spec", lambda name: None)
    peers.quack.cache_clear()
    with pytest.raises(peers.AbsentError, match="not installed"):
        peers.quack()
    peers.quack.cache_clear()


def test_the_machine_is_described():
    assert machine.device("cpu")["device"]
    assert {"python", "torch", "epifuse"} <= set(machine.versions())


def test_a_picture_of_ours_beside_the_best_peer(tmp_path):
    pytest.importorskip("matplotlib")
    problems = [Problem(16, 16, 16), Problem(16, 24, 8, workload="swiglu")]
    result = kernels.run("test", problems, HERE, "cpu", TINY)
    plot.save(result, tmp_path / "deep" / "suite.png")
    data = (tmp_path / "deep" / "suite.png").read_bytes()
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    assert len(data) > 5000
    result.problems.clear()
    plot.save(result, tmp_path / "empty.png")


def result_of(*speeds):
    """A suite in which ours takes 1 us in each problem, and a peer each of the given microseconds; None: no peer."""
    result = SuiteResult("test", {}, {})
    for number, us in enumerate(speeds):
        found = ProblemResult(Problem(16 + number, 24, 8))
        times = {"epifuse": [1.0] * 8} | ({} if us is None else {"peer": [us] * 8})
        contenders = [Contender(name, [], []) for name in times]
        timed = {name: timing.Times(tuple(values), 1, False) for name, values in times.items()}
        found.rows = kernels.rows(found.problem, contenders, timed, dict.fromkeys(times, 0.0))
        result.problems.append(found)
    return result


def test_the_verdict_counts_what_is_certainly_slower():
    verdict = result_of(2.0, 0.98, 0.96, 1.0).verdict()
    assert verdict.slower == ["bias_relu 18 x 24 x 8"]
    assert verdict.mean == pytest.approx((2.0 * 0.98 * 0.96) ** 0.25)
    assert "worst 0.96 [0.96, 0.96] on bias_relu 18 x 24 x 8" in str(verdict)


def test_the_verdict_without_peers_and_with_a_wrong_result():
    assert "No verdict" in str(result_of(None).verdict())
    assert "Without comparison: bias_relu 17 x 24 x 8." in str(result_of(1.5, None).verdict())
    wrong = result_of(2.0)
    wrong.problems[0].rows = [replace(row, right=row.contender != "epifuse") for row in wrong.problems[0].rows]
    assert str(wrong.verdict()) == "WRONG: epifuse"


def test_the_suite_for_a_b200_has_the_shapes_of_the_others_and_larger_ones():
    large = {(p.m, p.n, p.k) for p in SUITES["b200"] if p.workload == "bias_relu"}
    assert {(p.m, p.n, p.k) for p in SUITES["h200-bf16-bias-relu"]} < large
    assert {p.workload for p in SUITES["b200"]} == set(TABLE)


def test_torch_compiles_every_problem(monkeypatch):
    """It gives up on a function after eight shapes, and runs it as it stands."""
    compiled, real = [], torch.compile

    def backend(module, inputs):
        compiled.append([tuple(each.shape) for each in inputs if isinstance(each, torch.Tensor)])
        return module.forward

    monkeypatch.setattr(torch, "compile", lambda function, **_: real(function, backend=backend, dynamic=False))
    for number in range(10):
        peers._torch_compile(make(Problem(8 + number, 16, 8), "cpu", 0))
    assert len(compiled) == 10


@pytest.mark.parametrize("workload", ["bias_relu", "row_column_scale"])
def test_every_peer_takes_part_or_says_why_not(workload, monkeypatch):
    monkeypatch.setattr(peers, "_compiled", lambda eager: eager)  # torch.compile's own time is not ours to spend
    result = kernels.run("test", [Problem(48, 64, 40, workload=workload)], peers.PEERS, "cpu", TINY).problems[0]
    assert {row.contender for row in result.rows} | set(result.absent) == {
        p.name for p in (*peers.PEERS, peers.YARDSTICK)
    }
    assert {"epifuse", "addmm and elementwise", "torch.compile"} <= {row.contender for row in result.rows}
    assert all(result.absent.values())
    assert result.absent["epifuse tuned"] == "tune measures on a GPU"
