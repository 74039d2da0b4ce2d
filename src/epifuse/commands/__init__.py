# SPDX-License-Identifier: Apache-2.0
"""The subcommands of ``python -m epifuse``, one module each."""
