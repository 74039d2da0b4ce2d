# SPDX-License-Identifier: Apache-2.0
"""The Hopper kernel: persistent, tensor copies by a producer warp, ``wgmma`` and epilogues by two warpgroups."""
