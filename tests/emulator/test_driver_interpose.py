# SPDX-License-Identifier: Apache-2.0
"""Redirecting the calls of one loaded shared object, and of none beside it."""

import ctypes
import importlib.machinery
import importlib.util
import math
import shutil

import pytest

from epifuse.emulator import EmulatorError, interpose

pytestmark = pytest.mark.skipif(not hasattr(math, "__file__"), reason="this Python has no math module of its own")


@pytest.fixture
def copied(tmp_path):
    """The math module once more, from a file of its own, and that file as a library."""
    path = shutil.copy(math.__file__, tmp_path / "math_again.so")
    loader = importlib.machinery.ExtensionFileLoader("math", str(path))
    spec = importlib.util.spec_from_file_location("math", path, loader=loader)
    return importlib.util.module_from_spec(spec), ctypes.CDLL(str(path))


def test_the_object_calls_us_and_others_do_not(copied):
    module, library = copied
    ours = ctypes.CFUNCTYPE(ctypes.c_double, ctypes.c_double)(lambda value: value + 40)
    address = ctypes.cast(ours, ctypes.c_void_p).value
    assert interpose.redirect(library, {"erf": address, "no_such_function": address}) == {"erf"}
    assert module.erf(2.0) == 42.0
    assert math.erf(2.0) < 1


def test_what_an_object_imports_is_known(copied):
    names = interpose.imported(copied[1])
    assert "erf" in names
    assert "no_such_function" not in names


def test_another_machine_is_refused_by_name(copied, monkeypatch):
    monkeypatch.setattr("platform.machine", lambda: "pdp11")
    with pytest.raises(EmulatorError, match="pdp11"):
        interpose.imported(copied[1])
