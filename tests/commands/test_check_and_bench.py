# SPDX-License-Identifier: Apache-2.0
"""``check`` and ``bench`` as a shell sees them: verdicts, exit status, JSON, and what is said without a GPU."""

import json
import sys
from pathlib import Path

import pytest
import torch

from epifuse import cli
from epifuse.check import epilogues, fused_gemm
from epifuse.commands import check
from epifuse.target import TargetSm

WORKSHOP = Path(__file__).resolve().parents[2] / "examples/workshop"
without_a_gpu = pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")


@pytest.fixture(autouse=True)
def small(monkeypatch):
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    monkeypatch.setattr(fused_gemm, "DTYPES", (torch.float16,))
    monkeypatch.setattr(fused_gemm.Plan, "most_tails", 40)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def shell(monkeypatch, capsys):
    def call(*arguments):
        monkeypatch.setattr(sys, "argv", ["epifuse", *map(str, arguments)])
        with pytest.raises(SystemExit) as exit_:
            cli.main()
        printed = capsys.readouterr()
        return exit_.value.code or 0, printed.out, printed.err

    return call


def test_check_derives_the_mapping_and_passes(shell, tmp_path):
    path = tmp_path / "deep" / "check.json"
    code, out, _ = shell("check", "--device", "cpu", "--json", path)
    assert code == 0
    assert "(0,0) (1,0) (0,1) (1,1) (2,0) (2,1)" in out
    assert "min(2, 3 - 2) = 1" in out
    assert "Rounding:" in out
    assert "GPU kernels: --device cuda" in out
    found = json.loads(path.read_text())
    assert found["passed"] is True
    assert found["cases"] > 50
    assert found["where"] == "the CPU"


def test_check_judges_a_file(shell):
    code, out, _ = shell("check", "fused_gemm", "--device", "cpu", "--file", WORKSHOP / "starter.py")
    assert code == 1
    assert "WRONG" in out
    assert "hint: in a group M runs fastest" in out
    assert "expected" in out
    code, out, _ = shell("check", "fused_gemm", "--device", "cpu", "--file", WORKSHOP / "solution.py")
    assert code == 0
    assert "all right." in out


def test_check_of_some_epilogues(shell):
    code, out, _ = shell("check", "epilogues", "--device", "cpu", "--only", "relu", "--only", "swiglu")
    assert code == 0
    assert "36 cases, all right." in out


def test_nothing_checked_is_no_success(shell, monkeypatch):
    monkeypatch.setattr(epilogues, "cases", lambda plan: iter(()))
    code, out, _ = shell("check", "epilogues", "--device", "cpu")
    assert code == 1
    assert "nothing was checked" in out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("check", "gemm"), "There is no check 'gemm'."),
        (("check", "epilogues", "--file", "x.py"), "--file holds a fused_gemm."),
        (("check", "fused_gemm", "--file", "nowhere.py"), "There is no file 'nowhere.py'."),
        (("check", "fused_gemm", "--device", "tpu"), "There is no device 'tpu'."),
        (("bench", "--suite", "nothing"), "There is no benchmark 'nothing'."),
        (("bench", "--suite", "epilogues", "--peers", "nobody"), "There is no peer 'nobody'."),
        (("bench", "--suite", "epilogues", "--problems", "7 x 7"), "There is no problem '7 x 7'."),
        (("bench", "--suite", "epilogues", "--file", "x.py"), "--file is measured by --op fused_gemm alone."),
        (("bench", "--op", "fused_gemm", "--device", "tpu"), "There is no device 'tpu' here."),
    ],
)
def test_a_mistake_is_a_sentence_and_status_1(shell, arguments, message):
    code, _, err = shell(*arguments)
    assert code == 1
    assert message in err
    assert "Traceback" not in err


def test_op_and_suite_together_are_refused(shell):
    code, _, err = shell("bench", "--op", "host", "--suite", "host")
    assert code == 2
    assert "ask one" in err


@without_a_gpu
def test_a_suite_without_a_gpu_says_what_can_be_done(shell):
    code, out, _ = shell("bench", "--suite", "h200-bf16-bias-relu")
    assert code == 0
    assert "There is no GPU here" in out
    assert "bias_relu 8192 x 8192 x 8192: 1099.5 GFLOP" in out
    assert out.count("GFLOP") == 14


