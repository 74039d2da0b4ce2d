# SPDX-License-Identifier: Apache-2.0
"""One problem of the workshop's GEMM: its operands in guarded memory, a run, and what is wrong with the result."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from epifuse.check import diagnose, guard, measure
from epifuse.check.guard import Guarded
from epifuse.check.measure import Expected
from epifuse.check.subjects import AnotherServesError, RefusedError, Subject, fused
from epifuse.check.verdict import Finding, Kind
from epifuse.check.watch import OutOfTimeError, time_box

SECONDS = 60.0
"""What one call may take; a kernel's first call compiles."""


@dataclass(frozen=True, eq=False)
class Problem:
    """Operands in guarded memory. ``exact``: values are such that the result must be met exactly."""

    case: str
    a: Guarded
    b: Guarded
    bias: Guarded
    layout: str = "row"
    exact: bool = True

    @property
    def shape(self) -> tuple[int, int]:
        """M, N."""
        return (self.a.view.shape[0], self.b.view.shape[1])

    def output(self) -> Guarded:
        """A poisoned output of A's dtype."""
        return guard.blank(self.shape, self.a.view.dtype, self.layout, self.a.view.device.type)

    def expected(self, out: torch.Tensor) -> Expected:
        """What ``out`` should hold: float64 GEMM + bias + ReLU, rounded once."""
        args = fused(self.a.view, self.b.view, self.bias.view, out)
        return (measure.exactly if self.exact else measure.expected)(args)["D"]


def make(
    case: str,
    a: torch.Tensor,
    b: torch.Tensor,
    bias: torch.Tensor,
    dtype: torch.dtype,
    *,
    device: str = "cpu",
    layouts: tuple[str, str, str] = ("row", "row", "row"),
    exact: bool = True,
) -> Problem:
    """A problem with these values; ``layouts`` are A's, B's and the output's. The bias is float32."""
    return Problem(
        case,
        guard.filled(a, dtype, layouts[0], device),
        guard.filled(b, dtype, layouts[1], device),
        guard.filled(bias, torch.float32, "row", device),
        layouts[2],
        exact,
    )


def integers(
    m: int, n: int, k: int, dtype: torch.dtype, generator: torch.Generator, *, device: str = "cpu", **given: object
) -> Problem:
    """Small integers, whose sums float32 holds: no order of summing may change the result."""

    def values(*shape: int) -> torch.Tensor:
        return torch.randint(-2, 3, shape, generator=generator).double()

    # Quarters in the bias would be lost by a bias rounded too early only where sums are large; they are exact here.
    bias = torch.randint(-20, 21, (n,), generator=generator).double() / 4
    case = f"{m} x {n} x {k} {_short(dtype)}"
    return make(case, values(m, k), values(k, n), bias, dtype, device=device, **given)  # type: ignore[arg-type]


def normals(
    m: int, n: int, k: int, dtype: torch.dtype, generator: torch.Generator, *, device: str = "cpu", **given: object
) -> Problem:
    """Random normal values, judged by the measure."""
    values = [torch.randn(*shape, generator=generator) for shape in ((m, k), (k, n), (n,))]
    case = f"{m} x {n} x {k} {_short(dtype)} normal"
    return make(case, *values, dtype, device=device, exact=False, **given)  # type: ignore[misc, arg-type]


