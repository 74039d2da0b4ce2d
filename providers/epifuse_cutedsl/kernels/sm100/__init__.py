# SPDX-License-Identifier: Apache-2.0
"""The Blackwell kernel: persistent, ``tcgen05`` products into tensor memory beside the epilogue of the tile before."""
