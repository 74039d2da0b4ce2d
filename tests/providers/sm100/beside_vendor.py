# SPDX-License-Identifier: Apache-2.0
"""Machine code of the Blackwell kernel beside that of NVIDIA's fused operator, same tile and cluster, for sm_100a.

`python beside_vendor.py` prints a table: local memory accesses, main loop stages, and instructions of the epilogue's
loop for each element. Needs nvidia-cutlass-operators and nvidia-cuda-nvdisasm, no GPU; src and providers on PYTHONPATH.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import torch

import epifuse
from epifuse.target import TargetSm

SIZE = 512
HALF, SINGLE = torch.float16, torch.float32
CHIP = "100a"


@dataclass(frozen=True)
class Case:
    """An epilogue, what it takes beside D, D's dtype, a CTA's tile and the CTAs that multiply together."""

    name: str
    text: str
    operands: tuple[str, ...]
    dtype: torch.dtype
    tile: tuple[int, int]
    ctas: int

    @property
    def vendor_name(self) -> str:
        """A part of the name of NVIDIA's operator, which counts the rows of a pair."""
        return f"{self.ctas}cta_cluster{self.ctas}x1x1_tile{self.tile[0] * self.ctas}x{self.tile[1]}x64"


BIAS = ("bias + relu", "def epi(accum, bias): D = relu(accum + bias); return D", ("bias",))
AXPBY = ("alpha, beta C", "def epi(accum, C, alpha, beta): D = alpha * accum + beta * C; return D", ("C",))
PLAIN = ("alpha", "def epi(accum, alpha): D = alpha * accum; return D", ())
SHAPES = (((128, 128), 1), ((128, 256), 2))
CASES = (
    *(Case(*what, HALF, *shape) for what in (BIAS, AXPBY, PLAIN) for shape in SHAPES),
    *(Case(*what, SINGLE, *shape) for what in (BIAS, AXPBY) for shape in SHAPES),
)


@dataclass(frozen=True)
class Code:
    """What is counted in one kernel's machine code."""

    local_accesses: int
    stages: int
    epilogue_loop: int
    """Instructions in the innermost loop that reads tensor memory."""
    columns: int
    """Columns that a pass of it reads."""

    @property
    def each(self) -> float:
        """Instructions of the epilogue for each element of a thread."""
        return self.epilogue_loop / self.columns


def disassembler() -> str | None:
    """The path of nvdisasm, on PATH or in the package nvidia-cuda-nvdisasm; None where there is none."""
    found = shutil.which("nvdisasm")
    packaged = (Path(root) / "nvidia" / "cu13" / "bin" / "nvdisasm" for root in sys.path)
    return found or next((str(path) for path in packaged if path.is_file()), None)


def machine_code(cubin: bytes) -> list[tuple[str, str]]:
    """(label before it or "", instruction) in order."""
    program = disassembler()
    assert program is not None
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        text = subprocess.run([program, "-c", file.name], capture_output=True, text=True, check=True).stdout
    found, label = [], ""
    for line in text.splitlines():
        if place := re.match(r"(\.L_x_\d+):", line):
            label = place.group(1)
        elif instruction := re.match(r"\s+/\*[0-9a-f]+\*/\s+(.*?);", line):
            found.append((label, instruction.group(1)))
            label = ""
    return found


def count(cubin: bytes, stages: int) -> Code:
    """Count a kernel's instructions."""
    code = machine_code(cubin)
    first = {label: index for index, (label, _) in enumerate(code) if label}
    reads = {i: int(m.group(1)) for i, (_, text) in enumerate(code) if (m := re.search(r"LDTM\.x(\d+)", text))}
    loops = []
    for last, (_, text) in enumerate(code):
        jump = re.search(r"BRA.*`\((\.L_x_\d+)\)", text)
        begin = first.get(jump.group(1), last + 1) if jump else last + 1
        columns = sum(width for index, width in reads.items() if begin <= index <= last)
        if columns:
            loops.append((last - begin + 1, columns))
    length, columns = min(loops)
    local = sum(bool(re.search(r"\b(LDL|STL)\b", text)) for _, text in code)
    return Code(local, stages, length, columns)


