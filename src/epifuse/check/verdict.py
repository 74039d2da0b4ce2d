# SPDX-License-Identifier: Apache-2.0
"""What a check says: typed findings with a place and a way out, and the report that collects them."""

from __future__ import annotations

import enum
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any


class Kind(enum.Enum):
    """What went wrong; the value is a sentence for people."""

    MAPPING = "a tile is computed by the wrong program, by two, or by none"
    UNWRITTEN = "elements of the output were never written"
    OUTSIDE = "memory outside the output was written"
    TWICE = "elements of the output were written more than once"
    ORDER = "tiles were stored in another order than the grouped one"
    VALUE = "wrong values"
    ROUNDING = "a rounding at the wrong stage"
    NAN = "a NaN that vanished or appeared"
    INPUT = "an operand was changed"
    RAISED = "the call raised an exception"
    SLOW = "the call did not end in time"
    REFUSED = "no operator serves the problem"


@dataclass(frozen=True, slots=True)
class Finding:
    """One fault: in which case, where in the output (or memory), what was expected, what was there, and a hint."""

    kind: Kind
    subject: str
    case: str
    where: str = ""
    expected: str = ""
    got: str = ""
    hint: str = ""

    def __str__(self) -> str:
        lines = [f"{self.subject}, {self.case}: {self.kind.value}"]
        if self.where:
            lines.append(f"  at {self.where}: expected {self.expected}, got {self.got}")
        if self.hint:
            lines.append(f"  hint: {self.hint}")
        return "\n".join(lines)

    def as_json(self) -> dict[str, str]:
        """Plain values."""
        return {
            "kind": self.kind.name.lower(),
            "subject": self.subject,
            "case": self.case,
            "where": self.where,
            "expected": self.expected,
            "got": self.got,
            "hint": self.hint,
        }


@dataclass(slots=True)
class Section:
    """The cases of one kind, counted; ``skipped`` says what was left out and why."""

    name: str
    cases: int = 0
    findings: list[Finding] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)
    others: int = 0
    """Cases that the operator in question leaves to others of the list."""

    def add(self, findings: Iterable[Finding] | None) -> None:
        """Count one case and keep what it found; None: it was another operator's."""
        if findings is None:
            self.others += 1
            return
        self.cases += 1
        self.findings += findings


@dataclass(slots=True)
class Report:
    """All sections of a check. True where every case passed and there was at least one."""

    suite: str
    where: str
    sections: list[Section] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def section(self, name: str) -> Section:
        """A new section; sections stand in the order in which they were asked for."""
        made = Section(name)
        self.sections.append(made)
        return made

    @property
    def findings(self) -> list[Finding]:
        """Every finding, in order."""
        return [finding for section in self.sections for finding in section.findings]

    @property
    def cases(self) -> int:
        """How many cases were judged."""
        return sum(section.cases for section in self.sections)

    @property
    def others(self) -> int:
        """How many cases operators left to others of the list."""
        return sum(section.others for section in self.sections)

    def __bool__(self) -> bool:
        return self.cases > 0 and not self.findings

    def distinct(self, limit: int) -> list[Finding]:
        """The first finding of each kind in each section, at most ``limit``: the many that follow say the same.

        Sections whose names differ in what stands after the last comma, the dtype, count as one.
        """
        found: dict[tuple[Kind, str], Finding] = {}
        for section in self.sections:
            name = section.name.rpartition(", ")[0] or section.name
            for finding in section.findings:
                found.setdefault((finding.kind, name), finding)
        return list(found.values())[:limit]

    def as_json(self) -> dict[str, Any]:
        """Plain values."""
        return {
            "suite": self.suite,
            "where": self.where,
            "passed": bool(self),
            "cases": self.cases,
            "sections": [
                {
                    "name": section.name,
                    "cases": section.cases,
                    "others": section.others,
                    "findings": [finding.as_json() for finding in section.findings],
                    "skipped": section.skipped,
                }
                for section in self.sections
            ],
            "notes": self.notes,
        }
