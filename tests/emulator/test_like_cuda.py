# SPDX-License-Identifier: Apache-2.0
"""Torch as on a GPU (like_cuda.py), and the vendor's operators beside it as the vendor's own tests use them."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from like_cuda import like_cuda

from epifuse import emulator

HERE = Path(__file__).parent
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


def test_a_number_is_not_rounded_to_half_precision():
    x = torch.arange(2048).half()
    with like_cuda():
        found = x - 1.234
    assert torch.equal(found, (x.float() - 1.234).half())
    assert not torch.equal(found, (x.float() - torch.tensor(1.234).half().float()).half())


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("function", [torch.sigmoid, torch.tanh, torch.exp, lambda x: x * x, lambda x: 2.5 / (x + 9)])
def test_functions_round_once(function, dtype):
    x = torch.linspace(-4, 4, 999).to(dtype)
    with like_cuda():
        found = function(x)
    assert found.dtype == dtype
    if function in (torch.sigmoid, torch.tanh, torch.exp):
        assert torch.equal(found, function(x.float()).to(dtype))


def test_other_dtypes_are_left_alone():
    x, y = torch.arange(6.0).half(), torch.arange(6.0)
    with like_cuda():
        assert (x + y).dtype == torch.float32
        assert (x + torch.tensor(0.1)).dtype == torch.float16
        assert torch.equal(y * 0.1, torch.arange(6.0) * 0.1)


def test_cuda_is_the_cpu():
    with like_cuda():
        made = [torch.ones(2, device="cuda"), torch.ones(2).cuda(), torch.ones(2).to("cuda:0"), torch.ones(2).to("cpu")]
    assert {each.device.type for each in made} == {"cpu"}


CASES = [
    ("accum * 3.0 - 1.234", lambda x: x * 3.0 - 1.234, torch.float16, torch.float16, torch.float16),
    ("relu(accum) * 3.0 - 1.234", lambda x: torch.relu(x) * 3.0 - 1.234, torch.float16, torch.float16, torch.float16),
    ("sigmoid(accum)", torch.sigmoid, torch.bfloat16, torch.bfloat16, torch.float32),
    ("tanh(accum)", torch.tanh, torch.float16, torch.float16, torch.float32),
]


@pytest.mark.parametrize(("text", "function", "dtype", "out", "accumulator"), CASES, ids=[case[0] for case in CASES])
def test_the_vendors_operators(monkeypatch, text, function, dtype, out, accumulator):
    ops = pytest.importorskip("cutlass.operators")
    from epifuse_cutedsl import emulate  # noqa: PLC0415 - needs cutlass

    monkeypatch.setenv("CUTE_DSL_ARCH", "sm_100a")
    torch.manual_seed(1)
    with emulator.device("100a", seed=7), emulate.every_compile(), like_cuda():
        a = torch.randint(-1, 2, (1, 256, 128), device="cuda", dtype=dtype)
        b = torch.randint(-1, 2, (1, 128, 256), device="cuda", dtype=dtype)
        d = torch.empty((1, 256, 256), device="cuda", dtype=out)
        epilogue = ops.EpilogueArguments(f"def epi(accum): D = {text}; return D", D=d)
        args = ops.GemmArguments(A=a, B=b, out=d, accumulator_type=accumulator, epilogue=epilogue)
        ops.get_operators(args, target_sm="100a")[0].run(args)
        torch.testing.assert_close(d, function(a @ b).to(out))
        if accumulator == torch.float16:
            assert torch.equal(d, function(a @ b))


AS_ON_A_GPU = """
import torch, epifuse as ops
def test_relu():
    a = torch.randint(-1, 2, (64, 32), device="cuda", dtype=torch.float16)
    b = torch.randint(-1, 2, (32, 64), device="cuda", dtype=torch.float16)
    d = torch.empty((64, 64), device="cuda", dtype=torch.float16)
    epilogue = ops.EpilogueArguments("def epi(accum): D = relu(accum) * 0.1; return D", D=d)
    args = ops.GemmArguments(A=a, B=b, out=d, accumulator_type=torch.float32, epilogue=epilogue)
    operator = ops.get_operators(args, target_sm=ops.utils.device.device_or_env_target_sm())[0]
    operator.run(args)
    torch.cuda.synchronize()
    assert torch.equal(d, torch.relu(a @ b) * 0.1)
"""


def test_the_plugin_runs_a_gpus_test(tmp_path, pytestconfig):
    pytest.importorskip("cutlass")
    (tmp_path / "test_gpu.py").write_text(AS_ON_A_GPU)
    root = pytestconfig.rootpath
    path = ":".join(str(each) for each in (root / "src", root / "providers", HERE))
    command = [sys.executable, "-m", "pytest", "-q", "-p", "like_cuda", "--emulated-chip", "80", "test_gpu.py"]
    variables = {"PYTHONPATH": path, "PATH": "/usr/bin:/bin", "HOME": str(tmp_path)}
    done = subprocess.run(command, env=variables, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert "1 passed" in done.stdout, done.stdout[-2000:] + done.stderr[-500:]
