# SPDX-License-Identifier: Apache-2.0
"""The emulator against results recorded on a GPU by record_on_gpu.py: bit for bit, or within the ISA's bound."""

from pathlib import Path

import isa_cases
import numpy as np
import pytest
import recorded_kernels
from ptxlab import launch, run_columns

from epifuse.emulator.map_rules import MapRequest
from epifuse.emulator.reports import ExecutionError
from epifuse.emulator.tensor_map import encode

FILE = Path(__file__).parents[1] / "data" / "isa_sm90.npz"
CASES = list(isa_cases.cases())
KERNELS = [kernel for kernel in recorded_kernels.kernels() if not kernel.refused]
REFUSED = [kernel for kernel in recorded_kernels.kernels() if kernel.refused]
recorded_only = pytest.mark.skipif(not FILE.exists(), reason="no recording: run record_on_gpu.py on a GPU of cc 9.0")


@pytest.fixture(scope="module")
def recording():
    with np.load(FILE) as file:
        return {name: file[name] for name in file.files}


def as_floats(bits, kind):
    if kind == "bf16":
        return (bits.view(np.uint16).astype(np.uint32) << 16).view(np.float32)
    return bits.view({"f16": np.float16, "f32": np.float32, "f64": np.float64}[kind])


def differing(case, found, wanted):
    """Where an output is neither the recorded one nor within the bound."""
    if not case.floats:
        return found != wanted
    x, y = as_floats(found, case.floats), as_floats(wanted, case.floats)
    same = (x.view(f"u{x.itemsize}") == y.view(f"u{y.itemsize}")) | (np.isnan(x) & np.isnan(y))
    with np.errstate(all="ignore"):
        close = np.abs(x.astype(np.float64) - y) <= case.bound * np.maximum(np.abs(y.astype(np.float64)), case.floor)
    return ~(same | close)


def test_cases_have_names_of_their_own():
    assert len({case.name for case in CASES}) == len(CASES)
    assert len(CASES) > 200


@recorded_only
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_instruction(case, recording):
    if f"{case.name}:0" not in recording:
        pytest.skip("not recorded")
    tables = {name: recording[f"input:{name}"] for name in case.inputs}
    found = run_columns(case.code, [tables[name] for name in case.inputs], case.outputs, "90a", shared=case.shared)
    for index, column in enumerate(found):
        wanted = recording[f"{case.name}:{index}"]
        wrong = np.flatnonzero(differing(case, column, wanted).reshape(len(column), -1).any(1))
        rows = [
            ([hex(int(t.view(f"u{t.itemsize}")[i])) for t in tables.values()], hex(column[i]), hex(wanted[i]))
            for i in wrong[:4]
        ]
        assert not wrong.size, f"{wrong.size} rows differ from the GPU (inputs, emulator, GPU): {rows}"


def map_of(address, request):
    return encode(
        MapRequest(
            request.data_type,
            address,
            request.sizes,
            request.strides,
            request.box,
            request.steps,
            0,
            request.swizzle,
            0,
            request.fill_nan,
        )
    )


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel.name)
def test_kernel_runs(kernel):
    arrays = [array.copy() for array in kernel.arrays]
    launch(kernel.text, recorded_kernels.argument_list(kernel, arrays, map_of))
    assert not np.array_equal(arrays[kernel.output], kernel.arrays[kernel.output])


@pytest.mark.parametrize("kernel", REFUSED, ids=lambda kernel: kernel.name)
def test_what_the_gpu_refuses_is_a_report(kernel, recording):
    assert "ILLEGAL_INSTRUCTION" in str(recording.get(f"{kernel.name}:error", "ILLEGAL_INSTRUCTION"))
    arrays = [array.copy() for array in kernel.arrays]
    with pytest.raises(ExecutionError, match="innermost coordinate"):
        launch(kernel.text, recorded_kernels.argument_list(kernel, arrays, map_of))


@recorded_only
@pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel.name)
def test_kernel(kernel, recording):
    if f"{kernel.name}:out" not in recording:
        pytest.skip("not recorded")
    arrays = [array.copy() for array in kernel.arrays]
    launch(kernel.text, recorded_kernels.argument_list(kernel, arrays, map_of))
    assert np.array_equal(arrays[kernel.output], recording[f"{kernel.name}:out"])


@recorded_only
@pytest.mark.parametrize("kernel", [k for k in KERNELS if k.request], ids=lambda kernel: kernel.name)
def test_the_drivers_map_is_the_same(kernel, recording):
    if f"{kernel.name}:map" not in recording:
        pytest.skip("not recorded")
    assert map_of(0x7F0000000000, kernel.request)[:64] == recording[f"{kernel.name}:map"].tobytes()
