# SPDX-License-Identifier: Apache-2.0
"""The command line: options and nothing else; each subcommand is a module of ``epifuse.commands``."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from epifuse import dtypes
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
def demo() -> None:
    """Show an epilogue, its graph and its operators, and run the fused GEMM on what this machine has."""
    from epifuse.commands import demo as command  # noqa: PLC0415 - each command loads what it needs alone

    raise typer.Exit(command.run())


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
    m: Annotated[int, typer.Option("--m", help="Rows of A and out.")] = 1024,
    n: Annotated[int, typer.Option("--n", help="Columns of B and out.")] = 1024,
    k: Annotated[int, typer.Option("--k", help="Columns of A, rows of B.")] = 1024,
    batch: Annotated[int | None, typer.Option("--l", help="Batches; left out: tensors of rank 2.")] = None,
    dtype: Annotated[str, typer.Option(help="Element type of A, B and what is not described.")] = "float16",
    accumulator: Annotated[str, typer.Option(help="accumulator_type; left out: what fits the dtype.")] = "",
    operand: Annotated[
        list[str] | None, typer.Option(metavar="NAME=SHAPE[:DTYPE]", help="An operand: --operand C=M,N:float16.")
    ] = None,
    target: Annotated[list[str] | None, typer.Option(help="A GPU target such as 90a; left out: this machine.")] = None,
) -> None:
    """Say which operators serve a function, and why the others do not.

    Operands may also be given by name: --bias N, --bias M,1:float32, --alpha 0.5. What is not described is the number
    1.0, and is printed as assumed.
    """
    from epifuse.commands import explain as command  # noqa: PLC0415
    from epifuse.commands.functions import Problem  # noqa: PLC0415

    element = dtypes.of(dtype)
    if not accumulator:
        accumulator = "int32" if element.is_integer else "float64" if element is dtypes.FLOAT64 else "float32"
    problem = Problem(m, n, k, batch, element, dtypes.of(accumulator))
    command.run(place, problem, operand or [], context.args, target or [])


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
def bench(
    op: Annotated[str, typer.Option(help="What is measured: host.")] = "host",
    output: Annotated[Path | None, typer.Option("-o", "--output", help="Write JSON there too.")] = None,
    rounds: Annotated[int, typer.Option(min=1, help="How often each question is asked, of each function.")] = 300,
    peer: Annotated[bool, typer.Option(help="Ask the Operator API the same, where it is installed.")] = True,
) -> None:
    """Measure."""
    from epifuse.commands import bench as command  # noqa: PLC0415

    command.run(op, output, rounds, peer)


def main() -> None:
    """The console script: exit status 1 with the sentence, place and advice of an ``EpifuseError``."""
    try:
        app()
    except EpifuseError as error:
        print(error, file=sys.stderr)
        sys.exit(1)
