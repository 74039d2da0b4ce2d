# SPDX-License-Identifier: Apache-2.0
"""The portable kernel in the emulator against the same kernel on an H200: 200 cases, recorded by
record_portable_on_gpu.py. Bit for bit where sums are exact; else both within the measure of ``check``, and so within
twice its slack of each other."""

from pathlib import Path

import numpy as np
import portable_cases
import pytest
import torch

from epifuse import emulator
from epifuse.check import measure

FILE = Path(__file__).parents[1] / "data" / "portable_sm90.npz"
CASES = portable_cases.cases()


@pytest.fixture(scope="module")
def recording():
    with np.load(FILE) as file:
        return {name: file[name] for name in file.files}


def test_there_are_200_cases_exact_and_not():
    assert len(CASES) == 200
    assert 20 < sum(not case.exact for case in CASES) < 100
    assert len({case.name for case in CASES}) == 200


@pytest.mark.parametrize("kernel", range(portable_cases.KERNELS))
def test_emulated_results_are_those_of_the_gpu(kernel, recording):
    for case in CASES[kernel * portable_cases.PROBLEMS : (kernel + 1) * portable_cases.PROBLEMS]:
        with emulator.device("90a"):
            found, _, args = portable_cases.outputs_of(case, "cpu", str(recording[f"{case.name}:operator"]))
        wants = measure.expected(args) if not case.exact else {}
        for output, bits in found.items():
            recorded = recording[f"{case.name}:{output}"]
            if case.exact:
                assert np.array_equal(bits, recorded), f"{case}, {output}: its bits are others"
            else:
                tensor = dict(zip(args.bound.names.stores, args.outputs, strict=True))[output]
                on_gpu = torch.from_numpy(recorded.copy()).view(tensor.dtype).reshape(tensor.shape)
                for result in (tensor, on_gpu):
                    assert not wants[output].wrong(result).any(), f"{case}, {output}"
