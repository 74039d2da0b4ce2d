# SPDX-License-Identifier: Apache-2.0
"""The settings: read at each call, refused with what is accepted."""

import pytest

from epifuse import settings
from epifuse.errors import SettingError
from epifuse.target import TargetSm


def test_unset_and_empty_are_the_default(monkeypatch):
    for row in settings.TABLE:
        monkeypatch.delenv(row.variable, raising=False)
        assert row.read() == row.default
        monkeypatch.setenv(row.variable, "  ")
        assert row.read() == row.default


@pytest.mark.parametrize(("text", "target"), [("90a", "90a"), ("sm_100a", "100a"), (" 100f ", "100f"), ("80", "80")])
def test_the_architecture_is_read_anew_at_each_call(monkeypatch, text, target):
    monkeypatch.setenv("CUTE_DSL_ARCH", "120a")
    assert settings.ARCH.read() == TargetSm("120a")
    monkeypatch.setenv("CUTE_DSL_ARCH", text)
    assert settings.ARCH.read() == TargetSm(target)


@pytest.mark.parametrize("text", ["hopper", "sm_", "80a", "90f"])
def test_a_bad_value_says_which_variable_and_what_is_accepted(monkeypatch, text):
    monkeypatch.setenv("CUTE_DSL_ARCH", text)
    with pytest.raises(SettingError) as caught:
        settings.ARCH.read()
    assert f"CUTE_DSL_ARCH={text!r}" in str(caught.value)
    assert settings.ARCH.accepts in str(caught.value)
    assert isinstance(caught.value, ValueError)


def test_names_and_variables_are_unique_and_described():
    assert len({row.variable for row in settings.TABLE}) == len(settings.TABLE)
    assert all(row.accepts and row.summary for row in settings.TABLE)
