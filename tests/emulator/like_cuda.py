# SPDX-License-Identifier: Apache-2.0
"""Torch on the CPU as it would answer on a GPU, and a pytest plugin that runs a GPU's tests in the emulator with it.

`like_cuda` takes "cuda" for the CPU and computes elementwise operations of half precision as CUDA's kernels do:
operands are widened, numbers stay numbers (the CPU rounds them to the tensors' dtype), and the result is rounded once.

As a plugin: `pytest -p like_cuda --emulated-chip 100a FILE` with this folder on PYTHONPATH runs FILE, which may be the
vendor's own tests of its operators, without a GPU: CPU tensors, kernels in the emulator.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

_HALF = (torch.float16, torch.bfloat16)
_ATEN = torch.ops.aten
_ELEMENTWISE = {
    *(_ATEN.add, _ATEN.sub, _ATEN.mul, _ATEN.div, _ATEN.rsub, _ATEN.neg, _ATEN.pow, _ATEN.reciprocal, _ATEN.addcmul),
    *(_ATEN.sigmoid, _ATEN.tanh, _ATEN.exp, _ATEN.exp2, _ATEN.log, _ATEN.log2, _ATEN.sqrt, _ATEN.rsqrt, _ATEN.erf),
    *(_ATEN.gelu, _ATEN.silu, _ATEN.leaky_relu, _ATEN.elu, _ATEN.softplus, _ATEN.hardswish, _ATEN.sin, _ATEN.cos),
}


class _Rounding(TorchDispatchMode):
    """Elementwise operations of half precision in float32, rounded once."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        tensors = [each for each in args if isinstance(each, torch.Tensor)]
        if func.overloadpacket not in _ELEMENTWISE or not any(each.dtype in _HALF for each in tensors):
            return func(*args, **kwargs)
        dtype = func(*(_sample(each) for each in args), **kwargs).dtype
        found = func(*(_widened(each) for each in args), **kwargs)
        return found.to(dtype) if dtype in _HALF else found


def _sample(argument: Any) -> Any:
    """An empty tensor of the same dtype, or the one number, which has a say in the result's dtype by its rank."""
    if isinstance(argument, torch.Tensor) and argument.dim():
        return argument.new_empty((0,) * argument.dim())
    return argument


def _widened(argument: Any) -> Any:
    half = isinstance(argument, torch.Tensor) and argument.dtype in _HALF
    return argument.to(torch.float32) if half else argument


class _Placing(TorchFunctionMode):
    """The device "cuda" is the CPU."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = {name: _here(each) if name == "device" else each for name, each in (kwargs or {}).items()}
        name = getattr(func, "__name__", "")
        if name == "cuda":
            return args[0]
        return func(*(_here(each) for each in args) if name == "to" else args, **kwargs)


def _here(device: Any) -> Any:
    return "cpu" if isinstance(device, str | torch.device) and str(device).startswith("cuda") else device


class like_cuda:  # noqa: N801 - used as a function
    """As a context: torch answers as on a GPU."""

    def __init__(self) -> None:
        self._modes = (_Placing(), _Rounding())

    def __enter__(self) -> None:
        for mode in self._modes:
            mode.__enter__()

    def __exit__(self, *error: Any) -> None:
        for mode in reversed(self._modes):
            mode.__exit__(*error)


# -- the plugin --------------------------------------------------------------------------------------------------


def pytest_addoption(parser: pytest.Parser) -> None:
    """The chip and the seed of the emulator."""
    parser.addoption("--emulated-chip", default=None, help="run the tests on this emulated chip, as 100a")
    parser.addoption("--emulated-seed", default=7, type=int, help="the emulator's seed")


def pytest_configure(config: pytest.Config) -> None:
    """The DSL compiles for the chip, before test files ask for it."""
    if config.getoption("--emulated-chip"):
        os.environ["CUTE_DSL_ARCH"] = f"sm_{config.getoption('--emulated-chip')}"


@pytest.fixture(autouse=True)
def on_emulated_chip(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Each test runs on the emulated chip, if the command line asks for one."""
    chip = request.config.getoption("--emulated-chip", None)
    if chip is None:
        yield
        return
    from epifuse import emulator  # noqa: PLC0415 - only the plugin needs it
    from epifuse_cutedsl import emulate  # noqa: PLC0415

    monkeypatch.setattr(torch.cuda, "synchronize", lambda *_: None)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    seed = request.config.getoption("--emulated-seed")
    with emulator.device(chip, seed=seed), emulate.every_compile(), like_cuda():
        yield
