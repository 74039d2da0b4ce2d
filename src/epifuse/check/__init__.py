# SPDX-License-Identifier: Apache-2.0
"""Verdicts on results: how far they are from what they should be."""
