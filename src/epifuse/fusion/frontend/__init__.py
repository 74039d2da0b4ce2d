# SPDX-License-Identifier: Apache-2.0
"""From a Python function, or its text, to a ``Graph``. The function is read, never called."""

from epifuse.fusion.frontend.parse import clear, parse

__all__ = ["clear", "parse"]