def operands(case: Case, batched: bool) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, dict[str, Any]]:
    """A, B, D and the epilogue's operands; ``batched`` as NVIDIA's fused operator wants them."""
    lead = (1,) if batched else ()
    a = torch.zeros(*lead, SIZE, SIZE, dtype=HALF)
    d = torch.zeros(*lead, SIZE, SIZE, dtype=case.dtype)
    bias = torch.zeros((1, 1, SIZE) if batched else (SIZE,), dtype=case.dtype)
    everything = {"bias": bias, "C": torch.zeros_like(d), "alpha": 0.5, "beta": 2.0}
    return a, a.clone().mT, d, {name: everything[name] for name in everything if name in case.text.split(":")[0]}


def ours(case: Case) -> Code:
    """The Blackwell kernel's code."""
    from epifuse_cutedsl.configs.sm100 import Sm100Config, with_stages  # noqa: PLC0415 - after the path is set
    from epifuse_cutedsl.operators_sm100 import Sm100GemmOperator  # noqa: PLC0415

    a, b, d, rest = operands(case, batched=False)
    args = epifuse.GemmArguments(a, b, d, SINGLE, epifuse.EpilogueArguments(case.text, D=d, **rest))
    bare = Sm100Config(*case.tile, case.ctas, case.ctas, 1)
    config = with_stages(bare, 100, Sm100GemmOperator.scratch_bytes(args), Sm100GemmOperator.tails(args))
    assert config is not None
    operator = Sm100GemmOperator.operator_of(args, config, 8)
    artifact = operator.compile(args, TargetSm(CHIP))
    return count(artifact.compiled_obj.launcher.image.cubin, config.stages)


@contextmanager
def _cubins() -> Iterator[list[Any]]:
    """What is compiled inside, with its machine code kept."""
    from cutlass.base_dsl.compiler import KeepCUBIN  # noqa: PLC0415

    from epifuse_cutedsl import compat  # noqa: PLC0415

    kept: list[Any] = []
    keeping, compiling = compat.keeping_ptx, compat.original_compile

    def keep_both(*how: Any) -> tuple[Any, str | None]:
        compiler, options = keeping(*how)
        if options is not None:
            return compiler, options + " --keep-cubin"
        compiler._compile_options.options[KeepCUBIN].value = True
        return compiler, options

    def compile_and_keep(*what: Any, **how: Any) -> Any:
        kept.append(compiling(*what, **how))
        return kept[-1]

    with (
        mock.patch.object(compat, "keeping_ptx", keep_both),
        mock.patch.object(compat, "original_compile", compile_and_keep),
        mock.patch.dict(os.environ, {"CUTE_DSL_ARCH": f"sm_{CHIP}"}),
    ):
        yield kept


def theirs(case: Case) -> Code:
    """NVIDIA's code; its stages are counted where the index of a stage turns over."""
    import cutlass.operators as ops  # noqa: PLC0415

    from epifuse_cutedsl import emulate  # noqa: PLC0415

    a, b, d, rest = operands(case, batched=True)
    with _cubins() as kept:
        epilogue = ops.EpilogueArguments(case.text, D=d, **rest)
        args = ops.GemmArguments(A=a, B=b, out=d, accumulator_type=SINGLE, epilogue=epilogue)
        found = [o for o in ops.get_operators(args, target_sm=CHIP) if case.vendor_name in o.metadata.operator_name]
        with epifuse.emulator.device(CHIP), emulate.every_compile():
            found[0].compile(args, CHIP)
        ptx = kept[-1].__ptx__
        text = ptx if isinstance(ptx, str) else ptx.decode()
        mma = text.index("tcgen05.mma")
        turns = re.findall(r"setp\.eq\.b32\s+%p\d+, %r\d+, (\d+);", text[:mma])
        return count(kept[-1].__cubin__, int(turns[-1]))


def main() -> None:
    """Print the table."""
    print(
        f"{'epilogue':14} {'D':8} {'tile':12} {'local':>9} {'stages':>9} {'instructions an element':>28} {'ratio':>6}"
    )
    for case in CASES:
        we, they = ours(case), theirs(case)
        tile = f"{case.tile[0]}x{case.tile[1]} x{case.ctas}"
        dtype = str(case.dtype).removeprefix("torch.")
        print(
            f"{case.name:14} {dtype:8} {tile:12} {we.local_accesses:4}/{they.local_accesses:<4} "
            f"{we.stages:4}/{they.stages:<4} {we.each:18.2f} / {they.each:<7.2f} {we.each / they.each:6.2f}"
        )


if __name__ == "__main__":
    main()
