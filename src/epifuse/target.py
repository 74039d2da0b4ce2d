# SPDX-License-Identifier: Apache-2.0
"""GPU targets: ``TargetSm``, and how far code compiled for one carries."""

from __future__ import annotations

import enum
import functools
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeAlias

from epifuse.errors import OperandTypeError, TargetError


class ArchPortability(enum.Enum):
    """How far code compiled for a target carries (CUDA programming guide, feature-set compiler targets)."""

    Portable = ""
    """To every later architecture (``sm_80``)."""
    FamilyPortable = "f"
    """To later members of the same family (``sm_100f``); from compute capability 10.0 on."""
    ArchConditional = "a"
    """To this architecture alone (``sm_90a``); from compute capability 9.0 on."""


@dataclass(frozen=True, slots=True, init=False)
class TargetSm:
    """A compute capability and the portability of the code compiled for it.

    ``TargetSm("100a")``, ``TargetSm(cc=100)`` (which takes ``a`` from 90 on), or both fields by name.

    Raises:
        TargetError: (a ValueError) the string does not parse, or the suffix does not exist for that capability.
    """

    cc: int
    portability: ArchPortability

    def __init__(
        self,
        sm_str: str | None = None,
        *,
        cc: int | None = None,
        portability: ArchPortability | None = None,
    ) -> None:
        if sm_str is not None:
            if cc is not None or portability is not None:
                raise TargetError("Cannot specify sm_str with cc/portability")
            cc, portability = _parse(sm_str)
        elif cc is None:
            raise TargetError("Must specify either sm_str or cc/portability")
        elif portability is None:
            portability = ArchPortability.ArchConditional if cc >= 90 else ArchPortability.Portable
        object.__setattr__(self, "cc", cc)
        object.__setattr__(self, "portability", portability)
        if portability is ArchPortability.ArchConditional and cc < 90:
            raise TargetError(f"TargetSm {self} is invalid. ArchConditional targets must be Hopper (sm90) or newer")
        if portability is ArchPortability.FamilyPortable and cc < 100:
            raise TargetError(f"TargetSm {self} is invalid. FamilyPortable targets must be Blackwell or newer")

    @classmethod
    def ensure(cls, value: TargetSm | str | None) -> TargetSm | None:
        """A string becomes a ``TargetSm``; None and a ``TargetSm`` stay as they are."""
        if value is None or isinstance(value, cls):
            return value
        if isinstance(value, str):
            return _from_string(value)
        raise OperandTypeError(
            f"Expected TargetSm or str. Got {value} of type {type(value)}", advice="Write it as text, such as '90a'."
        )

    @property
    def major(self) -> int:
        """Major compute capability."""
        return self.cc // 10

    @property
    def minor(self) -> int:
        """Minor compute capability."""
        return self.cc % 10

    def is_portable_to(self, other: TargetSm | str) -> bool:
        """Whether code compiled for this target runs on ``other``."""
        there = TargetSm.ensure(other)
        assert there is not None
        if self.portability is ArchPortability.Portable:
            return self.cc <= there.cc
        if self.portability is ArchPortability.FamilyPortable:
            return self.major == there.major and self.cc <= there.cc
        return self == there

    def supports_operators_from(self, operator_targets: Iterable[TargetSm | str]) -> bool:
        """Whether this target runs operators designed for any of the given targets."""
        targets = (TargetSm.ensure(t) for t in operator_targets)
        return any(t is not None and t.is_portable_to(self) for t in targets)

    def __hash__(self) -> int:
        return self.cc  # the portability, an enum, hashes in Python: caches ask some hundred times in a first call

    def __str__(self) -> str:
        return f"{self.cc}{self.portability.value}"

    def __repr__(self) -> str:
        return f"TargetSm({str(self)!r})"


TargetLike: TypeAlias = TargetSm | str | None


@functools.lru_cache(maxsize=128)
def _from_string(text: str) -> TargetSm:
    return TargetSm(text)


def _parse(text: str) -> tuple[int, ArchPortability]:
    body = text.removeprefix("sm_")
    suffix = body[-1:]
    portability = ArchPortability.Portable
    if suffix in ("a", "f"):
        portability, body = ArchPortability(suffix), body[:-1]
    if not (body.isascii() and body.isdigit()):
        raise TargetError(f"Invalid TargetSm: '{text}'. Expected form: '100', '100a', '100f'")
    return int(body), portability