def _short(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def judge(subject: Subject, problem: Problem, seconds: float = SECONDS) -> list[Finding] | None:
    """Run the subject on fresh output memory; nothing found means right, None that it leaves the problem to others."""
    out = problem.output()
    before = [operand.view.clone() for operand in (problem.a, problem.b, problem.bias)]
    operands = (problem.a.view, problem.b.view, problem.bias.view)
    try:
        with time_box(seconds):
            result = subject.run(*operands, out.view)
    except OutOfTimeError as late:
        return [Finding(Kind.SLOW, subject.name, problem.case, hint=str(late))]
    except AnotherServesError:
        return None
    except RefusedError as refusal:
        return [Finding(Kind.REFUSED, subject.name, problem.case, hint=str(refusal))]
    except Exception as error:  # noqa: BLE001 - a learner's function may raise anything, and that is the verdict
        return [Finding(Kind.RAISED, subject.name, problem.case, hint=f"{type(error).__name__}: {error}")]
    found = list(_outside(subject, problem, out))
    for name, operand, kept in zip(("A", "B", "bias"), operands, before, strict=True):
        if not torch.equal(operand.nan_to_num(nan=7.0), kept.nan_to_num(nan=7.0)):
            found.append(
                Finding(Kind.INPUT, subject.name, problem.case, hint=f"{name} is an operand: leave it as it is")
            )
            return found
    return found + _values(subject, problem, result, out)


def _outside(subject: Subject, problem: Problem, out: Guarded) -> Iterator[Finding]:
    memories = {"the output": out, "A": problem.a, "B": problem.b, "bias": problem.bias}
    for name, memory in memories.items():
        place = memory.broken()
        if place is not None:
            m, n = problem.shape
            yield Finding(
                Kind.OUTSIDE,
                subject.name,
                problem.case,
                where=f"element {place} counted from the first of {name}",
                expected="untouched memory",
                got=str(memory.memory[place + memory.view.storage_offset()].item()),
                hint=f"store only where row < M = {m} and column < N = {n}",
            )


def _values(subject: Subject, problem: Problem, result: torch.Tensor, out: Guarded) -> list[Finding]:
    name, case = subject.name, problem.case
    if tuple(result.shape) != problem.shape or result.dtype != out.view.dtype or result.device != out.view.device:
        wanted = f"{problem.shape} {_short(out.view.dtype)}"
        got = f"{tuple(result.shape)} {_short(result.dtype)}"
        return [Finding(Kind.VALUE, name, case, "the returned tensor", wanted, got, "M rows, N columns, A's dtype")]
    expected = problem.expected(result)
    wrong = expected.wrong(result)
    if not bool(wrong.any()):
        return []
    unwritten = result.isnan() & ~expected.exact.isnan()
    operands = (problem.a.view, problem.b.view, problem.bias.view)
    poisoned = any(bool(x.isnan().any()) for x in operands)
    if bool(unwritten.any()) and not poisoned and result.data_ptr() == out.view.data_ptr():
        where = diagnose.tiles(unwritten, subject.tile)
        if problem.a.view.shape[1] == 0:
            where = "with K = 0 there is no step along K, yet the epilogue runs, on zeros"
        elif problem.shape[0] % subject.tile[0] or problem.shape[1] % subject.tile[1]:
            where = "; ".join(filter(None, (where, "ragged edges have tiles too: count them rounding up")))
        return [_at(Kind.UNWRITTEN, subject, case, unwritten, result, expected, where)]
    kind, hint = diagnose.name(result, wrong, operands, subject.tile)
    if kind is Kind.VALUE and bool((unwritten | (expected.exact.isnan() & ~result.isnan())).any()):
        kind = Kind.NAN
    return [_at(kind, subject, case, wrong, result, expected, hint)]


def _at(
    kind: Kind, subject: Subject, case: str, wrong: torch.Tensor, result: torch.Tensor, expected: Expected, hint: str
) -> Finding:
    m, n = (int(i) for i in wrong.nonzero()[0])
    count = int(wrong.sum().item())
    more = f" (and {count - 1} more of {wrong.numel()})" if count > 1 else ""
    low, high = expected.lowest[m, n].item(), expected.highest[m, n].item()
    wanted = f"{low:g}" if low == high or low != low else f"{low:g} ... {high:g}"  # noqa: PLR0124 - NaN
    return Finding(kind, subject.name, case, f"D[{m}, {n}]{more}", wanted, f"{result[m, n].item():g}", hint)
