# SPDX-License-Identifier: Apache-2.0
"""The command line: options and nothing else; each subcommand is a module of ``epifuse.commands``."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from epifuse.errors import EpifuseError

app = typer.Typer(
    name="epifuse",
    help="GEMM epilogues written as plain Python functions, planned, checked and fused into kernels.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

Place = Annotated[str, typer.Argument(metavar="FILE[:FUNCTION]", help="The epilogue function, in a Python file.")]


@app.command()
def demo(
    emulate: Annotated[
        str, typer.Option(metavar="TARGET", help="Run on this GPU, such as 100a, in the emulator.")
    ] = "",
) -> None:
    """Show an epilogue, its graph and its operators, and run the fused GEMM on what this machine has."""
    from epifuse.commands import demo as command  # noqa: PLC0415 - each command loads what it needs alone

    raise typer.Exit(command.run(emulate))


@app.command()
def doctor(
    vocabulary: Annotated[
        bool, typer.Option("--vocabulary", help="List the operations of the epilogue language.")
    ] = False,
) -> None:
    """Say what this machine can do, and what is missing for more."""
    from epifuse.commands import doctor as command  # noqa: PLC0415

    if vocabulary:
        command.vocabulary()
    else:
        raise typer.Exit(command.run())


@app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
def explain(
    context: typer.Context,
    place: Place,
    m: Annotated[int, typer.Option("--m", min=0, help="Rows of A and out.")] = 1024,
    n: Annotated[int, typer.Option("--n", min=0, help="Columns of B and out.")] = 1024,
    k: Annotated[int, typer.Option("--k", min=0, help="Columns of A, rows of B.")] = 1024,
    batch: Annotated[int | None, typer.Option("--l", min=0, help="Batches; left out: tensors of rank 2.")] = None,
    dtype: Annotated[str, typer.Option(help="Element type of A, B and what is not described.")] = "float16",
    accumulator: Annotated[str, typer.Option(help="accumulator_type; left out: what fits the dtype.")] = "",
    operand: Annotated[
        list[str] | None, typer.Option(metavar="NAME=SHAPE[:DTYPE]", help="An operand: --operand C=M,N:float16.")
    ] = None,
    target: Annotated[
        list[str] | None,
        typer.Option(metavar="TARGET", help="A GPU target such as 90a; may be repeated; left out: the CPU."),
    ] = None,
) -> None:
    """Say which operators serve a function, and why the others do not.

    Operands may also be given by name: --bias N, --bias M,1:float32, --alpha 0.5.

    What is not described is the number 1.0, or its default, and is printed as assumed.
    """
    from epifuse.commands import explain as command  # noqa: PLC0415
    from epifuse.commands.functions import problem  # noqa: PLC0415

    command.run(place, problem(m, n, k, batch, dtype, accumulator), operand or [], context.args, target or [])


@app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
def tune(
    context: typer.Context,
    place: Annotated[
        str, typer.Argument(metavar="FILE[:FUNCTION]", help="The epilogue function, in a Python file.")
    ] = "",
    m: Annotated[int, typer.Option("--m", min=0, help="Rows of A and out.")] = 4096,
    n: Annotated[int, typer.Option("--n", min=0, help="Columns of B and out.")] = 4096,
    k: Annotated[int, typer.Option("--k", min=0, help="Columns of A, rows of B.")] = 4096,
    batch: Annotated[int | None, typer.Option("--l", min=0, help="Batches; left out: tensors of rank 2.")] = None,
    dtype: Annotated[str, typer.Option(help="Element type of A, B and what is not described.")] = "bfloat16",
    accumulator: Annotated[str, typer.Option(help="accumulator_type; left out: what fits the dtype.")] = "",
    operand: Annotated[
        list[str] | None, typer.Option(metavar="NAME=SHAPE[:DTYPE]", help="An operand: --operand C=M,N:float16.")
    ] = None,
    seconds: Annotated[float, typer.Option(min=0.0, help="Begin nothing new after so long.")] = 30.0,
    candidates: Annotated[int, typer.Option(min=1, help="Measure at most so many, best first as predicted.")] = 12,
    forget: Annotated[bool, typer.Option("--forget", help="Forget everything that was ever measured.")] = False,
) -> None:
    """Measure the operators for a function on this GPU, and remember the fastest for get_operators.

    Operands are described as for explain.
    """
    from epifuse.commands import tune as command  # noqa: PLC0415
    from epifuse.commands.functions import problem  # noqa: PLC0415

    if forget:
        command.forget()
        raise typer.Exit(0)
    if not place:
        raise typer.BadParameter("name a file with the epilogue function, or --forget")
    asked = problem(m, n, k, batch, dtype, accumulator)
    raise typer.Exit(command.run(place, asked, operand or [], context.args, seconds, candidates))


@app.command()
def draw(
    place: Place,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="A file ending in .svg, .mmd or .txt; left out: the screen.")
    ] = None,
) -> None:
    """Draw the graph of a function."""
    from epifuse.commands import draw as command  # noqa: PLC0415

    command.run(place, output)


@app.command()
def check(
    suite: Annotated[
        str, typer.Argument(help="fused_gemm, or epilogues: every operation, dtype and layout.")
    ] = "fused_gemm",
    file: Annotated[
        Path | None, typer.Option("--file", help="Judge a file's fused_gemm(A, B, bias, block_m, group) instead.")
    ] = None,
    device: Annotated[str, typer.Option(help="cpu, cuda or emulator; auto: the GPU where there is one.")] = "auto",
    target: Annotated[
        str | None, typer.Option(help="Ask for a target's operators, such as 100a; emulated where no GPU runs them.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Of the random operands.")] = 0,
    limit: Annotated[
        int | None,
        typer.Option(min=0, help="Operators of each family: the best, those least like it; 0: all; left out: 2 or 4."),
    ] = None,
    only: Annotated[list[str] | None, typer.Option(help="Of epilogues: this operation alone.")] = None,
    output: Annotated[Path | None, typer.Option("--json", "-o", help="Write all findings there too.")] = None,
) -> None:
    """Judge results: every edge of the shape, NaN, guard bands, and the rounding. Status 1 where something is wrong."""
    from epifuse.check.fused_gemm import Plan  # noqa: PLC0415
    from epifuse.commands import check as command  # noqa: PLC0415

    plan = Plan(device=device, target=target, seed=seed, limit=limit)
    raise typer.Exit(command.run(suite, file, plan, output, tuple(only or ())))


@app.command()
def bench(
    op: Annotated[str, typer.Option(help="What is measured: host, or fused_gemm's tiles and groups.")] = "",
    suite: Annotated[str, typer.Option(help="Named problems: h200-bf16-bias-relu, epilogues, b200, host.")] = "",
    output: Annotated[Path | None, typer.Option("-o", "--output", help="Write JSON there too.")] = None,
    file: Annotated[
        Path | None, typer.Option("--file", help="Of fused_gemm: measure a file's fused_gemm beside ours.")
    ] = None,
    seconds: Annotated[float, typer.Option(help="Stop measuring after so long; what is left is listed.")] = 480.0,
    peers: Annotated[str, typer.Option(help="quick (those that compile fast), all, or names with commas.")] = "quick",
    problems: Annotated[str, typer.Option(help="Of a suite: only those whose name has this in it.")] = "",
    plot: Annotated[
        Path | None, typer.Option(help="Draw ours beside the best peer, as PNG (needs matplotlib).")
    ] = None,
    device: Annotated[str, typer.Option(help="cpu or cuda; auto: the GPU where there is one.")] = "auto",
    cold: Annotated[bool, typer.Option("--cold", help="Of a suite: rotate operands beyond the L2 cache.")] = False,
    rounds: Annotated[int, typer.Option(min=1, help="Of host: how often each question is asked, per function.")] = 300,
    peer: Annotated[bool, typer.Option(help="Of host: ask the Operator API the same, where it is installed.")] = True,
) -> None:
    """Measure: contenders in turn in one process, medians with intervals, and what they were measured on."""
    from epifuse.commands import bench as command  # noqa: PLC0415

    if op and suite:
        raise typer.BadParameter("--op and --suite are two questions; ask one")
    name = suite or op or "host"
    if name == "host":
        raise typer.Exit(command.host_cost(output, rounds, peer))
    options = command.Options(seconds, peers, problems, plot, device, output, cold)
    raise typer.Exit(command.run(name, file, options))


def main() -> None:
    """The console script: exit status 1 with the sentence, place and advice of an ``EpifuseError``."""
    try:
        app()
    except EpifuseError as error:
        print(error, file=sys.stderr)
        sys.exit(1)
