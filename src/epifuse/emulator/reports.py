# SPDX-License-Identifier: Apache-2.0
"""What an executing kernel can do wrong: one class per kind, each with its place in the PTX and its way out."""

from __future__ import annotations

from dataclasses import dataclass, replace

from .errors import EmulatorError


@dataclass(frozen=True)
class Place:
    """Where in a launch something happened; fields that do not apply are None.

    `line` counts the lines of the PTX text from 1.
    """

    kernel: str | None = None
    cta: tuple[int, int, int] | None = None
    warp: int | None = None
    lane: int | None = None
    line: int | None = None
    text: str = ""

    def __str__(self) -> str:
        named = {"kernel": self.kernel, "CTA": self.cta, "warp": self.warp, "lane": self.lane, "PTX line": self.line}
        where = ", ".join(f"{name} {value}" for name, value in named.items() if value is not None)
        return f"{where}: {self.text}" if self.text else where


class ExecutionError(EmulatorError):
    """Base of all reports: `what` happened, at which `place`, and `way_out` (each class has its own)."""

    way_out: str = "See the PTX ISA section of the instruction named."

    def __init__(self, what: str, place: Place | None = None) -> None:
        self.place = place if place is not None else Place()
        self.waiting: tuple[str, ...] = ()
        self.position: int | None = None
        """Which of the active lanes it was, counted from 0."""
        super().__init__(what, where=str(self.place), advice=self.way_out)

    def in_lanes(self, mask: int) -> ExecutionError:
        """Name the lane, given the active ones, where a position among them is known; return the error."""
        if self.position is not None and self.place.lane is None:
            lanes = [lane for lane in range(32) if mask >> lane & 1]
            if self.position < len(lanes):
                self.located(Place(lane=lanes[self.position]))
        return self

    def located(self, place: Place) -> ExecutionError:
        """Fill in whatever the place of this error does not yet say, and return the error."""
        known = {name: value for name, value in vars(self.place).items() if value not in (None, "")}
        self.place = replace(place, **known)
        self.where = str(self.place)
        return self

    def __str__(self) -> str:
        lines = [self.what]
        if self.where:
            lines.append(f"  where: {self.where}")
        lines.append(f"  to do: {self.advice}")
        lines.extend(f"  {line}" for line in self.waiting)
        return "\n".join(lines)


class PtxSyntaxError(ExecutionError):
    """The text is not PTX that the parser reads."""

    way_out = "Check that this is text PTX of one module, as the compiler writes it."


class UnknownInstructionError(ExecutionError):
    """An instruction, or a combination of its modifiers, that the emulator does not execute."""

    way_out = "Nothing was guessed and the launch stopped; the instruction has to be added under its chapter in isa/."


class LaunchError(ExecutionError):
    """A launch that the chip would refuse: sizes, parameters, resources."""

    way_out = "Compare the launch configuration with the kernel's directives and the chip's limits."


class MemoryFaultError(ExecutionError):
    """An access out of bounds, misaligned, or in the wrong state space."""

    way_out = "Compare the address with the allocations named; check predicates, strides and vector widths."


class UninitialisedError(ExecutionError):
    """A read of memory that nothing has written."""

    way_out = "Write the location first, or wait for the copy that fills it."


class RaceError(ExecutionError):
    """Two accesses to the same bytes that no synchronisation orders, at least one of them a write."""

    way_out = "Wait on the barrier, group or fence that the earlier access completes on before the later one."


class ProxyError(RaceError):
    """Bytes written through the generic proxy and read by an asynchronous one without a proxy fence between."""

    way_out = "Put fence.proxy.async between the writes and the asynchronous operation that reads them."


class BarrierError(ExecutionError):
    """Misuse of a barrier: not initialised, count or transaction overflow, wrong participants."""

    way_out = "Check the arrival count, the transaction bytes, and that the barrier was initialised and fenced."


class TensorMemoryError(ExecutionError):
    """Tensor memory that is not allocated, leaked, freed twice or addressed outside its bounds."""

    way_out = "Pair every tcgen05.alloc with one dealloc of the same columns and stay inside them."


class DescriptorError(ExecutionError):
    """A matrix, instruction or tensor-map descriptor with fields that the hardware does not accept."""

    way_out = "Compare the descriptor's fields with the PTX ISA's table for this instruction and its kinds."


class DivergenceError(ExecutionError):
    """A warp-wide instruction that not all of its lanes execute together."""

    way_out = "Move the instruction to where the warp has reconverged, or name only the active lanes."


class DeadlockError(ExecutionError):
    """No warp can go on and nothing asynchronous is pending."""

    way_out = "The lines below say where each warp waits; find the arrival, commit or copy that none of them makes."
