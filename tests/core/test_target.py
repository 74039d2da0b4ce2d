# SPDX-License-Identifier: Apache-2.0
"""Targets: parsing, portability, and the questions that discovery asks of them."""

import pickle

import pytest

from epifuse.errors import TargetError
from epifuse.target import ArchPortability, TargetSm


@pytest.mark.parametrize(
    ("text", "cc", "portability"),
    [
        ("80", 80, ArchPortability.Portable),
        ("90", 90, ArchPortability.Portable),
        ("90a", 90, ArchPortability.ArchConditional),
        ("sm_100a", 100, ArchPortability.ArchConditional),
        ("103f", 103, ArchPortability.FamilyPortable),
        ("0", 0, ArchPortability.Portable),
    ],
)
def test_parses(text, cc, portability):
    target = TargetSm(text)
    assert (target.cc, target.portability) == (cc, portability)
    assert TargetSm(cc=cc, portability=portability) == target
    assert TargetSm(str(target)) == target
    assert pickle.loads(pickle.dumps(target)) == target


@pytest.mark.parametrize("text", ["", "a", "90b", "sm90", "9 0", "-80", "80a", "90f", "1²0"])
def test_refuses(text):
    with pytest.raises(ValueError, match="TargetSm"):
        TargetSm(text)


def test_needs_exactly_one_form():
    with pytest.raises(TargetError):
        TargetSm()
    with pytest.raises(TargetError):
        TargetSm("90a", cc=90)


def test_default_portability_follows_the_capability():
    assert TargetSm(cc=86) == TargetSm("86")
    assert TargetSm(cc=90) == TargetSm("90a")


@pytest.mark.parametrize(
    ("code", "chip", "runs"),
    [
        ("80", "90a", True),
        ("90", "80", False),
        ("90a", "90a", True),
        ("90a", "100a", False),
        ("100f", "103a", True),
        ("103f", "100a", False),
        ("100f", "120a", False),
        ("100a", "100f", False),
    ],
)
def test_portability(code, chip, runs):
    assert TargetSm(code).is_portable_to(chip) is runs
    assert TargetSm(chip).supports_operators_from([code, "200a"]) is runs


def test_ensure():
    assert TargetSm.ensure(None) is None
    assert TargetSm.ensure("90a") == TargetSm("90a")
    with pytest.raises(TypeError):
        TargetSm.ensure(90)


@pytest.mark.parametrize("text", ["H100", "9.0", "90b", "cuda"])
def test_a_refused_name_comes_with_those_of_known_gpus(text):
    with pytest.raises(TargetError, match=r"'90a' \(H100, H200\)"):
        TargetSm(text)
