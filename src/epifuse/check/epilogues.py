# SPDX-License-Identifier: Apache-2.0
"""The check of every operation of the vocabulary, in every dtype and layout, by the measure of ``check.measure``."""

from __future__ import annotations

import functools
import itertools
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from epifuse import dtypes
from epifuse.arguments import EpilogueArguments, GemmArguments
from epifuse.check import guard, measure
from epifuse.check.fused_gemm import Plan, where_of
from epifuse.check.guard import Guarded
from epifuse.check.subjects import AnotherServesError, OperatorSubject, RefusedError, operators
from epifuse.check.verdict import Finding, Kind, Report, Section
from epifuse.discovery import explain
from epifuse.fusion.vocabulary import table
from epifuse.fusion.vocabulary.table import Level, Operation, Result, Role

OUTPUTS = (torch.float16, torch.bfloat16, torch.float32)
LAYOUTS = ("aligned", "odd", "strided", "column", "batched", "specials")
"""The last is ``aligned`` with rows of A that are NaN, infinite and large."""
SHAPES = {"aligned": (64, 128, 64), "batched": (67, 70, 40), "specials": (64, 128, 64)}
ODD_SHAPE = (67, 71, 41)
BATCHES = 3
_GUARD = {"aligned": "row", "batched": "odd", "specials": "row"}
_POSITIVE = {"log", "log2", "log10", "sqrt", "rsqrt", "log1p"}
"""Operations that are asked with positive values, as half of a normal sample would only be NaN."""
_AWAY_FROM_ZERO = {"div", "reciprocal"}


@dataclass(frozen=True)
class Case:
    """An epilogue's text, the operation that it is about, and the dtype of output and operands and their layout."""

    operation: str
    text: str
    dtype: torch.dtype
    layout: str

    @property
    def name(self) -> str:
        """For people."""
        return f"{self.operation} {str(self.dtype).removeprefix('torch.')} {self.layout}"


def texts() -> Iterator[tuple[str, str]]:
    """(operation, epilogue text) for every row of the vocabulary, and some whole epilogues."""
    for row in table.rows():
        if row.level is Level.REDUCTION:
            for number, dims in enumerate(("dim=-1", "dim=-2", "")):
                inner = f"accum, {dims}" if dims else "accum"
                yield (
                    f"{row.name}({dims or 'all'})",
                    f"def f(accum):\n D = accum\n r{number} = {row.name}({inner})\n return D, r{number}",
                )
        elif (body := _call(row)) is not None:
            yield row.name, f"def f(accum, x, y):\n D = {body}\n return D"
            for parameter in row.parameters:
                for choice in parameter.choices[1:]:
                    call = body.replace("(accum", f"(accum, {parameter.name}={choice!r}", 1)
                    yield f"{row.name} {choice}", f"def f(accum):\n D = {call}\n return D"
    yield "bias, scale, residual", "def f(accum, row, col, x, s):\n D = relu(accum * col * s + row) + x\n return D"
    yield "two outputs", "def f(accum, row, x):\n F = accum + row\n D = gelu(F) * x\n return D, F"


def _call(row: Operation) -> str | None:
    """The operation applied to the accumulator and, where it takes more, to full tensors x and y."""
    if row.result is Result.CAST:
        return f"{row.name}(accum * x, 'float16') + y"
    first = "abs(accum) + 0.5" if row.name in _POSITIVE | _AWAY_FROM_ZERO else "accum"
    given, others = [], iter(("x", "y"))
    for parameter in row.parameters:
        if parameter.role is Role.NUMBER:
            given.append("3")
        elif parameter.role in (Role.OPERAND, Role.OPTIONAL):
            if not given:
                given.append("accum < x" if row.name == "where" else first)
            elif parameter.default is ...:
                given.append(f"(abs({next(others)}) + 0.5)" if row.name == "div" else next(others))
            elif parameter.role is Role.OPTIONAL:
                given.append({"min": "min=-0.5", "max": "max=1.5"}.get(parameter.name, f"{parameter.name}=1.0"))
    text = f"{row.name}({', '.join(given)})"
    if row.result is Result.BOOL:
        return f"where({text}, accum, y)"
    return text


