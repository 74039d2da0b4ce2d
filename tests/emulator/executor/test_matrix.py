# SPDX-License-Identifier: Apache-2.0
"""Warp-level matrices: fragments as the ISA's figures place them, products against numpy."""

import numpy as np
import pytest

RNG = np.random.default_rng(4)
GROUP, THREAD = np.arange(32) // 4, np.arange(32) % 4


def fragments(matrix: np.ndarray, places: list[tuple[np.ndarray, np.ndarray]]) -> np.ndarray:
    """One 32-bit register a lane from the elements at (rows, columns), lowest first."""
    columns = [matrix[rows, cols] for rows, cols in places]
    return np.ascontiguousarray(np.stack(columns, axis=1)).view(np.uint32)[:, 0]


def a_registers(matrix: np.ndarray, per: int) -> list[np.ndarray]:
    count = matrix.shape[1] // (4 * per) * 2
    return [
        fragments(matrix, [(GROUP + 8 * (r % 2), r // 2 * 4 * per + per * THREAD + i) for i in range(per)])
        for r in range(count)
    ]


def b_registers(matrix: np.ndarray, per: int) -> list[np.ndarray]:
    count = matrix.shape[0] // (4 * per)
    return [fragments(matrix, [(r * 4 * per + per * THREAD + i, GROUP) for i in range(per)]) for r in range(count)]


KINDS = {"f16": np.float16, "bf16": np.uint16, "tf32": np.uint32, "s8": np.int8, "u8": np.uint8, "e4m3": np.uint8}


def operand(name: str, shape: tuple[int, int]) -> tuple[np.ndarray, np.ndarray]:
    """Small integers as codes of a type, and as float64."""
    values = RNG.integers(0 if name == "u8" else -2, 3, shape)
    if name == "bf16":
        return (values.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16), values
    if name == "tf32":
        return values.astype(np.float32).view(np.uint32), values
    if name == "e4m3":
        table = {-2: 0xC0, -1: 0xB8, 0: 0, 1: 0x38, 2: 0x40}
        return np.vectorize(table.get)(values).astype(np.uint8), values
    return values.astype(KINDS[name]), values


@pytest.mark.parametrize(
    ("name", "k", "accumulator"),
    [
        ("f16", 16, "f32"), ("f16", 8, "f32"), ("f16", 16, "f16"), ("bf16", 16, "f32"), ("bf16", 8, "f32"),
        ("tf32", 8, "f32"), ("tf32", 4, "f32"), ("s8", 32, "s32"), ("u8", 16, "s32"), ("e4m3", 32, "f32"),
    ],
)  # fmt: skip
def test_products(run_lanes, name, k, accumulator):
    a_codes, a = operand(name, (16, k))
    b_codes, b = operand(name, (k, 8))
    c = RNG.integers(-3, 4, (16, 8))
    per = 4 // a_codes.itemsize
    inputs = a_registers(a_codes, per) + b_registers(b_codes, per)
    half = accumulator == "f16"
    c_codes = c.astype({"f16": np.float16, "f32": np.float32, "s32": np.int32}[accumulator])
    rows = [(GROUP + 8 * h, 2 * THREAD + j) for h in range(2) for j in range(2)]
    inputs += (
        [fragments(c_codes, rows[2 * h : 2 * h + 2]) for h in range(2)]
        if half
        else [fragments(c_codes, [r]) for r in rows]
    )
    na, nb, nc = len(a_registers(a_codes, per)), len(b_registers(b_codes, per)), 2 if half else 4
    names = [f"%i{i}" for i in range(len(inputs))]
    lists = ["{" + ", ".join(part) + "}" for part in (names[:na], names[na : na + nb], names[na + nb :])]
    outs = "{" + ", ".join(f"%o{i}" for i in range(nc)) + "}"
    code = f"mma.sync.aligned.m16n8k{k}.row.col.{accumulator}.{name}.{name}.{accumulator} {outs}, {', '.join(lists)};"
    found = run_lanes(code, inputs, ["b32"] * nc)
    wanted = a @ b + c
    for index, register in enumerate(found):
        if half:
            got = register.view(np.float16).reshape(32, 2)
            assert got.tolist() == np.stack([wanted[r] for r in rows[2 * index : 2 * index + 2]], axis=1).tolist()
        else:
            kind = np.int32 if accumulator == "s32" else np.float32
            assert register.view(kind).tolist() == wanted[rows[index]].tolist()


def store_rows(count: int) -> str:
    """Each lane below 8 * count gets the address of its row in %r3: 16 bytes each, from smem."""
    return "mov.b32 %r1, smem;\nmov.u32 %r2, %laneid;\nmad.lo.s32 %r3, %r2, 16, %r1;\n" + f"// {count} matrices\n"


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("count", [1, 2, 4])
def test_ldmatrix_and_stmatrix_are_inverse_and_placed(run_kernel, count, transposed):
    matrices = RNG.integers(0, 1 << 16, (count, 8, 8), dtype=np.uint16)
    source, out, again = matrices.copy(), np.zeros((count, 32), np.uint32), np.zeros((count, 8, 8), np.uint16)
    names = [f"%r{10 + i}" for i in range(count)]
    listed = "{" + ", ".join(names) + "}"
    trans = ".trans" if transposed else ""
    # Each lane copies one row of 16 bytes in, loads, stores registers, stores matrices elsewhere, copies rows out.
    body = f"""
    ld.param.b64 %d1, [p0];
    ld.param.b64 %d2, [p1];
    ld.param.b64 %d3, [p2];
    {store_rows(count)}
    mul.wide.u32 %d4, %r2, 16;
    setp.lt.u32 %p1, %r2, {8 * count};
    add.s64 %d5, %d1, %d4;
    @%p1 ld.global.v4.b32 {{%r20, %r21, %r22, %r23}}, [%d5];
    @%p1 st.shared.v4.b32 [%r3], {{%r20, %r21, %r22, %r23}};
    ldmatrix.sync.aligned.m8n8.x{count}{trans}.shared.b16 {listed}, [%r3];
    stmatrix.sync.aligned.m8n8.x{count}{trans}.shared.b16 [%r3+1024], {listed};
    @%p1 ld.shared.v4.b32 {{%r20, %r21, %r22, %r23}}, [%r3+1024];
    add.s64 %d6, %d3, %d4;
    @%p1 st.global.v4.b32 [%d6], {{%r20, %r21, %r22, %r23}};
    mul.wide.u32 %d4, %r2, 4;
    add.s64 %d2, %d2, %d4;
    """
    body += "".join(f"st.global.b32 [%d2+{128 * i}], {name};\n" for i, name in enumerate(names))
    run_kernel(body, [source, out, again], shared=4096)
    placed = matrices.transpose(0, 2, 1) if transposed else matrices
    assert out.view(np.uint16).reshape(count, 8, 8).tolist() == placed.tolist()
    assert again.tolist() == matrices.tolist()
