# SPDX-License-Identifier: Apache-2.0
"""Honest timing: fresh objects, interleaved contenders, medians, and what they were measured on."""
