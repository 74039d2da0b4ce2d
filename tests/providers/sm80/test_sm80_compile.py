# SPDX-License-Identifier: Apache-2.0
"""The portable kernel compiles for every target without a GPU, to the instructions it was written for."""

import re
import struct
from collections import Counter

import pytest

pytest.importorskip("cutlass")

from epifuse.dtypes import of
from epifuse_cutedsl.configs.sm80 import configurations
from epifuse_cutedsl.kernels.sm80.operand import MainTraits
from epifuse_cutedsl.kernels.sm80.tensor import TensorLoop

TARGETS = ("80", "86", "89", "90a", "100a", "120a")
DTYPES = {"half": "bfloat16", "tf32": "float32", "byte": "int8", "f32": "float32", "f64": "float64"}
ACCUMULATORS = {"half": "float32", "tf32": "float32", "byte": "int32", "f32": "float32", "f64": "float64"}
REGISTERS, STACK = 0x2F, 0x12


def sections(elf):
    """Name and bytes of each section of a 64-bit ELF file."""
    start = struct.unpack_from("<Q", elf, 0x28)[0]
    size, count, names = struct.unpack_from("<HHH", elf, 0x3A)
    headers = [struct.unpack_from("<IIQQQQIIQQ", elf, start + i * size) for i in range(count)]
    for header in headers:
        name = headers[names][4] + header[0]
        yield elf[name : elf.index(b"\0", name)].decode(), elf[header[4] : header[4] + header[5]]


def resources(cubin):
    """Registers of a thread and bytes of its stack, from the cubin's attributes (records of a symbol and a value)."""
    info = next(data for name, data in sections(cubin) if name == ".nv.info")
    found, place = {}, 0
    while place < len(info):
        form, attribute, size = struct.unpack_from("<BBH", info, place)
        place += 4
        if form == 4:
            found[attribute] = struct.unpack_from("<I", info, place + 4)[0]
            place += size
    return found[REGISTERS], found[STACK]


def opcodes(text):
    """How often each instruction stands in the PTX, by its first word without predicate."""
    found = Counter()
    for line in text.splitlines():
        match = re.match(r"\s*(?:@!?%\w+\s+)?([a-z][\w.:]+)\s", line)
        if match:
            found[match.group(1)] += 1
    return found


def config_of(kind, target, tile):
    accumulator = of(ACCUMULATORS[kind]).bytes
    cc = int(target.rstrip("a"))
    return next(c for c in configurations(kind, accumulator, cc) if (c.tile_m, c.tile_n, c.tile_k) == tile)


def kernel_of(portable, kind, target, tile, majors=("k", "mn"), vector=16, whole=True):
    a, b = (MainTraits(of(DTYPES[kind]), major, vector, whole=whole) for major in majors)
    return portable.gemm(config_of(kind, target, tile), a, b, of(ACCUMULATORS[kind]))


def check(text, cubin, target):
    assert f".target sm_{target}" in text
    assert ".local" not in text
    registers, stack = resources(cubin)
    assert stack <= 16  # ptxas may keep a register or two on the stack, outside of loops, for one CTA more on an SM
    assert registers <= 255
    return registers


@pytest.mark.parametrize("target", TARGETS)
def test_every_target(portable, target):
    kernel = kernel_of(portable, "half", target, (128, 128, 32))
    check(*portable.compiled(kernel, target), target)


@pytest.mark.parametrize("target", ["80", "120a"])
@pytest.mark.parametrize(
    ("kind", "tile"),
    [("tf32", (64, 64, 32)), ("byte", (128, 128, 64)), ("f32", (64, 64, 16)), ("f64", (64, 64, 8))],
)
def test_other_dtypes(portable, kind, tile, target):
    kernel = kernel_of(portable, kind, target, tile)
    check(*portable.compiled(kernel, target), target)


@pytest.mark.parametrize(
    ("tile", "majors"),
    [
        ((128, 256, 64), ("k", "k")),
        ((128, 256, 64), ("mn", "mn")),
        ((128, 128, 64), ("k", "mn")),
        ((128, 128, 32), ("mn", "k")),
    ],
)
def test_instructions_of_the_main_loop(portable, tile, majors):
    kernel = kernel_of(portable, "half", "90a", tile, majors)
    text, cubin = portable.compiled(kernel, "90a")
    registers = check(text, cubin, "90a")
    config, loop = kernel.config, kernel.loop
    assert isinstance(loop, TensorLoop)
    assert registers * config.threads <= 65536
    assert resources(cubin)[1] == 0
    found = opcodes(text)
    warps = config.warps_m * config.warps_n
    products = config.tile_m * config.tile_n * config.tile_k // (16 * 8 * 16 * warps)
    assert sum(n for name, n in found.items() if name.startswith("mma.sync")) == products
    matrices = (loop.a.registers + loop.b.registers) // 4
    assert sum(n for name, n in found.items() if name.startswith("ldmatrix")) == matrices * (loop.steps + 1)
    assert not any(name.startswith("ld.global") for name in found)
    copies = (config.tile_m + config.tile_n) * config.tile_k * 2 // (16 * config.threads)
    assert sum(n for name, n in found.items() if name.startswith("cp.async.cg")) == copies * config.stages
    assert found["cp.async.wait_group"] == 2
    loop_body = text[text.index("$L__BB0_2:") :].split("bra", 1)[0]
    assert loop_body.count("mma.sync") == products
    assert loop_body.count("bar.sync") + loop_body.count("barrier.sync") == 1
    assert len(re.findall(r"\n\t(?:xor|add|and|or|mul|mad|shl|shr)", loop_body)) < products * 5 // 4


def test_a_word_of_two_elements_is_copied_asynchronously_and_less_by_plain_loads(portable):
    for vector, prefix in ((4, "cp.async.ca"), (2, "ld.global.u16")):
        kernel = kernel_of(portable, "half", "90a", (64, 64, 32), vector=vector)
        found = opcodes(portable.compiled(kernel, "90a")[0])
        assert any(name.startswith(prefix) for name in found), vector
        assert any(name.startswith("ld.global") for name in found) == (vector == 2)
