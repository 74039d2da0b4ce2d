# SPDX-License-Identifier: Apache-2.0
"""``python -m epifuse``."""

from epifuse.cli import main

if __name__ == "__main__":
    main()
