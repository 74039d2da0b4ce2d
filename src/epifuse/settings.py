# SPDX-License-Identifier: Apache-2.0
"""The settings: one row for each environment variable that epifuse reads, and the only file that reads any.

A row is read anew at each call, so that a test or a notebook may set the variable at any time.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import field
from pathlib import Path
from typing import Any, Generic, TypeVar

from epifuse.errors import SettingError
from epifuse.records import dataclass
from epifuse.target import TargetSm

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Setting(Generic[T]):
    """One setting. ``accepts`` and ``summary`` are sentences for people; ``parse`` raises ValueError on the rest."""

    name: str
    variable: str
    default: T
    accepts: str
    summary: str
    parse: Callable[[str], T] = field(repr=False)

    @property
    def text(self) -> str:
        """What the environment holds, without white space around it; empty where it is not set."""
        return os.environ.get(self.variable, "").strip()

    def read(self) -> T:
        """The value: the environment's, or ``default`` where the variable is unset or empty.

        Raises:
            SettingError: (a ValueError) the environment holds something that the row does not accept.
        """
        text = self.text
        if not text:
            return self.default
        try:
            return self.parse(text)
        except ValueError as error:
            raise SettingError(
                f"{self.variable}={text!r} cannot be used.", advice=f"It accepts {self.accepts}, or unset it."
            ) from error


def _count(text: str) -> int:
    number = int(text)
    if number < 0:
        raise ValueError(f"{number} is negative")
    return number


ARCH: Setting[TargetSm | None] = Setting(
    name="target architecture",
    variable="CUTE_DSL_ARCH",
    default=None,
    accepts="a compute capability with its suffix, such as 80, 90a, sm_100a or 100f",
    summary="Stands for the GPU's own target where no GPU is found, and overrides it where there is one.",
    parse=TargetSm,
)

CACHE_DIR: Setting[Path] = Setting(
    name="kernel cache",
    variable="EPIFUSE_CACHE_DIR",
    default=Path("~/.cache/epifuse").expanduser(),
    accepts="a folder that may be written to (it is made when first needed)",
    summary="Where compiled kernels are kept, and what tune measured, so that another process need do neither again.",
    parse=lambda text: Path(text).expanduser(),
)

CACHE_LIMIT_MIB: Setting[int] = Setting(
    name="kernel cache limit",
    variable="EPIFUSE_CACHE_LIMIT_MIB",
    default=512,
    accepts="a number of MiB; 0 keeps nothing but the newest kernel",
    summary="How large the kernel cache may grow; the kernels used longest ago go first.",
    parse=_count,
)

TABLE: tuple[Setting[Any], ...] = (ARCH, CACHE_DIR, CACHE_LIMIT_MIB)
"""Every setting, in the order in which ``python -m epifuse doctor`` lists them."""
