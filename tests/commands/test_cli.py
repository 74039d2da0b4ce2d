# SPDX-License-Identifier: Apache-2.0
"""The command line, as a shell sees it: output, exit status, and errors without a traceback."""

import json
import sys
from functools import partial
from types import SimpleNamespace
from xml.etree import ElementTree

import pytest
import torch

import epifuse
from epifuse import cli
from epifuse.commands import demo, functions
from epifuse.commands import tune as command
from epifuse.fusion.vocabulary import table
from epifuse.runtime import winners
from epifuse.tune import search

FILE = """
def scale(accum, bias, alpha):
    D = accum * alpha + bias
    return D
"""


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "my_scale.py"
    path.write_text(FILE)
    return path


@pytest.fixture
def shell(monkeypatch, capsys):
    def call(*arguments):
        monkeypatch.setattr(sys, "argv", ["epifuse", *map(str, arguments)])
        with pytest.raises(SystemExit) as exit_:
            cli.main()
        printed = capsys.readouterr()
        return exit_.value.code or 0, printed.out, printed.err

    return call


def test_demo_shows_everything_and_succeeds(shell):
    code, out, _ = shell("demo")
    assert code == 0
    for part in ("def epilogue(accum", "└─ add", "stores", "sm_90a", "sm_100a", "fused, one rounding", "kept."):
        assert part in out


def test_demo_on_an_emulated_gpu(shell):
    pytest.importorskip("cutlass")
    code, out, _ = shell("demo", "--emulate", "100a")
    assert code == 0
    for part in ("on an emulated sm_100a", "ran sm100_gemm_f16", "kept."):
        assert part in out
    code, _, error = shell("demo", "--emulate", "70")
    assert code == 1
    assert "No GPU '70' is emulated" in error


def test_demo_fails_where_the_result_is_wrong(shell, monkeypatch):
    def off_by_one(case, dtype):
        return {name: tensor + 1 for name, tensor in as_python(case, dtype).items()}

    as_python = demo._as_python
    monkeypatch.setattr(demo, "_as_python", off_by_one)
    code, out, _ = shell("demo")
    assert code == 1
    assert "NOT KEPT" in out


def test_doctor(shell, monkeypatch):
    monkeypatch.setenv("CUTE_DSL_ARCH", "100a")
    code, out, _ = shell("doctor")
    assert code == 0
    for part in ("torch", epifuse.__version__, "nvidia-cutlass-dsl", "CpuGemmOperator", "CUTE_DSL_ARCH", "100a"):
        assert part in out


def test_doctor_finds_a_setting_that_is_not_accepted(shell, monkeypatch):
    monkeypatch.setenv("CUTE_DSL_ARCH", "hopper")
    code, out, _ = shell("doctor")
    assert code == 1
    assert "not accepted" in out


def test_doctor_lists_the_whole_vocabulary(shell):
    code, out, _ = shell("doctor", "--vocabulary")
    assert code == 0
    for row in table.rows():
        assert f" {row.name}(" in out
    assert "1e-06 into 16" in out.replace("(", "")  # gelu's error, on a line of its own


def test_explain(shell, file):
    code, out, err = shell("explain", file, "--bias", "N", "--m", 7, "--target", "90a", "--target", "100a")
    assert code == 0, err
    assert "assumed: alpha is the number 1.0" in out
    assert "assumed: D is (7, 1024) float16" in out
    assert "sm_90a" in out
    assert "sm_100a" in out
    assert "assumed: bias" not in out


def test_explain_without_a_target_asks_for_this_machine(shell, file):
    code, out, _ = shell("explain", f"{file}:scale", "--alpha", "-0.5", "--operand", "bias=M,1:float32", "--l", 2)
    assert code == 0
    assert "CpuGemmOperator" in out
    assert "batch_matrix" in out
    assert "column" in out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("explain", "nowhere.py"), "There is no file 'nowhere.py'."),
        (("explain", "{file}", "--gamma", "1"), "no operand 'gamma'"),
        (("explain", "{file}", "--dtype", "int7"), "Unknown dtype 'int7'"),
        (("explain", "{file}", "--target", "hopper"), "Invalid TargetSm: 'hopper'"),
        (("explain", "{file}", "--bias", "N,M,K,K"), "bias"),
        (("draw", "{file}", "-o", "graph.pdf"), "Known endings: .svg, .mmd, .txt."),
        (("draw", "{file}", "-o", "{file}/graph.svg"), "graph.svg cannot be written"),
        (("bench", "--op", "gemm"), "There is no benchmark 'gemm'."),
    ],
)
def test_a_mistake_is_a_sentence_and_status_1(shell, file, arguments, message):
    code, _, err = shell(*(str(a).format(file=file) for a in arguments))
    assert code == 1
    assert message in err
    assert "Traceback" not in err


