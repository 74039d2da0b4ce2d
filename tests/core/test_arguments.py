# SPDX-License-Identifier: Apache-2.0
"""EpilogueArguments and GemmArguments: names, shapes, broadcasts, overlaps, devices, immutability."""

import copy
import pickle
import warnings

import numpy as np
import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

import epifuse as ops
from epifuse.errors import BroadcastWarning, OverlapError
from epifuse.fusion.ir.node import Broadcast

M, N, K = 5, 7, 3


def scaled(accum, C, alpha, beta=2.0):
    D = alpha * accum + beta * C
    return D


def bias_add(accum, bias):
    D = accum + bias
    return D


def gemm(epilogue=None, m=M, n=N, k=K, batch=None, out=None, dtype=torch.float32, accumulator=torch.float32):
    lead = () if batch is None else (batch,)
    A, B = torch.zeros(*lead, m, k, dtype=dtype), torch.zeros(*lead, k, n, dtype=dtype)
    out = torch.zeros(*lead, m, n, dtype=dtype) if out is None else out
    return ops.GemmArguments(A, B, out, accumulator_type=accumulator, epilogue=epilogue)


def broadcast_of(bias, **sizes):
    lead = () if sizes.get("batch") is None else (sizes["batch"],)
    D = torch.zeros(*lead, sizes.get("m", M), sizes.get("n", N))
    return gemm(ops.EpilogueArguments(bias_add, bias=bias, D=D), **sizes).plan.loads[1].broadcast


def test_tensors_are_the_objects_that_were_given():
    C, D = torch.zeros(M, N), torch.zeros(M, N)
    args = ops.EpilogueArguments(scaled, C=C, alpha=0.5, D=D)
    assert args.tensors["C"] is C
    assert args.tensors["D"] is D
    assert args.parameter_names == ["C", "alpha", "beta", "D"]
    assert args.parameters[3] is D
    assert args.tensors["beta"] == 2.0
    assert args.transports == {}


@pytest.mark.parametrize("missing", ["C", "alpha", "D"])
def test_missing_names_are_value_errors_with_the_fixed_text(missing):
    given = {"C": torch.zeros(M, N), "alpha": 1.0, "D": torch.zeros(M, N)}
    del given[missing]
    with pytest.raises(ValueError, match=f"Argument {missing} is not provided in the kwargs of the EpilogueArguments"):
        ops.EpilogueArguments(scaled, **given)


def test_a_misspelled_name_is_recognized():
    with pytest.raises(ValueError, match="bais=... was given"):
        ops.EpilogueArguments(bias_add, bais=1.0, D=torch.zeros(M, N))


def test_out_may_be_the_halved_output_of_a_gated_epilogue():
    D = torch.zeros(M, 4)
    epilogue = ops.EpilogueArguments("def epi(accum): D = swiglu(accum); return D", D=D)
    assert gemm(epilogue, n=8, out=D).outputs[0] is D
    gemm(epilogue, n=8)
    with pytest.raises(ValueError, match="N dimension"):
        gemm(ops.EpilogueArguments(bias_add, bias=1.0, D=D), n=8, out=D)


def test_unexpected_names_are_value_errors():
    with pytest.raises(ValueError, match="gamma"):
        ops.EpilogueArguments(bias_add, bias=1.0, D=torch.zeros(M, N), gamma=1.0)


def test_a_parameter_may_be_called_self():
    D = torch.zeros(M, N)
    args = ops.EpilogueArguments("def epi(accum, self): D = accum * self; return D", self=2.0, D=D)
    assert args.tensors["self"] == 2.0


@pytest.mark.parametrize("value", [True, 1j, None, "text", [1.0]])
def test_operands_are_tensors_or_numbers(value):
    with pytest.raises(TypeError, match="bias"):
        ops.EpilogueArguments(bias_add, bias=value, D=torch.zeros(M, N))


def test_an_output_is_a_tensor():
    with pytest.raises(TypeError, match="D"):
        ops.EpilogueArguments(bias_add, bias=1.0, D=2.0)


