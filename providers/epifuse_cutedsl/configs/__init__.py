# SPDX-License-Identifier: Apache-2.0
"""Legal tiles of each architecture, as tables."""
