# SPDX-License-Identifier: Apache-2.0
"""Questions about devices, under the names of the Operator API."""

from epifuse.utils import device

__all__ = ["device"]
