# SPDX-License-Identifier: Apache-2.0
"""Machine code of the main loop: the assembler waits for no product by itself, and spills nothing beside them.

Where it serializes products (of which only ``ptxas -v`` tells), each has a WARPGROUP.ARRIVE of its own in front.
"""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

pytest.importorskip("cutlass")

import epifuse as ops
from epifuse import dtypes


def disassembler():
    packaged = [Path(root) / "nvidia" / "cu13" / "bin" / "nvdisasm" for root in sys.path]
    return shutil.which("nvdisasm") or next((str(path) for path in packaged if path.is_file()), None)


pytestmark = pytest.mark.skipif(disassembler() is None, reason="needs nvdisasm (nvidia-cuda-nvdisasm)")
E4M3, HALF, F32, I32 = "float8_e4m3fn", "float16", "float32", "int32"


def code_of(image, folder):
    """The instructions, in order."""
    (folder / "image.cubin").write_bytes(image.cubin)
    command = [disassembler(), "-c", folder / "image.cubin"]
    listing = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return re.findall(r"/\*[0-9a-f]{4,}\*/\s+(.*?);", listing)


@pytest.mark.parametrize(
    ("product", "mode", "tile", "k"),
    [
        ((HALF, HALF, F32), "cooperative", (128, 256), 256),
        ((HALF, HALF, F32), "pingpong", (128, 192), 256),
        ((HALF, HALF, HALF), "cooperative", (256, 128), 256),
        ((E4M3, E4M3, F32), "cooperative", (128, 256), 256),
        ((E4M3, E4M3, F32), "cooperative", (128, 256), 2048),
        ((E4M3, E4M3, F32), "cooperative", (128, 192), 2048),
        ((E4M3, E4M3, F32), "pingpong", (64, 192), 256),
        ((E4M3, E4M3, F32), "pingpong", (64, 192), 2048),
        (("int8", "int8", I32), "pingpong", (128, 128), 256),
        ((HALF, HALF, F32), "cooperative", (192, 192), 256),
        ((HALF, HALF, HALF), "cooperative", (192, 192), 256),
        (("int8", "int8", I32), "cooperative", (192, 192), 256),
    ],
)
def test_products_are_not_serialized(hopper, tmp_path, product, mode, tile, k):
    m, n = 512, 384
    a, b, accumulator = (dtypes.of(name).torch for name in product)
    d = torch.empty(m, n, dtype=torch.bfloat16)
    text = "def epi(accum, bias): D = relu(accum + bias); return D"
    epilogue = ops.EpilogueArguments(text, bias=torch.ones(n), D=d)
    operands = torch.zeros(m, k, dtype=a), torch.zeros(n, k, dtype=b).mT
    args = ops.GemmArguments(*operands, torch.empty(m, n, dtype=accumulator), accumulator, epilogue)
    operator = hopper.operator_of(args, mode, tile, cluster=(1, 2) if tile == (192, 192) else 1)
    image = operator.compile(args, target_sm="90a").compiled_obj.launcher.image
    code = code_of(image, tmp_path)
    products = [place for place, line in enumerate(code) if re.search(r"\b[HIQ]GMMA\.", line)]
    arrivals = [place for place, line in enumerate(code) if "WARPGROUP.ARRIVE" in line]
    assert len(products) == image.ptx.count(b"wgmma.mma_async")
    assert len(arrivals) == image.ptx.count(b"wgmma.fence")
    assert 2 * len(arrivals) <= len(products)
    assert not [line for line in code[products[0] : products[-1]] if re.match(r"(@!?U?P\d+ )?(STL|LDL)", line)]


@pytest.mark.parametrize("activation", ["relu(accum + bias)", "gelu(accum + bias, approximate='tanh')"])
def test_the_epilogue_of_a_wide_tile_has_no_branch(hopper, tmp_path, activation):
    """Then special functions of a piece run beside those of the next one: 5 % of a gelu at K = 512."""
    m, n, k = 512, 384, 64
    d = torch.empty(m, n, dtype=torch.bfloat16)
    epilogue = ops.EpilogueArguments(f"def epi(accum, bias): D = {activation}; return D", bias=torch.ones(n), D=d)
    operands = torch.zeros(m, k, dtype=torch.bfloat16), torch.zeros(n, k, dtype=torch.bfloat16).mT
    args = ops.GemmArguments(*operands, torch.empty(m, n), torch.float32, epilogue)
    image = hopper.operator_of(args, "pingpong", (128, 192)).compile(args, target_sm="90a").compiled_obj.launcher.image
    code = code_of(image, tmp_path)
    places = [place for place, line in enumerate(code) if "STSM" in line or "UTMASTG" in line]
    assert sum("UTMASTG" in code[place] for place in places) == 6
    assert not [line for line in code[places[0] : places[-1]] if re.search(r"\bBRA\b", line)]


@pytest.mark.parametrize("cluster", [1, (1, 2), (2, 1)])
def test_there_is_no_loop_over_lanes_round_a_copy(hopper, tmp_path, cluster):
    """One thread that copies has one round each: 24 x 4096 x 4096 16 % slower."""
    args = hopper.arguments((24, 130, 512), bias=torch.zeros(130), D=torch.empty(24, 130))
    image = hopper.operator_of(args, "pingpong", (64, 128), cluster=cluster).compile(args, target_sm="90a")
    code = code_of(image.compiled_obj.launcher.image, tmp_path)
    assert len([line for line in code if "UTMALDG" in line]) >= 4
    assert not [line for line in code if "BRA.U.ANY" in line]


@pytest.mark.parametrize("tile", [(128, 128), (128, 192)])
@pytest.mark.parametrize(
    "text", ["def epi(accum): D = swiglu(accum); return D", "def epi(accum): D = relu(accum); return D"]
)
def test_no_division_stands_between_products_and_the_other_warpgroups_turn(hopper, tmp_path, text, tile):
    """Those of the next tile's place did: swiglu at 8192 x 8192 x 512 114 us, not 103. There is none at all now, and
    products by reciprocals stand before the tile's own, with 128 accumulators and fewer before the turn for them: gelu
    at K = 1024 1 to 2 % faster."""
    m, n, k = 512, 384, 512
    d = torch.empty(m, n // 2 if "swiglu" in text else n, dtype=torch.bfloat16)
    operands = torch.zeros(m, k, dtype=torch.bfloat16), torch.zeros(n, k, dtype=torch.bfloat16).mT
    args = ops.GemmArguments(*operands, torch.empty(m, n), torch.float32, ops.EpilogueArguments(text, D=d))
    image = hopper.operator_of(args, "pingpong", tile).compile(args, target_sm="90a").compiled_obj.launcher.image
    code = code_of(image, tmp_path)
    assert not [line for line in code if re.search(r"\b(I2F|F2I)\b", line)]
    turn = min(place for place, line in enumerate(code) if "BAR.SYNC" in line and "0x100" in line)
    last = max(place for place, line in enumerate(code) if "HGMMA" in line)
    begin = turn if tile == (128, 128) else last
    assert [line for line in code[last:] if "BAR.ARV" in line]
    assert [line for line in code[:begin] if "MAD.WIDE.U32" in line]
    assert not [line for line in code[begin:] if "MAD.WIDE.U32" in line]
