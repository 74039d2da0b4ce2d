# SPDX-License-Identifier: Apache-2.0
"""``tune``: what it measures, for how long, what it remembers, and when a memory counts. Times come from a table."""

import json
import subprocess
import sys

import pytest
import torch

import epifuse as ops
from epifuse import discovery
from epifuse.bench import peers
from epifuse.errors import OperandTypeError, UnsupportedError
from epifuse.metadata import (
    BLASDesignMetadata,
    DenseTensorConstraints,
    EpilogueMetadata,
    GemmOperandsMetadata,
    OperatorMetadata,
)
from epifuse.provider import Provider
from epifuse.runtime import winners
from epifuse.runtime.winners import Winner
from epifuse.tune import search, tune

NAMES = ("a", "b", "c", "d", "e")
US = {"a": 5.0, "b": 4.0, "c": 1.0, "d": 3.0, "e": 0.5}
"""What is measured; predicted is the order of the alphabet."""


class Clock:
    """Seconds that pass only when something takes them."""

    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


class Named(ops.Operator):
    """Adds 1 to ``out`` at each run; compiling takes a second of ``clock``."""

    supported_args_type = ops.GemmArguments
    designed_for_min_cc = 0
    names = NAMES
    broken = ()
    clock = Clock()

    def _estimate_us(self, args, target_sm=None):
        return float(ord(self.metadata.operator_name[0]))

    def _compile(self, args, target_sm=None):
        type(self).clock.now += 1.0
        if self.metadata.operator_name in self.broken:
            raise RuntimeError("the compiler gave up\nwith details")
        return ops.CompiledArtifact(None, self, None)

    def _run(self, args, compiled_artifact, stream, workspace=None):
        for out in args.outputs:
            out.add_(1)

    @classmethod
    def _generate_operators(cls, metadata_filter, epilogue_args=None, target_sm=None, args=None):
        dtype = args.A.traits.dtype
        of = DenseTensorConstraints(dtype)
        operands = GemmOperandsMetadata(of, of, None, args.accumulator_type)
        epilogue = EpilogueMetadata(args.plan)
        targets = (ops.TargetSm("80"),)
        return [cls(OperatorMetadata(name, cls, targets, operands, None, epilogue)) for name in cls.names]