def test_immutable():
    epilogue = ops.EpilogueArguments(bias_add, bias=1.0, D=torch.zeros(M, N))
    args = gemm(epilogue)
    for target, name in ((epilogue, "graph"), (args, "A"), (args, "epilogue"), (ops.Status(), "error")):
        with pytest.raises((AttributeError, TypeError)):
            setattr(target, name, None)
    with pytest.raises(TypeError):
        epilogue.tensors["bias"] = 3.0


def test_load_and_store_record_the_route():
    C, D = torch.zeros(M, N), torch.zeros(M, N)
    epilogue = ops.EpilogueArguments(
        scaled,
        C=ops.Load(C, via="async_gmem_load", num_bits_per_copy=32),
        alpha=1.0,
        D=ops.Store(D, via=ops.Transport.SYNC_GMEM_STORE),
    )
    assert epilogue.tensors["C"] is C
    assert epilogue.transports["C"].via is ops.Transport.ASYNC_GMEM_LOAD
    plan = gemm(epilogue).plan
    assert [load.route.bits_per_copy for load in plan.loads if load.route] == [32]
    assert plan.stores[0].route.via is ops.Transport.SYNC_GMEM_STORE


def test_load_of_an_output_and_store_of_an_operand_are_refused():
    D = torch.zeros(M, N)
    with pytest.raises(ValueError, match="Store"):
        ops.EpilogueArguments(bias_add, bias=1.0, D=ops.Load(D, via="sync_gmem_load"))
    with pytest.raises(ValueError, match="Load"):
        ops.EpilogueArguments(bias_add, bias=ops.Store(D), D=D)


@pytest.mark.parametrize(
    ("a", "b", "out", "shown"),
    [
        ((M, K), (K + 1, N), (M, N), "K dimension"),
        ((M, K), (K, N), (M + 1, N), "M dimension"),
        ((M, K), (K, N), (M, N + 1), "N dimension"),
        ((2, M, K), (3, K, N), (2, M, N), "batch"),
        ((2, M, K), (K, N), (2, M, N), "rank"),
        ((M, K), (K, N), (1, M, N), "rank"),
        ((M,), (K, N), (M, N), "rank 2 or 3"),
        ((1, 1, M, K), (K, N), (M, N), "rank 2 or 3"),
    ],
)
def test_shapes_are_checked_and_shown(a, b, out, shown):
    with pytest.raises(ValueError, match=shown) as caught:
        ops.GemmArguments(torch.zeros(a), torch.zeros(b), torch.zeros(out), torch.float32)
    assert any(str(shape) in str(caught.value) for shape in (a, b, out))


@pytest.mark.parametrize("accumulator", [torch.bfloat16, torch.int8, torch.bool, "nonsense", None])
def test_accumulators(accumulator):
    with pytest.raises(TypeError):
        gemm(accumulator=accumulator)


def test_problem_size():
    assert gemm(batch=2).problem_size == (M, N, K, 2)
    assert gemm().problem_size == (M, N, K, 1)


@pytest.mark.parametrize(
    ("shape", "expected"),
    [
        ((), Broadcast.SCALAR),
        ((1,), Broadcast.SCALAR),
        ((1, 1), Broadcast.SCALAR),
        ((N,), Broadcast.ROW),
        ((1, N), Broadcast.ROW),
        ((M, 1), Broadcast.COLUMN),
        ((M, N), Broadcast.MATRIX),
        ((1, M, N), Broadcast.MATRIX),
    ],
)
def test_broadcasts(shape, expected):
    assert broadcast_of(torch.zeros(shape)) is expected
    assert broadcast_of(np.zeros(shape, np.float32)) is expected


@pytest.mark.parametrize(
    ("shape", "expected"),
    [
        ((2, 1, 1), Broadcast.BATCH),
        ((2, 1, N), Broadcast.BATCH_ROW),
        ((2, M, 1), Broadcast.BATCH_COLUMN),
        ((2, M, N), Broadcast.BATCH_MATRIX),
        ((1, M, N), Broadcast.MATRIX),
        ((M, N), Broadcast.MATRIX),
        ((N,), Broadcast.ROW),
    ],
)
def test_batched_broadcasts(shape, expected):
    assert broadcast_of(torch.zeros(shape), batch=2) is expected


