# SPDX-License-Identifier: Apache-2.0
"""Named sets of problems, as data."""

from __future__ import annotations

from epifuse.bench.workloads import Problem

_BIAS_RELU = (
    (8192, 8192, 8192),
    (4096, 4096, 4096),
    (2048, 2048, 2048),
    (1024, 1024, 1024),
    (512, 512, 512),
    (8192, 14336, 4096),
    (8192, 4096, 14336),
    (4096, 16384, 4096),
    (8192, 8192, 512),
    (16384, 1024, 1024),
    (1000, 1000, 1000),
    (128, 8192, 8192),
    (64, 4096, 4096),
    (16, 8192, 8192),
)
_ODD = ((3000, 3000, 3000), (2048, 4096, 1024), (4096, 1536, 2048), (6144, 6144, 128))
_LARGER = ((16384, 16384, 4096), (16384, 8192, 8192))
"""What a chip with more SMs than an H200 needs to be full for a while."""
_EPILOGUES = ("bias_gelu", "residual", "two_outputs", "row_column_scale", "aux_relu_store", "swiglu")
_EPILOGUE_SHAPES = ((8192, 8192, 512), (4096, 4096, 4096), (8192, 14336, 4096))

SUITES: dict[str, tuple[Problem, ...]] = {
    "h200-bf16-bias-relu": tuple(Problem(*shape) for shape in _BIAS_RELU),
    "epilogues": tuple(Problem(*shape, workload=name) for name in _EPILOGUES for shape in _EPILOGUE_SHAPES),
    "ranking": tuple(Problem(*shape) for shape in (*_BIAS_RELU, *_ODD)),
    "b200": (
        *(Problem(*shape) for shape in (*_LARGER, *_BIAS_RELU)),
        *(Problem(*shape, workload=name) for name in _EPILOGUES for shape in _EPILOGUE_SHAPES[:2]),
    ),
}
"""Problems by suite. ``host`` stands beside them: it measures no kernel (see ``bench.host``)."""

WORKSHOP = (
    Problem(37, 71, 53, dtype="float16", b_major="n"),
    Problem(512, 512, 512, dtype="float16", b_major="n"),
    Problem(2048, 2048, 2048, dtype="float16", b_major="n"),
)
"""A tiny ragged problem, the one that is always asked for, and one that fills a large GPU several times."""
