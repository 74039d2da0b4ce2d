# SPDX-License-Identifier: Apache-2.0
"""The graph of an epilogue: nodes, inference, verification, printing."""
