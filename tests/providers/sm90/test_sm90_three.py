# SPDX-License-Identifier: Apache-2.0
"""Three warpgroups that consume, 64 rows of a tile of 192 by 192 each: exact results in the emulator."""

import pytest
import torch

pytest.importorskip("cutlass")

from epifuse_cutedsl.configs.sm90 import REGISTERS, WARPGROUP, configurations

TILE = {"mode": "cooperative", "tile": (192, 192), "cluster": (1, 2)}


def test_registers_are_those_of_the_sm():
    for consumers, (loading, consuming) in REGISTERS.items():
        assert WARPGROUP * (loading + consumers * consuming) <= 65536
        assert loading % 8 == consuming % 8 == 0
    assert {config.consumers for config in configurations(90)} == set(REGISTERS)


@pytest.mark.parametrize("majors", ["kk", "km", "mk", "mm"])
@pytest.mark.parametrize("size", [(193, 200, 200), (400, 576, 65), (63, 385, 512)])
def test_ragged_tiles_are_exact(hopper, majors, size):
    operator = hopper.run(hopper.arguments(size, majors=majors), **TILE, sm_count=2, seed=size[0])
    assert (operator.config.consumers, operator.config.threads) == (3, 512)


@pytest.mark.parametrize("k", [0, 1, 64, 448])
@pytest.mark.parametrize("loads", [False, True])
def test_direct_epilogues(hopper, k, loads):
    m, n = 130, 200
    operands = {"row": hopper.integers(n)}
    if loads:  # a one-byte operand: two bytes would leave room for two stages
        operands["c"] = hopper.placed(hopper.integers(m, n, dtype=torch.float8_e4m3fn), "row")
    text = f"def epi(accum, {', '.join(operands)}): D = relu(accum + row{' + c' * loads}); return D"
    args = hopper.arguments((m, n, k), text, **operands, D=hopper.nothing(m, n, dtype=torch.float8_e5m2))
    operator = hopper.run(args, **TILE, sm_count=2, seed=k)
    assert operator.config.tail.direct


@pytest.mark.parametrize("rows", [8, 64, 72])
def test_copies_leave_rows_out(hopper, rows):
    hopper.run(hopper.arguments((rows, 400, 512)), **TILE, sm_count=4, seed=rows)


def test_reductions_and_batches(hopper):
    m, n, batches = 200, 136, 2
    text = "def epi(accum, row): D = accum + row; r = sum(D, dim=2); c = max(D, dim=1); e = sum(D); return D, r, c, e"
    shapes = {"r": (batches, m), "c": (batches, n), "e": (1,)}
    outputs = {name: torch.full(shape, 7.0) for name, shape in shapes.items()}
    d = torch.empty(batches, n, m).mT
    args = hopper.arguments((m, n, 24), text, batches=batches, row=hopper.integers(n), D=d, **outputs)
    hopper.run(args, **TILE, sm_count=4, seed=2)