def test_expanded_views_are_what_they_repeat():
    assert broadcast_of(torch.zeros(N).expand(M, N)) is Broadcast.ROW
    assert broadcast_of(torch.zeros(M, 1).expand(M, N)) is Broadcast.COLUMN
    assert broadcast_of(torch.zeros(1).expand(M, N)) is Broadcast.SCALAR


def test_a_vector_is_a_row_unless_only_m_fits_and_then_it_warns():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert broadcast_of(torch.zeros(6), m=6, n=6) is Broadcast.ROW
    with pytest.warns(BroadcastWarning, match=r"\(5, 1\)"):
        assert broadcast_of(torch.zeros(M)) is Broadcast.COLUMN


@pytest.mark.parametrize("shape", [(4,), (M, 2), (2, M, N), (N, M), (1, 1, 1, N), (0,)])
def test_what_does_not_broadcast_is_refused_with_both_shapes(shape):
    with pytest.raises(ValueError, match="bias") as caught:
        broadcast_of(torch.zeros(shape))
    assert str(tuple(shape)) in str(caught.value)


@pytest.mark.parametrize("shape", [(M, 1), (N,), (M, N + 1), (N, M), (2, M, N)])
def test_outputs_are_whole(shape):
    with pytest.raises(ValueError, match="D"):
        gemm(ops.EpilogueArguments(bias_add, bias=1.0, D=torch.zeros(shape)))


def test_one_epilogue_serves_many_problems():
    epilogue = ops.EpilogueArguments(lambda accum, bias: accum + bias, bias=1.0, D=torch.zeros(M, N))
    first, second = gemm(epilogue), gemm(epilogue, k=11)
    assert first.plan is second.plan
    with pytest.raises(ValueError, match="D"):
        gemm(epilogue, m=M + 1)
    assert gemm(epilogue).plan is first.plan


def test_another_alpha_is_the_same_plan():
    plans = {
        gemm(ops.EpilogueArguments(scaled, C=torch.zeros(M, N), alpha=alpha, D=torch.zeros(M, N))).plan
        for alpha in (0.5, 1.0, -3.25, np.float32(2), 7)
    }
    assert len(plans) == 1


@pytest.mark.parametrize(
    "make",
    [
        lambda b: {"D": torch.zeros(1, N).expand(M, N)},
        lambda b: {"D": b[:M, :N], "bias": b[:M, 1 : N + 1]},
        lambda b: {"D": b[:M, :N], "bias": b[0, :N]},
        lambda b: {"D": b.as_strided((M, N), (2, 1))},
    ],
)
def test_overlaps_are_refused(make):
    given = {"bias": 1.0, **make(torch.zeros(20, 20))}
    with pytest.raises(OverlapError):
        gemm(ops.EpilogueArguments(bias_add, **given))


def test_outputs_may_not_share_memory_with_each_other_or_with_a_and_b():
    def two(accum):
        D = accum * 2.0
        F = accum + 1.0
        return D, F

    buffer = torch.zeros(M, 2 * N)
    with pytest.raises(OverlapError, match="D|F"):
        gemm(ops.EpilogueArguments(two, D=buffer[:, :N], F=buffer[:, 1 : N + 1]))
    gemm(ops.EpilogueArguments(two, D=buffer[:, :N], F=buffer[:, N:]))
    gemm(ops.EpilogueArguments(two, D=buffer[:, ::2], F=buffer[:, 1::2]))
    A = torch.zeros(6, 6)
    with pytest.raises(OverlapError, match="A"):
        ops.GemmArguments(A, torch.zeros(6, 6), A, torch.float32)


def test_in_place_accumulation_is_allowed():
    C = torch.zeros(M, N)
    gemm(ops.EpilogueArguments(bias_add, bias=C, D=C))
    gemm(ops.EpilogueArguments(bias_add, bias=C.view(M, N)[None], D=C))
    square = torch.zeros(6, 6)
    transposed = ops.EpilogueArguments(bias_add, bias=square.t(), D=square)
    with pytest.raises(OverlapError):
        gemm(transposed, m=6, n=6)


