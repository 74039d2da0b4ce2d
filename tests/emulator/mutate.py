# SPDX-License-Identifier: Apache-2.0
"""Plants single faults in a kernel's PTX and sees whether the emulator reports them.

`capture` records a launch as it happens; `Trial` repeats it with changed text. As a program, `python mutate.py FILE`
lists the faults that could be planted in a PTX file.
"""

from __future__ import annotations

import contextlib
import dataclasses
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np

from epifuse.emulator import machine, ptx
from epifuse.emulator.memory import HostMemory
from epifuse.emulator.reports import ExecutionError

Change = Callable[[str], "str | None"]
_GUARD = re.compile(r"^\s*(@!?%?\w+\s+)?")


def _opcode(line: str) -> str:
    return _GUARD.sub("", line)


def drop(*starts: str) -> Change:
    """Leave out an instruction that starts with one of these."""
    return lambda line: "" if _opcode(line).startswith(starts) else None


def _wait(line: str) -> str | None:
    found = re.match(r"\s*mbarrier\.(?:try|test)_wait\S*\s+(\S+),", line)
    return f"setp.eq.u32 {found.group(1)}, 0, 0;" if found else None


def _more(line: str, pattern: str, amount: int) -> str | None:
    """Add to the integer operand (constant or register) that the pattern's group 2 finds."""
    found = re.match(pattern, line)
    if found is None:
        return None
    before, operand, after = found.groups()
    if re.fullmatch(r"-?\d+", operand):
        return f"{before}{int(operand) + amount}{after}"
    return f"{{ .reg .b32 %mutant; add.s32 %mutant, {operand}, {amount}; {before}%mutant{after} }}"


def _further(line: str) -> str | None:
    """A store one access too far."""
    found = re.match(
        r"(.*\bst\.\S*?(global|shared)\S*?(?:\.v(\d))?\.[bufs](\d+)\s+\[[^\]+]+)(?:\+(-?\d+))?\](.*)", line
    )
    if found is None:
        return None
    head, _, count, bits, offset, tail = found.groups()
    return f"{head}+{int(offset or 0) + int(count or 1) * int(bits) // 8}]{tail}"


_EXPECT = r"(.*mbarrier\.arrive\.expect_tx\S*\s+\S+\s+\[[^\]]*\],\s*)(%?\w+)(\s*;.*)"
_INIT = r"(.*mbarrier\.init\S*\s+\[[^\]]*\],\s*)(%?\w+)(\s*;.*)"
_COUNT = r"(.*\bbar(?:rier)?\.(?:cta\.)?(?:sync|arrive)\S*\s+%?\w+\s*,\s*)(%?\w+)(\s*;.*)"
KINDS: dict[str, Change] = {
    "wait dropped": _wait,
    "bar.sync dropped": drop("bar.sync", "barrier.sync", "barrier.cta.sync"),
    "cluster barrier dropped": drop("barrier.cluster.wait"),
    "cp.async.wait dropped": drop("cp.async.wait"),
    "bulk wait dropped": drop("cp.async.bulk.wait"),
    "commit group dropped": drop("cp.async.commit", "cp.async.bulk.commit"),
    "proxy fence dropped": drop("fence.proxy.async"),
    "init fence dropped": drop("fence.mbarrier_init"),
    "arrive dropped": drop("mbarrier.arrive"),
    "tcgen05.commit dropped": drop("tcgen05.commit"),
    "dealloc dropped": drop("tcgen05.dealloc"),
    "tcgen05 wait dropped": drop("tcgen05.wait"),
    "tcgen05 fence dropped": drop("tcgen05.fence"),
    "relinquish dropped": drop("tcgen05.relinquish"),
    "wgmma wait dropped": drop("wgmma.wait_group"),
    "expect_tx too large": lambda line: _more(line, _EXPECT, 16),
    "expect_tx too small": lambda line: _more(line, _EXPECT, -16),
    "mbarrier count too large": lambda line: _more(line, _INIT, 1),
    "barrier count too large": lambda line: _more(line, _COUNT, 32),
    "barrier count too small": lambda line: _more(line, _COUNT, -32),
    "store too far": _further,
}


@dataclasses.dataclass(frozen=True)
class Fault:
    """One planted fault: its kind, the line (from 1), and the line's text before."""

    kind: str
    line: int
    before: str
    text: str = dataclasses.field(repr=False)


