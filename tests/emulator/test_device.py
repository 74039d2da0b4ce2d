# SPDX-License-Identifier: Apache-2.0
"""Entering and leaving an emulated device."""

import subprocess
import sys
import threading
from pathlib import Path

import pytest

from epifuse import emulator
from epifuse.emulator.device import entered


def test_there_is_no_device_until_one_is_entered(recording_device):
    assert emulator.active() is None
    with entered(recording_device("100a")):
        assert emulator.active().name == "100a"
    assert emulator.active() is None


def test_devices_nest_and_the_one_before_is_back(recording_device):
    with entered(recording_device("100a")) as outer:
        with entered(recording_device("90a")):
            assert emulator.active().name == "90a"
        assert emulator.current() is outer
    assert emulator.current() is None


def test_an_exception_leaves_the_device(recording_device):
    with pytest.raises(KeyError), entered(recording_device("80")):
        raise KeyError("from inside")
    assert emulator.active() is None


def test_one_device_can_be_entered_twice(recording_device):
    device = recording_device("80")
    with entered(device):
        with entered(device):
            pass
        assert emulator.current() is device
    with entered(device):
        assert emulator.current() is device
    assert emulator.current() is None


def test_all_threads_have_the_device(recording_device):
    seen = []
    with entered(recording_device("90a")) as device:
        thread = threading.Thread(target=lambda: seen.append(emulator.current()))
        thread.start()
        thread.join()
    assert seen == [device]


def test_blocks_that_overlap_in_two_threads_leave_in_any_order(recording_device):
    first, second = recording_device("80"), recording_device("90a")
    inside, leave = threading.Event(), threading.Event()

    def hold() -> None:
        with entered(first):
            inside.set()
            leave.wait(10)

    thread = threading.Thread(target=hold)
    thread.start()
    inside.wait(10)
    with entered(second):
        leave.set()
        thread.join()
        assert emulator.current() is second
    assert emulator.current() is None


def test_an_unknown_chip_is_refused_by_name():
    with pytest.raises(ValueError, match="42z"), emulator.device("42z"):
        pass
    assert emulator.active() is None


def test_the_number_of_multiprocessors_can_be_pretended():
    with emulator.device("sm_100a", sm_count=2) as device:
        assert emulator.active().sm_count == 2
        assert device.chip.name == "100a"


def test_seed_and_strictness_reach_the_machine():
    with emulator.device("90a", seed=7, strict=False) as device:
        assert (device.options.seed, device.options.strict) == (7, False)


ALONE = """
import sys, types
parent = types.ModuleType("epifuse")
parent.__path__ = [{path!r}]
sys.modules["epifuse"] = parent
import epifuse.emulator
print(sorted({{"numpy", "torch", "cutlass"}} & set(sys.modules)))
"""


def test_importing_the_emulator_is_cheap():
    code = ALONE.format(path=str(Path(emulator.__file__).parents[1]))
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"