@pytest.fixture(autouse=True)
def named(monkeypatch, tmp_path):
    monkeypatch.setenv("EPIFUSE_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(winners, "device_of", lambda args: "a GPU, 7 SMs")
    for name, value in (("names", NAMES), ("broken", ()), ("clock", Clock())):
        monkeypatch.setattr(Named, name, value)
    before = dict(ops.available_providers)
    provider = type("NamedProvider", (Provider,), {})
    provider.register(Named)
    for name in before:
        monkeypatch.setitem(ops.available_providers._providers, name, type("Nothing", (Provider,), {}))
    ops.available_providers.add("named", provider)
    yield provider
    ops.available_providers.remove("named")
    discovery.clear()


def arguments(
    m=48, n=64, k=40, dtype=torch.float32, alpha=0.5, major="n", text="def e(accum, alpha): D = accum * alpha; return D"
):
    b = torch.zeros(k, n, dtype=dtype) if major == "n" else torch.zeros(n, k, dtype=dtype).mT
    epilogue = ops.EpilogueArguments(text, alpha=alpha, D=torch.zeros(m, n, dtype=dtype))
    return ops.GemmArguments(torch.zeros(m, k, dtype=dtype), b, torch.zeros(m, n, dtype=dtype), torch.float32, epilogue)


def timer(contenders, seconds):
    """Three rounds of the table's times."""
    return {c.name: [US[c.name]] * 3 for c in contenders}


def measure(args=None, **options):
    return tune(args or arguments(), timer=timer, clock=Named.clock, **{"candidates": 4, **options})


def first(args):
    return ops.get_operators(args)[0].metadata.operator_name


def test_the_fastest_of_the_first_few_wins_and_is_first_from_then_on():
    args = arguments()
    assert first(args) == "a"
    result = measure(args)
    assert result.operator.metadata.operator_name == "c"  # e is faster, but not among the first four
    assert [trial.operator_name for trial in result.measured] == ["c", "d", "b", "a"]
    assert result.gain == 5.0
    assert result.offered == 5
    assert first(args) == first(arguments(alpha=3.0)) == "c"
    assert sorted(o.metadata.operator_name for o in ops.get_operators(args)) == list(NAMES)
    text = str(result)
    assert "4 of 5 operators were measured" in text
    assert "5.000 x as fast as the first" in text
    assert str(result.path) in text


def test_the_rest_keeps_the_predicted_order():
    measure()
    assert [o.metadata.operator_name for o in ops.get_operators(arguments())] == ["c", "a", "b", "d", "e"]


def test_a_benchmark_of_the_list_as_it_comes_takes_no_advantage_of_it():
    args = arguments()
    measure(args)
    assert first(args) == "c"
    assert [operator.metadata.operator_name for operator in peers.predicted(args)] == list(NAMES)


def test_outputs_are_as_before():
    args = arguments()
    args.outputs[0].copy_(torch.arange(48 * 64).view(48, 64))
    before = args.outputs[0].clone()
    measure(args)
    assert torch.equal(args.outputs[0], before)


def test_no_compilation_begins_after_the_time():
    # A second each, and three quarters of the time for compiling: 1 + 1 + 1 of 3 s.
    result = measure(seconds=4.0)
    assert [trial.note for trial in result.trials] == ["", "", "", "not measured: the time was over"]
    assert result.seconds <= result.limit_seconds
    assert result.operator.metadata.operator_name == "c"


def test_one_is_measured_whatever_the_time():
    result = measure(seconds=0.0)
    assert len(result.measured) == 1
    assert result.operator.metadata.operator_name == "a"


def test_what_cannot_be_compiled_is_a_row_and_no_winner(monkeypatch):
    monkeypatch.setattr(Named, "broken", ("c", "d"))
    result = measure()
    assert result.operator.metadata.operator_name == "b"
    assert {t.operator_name: t.note for t in result.trials}["c"] == "RuntimeError: the compiler gave up"
    monkeypatch.setattr(Named, "broken", NAMES)
    result = measure(arguments(m=7))
    assert result.path is None
    assert "nothing could be measured" in str(result)
    assert first(arguments(m=7)) == "a"


def test_a_record_holds_for_a_bucket_of_shapes_and_equal_kinds():
    measure(arguments(m=1024))
    assert first(arguments(m=1024)) == first(arguments(m=1100)) == "c"
    for other in (
        arguments(m=1152),
        arguments(m=1023),
        arguments(m=1024, k=45),
        arguments(m=1024, dtype=torch.float16),
        arguments(m=1024, major="k"),
        arguments(m=1024, text="def e(accum, alpha): D = accum + alpha; return D"),
    ):
        assert first(other) == "a"


def test_another_device_and_other_operators_do_not_believe_it(monkeypatch):
    args = arguments()
    measure(args)
    discovery.clear()
    monkeypatch.setattr(winners, "device_of", lambda args: "a GPU, 8 SMs")
    assert first(args) == "a"
    monkeypatch.setattr(winners, "device_of", lambda args: "a GPU, 7 SMs")
    monkeypatch.setattr(Named, "names", (*NAMES, "f"))
    discovery.clear()
    assert first(args) == "a"
    monkeypatch.setattr(Named, "names", NAMES)
    discovery.clear()
    assert first(args) == "c"


@pytest.mark.parametrize("damage", ["", "{", "[]", "null", '{"format": 1}', "\x00\xff"])
def test_a_damaged_record_counts_as_absent_and_is_written_anew(damage):
    args = arguments()
    path = measure(args).path
    path.write_text(damage, encoding="utf-8")
    discovery.clear()
    assert first(args) == "a"
    assert measure(args).path == path
    assert first(args) == "c"


@pytest.mark.parametrize("change", [{"format": 2}, {"winner": "z"}, {"key": {}}, {"us": "soon"}, {"measured": 3}])
def test_a_record_of_another_format_or_of_nobody_counts_as_absent(change):
    args = arguments()
    path = measure(args).path
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    discovery.clear()
    assert first(args) == "a"


def test_a_folder_that_cannot_be_written_to_is_said(monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("EPIFUSE_CACHE_DIR", str(tmp_path / "file"))
    result = measure()
    assert result.path is None
    assert "the disk did not take it" in str(result)


def test_records_are_bounded_and_can_be_forgotten(monkeypatch):
    monkeypatch.setattr(winners, "MOST_RECORDS", 2)
    for m in (8, 16, 32):
        measure(arguments(m=m))
    assert winners.clear() == 2
    discovery.clear()
    assert first(arguments(m=32)) == "a"


def test_writers_in_processes_leave_a_whole_record(tmp_path):
    program = (
        "import torch, epifuse as ops\nfrom epifuse.runtime import winners\n"
        "winners.device_of = lambda args: 'a GPU'\nx = torch.zeros(8, 8)\n"
        "args = ops.GemmArguments(x, x, x.clone(), torch.float32)\n"
        "for i in range(200):\n"
        "    times = {str(j): 1.0 for j in range(i)}\n"
        "    winners.remember(args, ['a', 'b'], winners.Winner('ab'[i % 2], 1.0, times))\n"
        "    assert winners.recall(args, ['a', 'b']) is not None\n"
    )
    both = [subprocess.Popen([sys.executable, "-c", program]) for _ in range(2)]
    assert [process.wait(timeout=120) for process in both] == [0, 0]
    assert len(list((tmp_path / "tune").iterdir())) == 1


def test_buckets():
    assert [winners.bucket(x) for x in (0, 1, 7, 8, 15, 16, 17, 18, 31, 32)] == [0, 1, 7, 8, 15, 16, 16, 18, 30, 32]
    assert winners.bucket(8192) == 8192
    assert winners.bucket(8191) == 7680
    for x in range(1, 3000):
        assert winners.bucket(x) <= x < winners.bucket(x) * 9 / 8 + 1
        assert winners.bucket(winners.bucket(x)) == winners.bucket(x)


def test_on_the_cpu_it_refuses_and_in_the_emulator_it_says_so(monkeypatch):
    with pytest.raises(UnsupportedError, match="measures on a GPU"):
        tune(arguments())
    with ops.emulator.device("90a"):
        result = tune(arguments())
    assert result.measured == ()
    assert result.path is None
    assert "the GPU is emulated" in str(result)
    assert "the order is as predicted" in str(result)
    assert "x as fast" not in str(result)
    with pytest.raises(OperandTypeError):
        tune(None)
    monkeypatch.setattr(Named, "names", ())
    with pytest.raises(UnsupportedError, match="nothing to tune"):
        tune(arguments(m=3), timer=timer)


def test_an_empty_problem_has_nothing_to_measure():
    result = measure(arguments(m=0))
    assert result.measured == ()
    assert result.gain == 1.0
    assert "nothing is launched" in str(result)


def test_most_candidates_differ_in_more_than_the_order_of_tiles():
    def listed(*kinds):
        of = DenseTensorConstraints(torch.float16)
        operands = GemmOperandsMetadata(of, of, None, torch.float32)
        return [
            Named(
                OperatorMetadata(
                    f"{tile} {group}", Named, (), operands, BLASDesignMetadata(tile_shape=(tile,), group=group)
                )
            )
            for tile, group in kinds
        ]

    def taken(operators, candidates):
        return [operator.metadata.operator_name for operator in search._chosen(operators, candidates)]

    operators = listed((1, 8), (1, 1), (2, 8), (2, 1), (3, 8), (3, 1))
    assert taken(operators, 3) == ["1 8", "1 1", "2 8"]
    assert taken(operators, 4) == ["1 8", "1 1", "2 8", "3 8"]
    assert taken(operators, 1) == ["1 8"]
    assert taken(operators, 9) == [operator.metadata.operator_name for operator in operators]


def test_a_look_up_without_a_gpu_touches_no_disk(monkeypatch):
    monkeypatch.undo()
    assert winners.device_of(arguments()) is None
    assert winners.recall(arguments(), NAMES) is None
    assert winners.remember(arguments(), NAMES, Winner("a", 1.0, {})) is None
