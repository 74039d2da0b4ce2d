# SPDX-License-Identifier: Apache-2.0
"""cvt: every value of the small formats there and back, ties, saturation, directions, integers."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")

EDGES = np.array(
    [0.0, -0.0, 1.0, -1.0, 448.0, 464.0, 465.0, 480.0, 57344.0, 61440.0, 65504.0, 65519.9, 65520.0, 1e30, -1e30, np.inf]
    + [
        -np.inf,
        np.nan,
        2**-9,
        2**-10,
        1.5 * 2**-10,
        2**-16,
        2**-17,
        2**-24,
        2**-25,
        1.0625,
        1.1875,
        3.3895e38,
        3.4e38,
        1e-40,
    ]
    + [0.0625 * 17, -0.3],
    np.float32,
)
TORCH = {"f16": torch.float16, "bf16": torch.bfloat16, "e4m3": torch.float8_e4m3fn, "e5m2": torch.float8_e5m2}


def codes_of(values: np.ndarray, name: str) -> np.ndarray:
    """torch's own rounding to a format, as bits."""
    rounded = torch.from_numpy(values.copy()).to(TORCH[name])
    width = torch.uint8 if name.startswith("e") else torch.uint16
    return rounded.view(width).numpy()


@pytest.mark.parametrize("name", ["f16", "bf16"])
def test_halves_round_to_nearest_even(run_lanes, name):
    (found,) = run_lanes(f"cvt.rn.{name}.f32 %o0, %i0;", [EDGES.view(np.uint32)], ["b16"])
    keep = ~np.isnan(EDGES)
    assert found[keep].tolist() == codes_of(EDGES, name)[keep].tolist()
    assert set(found[~keep].tolist()) == {0x7FFF}


@pytest.mark.parametrize("name", ["f16", "bf16"])
def test_packing_puts_the_first_operand_on_top(run_lanes, name):
    other = EDGES[::-1].copy()
    (found,) = run_lanes(f"cvt.rn.{name}x2.f32 %o0, %i0, %i1;", [EDGES.view(np.uint32), other.view(np.uint32)], ["b32"])
    halves = found.view(np.uint16).reshape(32, 2)
    keep = ~np.isnan(EDGES)
    assert halves[keep, 1].tolist() == codes_of(EDGES, name)[keep].tolist()
    assert halves[keep[::-1], 0].tolist() == codes_of(other, name)[keep[::-1]].tolist()


@pytest.mark.parametrize(("name", "largest"), [("e4m3", 448.0), ("e5m2", 57344.0)])
def test_float8_saturates(run_lanes, name, largest):
    (found,) = run_lanes(f"cvt.rn.satfinite.{name}x2.f32 %o0, %i0, %i0;", [EDGES.view(np.uint32)], ["b16"])
    assert (found >> 8).tolist() == (found & 0xFF).tolist()
    keep = ~np.isnan(EDGES)
    wanted = codes_of(np.clip(EDGES, -largest, largest), name)
    assert (found & 0xFF)[keep].tolist() == wanted[keep].tolist()
    assert set((found & 0xFF)[~keep].tolist()) == {0x7F}


@pytest.mark.parametrize("name", ["e4m3", "e5m2"])
def test_float8_widens_exactly(run_lanes, name):
    for start in range(0, 256, 64):
        codes = np.arange(start, start + 64, dtype=np.uint8)
        (found,) = run_lanes(f"cvt.rn.f16x2.{name}x2 %o0, %i0;", [codes.view(np.uint16)], ["b32"])
        wanted = torch.from_numpy(codes.copy()).view(TORCH[name]).to(torch.float16).numpy()
        keep = ~np.isnan(wanted)
        assert found.view(np.float16)[keep].tolist() == wanted[keep].tolist()
        assert np.isnan(found.view(np.float16)).tolist() == np.isnan(wanted).tolist()


@pytest.mark.parametrize("name", ["f16", "bf16"])
def test_halves_widen_exactly(run_lanes, name):
    codes = np.arange(0, 65536, 2048, dtype=np.uint16) + np.uint16(77)
    (found,) = run_lanes(f"cvt.f32.{name} %o0, %i0;", [codes], ["b32"])
    wanted = torch.from_numpy(codes.copy()).view(TORCH[name]).float().numpy()
    keep = ~np.isnan(wanted)
    assert found.view(np.float32)[keep].tolist() == wanted[keep].tolist()


