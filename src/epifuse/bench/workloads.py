# SPDX-License-Identifier: Apache-2.0
"""The epilogues that are measured, as rows: ours as a plain function, torch's forms of it, and what it reads."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn import functional as F

from epifuse.fusion.activation import gelu, relu, swiglu

Operands = Mapping[str, Any]


# Our epilogues run as ordinary Python on torch tensors too, which gives the reference.
def bias_relu(accum: Any, bias: Any) -> Any:  # noqa: D103
    D = relu(accum + bias)
    return D


def bias_gelu(accum: Any, bias: Any) -> Any:  # noqa: D103
    D = gelu(accum + bias, approximate="tanh")
    return D


def residual(accum: Any, C: Any, alpha: Any, beta: Any) -> Any:  # noqa: D103
    D = accum * alpha + C * beta
    return D


def two_outputs(accum: Any, bias: Any) -> Any:  # noqa: D103
    F = accum + bias
    D = relu(F)
    return D, F


def row_column_scale(accum: Any, row: Any, column: Any) -> Any:  # noqa: D103
    D = accum * row * column
    return D


def aux_relu_store(accum: Any, C: Any, alpha: Any) -> Any:  # noqa: D103
    F = accum * alpha + C
    D = relu(F)
    return D, F


def swiglu_interleaved(accum: Any) -> Any:  # noqa: D103
    D = swiglu(accum)
    return D


@dataclass(frozen=True)
class Workload:
    """One epilogue. Shapes are in ``M N 1``; ``eager`` is torch's own way in the operands' dtype, out of place."""

    name: str
    function: Callable[..., Any]
    operands: Mapping[str, str]
    eager: Callable[[torch.Tensor, torch.Tensor, Operands], Any]
    outputs: tuple[str, ...] = ("D",)
    numbers: Mapping[str, float] | None = None
    halved: bool = False

    def bytes_of(self, m: int, n: int, k: int, size: int) -> int:
        """The least that must move: every operand read once, every output written once."""
        columns = n // 2 if self.halved else n
        extents = {"M": m, "N": n, "1": 1}
        total = m * k + k * n + len(self.outputs) * m * columns
        for shape in self.operands.values():
            count = 1
            for extent in shape.split(","):
                count *= extents[extent]
            total += count
        return total * size


def _gates(x: torch.Tensor) -> torch.Tensor:
    return F.silu(x[..., ::2]) * x[..., 1::2]


def _relu_and_self(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.relu(x), x


TABLE = {
    row.name: row
    for row in (
        Workload("bias_relu", bias_relu, {"bias": "N"}, lambda a, b, o: torch.relu(torch.addmm(o["bias"], a, b))),
        Workload(
            "bias_gelu",
            bias_gelu,
            {"bias": "N"},
            lambda a, b, o: F.gelu(torch.addmm(o["bias"], a, b), approximate="tanh"),
        ),
        Workload(
            "residual",
            residual,
            {"C": "M,N"},
            lambda a, b, o: torch.addmm(o["C"], a, b, beta=o["beta"], alpha=o["alpha"]),
            numbers={"alpha": 0.5, "beta": 0.25},
        ),
        Workload(
            "two_outputs",
            two_outputs,
            {"bias": "N"},
            lambda a, b, o: _relu_and_self(torch.addmm(o["bias"], a, b)),
            outputs=("D", "F"),
        ),
        Workload(
            "row_column_scale",
            row_column_scale,
            {"row": "N", "column": "M,1"},
            lambda a, b, o: torch.mm(a, b) * o["row"] * o["column"],
        ),
        Workload(
            "aux_relu_store",
            aux_relu_store,
            {"C": "M,N"},
            lambda a, b, o: _relu_and_self(torch.addmm(o["C"], a, b, alpha=o["alpha"])),
            outputs=("D", "F"),
            numbers={"alpha": 0.5},
        ),
        Workload("swiglu", swiglu_interleaved, {}, lambda a, b, o: _gates(torch.mm(a, b)), halved=True),
    )
}
"""Every workload by name."""


@dataclass(frozen=True)
class Problem:
    """A GEMM with a workload. B is K-major (N, K transposed) unless ``b_major`` is ``n``."""

    m: int
    n: int
    k: int
    workload: str = "bias_relu"
    dtype: str = "bfloat16"
    b_major: str = "k"

    @property
    def name(self) -> str:
        """For people and for ``--problems``."""
        return f"{self.workload} {self.m} x {self.n} x {self.k}"

    @property
    def flops(self) -> float:
        """Of the product alone."""
        return 2.0 * self.m * self.n * self.k

    @property
    def row(self) -> Workload:
        """The workload's row."""
        return TABLE[self.workload]


@dataclass(frozen=True, eq=False)
class Data:
    """One set of operands and outputs."""

    problem: Problem
    a: torch.Tensor
    b: torch.Tensor
    operands: Operands
    outputs: Mapping[str, torch.Tensor]

    def fresh(self) -> Data:
        """The same operands with outputs of its own, poisoned."""
        outputs = {name: torch.full_like(x, torch.nan) for name, x in self.outputs.items()}
        return Data(self.problem, self.a, self.b, self.operands, outputs)

    def reference(self, rows: torch.Tensor) -> list[torch.Tensor]:
        """float64 values of some rows of the outputs."""
        accum = self.a[rows].double() @ self.b.double()
        given = {}
        for name, value in self.operands.items():
            if isinstance(value, torch.Tensor):
                whole = value.double()
                given[name] = whole[rows] if value.dim() == 2 and value.shape[0] == self.problem.m else whole
            else:
                given[name] = value
        found = self.problem.row.function(accum, **given)
        return list(found) if isinstance(found, tuple) else [found]


def make(problem: Problem, device: str, seed: int) -> Data:
    """Random normal operands: zeros, or small integers, run faster than what people multiply."""
    generator = torch.Generator(device=device).manual_seed(seed)
    dtype = getattr(torch, problem.dtype)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator, device=device).to(dtype)

    m, n, k = problem.m, problem.n, problem.k
    a = normal(m, k)
    b = normal(n, k).t() if problem.b_major == "k" else normal(k, n)
    extents = {"M": m, "N": n, "1": 1}
    operands: dict[str, Any] = {
        name: normal(*(extents[e] for e in shape.split(","))) for name, shape in problem.row.operands.items()
    }
    operands |= problem.row.numbers or {}
    columns = n // 2 if problem.row.halved else n
    outputs = {name: torch.full((m, columns), torch.nan, dtype=dtype, device=device) for name in problem.row.outputs}
    return Data(problem, a, b, operands, outputs)
