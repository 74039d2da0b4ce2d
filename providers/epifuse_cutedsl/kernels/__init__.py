# SPDX-License-Identifier: Apache-2.0
"""Kernels in CuTe DSL, a folder for each architecture, and ``ptx``: the instructions they are written in."""
