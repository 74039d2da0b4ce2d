# SPDX-License-Identifier: Apache-2.0
"""Real kernels with one fault planted in their PTX: each is reported (mutate.py plants and measures many more)."""

import mutate
import numpy as np
import pytest
import torch

import epifuse
from epifuse import emulator

pytest.importorskip("cutlass")

from epifuse_cutedsl import emulate  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")
SEEDS = range(4)


def bits(tensor):
    return tensor.view(torch.int16).numpy() if tensor.dtype == torch.float16 else tensor.numpy()


@pytest.fixture(scope="module")
def portable():
    """The project's own kernel: relu(alpha * A B + bias), ragged, with several stages."""
    torch.manual_seed(0)
    a, b = torch.randint(-3, 4, (70, 100)).half(), torch.randint(-3, 4, (100, 67)).half()
    out, bias = torch.zeros(70, 67, dtype=torch.float16), torch.arange(67).float()
    text = "def epi(accum, bias, alpha): D = relu(alpha * accum + bias); return D"
    epilogue = epifuse.EpilogueArguments(text, D=out, bias=bias, alpha=0.5)
    args = epifuse.GemmArguments(a, b, out, torch.float32, epilogue)
    with emulator.device("90a"), mutate.capture() as launches:
        operator = epifuse.get_operators(args)[0]
        operator.run(args, operator.compile(args))
    trial = mutate.Trial(launches[-1], {"A": bits(a), "B": bits(b), "D": bits(out), "bias": bias.numpy()}, ["D"])
    trial.measure()
    return trial


@pytest.fixture(scope="module")
def vendor():
    """NVIDIA's persistent SM100 kernel, two tiles on one SM."""
    ops = pytest.importorskip("cutlass.operators")
    torch.manual_seed(0)
    a, b = torch.randint(-2, 3, (256, 128)).half(), torch.randint(-2, 3, (128, 128)).half()
    out = torch.zeros(256, 128, dtype=torch.float16)
    args = ops.GemmArguments(A=a, B=b, out=out, accumulator_type=torch.float32)
    name = "1cta_cluster1x1x1_tile128x128x64"
    found = [each for each in ops.get_operators(args, target_sm="100a") if name in each.metadata.operator_name]
    with emulator.device("100a", sm_count=1), emulate.every_compile(), mutate.capture() as launches:
        found[0].run(args, found[0].compile(args, "100a"))
    trial = mutate.Trial(launches[-1], {"A": bits(a), "B": bits(b), "D": bits(out)}, ["D"])
    trial.measure()
    return trial


def planted(trial, kind, count=1):
    """The first faults of a kind at executed lines."""
    found = list(mutate.faults(trial.captured.text, [kind], trial.executed))
    assert found, f"the kernel has no place for: {kind}"
    return found[:count]


def check(trial, kind, count=1):
    for fault in planted(trial, kind, count):
        assert trial.verdict(fault, SEEDS) not in ("", "WRONG"), fault


@pytest.mark.parametrize("kind", ["bar.sync dropped", "cp.async.wait dropped", "commit group dropped"])
def test_faults_of_the_portable_kernel(portable, kind):
    check(portable, kind)


def test_a_store_beyond_the_portable_kernels_output(portable):
    """The last global store, moved by a whole output: outside every tensor."""
    lines = portable.captured.text.split("\n")
    last = max(n for n in portable.executed if "st.global" in lines[n - 1])
    before = lines[last - 1]
    lines[last - 1] = before.replace("]", f"+{2 * 70 * 67}]")
    fault = mutate.Fault("store too far", last, before, "\n".join(lines))
    assert portable.verdict(fault, SEEDS) == "MemoryFaultError"


VENDOR = [
    *("arrive dropped", "expect_tx too large", "tcgen05.commit dropped", "commit group dropped", "bulk wait dropped"),
    *("relinquish dropped", "dealloc dropped", "barrier count too large", "barrier count too small"),
]


@pytest.mark.parametrize("kind", VENDOR)
def test_faults_of_a_vendors_kernel(vendor, kind):
    check(vendor, kind)


def test_dropped_waits_of_a_vendors_kernel(vendor):
    """Every wait that something depends on; what is left are waits at the ends of pipelines, which later ones cover."""
    found = {fault.line: vendor.verdict(fault, range(1)) for fault in planted(vendor, "wait dropped", 99)}
    assert sum(1 for verdict in found.values() if verdict) >= 8, found


@pytest.mark.parametrize("kernel", ["portable", "vendor"])
def test_the_unbroken_kernels_are_silent(request, kernel):
    trial = request.getfixturevalue(kernel)
    for seed in range(6):
        trial.run(trial.captured.text, seed)
        assert np.array_equal(trial.arrays["D"], trial.expected["D"])
