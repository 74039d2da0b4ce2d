# SPDX-License-Identifier: Apache-2.0
"""Kernels to plant faults in: a launch of each with several K tiles a stage and three tiles a CTA, ready to repeat.

`python planted.py SEEDS KIND KERNEL ...` prints a table of the faults that have KIND in their kind: each static place,
and what found it; last, what finds those together that nothing found alone. With "silent" in the place of KIND the
kernels run unbroken. Run it with src, providers and this folder on PYTHONPATH.
"""

from __future__ import annotations

import importlib.util
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import mutate
import numpy as np
import torch

import epifuse
from epifuse import emulator

BIAS_RELU = "def epi(accum, bias): D = relu(accum + bias); return D"


def bits(tensor: torch.Tensor) -> np.ndarray:
    """A tensor's memory as numpy sees it."""
    return tensor.view(torch.int16).numpy() if tensor.dtype in (torch.float16, torch.bfloat16) else tensor.numpy()


def operands(m: int, n: int, k: int, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """A and a K-major B of small whole numbers."""
    torch.manual_seed(m + n + k)
    return torch.randint(-2, 3, (m, k)).to(dtype), torch.randint(-2, 3, (n, k)).to(dtype).T


def vendor(chip: str, name: str, size: tuple[int, int, int], sm_count: int) -> mutate.Trial:
    """One of NVIDIA's operators, by a part of its name."""
    import cutlass.operators as ops  # noqa: PLC0415 - a test dependency

    from epifuse_cutedsl import emulate  # noqa: PLC0415

    m, n, k = size
    a, b = operands(m, n, k, torch.float16)
    out = torch.zeros(m, n, dtype=torch.float16)
    with _target(chip):
        args = ops.GemmArguments(A=a, B=b, out=out, accumulator_type=torch.float32)
        found = [each for each in ops.get_operators(args, target_sm=chip) if name in each.metadata.operator_name]
        with emulator.device(chip, sm_count=sm_count), emulate.every_compile(), mutate.capture() as launches:
            found[0].run(args, found[0].compile(args, chip))
    return mutate.Trial(launches[-1], {"A": bits(a), "B": bits(b.T), "D": bits(out)}, ["D"])


@contextmanager
def _target(chip: str) -> Iterator[None]:
    import os  # noqa: PLC0415 - the DSL's own way to be told the target

    before = os.environ.get("CUTE_DSL_ARCH")
    os.environ["CUTE_DSL_ARCH"] = f"sm_{chip}"
    try:
        yield
    finally:
        os.environ.pop("CUTE_DSL_ARCH") if before is None else os.environ.update(CUTE_DSL_ARCH=before)


def portable() -> mutate.Trial:
    """The project's own kernel for every chip, ragged, with sums over rows and columns that several CTAs add up."""
    m, n, k = 200, 131, 100
    a, b = operands(m, n, k, torch.float16)
    outputs = {"D": torch.zeros(m, n), "rows": torch.zeros(m, 1), "total": torch.zeros(1)}
    text = "def epi(accum, bias): D = relu(accum + bias); rows = sum(D, dim=1); total = sum(D); return D, rows, total"
    bias = torch.arange(n).float()
    args = epifuse.GemmArguments(
        a, b, outputs["D"], torch.float32, epifuse.EpilogueArguments(text, bias=bias, **outputs)
    )
    with emulator.device("80"), mutate.capture() as launches:
        operator = epifuse.get_operators(args)[0]
        workspace = torch.zeros(max(operator.get_workspace_size(args).size_bytes, 16), dtype=torch.uint8)
        operator.run(args, operator.compile(args), workspace=workspace)
    arrays = {"A": bits(a), "B": bits(b.T), "bias": bias.numpy(), "workspace": workspace.numpy()}
    return mutate.Trial(launches[-1], arrays | {name: each.numpy() for name, each in outputs.items()}, list(outputs))


def _functions(architecture: str) -> Any:
    """The functions by which the tests of one of the project's own kernels choose its configurations."""
    path = Path(__file__).parents[1] / "providers" / architecture / "conftest.py"
    spec = importlib.util.spec_from_file_location(f"{architecture}_functions", path)
    if spec is None or spec.loader is None:
        raise ImportError(path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def hopper(mode: str, tile: tuple[int, int], cluster: int, size: tuple[int, int, int], sm_count: int) -> mutate.Trial:
    """The project's own Hopper kernel."""
    args, arrays = _fused(size)
    with emulator.device("90a", sm_count=sm_count), mutate.capture() as launches:
        _functions("sm90").operator_of(args, mode, tile, cluster=cluster).run(args)
    return mutate.Trial(launches[-1], arrays, ["D"])


def blackwell(
    tile: tuple[int, int], ctas: int, cluster: tuple[int, int], size: tuple[int, int, int], sm_count: int
) -> mutate.Trial:
    """The project's own Blackwell kernel."""
    from epifuse_cutedsl.operators_sm100 import Sm100GemmOperator  # noqa: PLC0415 - needs cutlass when it compiles

    args, arrays = _fused(size)
    with emulator.device("100a", sm_count=sm_count), mutate.capture() as launches:
        config = _functions("sm100").configured(args, tile, ctas, cluster)
        Sm100GemmOperator.operator_of(args, config, 1).run(args)
    return mutate.Trial(launches[-1], arrays, ["D"])


def _fused(size: tuple[int, int, int]) -> tuple[epifuse.GemmArguments, dict[str, np.ndarray]]:
    """Arguments with a bias and a relu, and all the memory they name."""
    m, n, k = size
    a, b = operands(m, n, k, torch.bfloat16)
    out, bias = torch.zeros(m, n), torch.arange(n).float()
    epilogue = epifuse.EpilogueArguments(BIAS_RELU, bias=bias, D=out)
    args = epifuse.GemmArguments(a, b, out, torch.float32, epilogue)
    return args, {"A": bits(a), "B": bits(b.T), "D": bits(out), "bias": bias.numpy()}


_SM100_STATIC, _SM100_CLC = "x64_schedulerSTATIC", "x64_schedulerCLC"
KERNELS: dict[str, Callable[[], mutate.Trial]] = {
    "portable": portable,
    "sm90 vendor": lambda: vendor("90a", "cluster1x1x1_tile128x256x64", (128, 768, 640), 1),
    "sm90 vendor 2x1": lambda: vendor("90a", "cluster2x1x1_tile128x256x64", (256, 768, 640), 2),
    "sm90 vendor 1x2": lambda: vendor("90a", "cluster1x2x1_tile128x256x64", (128, 1536, 640), 2),
    "sm100 vendor": lambda: vendor("100a", f"1cta_cluster1x1x1_tile128x128{_SM100_STATIC}", (128, 384, 896), 1),
    "sm100 vendor clc": lambda: vendor("100a", f"1cta_cluster1x1x1_tile128x128{_SM100_CLC}", (128, 384, 896), 1),
    "sm100 vendor 2x1": lambda: vendor("100a", f"1cta_cluster2x1x1_tile128x128{_SM100_STATIC}", (256, 384, 896), 2),
    "sm100 vendor 2cta": lambda: vendor("100a", f"2cta_cluster2x1x1_tile256x128{_SM100_STATIC}", (256, 384, 1024), 2),
    "sm100 vendor 2cta clc": lambda: vendor("100a", f"2cta_cluster2x1x1_tile256x128{_SM100_CLC}", (256, 384, 1024), 2),
    "hopper cooperative": lambda: hopper("cooperative", (128, 128), 1, (128, 384, 832), 1),
    "hopper cooperative 2": lambda: hopper("cooperative", (128, 256), 2, (256, 768, 640), 2),
    "hopper pingpong": lambda: hopper("pingpong", (128, 128), 1, (128, 768, 832), 1),
    "hopper pingpong 2": lambda: hopper("pingpong", (128, 128), 2, (256, 768, 832), 2),
    "blackwell": lambda: blackwell((128, 128), 1, (1, 1), (128, 384, 896), 1),
    "blackwell 2": lambda: blackwell((128, 128), 1, (2, 1), (256, 384, 896), 2),
    "blackwell 2cta": lambda: blackwell((128, 128), 2, (2, 1), (256, 384, 1024), 2),
}
"""By name; each compiles and runs the kernel once. Tiles a CTA: three, six for two warpgroups that take turns."""


def table(name: str, pattern: str, seeds: range) -> Iterator[str]:
    """The faults of the kinds whose names contain `pattern`, one line each."""
    trial = KERNELS[name]()
    trial.measure()
    kinds = [kind for kind in mutate.KINDS if pattern in kind]
    missed: list[mutate.Fault] = []
    for fault in mutate.faults(trial.captured.text, kinds, trial.executed):
        start = time.time()
        verdict = trial.verdict(fault, seeds)
        found = verdict or f"nothing in {len(seeds)} seeds"
        told = f"({trial.told}; {time.time() - start:.1f} s)"
        if not verdict:
            missed.append(fault)
        yield f"{name}: {fault.kind}, line {fault.line}: {found} {told} {fault.before}"
    if len(missed) > 1:
        verdict = trial.verdict(together(trial.captured.text, missed), seeds[:3])
        lines = ", ".join(str(fault.line) for fault in missed)
        yield f"{name}: lines {lines} together: {verdict or 'nothing'} ({trial.told})"


def together(text: str, faults: list[mutate.Fault]) -> mutate.Fault:
    """All of these faults at once."""
    lines = text.split("\n")
    for fault in faults:
        lines[fault.line - 1] = fault.text.split("\n")[fault.line - 1]
    return mutate.Fault("together", 0, "", "\n".join(lines))


def silence(name: str, seeds: range) -> Iterator[str]:
    """One line: the unbroken kernel gave the same outputs on every seed, without a report."""
    trial = KERNELS[name]()
    trial.measure()
    for seed in seeds:
        trial.run(trial.captured.text, seed)
        assert all(np.array_equal(trial.arrays[each], trial.expected[each]) for each in trial.outputs), (name, seed)
    yield f"{name}: silent on {len(seeds)} seeds"


def main(arguments: list[str]) -> None:
    """Print tables: the number of seeds, the kind's name or "silent", then kernels (all if none)."""
    count, pattern, *names = arguments
    for name in names or KERNELS:
        seeds = range(int(count))
        for line in silence(name, seeds) if pattern == "silent" else table(name, pattern, seeds):
            print(line, flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
