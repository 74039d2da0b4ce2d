# SPDX-License-Identifier: Apache-2.0
"""The order in which CTAs take the tiles of a problem: the core's arithmetic, traced as it is."""

from __future__ import annotations

from epifuse.tile_order import tile_of

__all__ = ["tile_of"]
