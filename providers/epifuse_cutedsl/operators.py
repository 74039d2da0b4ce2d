# SPDX-License-Identifier: Apache-2.0
"""Every operator family of the provider; importing this module registers them."""

from __future__ import annotations

from epifuse_cutedsl.operators_sm80 import Sm80GemmOperator
from epifuse_cutedsl.operators_sm90 import Sm90GemmOperator
from epifuse_cutedsl.operators_sm100 import Sm100GemmOperator

__all__ = ["Sm100GemmOperator", "Sm80GemmOperator", "Sm90GemmOperator"]
