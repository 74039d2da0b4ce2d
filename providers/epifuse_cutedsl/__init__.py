# SPDX-License-Identifier: Apache-2.0
"""The CuTe DSL provider: kernels for NVIDIA GPUs. Importing it imports neither cutlass nor cuda, nor any operator."""

from epifuse_cutedsl.provider import CuTeDSLProvider

__all__ = ["CuTeDSLProvider"]
