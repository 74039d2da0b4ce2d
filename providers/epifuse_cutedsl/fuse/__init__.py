# SPDX-License-Identifier: Apache-2.0
"""The epilogue engine: an ``EpiloguePlan`` as device code, the same for every architecture."""