def faults(text: str, kinds: Iterable[str] = tuple(KINDS), lines: frozenset[int] | None = None) -> Iterator[Fault]:
    """Every single fault of some kinds, at some lines (all by default)."""
    parts = text.split("\n")
    for number, line in enumerate(parts, 1):
        if lines is not None and number not in lines:
            continue
        for kind in kinds:
            changed = KINDS[kind](line)
            if changed is not None:
                yield Fault(kind, number, line.strip(), "\n".join([*parts[: number - 1], changed, *parts[number:]]))


@dataclasses.dataclass
class Captured:
    """A launch that was made: module text, kernel, and the keywords of machine.launch."""

    text: str
    kernel: str
    keywords: dict[str, Any]


@contextlib.contextmanager
def capture() -> Iterator[list[Captured]]:
    """Record the launches made inside."""
    original, launches = machine.launch, []

    def launch(module: Any, kernel_name: str, *args: Any, **keywords: Any) -> Any:
        launches.append(Captured(module.text, kernel_name, keywords))
        return original(module, kernel_name, *args, **keywords)

    machine.launch = launch
    try:
        yield launches
    finally:
        machine.launch = original


class Trial:
    """A captured launch that can be repeated with faults; `arrays` are all the memory it may touch."""

    def __init__(self, captured: Captured, arrays: dict[str, np.ndarray], outputs: Iterable[str]) -> None:
        self.captured = captured
        self.arrays = arrays
        self.outputs = list(outputs)
        self.memory = HostMemory()
        for name, array in arrays.items():
            self.memory.register(array.ctypes.data, array.nbytes, name)
        self.start = {name: array.copy() for name, array in arrays.items()}
        for name in self.outputs:
            self.start[name].view(np.uint8)[...] = 0x5A
        self.executed: frozenset[int] = frozenset()
        self.told = ""
        """What the last verdict's report said, in one line, and on which seed."""
        self.expected: dict[str, np.ndarray] = {}

    def run(self, text: str, seed: int, trace: Any = None) -> None:
        """Run the kernel with this text on fresh contents."""
        for name, array in self.arrays.items():
            array[...] = self.start[name]
        keywords = {**self.captured.keywords, "memory": self.memory}
        keywords["options"] = machine.Options(seed=seed, strict=True, trace=trace)
        machine.launch(ptx.parse(text), self.captured.kernel, **keywords)

    def measure(self) -> None:
        """Run it unbroken: which lines are executed, and what the outputs are."""
        seen: set[int] = set()

        def trace(place: str) -> None:
            seen.add(int(place.split("PTX line ", 1)[1].split(":", 1)[0]))

        self.run(self.captured.text, 0, trace)
        self.executed = frozenset(seen)
        self.expected = {name: self.arrays[name].copy() for name in self.outputs}

    def verdict(self, fault: Fault, seeds: Iterable[int]) -> str:
        """The class of the report, "WRONG" for a changed result without one, or "" if nothing was noticed."""
        self.told = ""
        for seed in seeds:
            try:
                self.run(fault.text, seed)
            except ExecutionError as error:
                self.told = f"seed {seed}: {error.what}"
                return type(error).__name__
            if not all(np.array_equal(self.arrays[name], self.expected[name]) for name in self.outputs):
                return "WRONG"
        return ""

    def survey(self, kinds: Iterable[str], seeds: Iterable[int] = range(10), every: int = 1) -> dict[str, Counter[str]]:
        """Verdicts by kind, over every executed line (or every n-th); prints what was not reported."""
        counts: dict[str, Counter[str]] = {}
        planted = list(faults(self.captured.text, kinds, self.executed))
        for fault in planted[::every]:
            found = self.verdict(fault, seeds)
            counts.setdefault(fault.kind, Counter())[found or "missed"] += 1
            if found in ("", "WRONG"):
                print(f"{found or 'missed'}: {fault.kind}, line {fault.line}: {fault.before[:110]}", flush=True)
        return counts


if __name__ == "__main__":
    with open(sys.argv[1], encoding="utf-8") as file:
        for fault in faults(file.read()):
            print(f"{fault.line:5d} {fault.kind}: {fault.before}")