def cases(plan: Plan) -> list[Case]:
    """All cases; on an emulated GPU one dtype and layout of each operation, dealt out in turn."""
    found = [
        Case(operation, text, dtype, layout)
        for operation, text in texts()
        for dtype, layout in itertools.product(OUTPUTS, LAYOUTS)
    ]
    if plan.few:
        step = len(OUTPUTS) * len(LAYOUTS)
        found = [found[i * step + (i * 5 + plan.seed) % step] for i in range(len(found) // step)]
    return found


def check(plan: Plan, only: Sequence[str] = ()) -> Report:
    """Check operators of each family for each case, the best and those least like it; ``only``: these operations."""
    report = Report("epilogues", where_of(plan))
    chosen = [case for case in cases(plan) if not only or case.operation in only]
    sections: dict[str, Section] = {}
    with plan.entered(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for done, case in enumerate(chosen):
            plan.progress("epilogues", done, len(chosen))
            section = sections.get(case.operation) or report.section(case.operation)
            sections[case.operation] = section
            _case(case, plan, section)
        plan.progress("epilogues", len(chosen), len(chosen))
    return report


@dataclass(frozen=True, eq=False)
class _Bound:
    args: GemmArguments
    outputs: dict[str, Guarded]
    inputs: dict[str, Guarded]


def _case(case: Case, plan: Plan, section: Section) -> None:
    try:
        bound = _bind(case, plan)
        found = operators(bound.args, plan.target, plan.share)
    except Exception as error:  # noqa: BLE001 - whatever discovery raises is a finding
        section.add([Finding(Kind.RAISED, "discovery", case.name, hint=f"{type(error).__name__}: {error}")])
        return
    if not found:
        reason = explain(bound.args, target_sm=plan.target)
        section.add([Finding(Kind.REFUSED, "discovery", case.name, hint=str(reason))])
        return
    expected = measure.expected(bound.args)
    for number, subject in enumerate(found):
        if number:
            bound = _bind(case, plan)
        section.add(_run(case, subject, bound, expected))


def _run(
    case: Case, subject: OperatorSubject, bound: _Bound, expected: dict[str, measure.Expected]
) -> Iterator[Finding] | list[Finding] | None:
    try:
        subject.run_arguments(bound.args)
    except AnotherServesError:
        return None
    except RefusedError as refusal:
        return [Finding(Kind.REFUSED, subject.name, case.name, hint=str(refusal))]
    except Exception as error:  # noqa: BLE001 - whatever a provider raises is a finding
        return [Finding(Kind.RAISED, subject.name, case.name, hint=f"{type(error).__name__}: {error}")]
    return list(_findings(case, subject, bound, expected))


def _findings(
    case: Case, subject: OperatorSubject, bound: _Bound, expected: dict[str, measure.Expected]
) -> Iterator[Finding]:
    for name, memory in (bound.outputs | bound.inputs).items():
        place = memory.broken()
        if place is not None:
            where = f"element {place} counted from the first of {name}"
            yield Finding(Kind.OUTSIDE, subject.name, case.name, where, "untouched memory", "another value")
    for name, output in bound.outputs.items():
        wanted = expected[name]
        wrong = wanted.wrong(output.view)
        if bool(wrong.any()):
            index = tuple(int(i) for i in wrong.nonzero()[0])
            low, high = wanted.lowest[index].item(), wanted.highest[index].item()
            got = output.view[index].item()
            unwritten = got != got and not bool(wanted.exact[index].isnan())  # noqa: PLR0124 - NaN
            yield Finding(
                Kind.UNWRITTEN if unwritten and bool(output.unwritten().all()) else Kind.VALUE,
                subject.name,
                case.name,
                f"{name}{list(index)} (and {int(wrong.sum()) - 1} more of {wrong.numel()})",
                f"{low:.9g} ... {high:.9g}",
                f"{got:.9g}",
                f"{wanted.share(output.view):.3g} times what is allowed, in: {case.text.splitlines()[1].strip()}",
            )


def _bind(case: Case, plan: Plan) -> _Bound:
    """Operands with random values in guarded memory, the same ones at each call."""
    generator = torch.Generator().manual_seed(plan.seed)
    lead = (BATCHES,) if case.layout == "batched" else ()
    m, n, k = SHAPES.get(case.layout, ODD_SHAPE)
    halved = _halves(case.operation)
    n += n % 2 if halved else 0
    graph_columns = n // 2 if halved else n
    make = functools.partial(_operand, generator, case.layout, plan.place)
    half = torch.bfloat16 if case.dtype == torch.bfloat16 else torch.float16
    a, b = make((*lead, m, k), half), make((*lead, k, n), half)
    if case.layout == "specials":
        a.view[5], a.view[6], a.view[7] = torch.nan, a.view[6] * 1e4, a.view[7].sign() * 3e4
        a.view[8, 3], a.view[9, 5] = torch.inf, -torch.inf
    shapes = {
        "x": ((*lead, m, graph_columns), case.dtype),
        "y": ((*lead, m, graph_columns), case.dtype),
        "row": ((n,), torch.float32),
        "col": ((m, 1), torch.float32),
    }
    inputs: dict[str, Guarded] = {"A": a, "B": b}
    given: dict[str, Any] = {}
    names = case.text.split("(", 1)[1].split(")", 1)[0].replace(" ", "").split(",")[1:]
    for name in names:
        if name == "s":
            given[name] = 0.37
        else:
            inputs[name] = make(*shapes[name])
            given[name] = inputs[name].view
    outputs: dict[str, Guarded] = {}
    for name in case.text.rsplit("return", 1)[1].replace(" ", "").split(","):
        shape, dtype = _output(name, case, (*lead, m, graph_columns))
        outputs[name] = guard.blank(shape, dtype, _GUARD.get(case.layout, case.layout), plan.place)
        given[name] = outputs[name].view
    out = given["D"] if not halved else torch.empty(*lead, m, n, dtype=case.dtype, device=plan.place)
    epilogue = EpilogueArguments(case.text, **given)
    args = GemmArguments(a.view, b.view, out, accumulator_type=dtypes.FLOAT32, epilogue=epilogue)
    return _Bound(args, outputs, inputs)


def _operand(
    generator: torch.Generator, layout: str, device: str, shape: tuple[int, ...], dtype: torch.dtype
) -> Guarded:
    # A tenth of a normal sample of A keeps products around 1, where activations bend.
    values = torch.randn(*shape, generator=generator, dtype=torch.float64)
    scale = 0.35 if len(shape) > 1 else 1.0
    return guard.filled(values * scale, dtype, _GUARD.get(layout, layout), device)


def _halves(operation: str) -> bool:
    row = table.find(operation.partition(" ")[0])
    return row is not None and (row.level is Level.GATED or row.name in ("even_columns", "odd_columns"))


def _output(name: str, case: Case, full: tuple[int, ...]) -> tuple[tuple[int, ...], torch.dtype]:
    *lead, m, n = full
    shape = {"r0": (*lead, m), "r1": (*lead, n), "r2": (1,)}.get(name, full)
    return shape, torch.float32 if name.startswith("r") else case.dtype