def test_a_negative_extent_is_refused_by_name(shell, file):
    code, _, err = shell("explain", file, "--m", -1)
    assert code == 2
    assert "--m" in err
    assert "Traceback" not in err


def test_draw_to_the_screen_and_to_files(shell, file, tmp_path):
    code, out, _ = shell("draw", file)
    assert code == 0
    assert "└─ add" in out
    assert shell("draw", file, "-o", tmp_path / "a.txt")[0] == 0
    assert (tmp_path / "a.txt").read_text().strip() == out.strip()
    assert shell("draw", file, "-o", tmp_path / "a.mmd")[0] == 0
    assert (tmp_path / "a.mmd").read_text().startswith("flowchart")
    assert shell("draw", file, "--output", tmp_path / "a.svg")[0] == 0
    texts = [node.text for node in ElementTree.parse(tmp_path / "a.svg").iter() if node.tag.endswith("text")]
    assert {"accum", "alpha", "bias", "D"} <= set(texts)


def test_bench_prints_and_writes_what_it_measured(shell, tmp_path):
    path = tmp_path / "host.json"
    code, out, _ = shell("bench", "--op", "host", "--rounds", 3, "--no-peer", "-o", path)
    assert code == 0
    assert "get_operators, repeated" in out
    result = json.loads(path.read_text())
    assert {row["name"] for row in result["measurements"]} >= {"supports", "arguments, new function"}
    assert all(0 < row["median_us"] <= row["p90_us"] for row in result["measurements"])
    assert result["machine"]["epifuse"] == epifuse.__version__


def test_no_command_shows_the_help(shell):
    _, out, _ = shell()
    for name in ("demo", "doctor", "explain", "draw", "bench"):
        assert name in out


def test_tune_without_a_gpu_says_what_to_do_instead(shell, file, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    code, _, err = shell("tune", file, "--bias", "N")
    assert code == 1
    assert "measures on a GPU" in err
    assert "in their predicted order" in err
    assert "Traceback" not in err


def test_tune_measures_what_is_described(shell, file, monkeypatch):
    found = []

    def on_the_cpu(function, problem, described, device):
        args, assumed = functions.invent(function, problem, described, "cpu")
        found.append(args)
        return args, assumed

    def timer(contenders, seconds):
        return {contender.name: [7.0, 7.5, 8.0] for contender in contenders}

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(command, "functions", SimpleNamespace(**vars(functions) | {"invent": on_the_cpu}))
    monkeypatch.setattr(command, "tune", partial(search.tune, timer=timer))
    code, out, _ = shell("tune", file, "--bias", "M,1:float32", "--m", 12, "--n", 8, "--k", 4, "--dtype", "float16")
    assert code == 0
    (args,) = found
    assert args.problem_size == (12, 8, 4, 1)
    assert dict(zip(args.bound.names.loads, args.loads, strict=True))["bias"].shape == (12, 1)
    assert all(bool(x.isfinite().all()) for x in (args.A.view, args.B.view, *args.outputs))
    for part in ("assumed: alpha is the number 1.0", "12 x 8 x 4", "7.5", "1 of 1 operators were measured"):
        assert part in out


def test_tune_forgets(shell, monkeypatch, tmp_path):
    monkeypatch.setenv("EPIFUSE_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(winners, "device_of", lambda args: "a GPU")
    x = torch.zeros(8, 8)
    args = epifuse.GemmArguments(x, x, x.clone(), torch.float32)
    winners.remember(args, ["a", "b"], winners.Winner("b", 1.0, {}))
    assert winners.recall(args, ["a", "b"]).operator_name == "b"
    code, out, _ = shell("tune", "--forget")
    assert (code, winners.recall(args, ["a", "b"])) == (0, None)
    assert "1 records forgotten" in out
    code, _, err = shell("tune")
    assert code == 2
    assert "name a file" in err
