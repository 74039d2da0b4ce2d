# SPDX-License-Identifier: Apache-2.0
"""Some operators only: a filter is asked about each operator's metadata; explain says what it left."""

import torch

import epifuse as ops

A, B = torch.ones(200, 64, dtype=torch.float16), torch.ones(64, 96, dtype=torch.float16)
D = torch.empty(200, 96, dtype=torch.float16)
epilogue = ops.EpilogueArguments(lambda accum: accum * 0.5, D=D)
args = ops.GemmArguments(A=A, B=B, out=D, accumulator_type=torch.float32, epilogue=epilogue)


def small_tiles(metadata):
    """Operators on the CPU have no design."""
    return metadata.design is not None and metadata.design.tile_shape[:2] == (64, 64)


with ops.emulator.device("90a"):
    operators = ops.get_operators(args, metadata_filter=small_tiles)
    for operator in operators[:3]:
        print(operator.metadata.operator_name, operator.metadata.design)
    operators[0].run(args)
    print(ops.explain(args, metadata_filter=small_tiles))
assert (D == 32).all()
