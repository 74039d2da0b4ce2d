# SPDX-License-Identifier: Apache-2.0
"""``tune(args)``: measure the best few operators on this GPU and remember the fastest."""

from epifuse.tune.search import Trial, TuneResult, tune

__all__ = ["Trial", "TuneResult", "tune"]
