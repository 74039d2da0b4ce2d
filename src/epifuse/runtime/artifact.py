# SPDX-License-Identifier: Apache-2.0
"""``CompiledArtifact``: the result of compiling an operator."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from epifuse.records import dataclass
from epifuse.target import TargetSm

if TYPE_CHECKING:
    from epifuse.operator import Operator


@dataclass(frozen=True)
class CompiledArtifact:
    """What ``Operator.compile`` returns and ``Operator.run`` accepts. Compiling changes nothing else.

    ``compiled_obj`` is the provider's own; ``compiled_for`` is None for an operator of the CPU.
    """

    compiled_obj: Any
    operator_obj: Operator
    compiled_for: TargetSm | None
