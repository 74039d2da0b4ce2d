# SPDX-License-Identifier: Apache-2.0
"""wgmma and tcgen05: operands in every layout, accumulators, allocation, and the rules about waiting."""

import numpy as np
import pytest

from epifuse.emulator.isa.tcgen05 import cell_map
from epifuse.emulator.reports import (
    DeadlockError,
    DescriptorError,
    DivergenceError,
    ProxyError,
    RaceError,
    TensorMemoryError,
    UninitialisedError,
)

RNG = np.random.default_rng(6)
SWIZZLES = [0, 32, 64, 128]


def place(matrix: np.ndarray, swizzle: int, k_major: bool) -> tuple[np.ndarray, int, int]:
    """A matrix (rows, k) laid out for a descriptor, element by element: its bytes, and the leading and stride bytes."""
    rows, k = matrix.shape
    size = matrix.itemsize
    out = np.zeros(65536, np.uint8)
    width = swizzle or 16
    atom = 8 * width
    if k_major:
        across = max(1, k * size // width)  # atoms side by side along K: only without swizzle can there be several
        leading, stride = atom, atom * across
    else:
        across = max(1, rows * size // width)
        stride, leading = (atom * across, atom) if swizzle else (atom, atom * across)
    used = 0
    for row in range(rows):
        for depth in range(k):
            if k_major:
                fast, slow = depth * size, row
                offset = slow // 8 * stride + slow % 8 * width + fast // width * leading + fast % width
            else:
                fast, slow = row * size, depth
                along, beyond = (leading, stride) if swizzle else (stride, leading)
                offset = slow // 8 * beyond + slow % 8 * width + fast // width * along + fast % width
            if swizzle:
                offset ^= (offset >> 7 & (swizzle // 16 - 1)) << 4
            out[offset : offset + size] = np.frombuffer(matrix[row, depth].tobytes(), np.uint8)
            used = max(used, offset + size)
    return out[: -(-used // 1024) * 1024].copy(), leading, stride


def operand(name: str, shape: tuple[int, int]) -> tuple[np.ndarray, np.ndarray]:
    """Small integers as codes of a type, and as integers."""
    values = RNG.integers(0 if name == "u8" else -2, 3, shape)
    if name == "bf16":
        return (values.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16), values
    if name in ("e4m3", "e5m2"):
        table = {
            "e4m3": {-2: 0xC0, -1: 0xB8, 0: 0, 1: 0x38, 2: 0x40},
            "e5m2": {-2: 0xC0, -1: 0xBC, 0: 0, 1: 0x3C, 2: 0x40},
        }
        return np.vectorize(table[name].get)(values).astype(np.uint8), values
    kinds = {"f16": np.float16, "tf32": np.float32, "s8": np.int8, "u8": np.uint8}
    return values.astype(kinds[name]), values


COPY = """
    mov.u32 %r5, 0;
COPY_{name}:
    mad.lo.s32 %r6, %r2, 16, %r5;
    setp.lt.u32 %p3, %r6, {size};
    cvt.u64.u32 %d4, %r6;
    add.s64 %d4, %d4, {source};
    @%p3 ld.global.v4.b32 {{%r10, %r11, %r12, %r13}}, [%d4];
    add.s32 %r7, %r6, %r1;
    @%p3 st.shared.v4.b32 [%r7+{offset}], {{%r10, %r11, %r12, %r13}};
    add.s32 %r5, %r5, 2048;
    setp.lt.u32 %p4, %r5, {size};
    @%p4 bra COPY_{name};
"""


def shared_operands(a: np.ndarray, b: np.ndarray) -> str:
    """Every thread of 128 copies its part of both operands to smem + 1024 and smem + 17408."""
    first = COPY.format(name="A", size=a.nbytes, source="%d1", offset=1024)
    return first + COPY.format(name="B", size=b.nbytes, source="%d2", offset=17408)


START = (
    "mov.b32 %r1, smem;\nmov.u32 %r2, %tid.x;\nld.param.b64 %d1, [p0];\n"
    "ld.param.b64 %d2, [p1];\nld.param.b64 %d3, [p2];\n"
)


def low_word(leading: int) -> str:
    return f"shr.u32 %r20, %r8, 4;\nand.b32 %r20, %r20, 16383;\nor.b32 %r20, %r20, {(leading >> 4) << 16};\n"


def descriptor(target: str, offset: int, leading: int, stride: int, high: int) -> str:
    return (
        f"add.s32 %r8, %r1, {offset};\n{low_word(leading)}mov.b32 %r21, {(stride >> 4) | high};\n"
        f"mov.b64 {target}, {{%r20, %r21}};\n"
    )


# -- wgmma -------------------------------------------------------------------------------------------------------

WGMMA_SWIZZLE = {0: 0, 128: 1 << 30, 64: 2 << 30, 32: 3 << 30}


def wgmma_kernel(
    a,
    b,
    n: int,
    form: str,
    result: str,
    scales: str,
    wait: str = "wgmma.wait_group.sync.aligned 0;",
    fence: str = "fence.proxy.async.shared::cta;",
) -> str:
    count = n // (4 if result == "f16" else 2)
    registers = [f"%a{i}" for i in range(count)]
    text = START + f".reg .b32 %a<{count}>;\n" + shared_operands(a[0], b[0])
    text += f"{fence}\nbar.sync 0;\n"
    text += descriptor("%d10", 1024, a[1], a[2], WGMMA_SWIZZLE[a[3]]) + descriptor(
        "%d11", 17408, b[1], b[2], WGMMA_SWIZZLE[b[3]]
    )
    text += "".join(f"mov.b32 {r}, 0x7FC00000;\n" for r in registers)
    text += "wgmma.fence.sync.aligned;\n"
    text += f"wgmma.mma_async.sync.aligned.{form} {{{', '.join(registers)}}}, %d10, %d11, 0{scales};\n"
    text += f"wgmma.mma_async.sync.aligned.{form} {{{', '.join(registers)}}}, %d10, %d11, 1{scales};\n"
    text += (
        f"wgmma.commit_group.sync.aligned;\n{wait}\nmad.lo.s32 %r9, %r2, {4 * count}, 0;\n"
        "cvt.u64.u32 %d5, %r9;\nadd.s64 %d5, %d5, %d3;\n"
    )
    return text + "".join(f"st.global.b32 [%d5+{4 * i}], {r};\n" for i, r in enumerate(registers))


def wgmma_result(raw: np.ndarray, n: int, result: str) -> np.ndarray:
    """The 64 x n product from each thread's registers, as the ISA's figure places them."""
    found = np.zeros((64, n))
    kind = {"f32": np.float32, "s32": np.int32, "f16": np.float16}[result]
    values = raw.view(kind).reshape(128, -1)
    for thread in range(128):
        warp, group, lane = thread // 32, thread % 32 // 4, thread % 4
        for index in range(n // 2):
            row = 16 * warp + group + 8 * (index // 2 % 2)
            found[row, 8 * (index // 4) + 2 * lane + index % 2] = values[thread, index]
    return found


@pytest.mark.parametrize("swizzle", SWIZZLES)
@pytest.mark.parametrize(("a_k", "b_k"), [(True, True), (False, True), (True, False), (False, False)])
def test_wgmma_layouts(run_kernel, swizzle, a_k, b_k):
    n = 32
    (a_codes, a), (b_codes, b) = operand("f16", (64, 16)), operand("f16", (n, 16))
    b_swizzle = min(swizzle, 64) if not b_k else swizzle
    left, right = place(a_codes, swizzle, a_k), place(b_codes, b_swizzle, b_k)
    raw = np.zeros((128, n // 2), np.uint32)
    scales = f", 1, 1, {int(not a_k)}, {int(not b_k)}"
    kernel = wgmma_kernel((*left, swizzle), (*right, b_swizzle), n, f"m64n{n}k16.f32.f16.f16", "f32", scales)
    run_kernel(kernel, [left[0], right[0], raw], threads=128, shared=65536, target="90a")
    assert wgmma_result(raw, n, "f32").tolist() == (2 * (a @ b.T)).tolist()


@pytest.mark.parametrize(
    ("name", "k", "result", "scales"),
    [
        ("bf16", 16, "f32", ", 1, 1, 0, 0"),
        ("f16", 16, "f16", ", -1, 1, 0, 0"),
        ("tf32", 8, "f32", ", 1, 1"),
        ("e4m3", 32, "f32", ", 1, 1"),
        ("s8", 32, "s32", ""),
        ("u8", 32, "s32", ""),
    ],
)
def test_wgmma_types(run_kernel, name, k, result, scales):
    n = 16
    (a_codes, a), (b_codes, b) = operand(name, (64, k)), operand(name, (n, k))
    left, right = place(a_codes, 32, True), place(b_codes, 32, True)
    raw = np.zeros((128, n // (4 if result == "f16" else 2)), np.uint32)
    kernel = wgmma_kernel((*left, 32), (*right, 32), n, f"m64n{n}k{k}.{result}.{name}.{name}", result, scales)
    run_kernel(kernel, [left[0], right[0], raw], threads=128, shared=65536, target="90a")
    wanted = 2 * (a @ b.T) * (-1 if scales.startswith(", -1") else 1)
    assert wgmma_result(raw, n, result).tolist() == wanted.tolist()


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_wgmma_rules(run_kernel, seed):
    left, right = (place(operand("f16", shape)[0], 32, True) for shape in ((64, 16), (16, 16)))
    arrays = [left[0], right[0], np.zeros((128, 8), np.uint32)]
    form = ((*left, 32), (*right, 32), 16, "m64n16k16.f32.f16.f16", "f32", ", 1, 1, 0, 0")
    overwrite = "bar.sync 0;\nst.shared.v4.b32 [%r7+17408], {%r10, %r11, %r12, %r13};"
    options = {"threads": 128, "shared": 65536, "target": "90a", "seed": seed}
    run_kernel(wgmma_kernel(*form, wait="wgmma.wait_group.sync.aligned 0;\n" + overwrite), arrays, **options)
    with pytest.raises(RaceError, match=r"wgmma\.mma_async|a wgmma group"):
        run_kernel(wgmma_kernel(*form, wait=overwrite), arrays, **options)
    with pytest.raises(ProxyError, match="without a proxy fence"):
        run_kernel(wgmma_kernel(*form, fence=""), arrays, **options)


# -- tcgen05 -----------------------------------------------------------------------------------------------------

TCGEN05_SWIZZLE = {0: 0, 128: 2 << 29, 64: 4 << 29, 32: 6 << 29}
TYPES = {
    "f16": ("f16", 0),
    "bf16": ("f16", 1),
    "tf32": ("tf32", 2),
    "e4m3": ("f8f6f4", 0),
    "e5m2": ("f8f6f4", 1),
    "u8": ("i8", 0),
    "s8": ("i8", 1),
}
RESULTS = {"f16": 0, "f32": 1, "s32": 2}


def instruction_descriptor(name: str, result: str, m: int, n: int, a_k: bool, b_k: bool) -> int:
    code = TYPES[name][1]
    return (
        RESULTS[result] << 4 | code << 7 | code << 10 | (not a_k) << 15 | (not b_k) << 16 | n >> 3 << 17 | m >> 4 << 24
    )


PIECES = {
    "alloc": (
        "tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%r1+16], 64;\n"
        "tcgen05.relinquish_alloc_permit.cta_group::1.sync.aligned;"
    ),
    "fence": "fence.proxy.async.shared::cta;",
    "commit": "tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [%r1];",
    "wait": "LOOP:\nmbarrier.try_wait.parity.shared.b64 %p6, [%r1], 0;\n@!%p6 bra LOOP;",
    "dealloc": "bar.sync 0;\n@%p7 tcgen05.dealloc.cta_group::1.sync.aligned.b32 %r30, 64;",
    "issue": "setp.eq.u32 %p5, %r2, 0;",
}


def tcgen05_kernel(a, b, kind: str, idesc: int, n: int, **changes: str) -> str:
    piece = {**PIECES, **changes}
    text = START + "mov.u32 %r3, %warpid;\nsetp.eq.u32 %p7, %r3, 0;\n" + shared_operands(a[0], b[0])
    text += f"""
    setp.eq.u32 %p5, %r2, 0;
    @%p5 mbarrier.init.shared.b64 [%r1], 1;
    {piece["fence"]}
    @!%p7 bra ALLOCATED;
    {piece["alloc"]}
ALLOCATED:
    bar.sync 0;
    ld.shared.b32 %r30, [%r1+16];
    """
    text += descriptor("%d10", 1024, a[1], a[2], 1 << 14 | TCGEN05_SWIZZLE[a[3]])
    text += descriptor("%d11", 17408, b[1], b[2], 1 << 14 | TCGEN05_SWIZZLE[b[3]])
    text += f"""
    mov.b32 %r31, {idesc};
    mov.pred %p8, 0;
    mov.pred %p9, -1;
    {piece["issue"]}
    @!%p5 bra ISSUED;
    tcgen05.mma.cta_group::1.kind::{kind} [%r30], %d10, %d11, %r31, %p8;
    tcgen05.mma.cta_group::1.kind::{kind} [%r30], %d10, %d11, %r31, %p9;
    {piece["commit"]}
ISSUED:
    {piece["wait"]}
    .reg .b32 %a<{n}>;
    shl.b32 %r32, %r3, 21;
    add.s32 %r32, %r32, %r30;
    tcgen05.ld.sync.aligned.32x32b.x{n}.b32 {{{", ".join(f"%a{i}" for i in range(n))}}}, [%r32];
    tcgen05.wait::ld.sync.aligned;
    mul.lo.s32 %r9, %r2, {4 * n};
    cvt.u64.u32 %d5, %r9;
    add.s64 %d5, %d5, %d3;
    """
    text += "".join(f"st.global.b32 [%d5+{4 * i}], %a{i};\n" for i in range(n))
    return text + piece["dealloc"]


def run_tcgen05(run_kernel, name, result, m, n, k, swizzle, a_k=True, b_k=True, seed=0, **changes):
    (a_codes, a), (b_codes, b) = operand(name, (m, k)), operand(name, (n, k))
    b_swizzle = min(swizzle, n * b_codes.itemsize) if not b_k else swizzle
    left, right = place(a_codes, swizzle, a_k), place(b_codes, b_swizzle, b_k)
    raw = np.zeros((128, n), np.uint32)
    idesc = instruction_descriptor(name, result, m, n, a_k, b_k)
    kernel = tcgen05_kernel((*left, swizzle), (*right, b_swizzle), TYPES[name][0], idesc, n, **changes)
    run_kernel(kernel, [left[0], right[0], raw], threads=128, shared=65536, seed=seed)
    return raw, a @ b.T


@pytest.mark.parametrize("swizzle", SWIZZLES)
@pytest.mark.parametrize(("a_k", "b_k"), [(True, True), (False, True), (True, False), (False, False)])
def test_tcgen05_layouts(run_kernel, swizzle, a_k, b_k):
    raw, wanted = run_tcgen05(run_kernel, "f16", "f32", 128, 32, 16, swizzle, a_k, b_k)
    assert raw.view(np.float32).tolist() == (2 * wanted).tolist()


@pytest.mark.parametrize(
    ("name", "result", "k"),
    [
        ("bf16", "f32", 16),
        ("f16", "f16", 16),
        ("tf32", "f32", 8),
        ("e4m3", "f32", 32),
        ("e5m2", "f16", 32),
        ("s8", "s32", 32),
        ("u8", "s32", 32),
    ],
)
def test_tcgen05_types(run_kernel, name, result, k):
    raw, wanted = run_tcgen05(run_kernel, name, result, 128, 16, k, 32)
    if result == "f16":
        found = raw.astype(np.uint16).view(np.float16)
    else:
        found = raw.view(np.int32 if result == "s32" else np.float32)
    assert found.tolist() == (2 * wanted).tolist()


def test_tcgen05_with_64_rows_uses_half_of_each_quarter(run_kernel):
    raw, wanted = run_tcgen05(run_kernel, "f16", "f32", 64, 16, 16, 32, **{"wait": PIECES["wait"] + FILL})
    found = raw.view(np.float32).reshape(4, 32, 16)
    assert found[:, :16].reshape(64, 16).tolist() == (2 * wanted).tolist()
    assert (found[:, 16:] == 7).all()


# The other lanes are written first, so that reading all 32 is allowed.
FILL = "\nshl.b32 %r32, %r3, 21;\nadd.s32 %r32, %r32, %r30;\nadd.s32 %r32, %r32, 1048576;\n" + (
    "tcgen05.st.sync.aligned.16x128b.x4.b32 [%r32], {" + ", ".join(["%r33"] * 8) + "};\ntcgen05.wait::st.sync.aligned;"
)
FILL = "\nmov.b32 %r33, 0f40E00000;" + FILL


@pytest.mark.parametrize("seed", range(4))
def test_tcgen05_rules(run_kernel, seed):
    def run(**changes: str) -> None:
        run_tcgen05(run_kernel, "f16", "f32", 128, 16, 16, 32, seed=seed, **changes)

    run()
    with pytest.raises((RaceError, UninitialisedError), match="tensor memory"):
        run(wait="")
    with pytest.raises(ProxyError):
        run(fence="")
    with pytest.raises(DeadlockError):
        run(commit="")
    with pytest.raises(TensorMemoryError, match="ended with tensor memory allocated: 64 columns from 0"):
        run(dealloc="")
    with pytest.raises(TensorMemoryError, match="dealloc of 32 columns"):
        run(dealloc=PIECES["dealloc"].replace("64;", "32;"))
    with pytest.raises(TensorMemoryError, match="without tcgen05.relinquish_alloc_permit"):
        run(alloc=PIECES["alloc"].split("\n")[0])
    with pytest.raises((RaceError, TensorMemoryError), match="dealloc of tensor memory|are not allocated"):
        run(dealloc=PIECES["dealloc"].replace("bar.sync 0;", ""))
    with pytest.raises(DivergenceError, match="issued by 32 lanes"):
        run(issue="setp.lt.u32 %p5, %r2, 32;")


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"alloc": PIECES["alloc"].replace("64;", "48;")}, "a power of two from 32 to 512"),
        ({"issue": "setp.eq.u32 %p5, %r2, 0;\nadd.s32 %r30, %r30, 56;"}, "are not allocated"),
        ({"issue": "setp.eq.u32 %p5, %r2, 0;\nmov.b32 %r31, 0x8040210;"}, "has types or sparsity not executed"),
        ({"issue": "setp.eq.u32 %p5, %r2, 0;\nmov.b32 %r31, 0x8020010;"}, "no MMA of 128 x 8"),
        ({"issue": "setp.eq.u32 %p5, %r2, 0;\nmov.b64 %d10, 64;"}, "bits 46 to 48 must be 0b001"),
        ({"wait": PIECES["wait"] + "\nxor.b32 %r3, %r3, 1;"}, "reaches lanes"),
    ],
)
def test_tcgen05_mistakes_are_named(run_kernel, change, what):
    with pytest.raises((TensorMemoryError, DescriptorError), match=what):
        run_tcgen05(run_kernel, "f16", "f32", 128, 16, 16, 32, **change)


@pytest.mark.parametrize(("shape", "per"), [("32x32b", 1), ("16x64b", 1), ("16x128b", 2), ("16x256b", 4)])
@pytest.mark.parametrize("count", [1, 2, 4])
def test_every_cell_of_a_load_has_one_register(shape, per, count):
    rows, columns = cell_map(shape, count)
    lanes = 32 if shape == "32x32b" else 16
    assert rows.shape == (per * count, 32)
    cells = set(zip(rows.ravel().tolist(), columns.ravel().tolist(), strict=True))
    assert len(cells) == rows.size
    assert cells == {(row, column) for row in range(lanes) for column in range(rows.size // lanes)}


@pytest.mark.parametrize(
    ("shape", "multicast", "rows", "quarters"),
    [
        ("128x256b", "", 128, (0, 1, 2, 3)),
        ("128x128b", "", 128, (0, 1, 2, 3)),
        ("32x128b", ".warpx4", 32, (0, 0, 0, 0)),
        ("64x128b", ".warpx2::02_13", 64, (0, 1, 0, 1)),
        ("64x128b", ".warpx2::01_23", 64, (0, 0, 1, 1)),
    ],
)
def test_tcgen05_cp_copies_rows_to_lanes(run_kernel, shape, multicast, rows, quarters):
    columns = int(shape.split("x")[1][:-1]) // 32
    words = RNG.integers(0, 1 << 30, (rows, columns), dtype=np.uint32)
    source, raw = place(words, 0, True), np.zeros((128, columns), np.uint32)
    kernel = tcgen05_kernel((*source, 0), (*source, 0), "f16", 0, columns)
    issue = f"tcgen05.cp.cta_group::1.{shape}{multicast} [%r30], %d10;"
    lines = [line for line in kernel.split("\n") if "tcgen05.mma" not in line]
    text = "\n".join(lines).replace("@!%p5 bra ISSUED;", "@!%p5 bra ISSUED;\n" + issue)
    run_kernel(text, [source[0], source[0], raw], threads=128, shared=65536)
    wanted = np.concatenate([words[32 * quarter : 32 * quarter + 32] for quarter in quarters])
    assert raw.tolist() == wanted.tolist()


# Thread shape and strides, register shape and strides of CuTe's copy atoms, in 32-bit cells of 16 rows.
ATOMS = {
    ("16x64b", 1): ((2, 2, 8), (16, 1, 2), (1,), (0,)),
    ("16x64b", 2): ((2, 2, 8), (32, 1, 4), (2,), (2,)),
    ("16x128b", 1): ((4, 8), (1, 4), (2,), (32,)),
    ("16x128b", 2): ((4, 8), (1, 8), (2, 2), (64, 4)),
    ("16x256b", 1): ((4, 8), (2, 8), (2, 2), (1, 64)),
    ("16x256b", 2): ((4, 8), (2, 16), (2, 2, 2), (1, 128, 8)),
}


def layout(shape: tuple[int, ...], strides: tuple[int, ...]) -> np.ndarray:
    """The values of a layout at 0, 1, ... of its domain, the first mode fastest."""
    index = np.arange(int(np.prod(shape)))
    total = np.zeros_like(index)
    for extent, stride in zip(shape, strides, strict=True):
        total += index % extent * stride
        index //= extent
    return total


@pytest.mark.parametrize(("shape", "count"), list(ATOMS))
def test_loads_place_cells_as_cutes_copy_atoms_do(shape, count):
    threads, thread_strides, registers, register_strides = ATOMS[shape, count]
    cells = layout(registers, register_strides)[:, None] + layout(threads, thread_strides)
    columns = len(cells) * 2
    rows, cols = cell_map(shape, count)
    assert rows.tolist() == (cells // columns).tolist()
    assert cols.tolist() == (cells % columns).tolist()
