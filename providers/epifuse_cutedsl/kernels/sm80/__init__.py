# SPDX-License-Identifier: Apache-2.0
"""The portable kernel: ``mma.sync`` or fused multiply-adds, ``cp.async``, any stride, every GPU from sm_80 on."""
