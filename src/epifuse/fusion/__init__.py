# SPDX-License-Identifier: Apache-2.0
"""The epilogue language: vocabulary, front end, graph, passes, plan."""

from epifuse.fusion import activation

__all__ = ["activation"]