def test_the_sweep_without_a_gpu_lists_the_space_and_writes_json(shell, tmp_path, monkeypatch):
    from epifuse.bench import fused_gemm as sweep  # noqa: PLC0415

    monkeypatch.setattr(sweep.run, "__defaults__", (None, sweep.WORKSHOP[:1], *sweep.run.__defaults__[2:]))
    path = tmp_path / "results" / "local" / "i3.json"
    code, out, _ = shell("bench", "--op", "fused_gemm", "--device", "cpu", "--output", path, "--seconds", 3)
    assert code == 0
    assert "not offered on the CPU" in out
    assert "no configuration ran" in out
    assert "Times alone" in out
    found = json.loads(path.read_text())
    assert len(found["sweeps"][0]["points"]) == 9
    assert {"device", "versions", "notes", "left"} <= set(found)


def test_the_host_suite_is_the_host_benchmark(shell):
    code, out, _ = shell("bench", "--suite", "host", "--rounds", 2, "--no-peer")
    assert code == 0
    assert "get_operators, repeated" in out


def test_a_suite_is_printed_written_and_drawn(shell, tmp_path, monkeypatch):
    """What a GPU would show, with small problems on the CPU in its place."""
    from epifuse.bench import suites  # noqa: PLC0415
    from epifuse.bench.workloads import Problem  # noqa: PLC0415
    from epifuse.commands import bench  # noqa: PLC0415

    monkeypatch.setitem(suites.SUITES, "tiny", (Problem(8, 16, 8), Problem(8, 16, 8, workload="swiglu")))
    measure = bench.kernels.run
    monkeypatch.setattr(bench.Options, "place", "cuda")

    def on_the_cpu(name, problems, chosen, device, *rest, **options):
        return measure(name, problems, chosen, "cpu", *rest, **options)

    monkeypatch.setattr(bench.kernels, "run", on_the_cpu)
    path, picture = tmp_path / "suite.json", tmp_path / "suite.png"
    arguments = ("--suite", "tiny", "--seconds", 4, "--peers", "addmm and elementwise,quack,operators", "-o", path)
    code, out, _ = shell("bench", *arguments, "--plot", picture)
    assert code == 0
    assert "Ours against the best peer" in out
    assert "bias_relu 8 x 16 x 8" in out
    assert "absent: quack" in out
    assert "epifuse #0" in out
    assert len(json.loads(path.read_text())["problems"]) == 2
    if bench.plot.available():
        assert picture.stat().st_size > 5000
    else:
        assert "matplotlib is not installed" in out


@pytest.mark.parametrize(
    ("here", "target", "device"),
    [
        (None, None, "cpu"),
        (None, "100a", "emulator"),
        ("100a", "100a", "cuda"),
        ("100a", "100f", "cuda"),
        ("90a", "100a", "emulator"),
        ("90a", None, "cuda"),
        ("90a", "80", "cuda"),
    ],
)
def test_a_target_that_no_gpu_here_runs_is_emulated(monkeypatch, here, target, device):
    monkeypatch.setattr(check, "target_of_device", lambda device: TargetSm.ensure(here))
    assert check._device_for(TargetSm.ensure(target)) == device


@without_a_gpu
def test_the_suite_for_a_b200_is_listed_here(shell):
    code, out, _ = shell("bench", "--suite", "b200")
    assert code == 0
    assert "There is no GPU here" in out
    for name in ("bias_relu 16384 x 16384 x 4096", "bias_relu 512 x 512 x 512", "swiglu 4096 x 4096 x 4096"):
        assert name in out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("check", "--target", "9", "--device", "emulator"), "Emulated: 80, 86"),
        (("check", "epilogues", "--only", "gleu"), "Nearest: glu, gelu"),
        (("check", "fused_gemm", "--device", "tpu"), "Devices: cpu, cuda, emulator"),
        (("check", "fused_gemm", "--device", "cpu", "--file", "nowhere.py"), "There is no file 'nowhere.py'."),
        (("check", "--target", "H100"), "'90a' (H100, H200)"),
    ],
)
def test_check_refuses_what_it_does_not_know_before_it_prints(shell, arguments, said):
    code, out, err = shell(*arguments)
    assert code == 1
    assert said in err
    assert not out
