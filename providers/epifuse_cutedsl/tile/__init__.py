# SPDX-License-Identifier: Apache-2.0
"""Tiles: which one a CTA works on, and how one lies in shared memory. Plain arithmetic, for host and device alike."""