def test_devices_must_agree():
    with FakeTensorMode():
        A, B, D = (torch.empty(s, device="cuda", dtype=torch.float16) for s in ((M, K), (K, N), (M, N)))
    scalar, vector = torch.tensor(2.0), torch.zeros(N)
    args = ops.GemmArguments(A, B, D, torch.float32, ops.EpilogueArguments(bias_add, bias=scalar, D=D))
    assert args.plan.loads[1].access.value == "argument"
    with pytest.raises(ValueError, match=r"bias is on cpu but A is on cuda:0"):
        ops.GemmArguments(A, B, D, torch.float32, ops.EpilogueArguments(bias_add, bias=vector, D=D))


def test_integer_operands_must_fit():
    args = {"dtype": torch.int8, "accumulator": torch.int32}
    D = torch.zeros(M, N, dtype=torch.int32)
    assert gemm(ops.EpilogueArguments(bias_add, bias=2**31 - 1, D=D), **args).plan.loads[1].dtype == torch.int32
    with pytest.raises(ValueError, match="int32"):
        gemm(ops.EpilogueArguments(bias_add, bias=2**31, D=D), **args)


def test_reductions_bind_by_dim_and_shape():
    def total(accum):
        D = accum
        s = ops.fusion.activation.sum(accum, dim=0)
        return D, s

    for shape in ((N,), (1, N)):
        args = gemm(ops.EpilogueArguments(total, D=torch.zeros(M, N), s=torch.zeros(shape)))
        assert args.plan.reduces[0].axes == (False, True, False)
    with pytest.raises(ValueError, match="dim"):
        gemm(ops.EpilogueArguments(total, D=torch.zeros(M, N), s=torch.zeros(M)))


def test_a_read_only_array_is_no_output():
    out = np.zeros((M, N), np.float32)
    out.setflags(write=False)
    D = torch.zeros(M, N)
    with pytest.raises(TypeError, match="out is a read-only array"):
        gemm(out=out)
    with pytest.raises(TypeError, match="D is a read-only array"):
        ops.EpilogueArguments(bias_add, bias=1.0, D=out)
    gemm(ops.EpilogueArguments(bias_add, bias=1.0, D=D), out=out)  # D is another buffer, so out is not written


def test_a_dense_tensor_stands_for_its_tensor():
    C, D = torch.ones(M, N), torch.zeros(M, N)
    epi = ops.EpilogueArguments(bias_add, bias=ops.DenseTensor(C), D=ops.Store(ops.DenseTensor(D)))
    assert epi.tensors["bias"] is C
    assert epi.tensors["D"] is D


def test_copies_are_bound_to_their_own_memory():
    C, D = torch.ones(M, N), torch.zeros(M, N)
    epi = ops.EpilogueArguments(scaled, C=ops.Load(C, via="sync_gmem_load"), alpha=2.0, D=D)
    args = gemm(epi, out=D)
    for other in (copy.deepcopy(args), pickle.loads(pickle.dumps(args))):
        assert other.key == args.key
        assert other.A.traits.address == other.A.view.data_ptr() != args.A.traits.address
        assert other.outputs[0] is other.out.tensor
        assert other.epilogue.transports["C"].route == epi.transports["C"].route
        ops.get_operators(other)[0].run(other)
        assert (other.out.tensor == 2.0).all()
        assert (D == 0).all()
    assert copy.copy(args).A.tensor is args.A.tensor
    assert copy.copy(epi).tensors["D"] is D


def test_constraints_take_any_name_of_a_dtype():
    constraints = [ops.metadata.DenseTensorConstraints(name) for name in (torch.float32, "f32", "float32")]
    operands = ops.metadata.GemmOperandsMetadata(*constraints, torch.float32)
    assert operands.supports(gemm())
    assert not operands.supports(gemm(dtype=torch.float16))
