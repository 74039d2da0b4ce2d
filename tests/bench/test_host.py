# SPDX-License-Identifier: Apache-2.0
"""The host benchmark asks what it says: fresh objects, new functions, and this process as it was afterwards."""

import os

import pytest
import torch

from epifuse.bench import host


def test_every_question_is_asked_as_often_as_it_says():
    result = host.run(rounds=4, peer=False)
    contenders = ("epifuse", "epifuse, sm_100a")
    assert {row.contender for row in result.measurements} == set(contenders)
    for contender in contenders:
        rows = [row for row in result.measurements if row.contender == contender]
        assert {row.name: row.count for row in rows} == {
            "arguments, function seen before": 8,
            "arguments, new function": 4,
            "get_operators, first for a function": 4,
            "get_operators, repeated": 8,
            "supports": 8,
        }
        assert {row.name: row.limit_us for row in rows} == host.LIMITS_US


def test_threads_and_cores_are_as_before():
    threads, cores = torch.get_num_threads(), os.sched_getaffinity(0)
    with host._one_core():
        assert torch.get_num_threads() == 1
        assert len(os.sched_getaffinity(0)) == 1
    assert (torch.get_num_threads(), os.sched_getaffinity(0)) == (threads, cores)


@pytest.mark.parametrize("count", [1, 20, 21])
def test_new_functions_are_all_different(tmp_path, count):
    functions = host._new_functions(tmp_path, count)
    assert len({function.__code__ for function in functions}) == count


def test_every_call_gets_fresh_arguments():
    contender = host.Contender("epifuse", host.epifuse, None)
    first, second = (contender.arguments(host.two_scalars, 2.0) for _ in range(2))
    assert first is not second
    assert first.epilogue is not second.epilogue
