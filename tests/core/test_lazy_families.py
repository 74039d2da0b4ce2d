# SPDX-License-Identifier: Apache-2.0
"""What a first call imports: the families of its target, and nothing that only others or a compiler need."""

import os
import subprocess
import sys
import types
from collections.abc import Iterable, Sequence
from pathlib import Path

import pytest
import torch

import epifuse as ops
from epifuse.errors import ProviderWarning

ROOT = Path(__file__).parents[2]
PROGRAM = """
import sys
import typing
import torch
import epifuse
before = set(sys.modules)
A, B, D = (torch.ones(s, dtype=torch.float16) for s in ((64, 32), (32, 48), (64, 48)))
epilogue = epifuse.EpilogueArguments("def f(accum, b): D = relu(accum + b); return D", b=torch.ones(48), D=D)
args = epifuse.GemmArguments(A, B, D, torch.float32, epilogue)
for target in {targets!r}:
    found = epifuse.get_operators(args, target_sm=target)
    assert found
    if target:
        found[0].compile(args, target_sm=target)
names = sorted(set(sys.modules) - before)
for name in names:
    classes = [c for c in vars(sys.modules[name]).values() if isinstance(c, type) and c.__module__ == name]
    slow = [c for c in classes if typing.NamedTuple in vars(c).get("__orig_bases__", ())]
    print(name, *(c.__name__ for c in classes if "__dataclass_fields__" in vars(c) or c in slow))
"""
ARCHITECTURES = {"80": ("sm80",), "90a": ("sm80", "sm90"), "100a": ("sm80", "sm100")}
COMPILER = ("cutlass", "cuda", "epifuse_cutedsl.compat", "epifuse_cutedsl.emulate", "epifuse_cutedsl.fuse.driver")


def imported(targets: Sequence[str | None], folder: Path) -> dict[str, list[str]]:
    """The modules that a first call imports beyond torch and epifuse, in a new process, each with its dataclasses and
    its named tuples of the standard library's."""
    paths = os.pathsep.join(str(ROOT / source) for source in ("src", "providers"))
    environment = {**os.environ, "PYTHONPATH": paths, "EPIFUSE_CACHE_DIR": str(folder)}
    command = [sys.executable, "-c", PROGRAM.format(targets=targets)]
    run = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120, env=environment)
    assert run.returncode == 0, run.stderr
    return {name: classes for name, *classes in (line.split() for line in run.stdout.splitlines())}


def families(modules: Iterable[str]) -> set[str]:
    return {name for name in modules if ".operators_" in name or name == "epifuse_cpu.operator"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A cache on disk that has the kernels of all targets."""
    found = tmp_path_factory.mktemp("cache")
    assert "cutlass" in imported(list(ARCHITECTURES), found)  # so that a further process would show it
    return found


@pytest.mark.parametrize(("target", "architectures"), ARCHITECTURES.items())
def test_a_first_call_with_a_warm_cache_imports_its_target_alone(target, architectures, folder):
    warm = imported([target], folder)
    assert families(warm) == {f"epifuse_cutedsl.operators_{name}" for name in architectures}
    others = {"sm90", "sm100"} - set(architectures)
    assert not {name for name in warm if any(name.endswith(f"configs.{other}") for other in others)}
    assert not {name for name in warm if name.startswith(COMPILER)}
    assert {name for name in warm if name.startswith("epifuse.emulator")} <= {"epifuse.emulator.chips"}
    assert len(warm) <= 38, sorted(warm)  # 0.2 ms each, before its own code runs
    warm.pop("epifuse.emulator.chips")  # which may import nothing of ours, not even epifuse.records
    slow = [name for classes in warm.values() for name in classes]
    assert set(slow) <= {"MainTraits"}  # each takes 0.2 ms (a named tuple) to 0.7 (a dataclass), ours 0.015


def test_the_cpu_imports_no_gpu_family(folder):
    assert families(imported([None], folder)) == {"epifuse_cpu.operator"}


def test_the_table_of_targets_is_that_of_the_families():
    for module, target in ops.CuTeDSLProvider.family_modules.items():
        (family,) = [f for f in ops.CuTeDSLProvider.families() if f.__module__ == module]
        assert family.targets == (target,)


def test_families_come_in_the_order_of_the_table_however_they_were_imported():
    order = [family.__module__ for family in ops.CuTeDSLProvider.families()]
    assert order == list(ops.CuTeDSLProvider.family_modules)


@pytest.fixture
def module(monkeypatch):
    """A module that registers no family, and one that cannot be imported."""
    fine = types.ModuleType("fine_families")
    monkeypatch.setitem(sys.modules, "fine_families", fine)
    monkeypatch.setitem(sys.modules, "broken_families", None)  # an ImportError
    yield "broken_families"
    ops.available_providers.failures.pop("broken_families", None)


def test_a_module_that_cannot_be_imported_hides_no_other(module):
    class Lazy(ops.Provider):
        family_modules = {module: ops.TargetSm("80"), "fine_families": ops.TargetSm("80")}

    with pytest.warns(ProviderWarning, match="broken_families is left out.*ModuleNotFoundError"):
        assert Lazy.generate_operators(target_sm="90a") == []
    assert "ModuleNotFoundError" in ops.available_providers.failures[module]
    assert Lazy.families() == []  # warns once


@pytest.mark.parametrize("target", ["80", "90a", "100a"])
@pytest.mark.parametrize("shape", [(1, 1, 1), (127, 200, 72), (64, 48, 0)])
def test_what_is_listed_for_arguments_is_supported_when_asked_anew(target, shape):
    m, n, k = shape
    D = torch.empty(m, n, dtype=torch.bfloat16)
    text = "def f(accum, c): D = relu(accum + c); r = sum(D, dim=-1); return D, r"
    operands = {"c": torch.ones(m, n), "D": D, "r": torch.empty(m)}
    A, B = torch.ones(m, k, dtype=torch.bfloat16), torch.ones(k, n, dtype=torch.bfloat16)
    args = ops.GemmArguments(A, B, D, torch.float32, ops.EpilogueArguments(text, **operands))
    found = ops.get_operators(args, target_sm=target)
    assert found
    for operator in found:
        assert operator.metadata.supports(args, target_sm=target)
        assert operator._supports(args, ops.TargetSm(target))
