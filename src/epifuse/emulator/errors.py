# SPDX-License-Identifier: Apache-2.0
"""The base of every error the emulator raises, and what the emulated driver refuses."""

from __future__ import annotations


class EmulatorError(RuntimeError):
    """A mistake found while emulating; the text has what, where and what to do, one a line."""

    def __init__(self, what: str, *, where: str = "", advice: str = "") -> None:
        lines = [what]
        if where:
            lines.append(f"  where: {where}")
        if advice:
            lines.append(f"  to do: {advice}")
        super().__init__("\n".join(lines))
        self.what = what
        self.where = where
        self.advice = advice


class HostCallError(EmulatorError):
    """A CUDA call that the emulated driver refuses; `code` is the status the real one would return."""

    def __init__(self, code: int, what: str, *, where: str = "", advice: str = "") -> None:
        super().__init__(f"{what} (CUDA status {code})", where=where, advice=advice)
        self.code = code


class TensorMapError(HostCallError):
    """A tensor map that the driver's own rules forbid; `violations` lists every broken rule."""

    def __init__(self, violations: tuple[str, ...], *, where: str = "") -> None:
        advice = "change the operand's strides, alignment or box, or copy it without the tensor memory accelerator"
        super().__init__(1, "illegal tensor map: " + "; ".join(violations), where=where, advice=advice)
        self.violations = violations


class NoDeviceError(EmulatorError):
    """A kernel compiled for an emulated device was called while none is entered."""
