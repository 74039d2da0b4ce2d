# SPDX-License-Identifier: Apache-2.0
"""``fused``: an epilogue on the emulated portable kernel beside the same plan on the CPU provider, its definition."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch

import epifuse as ops
from epifuse.check import guard
from epifuse_cpu.evaluate import evaluate
from epifuse_cpu.gemm import accumulate
from epifuse_cutedsl.operators import Sm80GemmOperator

_ELEMENTS = {torch.float32: torch.float16, torch.float64: torch.float64, torch.int32: torch.int8}


@dataclass
class Fused:
    """What one run gave: outputs by name, what the CPU provider gives for them, and the kernel."""

    got: dict[str, torch.Tensor]
    want: dict[str, torch.Tensor]
    ptx: str
    args: ops.GemmArguments
    guards: dict[str, guard.Guarded] = field(default_factory=dict)

    def exact(self, *names: str) -> "Fused":
        """Assert that outputs (all by default) agree bit for bit, NaN with any NaN, and that guard bands are whole."""
        for name in names or self.got:
            difference = differing(self.got[name], self.want[name])
            assert not difference, f"{name}: {difference}"
        for name, guarded in self.guards.items():
            assert guarded.broken() is None, f"{name} was written at {guarded.broken()}"
        return self


def differing(got: torch.Tensor, want: torch.Tensor) -> list[tuple[int, Any, Any]]:
    """The first positions at which two tensors differ, a zero's sign included."""
    a, b = got.detach().reshape(-1), want.reshape(-1)
    if a.dtype.is_floating_point:
        a, b = a.double(), b.double()
        same = ((a == b) & (a.signbit() == b.signbit())) | (a.isnan() & b.isnan())
    else:
        same = a == b
    return [(i, a[i].item(), b[i].item()) for i in (~same).nonzero().flatten()[:6].tolist()]


def integers(*shape: int, dtype: torch.dtype = torch.float16, low: int = -3, high: int = 3, seed: int = 0) -> Any:
    """Small integers in any dtype, so that products and sums of them are exact."""
    generator = torch.Generator().manual_seed(seed + sum(shape))
    return torch.randint(low, high + 1, shape, generator=generator).to(dtype)


def arguments(
    fn: Any, m: int, n: int, k: int, batches: int, accumulator: torch.dtype, operands: dict[str, Any]
) -> ops.GemmArguments:
    """A GEMM of small integers with the epilogue."""
    lead = (batches,) if batches else ()
    a = integers(*lead, m, k, dtype=_ELEMENTS[accumulator])
    b = integers(*lead, k, n, dtype=_ELEMENTS[accumulator], seed=1)
    out = torch.empty(*lead, m, n, dtype=accumulator)
    return ops.GemmArguments(a, b, out, accumulator, ops.EpilogueArguments(fn, **operands))


def pick(args: ops.GemmArguments, tile: tuple[int, int], group: int = 1) -> ops.Operator:
    """The portable operator of a tile for the device that is emulated."""
    found = [
        operator
        for operator in ops.get_operators(args)
        if isinstance(operator, Sm80GemmOperator)
        and operator.metadata.design.tile_shape[:2] == tile
        and operator.metadata.design.group == group
    ]
    assert found, ops.explain(args)
    return found[0]


def fused(
    fn: Any,
    m: int = 33,
    n: int = 40,
    k: int = 8,
    /,
    *,
    batches: int = 0,
    accumulator: torch.dtype = torch.float32,
    outputs: Sequence[tuple[str, torch.dtype, str] | str] = (),
    target: str = "90a",
    seed: int = 0,
    tile: tuple[int, int] = (16, 64),
    workspace: Callable[[int], Any] | None = None,
    **operands: Any,
) -> Fused:
    """Run an epilogue; ``outputs`` are those to be made: a name (float32), or name, dtype and layout of check.guard."""
    lead = (batches,) if batches else ()
    guards = {}
    for output in outputs:
        name, dtype, layout = (output, torch.float32, "row") if isinstance(output, str) else output
        guards[name] = guard.blank((*lead, m, n), dtype, layout)
        operands[name] = guards[name].view
    args = arguments(fn, m, n, k, batches, accumulator, operands)
    accum = accumulate(args.A.view, args.B.view, args.accumulator_type).reshape(-1, m, n)
    loads = [load.clone() if isinstance(load, torch.Tensor) else load for load in args.loads]
    want = evaluate(args.plan, accum, loads)
    with ops.emulator.device(target, seed=seed):
        operator = pick(args, tile)
        artifact = operator.compile(args)
        given = None if workspace is None else workspace(operator.get_workspace_size(args).size_bytes)
        operator.run(args, artifact, workspace=given)
    names = args.bound.names.stores
    got = dict(zip(names, args.outputs, strict=True))
    image = artifact.compiled_obj.launcher.image
    return Fused(got, dict(zip(names, want, strict=True)), image.ptx.decode(), args, guards)


@pytest.fixture(name="fused")
def fused_fixture() -> Callable[..., Fused]:
    """``fused(fn, m, n, k, ...)`` -> ``Fused``."""
    return fused


@pytest.fixture(name="fuse_tools")
def tools() -> Any:
    """The functions beside ``fused``: ``integers``, ``arguments``, ``pick``, ``differing``."""

    class Tools:
        pass

    for function in (integers, arguments, pick, differing):
        setattr(Tools, function.__name__, staticmethod(function))
    return Tools
