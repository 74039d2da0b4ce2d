# SPDX-License-Identifier: Apache-2.0
"""The CPU provider: evaluates an ``EpiloguePlan`` with torch. It is the living definition of what a plan means."""

from __future__ import annotations

from epifuse_cpu.provider import CpuProvider

__all__ = ["CpuProvider"]