@pytest.mark.parametrize(
    ("mode", "rounding"), [("rni", np.rint), ("rzi", np.trunc), ("rmi", np.floor), ("rpi", np.ceil)]
)
def test_float_to_integer_clamps_and_nan_is_zero(run_lanes, mode, rounding):
    signed, unsigned, byte = run_lanes(
        f"cvt.{mode}.s32.f32 %o0, %i0;\ncvt.{mode}.u32.f32 %o1, %i0;\ncvt.{mode}.sat.s8.f32 %o2, %i0;",
        [EDGES.view(np.uint32)],
        ["b32", "b32", "b32"],
    )
    whole = rounding(np.where(np.isnan(EDGES), 0, EDGES).astype(np.float64))
    assert signed.view(np.int32).tolist() == np.clip(whole, -(2**31), 2**31 - 1).astype(np.int64).tolist()
    assert unsigned.tolist() == np.clip(whole, 0, 2**32 - 1).astype(np.int64).tolist()
    assert byte.view(np.int32).tolist() == np.clip(whole, -128, 127).astype(np.int64).tolist()


def test_integers_between_widths(run_lanes):
    values = np.array(
        [0, 1, 127, 128, 255, 256, 32768, 65535, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF] + [5] * 21, np.uint32
    )
    code = (
        "cvt.s64.s32 %o0, %i0;\ncvt.u64.u32 %o1, %i0;\ncvt.u16.u32 %o2, %i0;\n"
        "cvt.s32.s8 %o3, %i0;\ncvt.sat.s8.s32 %o4, %i0;\ncvt.u32.u8 %o5, %i0;"
    )
    s64, u64, u16, s8, sat, u8 = run_lanes(code, [values], ["b64", "b64", "b16", "b32", "b32", "b32"])
    assert s64.view(np.int64).tolist() == values.view(np.int32).tolist()
    assert u64.tolist() == values.tolist()
    assert u16.tolist() == (values & 0xFFFF).tolist()
    assert s8.view(np.int32).tolist() == values.astype(np.uint8).view(np.int8).tolist()
    assert sat.view(np.int32).tolist() == np.clip(values.view(np.int32), -128, 127).tolist()
    assert u8.tolist() == (values & 0xFF).tolist()


def test_integers_to_float(run_lanes):
    values = np.array([0, 1, 16777217, 16777219, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF] + [5] * 25, np.uint32)
    signed, unsigned = run_lanes("cvt.rn.f32.s32 %o0, %i0;\ncvt.rn.f32.u32 %o1, %i0;", [values], ["b32", "b32"])
    assert signed.view(np.float32).tolist() == values.view(np.int32).astype(np.float32).tolist()
    assert unsigned.view(np.float32).tolist() == values.astype(np.float32).tolist()
    wide = np.array([2**53 + 1, 2**54 + 3, 2**63 + 2**39 + 1, 2**63 + 2**39] + [7] * 28, np.uint64)
    (found,) = run_lanes("cvt.rn.f32.u64 %o0, %i0;", [wide], ["b32"])
    assert found.view(np.float32)[2:4].tolist() == [float(2**63 + 2**40), float(2**63)]


def test_saturation_and_tf32(run_lanes):
    sat, tf32 = run_lanes(
        "cvt.sat.f32.f32 %o0, %i0;\ncvt.rna.tf32.f32 %o1, %i0;", [EDGES.view(np.uint32)], ["b32", "b32"]
    )
    wanted = np.where(np.isnan(EDGES), 0, np.clip(EDGES, 0, 1)).astype(np.float32)
    assert sat.view(np.float32).tolist() == wanted.tolist()
    keep = np.isfinite(EDGES) & (np.abs(EDGES) < 3e38)
    rounded = (EDGES.view(np.uint32) + np.uint32(0x1000)) & np.uint32(0xFFFFE000)
    assert tf32[keep].tolist() == rounded[keep].tolist()


def test_relu_clamps_before_rounding(run_lanes):
    (found,) = run_lanes("cvt.rn.relu.f16.f32 %o0, %i0;", [EDGES.view(np.uint32)], ["b16"])
    keep = ~np.isnan(EDGES)
    wanted = codes_of(np.where(EDGES > 0, EDGES, 0).astype(np.float32), "f16")
    assert found[keep].tolist() == wanted[keep].tolist()
