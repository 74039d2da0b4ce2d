# SPDX-License-Identifier: Apache-2.0
"""200 cases of the portable kernel, the same on every machine: 25 kernels, each on eight problems."""

import hashlib
from dataclasses import dataclass

import numpy as np
import torch

import epifuse as ops

KERNELS, PROBLEMS = 25, 8
DTYPES = ("float16", "bfloat16", "float32", "int8")
EPILOGUES = (
    "def f(accum): D = accum; return D",
    "def f(accum, row, s): D = relu(accum * s + row); return D",
    "def f(accum, row, full): F = accum + row; D = F * full; return D, F",
    "def f(accum, row, col): D = where(accum > row, accum * 0.5, col); return D",
    "def f(accum, full): D = maximum(accum, full); r = sum(accum, dim=0); return D, r",
)
SMOOTH = ("def f(accum, row): D = gelu(accum + row); return D", "def f(accum, s): D = silu(accum * s); return D")


@dataclass(frozen=True)
class Case:
    """One problem of one kernel. ``exact``: all values are integers (halves after the epilogue) and sums are exact."""

    name: str
    text: str
    dtype: str
    out_dtype: str
    major: tuple[bool, bool]
    shape: tuple[int, int, int, int]
    exact: bool
    choice: int
    seed: int

    def arguments(self, device: str) -> ops.GemmArguments:
        """The case's arguments on a device, outputs full of NaN (integers: -99)."""
        batches, m, n, k = self.shape
        rng = np.random.default_rng(self.seed)
        lead = (batches,) if batches else ()
        dtype, out_dtype = getattr(torch, self.dtype), getattr(torch, self.out_dtype)

        def values(*shape, kind=None):
            raw = rng.integers(-3, 4, shape) if self.exact else rng.standard_normal(shape)
            return torch.from_numpy(np.asarray(raw, np.float64)).to(kind or dtype).to(device)

        def matrix(rows, columns, transposed):
            return values(*lead, columns, rows).mT if transposed else values(*lead, rows, columns)

        def blank(*shape):
            return torch.full(shape, -99 if not out_dtype.is_floating_point else float("nan"), dtype=out_dtype).to(
                device
            )

        a, b = matrix(m, k, self.major[0]), matrix(k, n, self.major[1])
        given = {
            "row": lambda: values(n, kind=torch.float32),
            "col": lambda: values(m, 1, kind=torch.float32),
            "full": lambda: values(*lead, m, n, kind=torch.float32),
            "s": lambda: float(rng.integers(1, 5)) / 2,
        }
        names = self.text[self.text.index("(") + 1 : self.text.index(")")].split(", ")[1:]
        operands = {name: given[name]() for name in names}
        outputs = {"D": blank(*lead, m, n)}
        if "F =" in self.text:
            outputs["F"] = blank(*lead, m, n)
        if "r =" in self.text:
            outputs["r"] = torch.full((n,), float("nan"), dtype=torch.float32).to(device)
        accumulator = torch.int32 if self.dtype == "int8" else torch.float32
        return ops.GemmArguments(
            a, b, outputs["D"], accumulator, ops.EpilogueArguments(self.text, **operands, **outputs)
        )


def cases() -> list[Case]:
    """All of them."""
    found = []
    for kernel in range(KERNELS):
        rng = np.random.default_rng(1000 + kernel)
        exact = kernel % 5 != 4
        dtype = DTYPES[kernel % 4] if exact else ("float16", "bfloat16")[kernel % 2]
        text = EPILOGUES[int(rng.integers(len(EPILOGUES)))] if exact else SMOOTH[kernel % 2]
        out_dtype = str(rng.choice(("float32", "float16", "bfloat16")))
        major = (bool(rng.integers(2)), bool(rng.integers(2)))
        batched, even, choice = bool(rng.integers(4) == 0), bool(rng.integers(2)), int(rng.integers(1000))
        for problem in range(PROBLEMS):
            # Multiples of 16 or odd extents: problems of a kernel share their alignments, and so its compilation.
            m, n, k = (int(x) * 16 if even else int(x) * 16 + 1 for x in rng.integers(1, 6, 3))
            shape = (2 if batched else 0, m, n, k)
            name = f"{kernel}.{problem}"
            found.append(Case(name, text, dtype, out_dtype, major, shape, exact, choice, 100 * kernel + problem))
    return found


def outputs_of(
    case: Case, device: str, name: str | None = None
) -> tuple[dict[str, np.ndarray], str, ops.GemmArguments]:
    """The case's outputs, the operator that gave them, and its arguments; ``name``: this operator, not the choice."""
    args = case.arguments(device)
    listed = [op for op in ops.get_operators(args) if type(op).__name__ == "Sm80GemmOperator"]
    chosen = listed[case.choice % len(listed)] if name is None else next(op for op in listed if label(op) == name)
    chosen.run(args)
    found = {n: t.cpu() for n, t in zip(args.bound.names.stores, args.outputs, strict=True)}
    return {n: bits_of(t, case.exact) for n, t in found.items()}, label(chosen), args


def label(operator) -> str:
    """Configuration and group: what of an operator's name does not depend on the epilogue."""
    return f"{operator.config} group {operator.group}"


def bits_of(tensor: torch.Tensor, digest: bool) -> np.ndarray:
    """A tensor's bits as unsigned integers, or their sha256 where every bit is to be the same."""
    bits = tensor.contiguous().view({2: torch.uint16, 4: torch.uint32}[tensor.element_size()]).numpy()
    return np.frombuffer(hashlib.sha256(bits.tobytes()).digest(), np.uint8) if digest else bits
