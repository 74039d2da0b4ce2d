# SPDX-License-Identifier: Apache-2.0
"""Machine code beside NVIDIA's fused operator of the same tile: no spills, as many stages, a short epilogue."""

import importlib.util
import sys
from pathlib import Path

import pytest

pytest.importorskip("cutlass.operators")

_SPEC = importlib.util.spec_from_file_location("beside_vendor", Path(__file__).with_name("beside_vendor.py"))
beside_vendor = importlib.util.module_from_spec(_SPEC)
sys.modules[_SPEC.name] = beside_vendor
_SPEC.loader.exec_module(beside_vendor)

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # the vendor's own
    pytest.mark.skipif(beside_vendor.disassembler() is None, reason="needs nvdisasm (nvidia-cuda-nvdisasm)"),
]
CASES = [case for case in beside_vendor.CASES if case.tile == (128, 256) and case.operands]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_beside_nvidias_code(case):
    ours, theirs = beside_vendor.ours(case), beside_vendor.theirs(case)
    assert ours.local_accesses == 0
    assert ours.stages >= theirs.stages
    # Ours computes in float32, theirs in D's dtype.
    assert ours.each < (1.5 if case.dtype is beside_vendor.HALF else 1.0) * theirs.each
