# SPDX-License-Identifier: Apache-2.0
"""Real kernels with one fault planted in their PTX: each is reported (planted.py prints the tables of all faults)."""

import mutate
import numpy as np
import pytest
from planted import KERNELS, together

pytest.importorskip("cutlass")

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")
SEEDS = range(4)


@pytest.fixture(scope="module")
def trials():
    """Kernels by name, each captured once."""
    found = {}

    def trial(name):
        if name not in found:
            if "vendor" in name:
                pytest.importorskip("cutlass.operators")
            found[name] = KERNELS[name]()
            found[name].measure()
        return found[name]

    return trial


def planted(trial, kind):
    """The faults of a kind at executed lines."""
    found = list(mutate.faults(trial.captured.text, [kind], trial.executed))
    assert found, f"the kernel has no place for: {kind}"
    return found


COMMON = ("arrive dropped", "expect_tx too large", "commit group dropped", "bulk wait dropped", "proxy fence dropped")
TENSOR_MEMORY = ("tcgen05.commit dropped", "relinquish dropped", "dealloc dropped")
PLANTED = {
    "portable": ("bar.sync dropped", "cp.async.wait dropped", "commit group dropped"),
    "sm100 vendor": (*COMMON, *TENSOR_MEMORY, "barrier count too large", "barrier count too small"),
    "hopper pingpong": (*COMMON, "wgmma wait dropped", "mbarrier count too large", "barrier count too small"),
    "blackwell": (*COMMON, *TENSOR_MEMORY, "tcgen05 wait dropped", "mbarrier count too large"),
}


@pytest.mark.parametrize(("name", "kind"), [(name, kind) for name, kinds in PLANTED.items() for kind in kinds])
def test_a_fault_of_a_kind_is_reported(trials, name, kind):
    """The first one that can change anything: a copy of the code for a step that gives nothing back cannot."""
    trial = trials(name)
    verdicts = (trial.verdict(fault, SEEDS) for fault in planted(trial, kind)[:2])
    found = next((verdict for verdict in verdicts if verdict), "")
    assert found not in ("", "WRONG"), trial.told


@pytest.mark.parametrize("name", ["hopper pingpong", "blackwell 2"])
def test_every_wait_of_the_projects_kernels_is_needed(trials, name):
    trial = trials(name)
    missed = [fault for fault in planted(trial, "wait dropped") if trial.verdict(fault, range(1)) in ("", "WRONG")]
    # The first piece of a tile waits for all but one of its stores, when none is left.
    assert [fault.before for fault in missed] in ([], ["cp.async.bulk.wait_group.read \t1;"])


def test_the_last_wait_at_the_end_of_a_pipeline_covers_those_before(trials):
    """Of a cluster's two CTAs neither may end while the other still signals its barriers: a wait a stage, in turn."""
    trial = trials("sm90 vendor 2x1")
    waits = [fault for fault in planted(trial, "wait dropped") if "mbarrier" in fault.before]
    missed = [fault.line for fault in waits if not trial.verdict(fault, range(1))]
    lines = [fault.line for fault in waits]
    first = lines.index(missed[0])
    assert len(missed) == 3
    assert lines[first : first + 3] == missed
    assert trial.verdict(waits[first + 3], range(1)) == "RaceError"
    assert "may end before its mbarrier" in trial.told
    covered = waits[first : first + 3]
    assert trial.verdict(together(trial.captured.text, covered), range(3)) == ""
    assert trial.verdict(together(trial.captured.text, [*covered, waits[first + 3]]), range(1)) == "RaceError"


@pytest.mark.parametrize("name", ["blackwell", "blackwell 2"])
def test_tensor_memory_is_ordered_by_fences(trials, name):
    """Before the read, before the accumulator is given back, before it is written again; the two around the allocation
    order nothing, nor does one before a step that gives nothing back."""
    trial = trials(name)
    verdicts = [trial.verdict(fault, range(1)) for fault in planted(trial, "tcgen05 fence dropped")]
    assert verdicts[:2] == ["", ""]
    assert verdicts.count("RaceError") == 3
    assert set(verdicts) == {"", "RaceError"}


def test_sums_over_ctas_are_ordered_by_their_atomics(trials):
    trial = trials("portable")
    text = trial.captured.text.replace("atom.acq_rel.gpu", "atom.relaxed.gpu").replace("fence.acq_rel.gpu;", "")
    assert text != trial.captured.text
    assert trial.verdict(mutate.Fault("order", 0, "", text), SEEDS) == "RaceError"
    assert "global memory" in trial.told


def test_a_store_beyond_the_output(trials):
    """The last global store, moved by a whole output: outside every tensor."""
    trial = trials("portable")
    lines = trial.captured.text.split("\n")
    last = max(n for n in trial.executed if "st.global" in lines[n - 1])
    before = lines[last - 1]
    lines[last - 1] = before.replace("]", f"+{trial.arrays['D'].nbytes}]")
    assert trial.verdict(mutate.Fault("store too far", last, before, "\n".join(lines)), SEEDS) == "MemoryFaultError"


@pytest.mark.parametrize("name", ["portable", "sm90 vendor 2x1", "sm100 vendor", "hopper pingpong", "blackwell 2"])
def test_the_unbroken_kernels_are_silent(trials, name):
    trial = trials(name)
    for seed in range(4):
        trial.run(trial.captured.text, seed)
        assert all(np.array_equal(trial.arrays[each], trial.expected[each]) for each in trial.outputs)
