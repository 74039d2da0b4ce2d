# SPDX-License-Identifier: Apache-2.0
"""``epifuse demo``: the main job from end to end, on what this machine has."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.text import Text

from epifuse import dtypes, emulator
from epifuse.arguments import EpilogueArguments, GemmArguments
from epifuse.check.ulp import ulp_error, ulp_of
from epifuse.commands import screen
from epifuse.discovery import explain, get_operators
from epifuse.emulator import chips
from epifuse.errors import UnsupportedError
from epifuse.fusion.activation import gelu
from epifuse.fusion.ir import show
from epifuse.runtime.rounding import round_to
from epifuse.target import TargetSm
from epifuse.utils.device import target_of_device

M, N, K = 384, 512, 768
TARGETS = ("90a", "100a")


def epilogue(accum: Any, bias: Any, residual: Any, alpha: Any = 0.125) -> Any:
    """What a feed-forward layer does to its product; F is kept for the backward pass."""
    F = accum * alpha + bias
    D = gelu(F, approximate="tanh") + residual
    return D, F


@dataclass(frozen=True, slots=True)
class Case:
    """Operands and outputs of the demonstration."""

    a: torch.Tensor
    b: torch.Tensor
    operands: Mapping[str, torch.Tensor]
    outputs: Mapping[str, torch.Tensor]

    @property
    def arguments(self) -> GemmArguments:
        """The GEMM with its epilogue."""
        fused = EpilogueArguments(epilogue, **self.operands, **self.outputs)
        return GemmArguments(self.a, self.b, self.outputs["D"], accumulator_type=torch.float32, epilogue=fused)


def run(emulate: str = "") -> int:
    """Show everything; 0 where the fused GEMM ran and is one rounding from float64, else 1.

    Args:
        emulate: a target such as ``100a`` to run on in the emulator; empty: what this machine has.

    Raises:
        UnsupportedError: (a ValueError) no such GPU is emulated.
    """
    if not emulate:
        return _show()
    if emulate.removeprefix("sm_") not in chips.names():
        raise UnsupportedError(f"No GPU {emulate!r} is emulated.", advice=f"Emulated: {', '.join(chips.names())}.")
    with emulator.device(emulate):
        return _show()


def _show() -> int:
    console = screen.console()
    case, where = _prepare()
    args = case.arguments
    assert args.epilogue is not None
    _heading(console, "The epilogue, as the user wrote it")
    console.print(screen.source(epilogue))
    _heading(console, "Its graph (parsed from the source; the function was not called)")
    console.print(show.graph_tree(args.epilogue.graph), markup=False, highlight=False)
    _heading(console, "Its plan: all that a kernel gets to know")
    console.print(str(args.plan), markup=False, highlight=False)
    _heading(console, "Operators, found and refused")
    here = explain(args)
    console.print(screen.explanation(here))
    for target in TARGETS:
        if TargetSm(target) != here.target:
            console.print(screen.explanation(explain(args, target_sm=target)))
    _heading(console, f"The fused GEMM, {M} x {N} x {K} float16, on {where}")
    return _run(console, case, args)


def _heading(console: Console, text: str) -> None:
    console.print()
    console.rule(Text(text, style="bold"), align="left")


def _prepare() -> tuple[Case, str]:
    """Operands on the GPU where an operator takes them there, else on the CPU; and where that is."""
    chip = emulator.active()
    if chip is not None:
        return _make("cpu"), f"an emulated sm_{chip.name}"
    gpu = target_of_device(torch.device("cuda", 0))
    if gpu is not None:
        case = _make("cuda")
        if get_operators(case.arguments):
            return case, f"{torch.cuda.get_device_name(0)} (sm_{gpu})"
        return _make("cpu"), f"the CPU (there is a GPU, sm_{gpu}, and no operator for it: see above)"
    return _make("cpu"), "the CPU (there is no GPU here)"


def _make(device: str) -> Case:
    generator = torch.Generator().manual_seed(2025)

    def normal(*shape: int, dtype: torch.dtype = torch.float16) -> torch.Tensor:
        return torch.randn(*shape, generator=generator).to(dtype).to(device)

    operands = {"bias": normal(N, dtype=torch.float32), "residual": normal(M, N)}
    outputs = {name: torch.full((M, N), torch.nan, dtype=torch.float16, device=device) for name in ("D", "F")}
    return Case(normal(M, K), normal(K, N), operands, outputs)


def _run(console: Console, case: Case, args: GemmArguments) -> int:
    operators = get_operators(args)
    if not operators:
        console.print("No operator: nothing was run. `epifuse doctor` says what is missing.", style="red")
        return 1
    best = operators[0]
    columns = (TextColumn("{task.description}"), BarColumn(bar_width=30), TimeElapsedColumn())
    with Progress(*columns, console=console) as progress:
        task = progress.add_task("compile", total=4)
        artifact = best.compile(args)
        progress.update(task, advance=1, description="run")
        best.run(args, compiled_artifact=artifact)
        progress.update(task, advance=1, description="the same in float64")
        exact = _as_python(case, torch.float64)
        progress.update(task, advance=1, description="the same in float16, step by step")
        between = _as_python(case, torch.float16)
        progress.update(task, advance=1, description="done")
    console.print(f"ran {best.metadata.operator_name}", highlight=False)
    return _verdict(console, case.outputs, exact, between)


def _as_python(case: Case, dtype: torch.dtype) -> dict[str, torch.Tensor]:
    """The product and the function itself, as ordinary torch code in ``dtype``."""
    operands = {name: tensor.to(dtype) for name, tensor in case.operands.items()}
    d, f = epilogue(case.a.to(dtype) @ case.b.to(dtype), **operands)
    return {"D": d, "F": f}


def _verdict(
    console: Console,
    fused: Mapping[str, torch.Tensor],
    exact: Mapping[str, torch.Tensor],
    between: Mapping[str, torch.Tensor],
) -> int:
    made = screen.table("output", "computed", "worst", "mean", "right to the last bit",
                        title="Distance from float64, in ulps of float16")  # fmt: skip
    right = True
    for name, result in fused.items():
        nearest = round_to(exact[name], dtypes.of(result.dtype))
        for how, found in (("fused, one rounding", result), ("torch, rounding in between", between[name])):
            error = ulp_error(found, exact[name])
            share = (found == nearest).double().mean().item()
            made.add_row(name, how, f"{error.max():.1f}", f"{error.mean():.3f}", f"{share:.2%}")
        right = right and _one_rounding(result, exact[name])
    console.print(made)
    console.print(
        "The contract: half an ulp for the one rounding, plus the float32 error of the product and the epilogue (which "
        "shows where terms cancel): " + ("kept." if right else "NOT KEPT."),
        style="green" if right else "red",
        highlight=False,
    )
    return 0 if right else 1


def _one_rounding(result: torch.Tensor, exact: torch.Tensor) -> bool:
    """Within half an ulp, plus what float32 arithmetic on sums of this size may add."""
    slack = 64 * torch.finfo(torch.float32).eps
    return bool(((result.double() - exact).abs() <= 0.5 * ulp_of(exact, result.dtype) + slack).all())
