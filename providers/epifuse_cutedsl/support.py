# SPDX-License-Identifier: Apache-2.0
"""What the engine and the portable kernel cannot do, in sentences; everything else they do."""

from __future__ import annotations

from epifuse.arguments import GemmArguments
from epifuse.errors import UnsupportedError
from epifuse.fusion.plan import Transport
from epifuse.records import NamedTuple
from epifuse.target import TargetSm
from epifuse_cutedsl.fuse import workspace
from epifuse_cutedsl.fuse.boxes import Boxes
from epifuse_cutedsl.fuse.params import WIDEST_ACCESS_BYTES, traits_of
from epifuse_cutedsl.fuse.primitives import PRIMITIVES
from epifuse_cutedsl.operands import kind_of

FP8_CAPABILITY = 89
_MAX_EXTENT = 2**31 - 1 - 256
"""So that a coordinate in a tile at the edge is still an int32."""
_LARGEST_TILE = 128 * 256


def product_refusal(args: GemmArguments) -> UnsupportedError | None:
    """Why the portable kernel does not multiply these dtypes; None where it does."""
    if kind_of(args) is not None:
        return None
    a, b, accumulator = args.A.traits.dtype.name, args.B.traits.dtype.name, args.accumulator_type.name
    return UnsupportedError(
        f"The portable kernel does not multiply {a} by {b} into {accumulator}.",
        advice="It takes float16 and bfloat16 (into float32), float16 (into float16), int8 and uint8 (into int32), "
        "float32 and float64 (into themselves).",
    )


class Ways(NamedTuple):
    """How a kernel moves an epilogue's tensors: those with boxes by tensor copies, others by accesses of ``run``
    elements at most."""

    title: str = "portable kernel"
    boxes: Boxes = Boxes()
    run: int = WIDEST_ACCESS_BYTES


_PORTABLE = Ways()


def refusal(args: GemmArguments, target: TargetSm | None, ways: Ways = _PORTABLE) -> UnsupportedError | None:
    """Why a kernel cannot run this epilogue on this target, whatever multiplies; None where it can.

    Asked for every configuration, and so remembered with the arguments.
    """
    key = (refusal, target)
    if key not in args.memo:
        args.memo[key] = _refusal(args, target)
    found: UnsupportedError | None = args.memo[key]
    return found or _route_refusal(args, ways)


def _refusal(args: GemmArguments, target: TargetSm | None) -> UnsupportedError | None:
    m, n, k, batches = args.problem_size
    if max(m, n, k, batches) > _MAX_EXTENT or m * n * batches > _MAX_EXTENT * _LARGEST_TILE:
        return UnsupportedError(
            f"The extents {(m, n, k, batches)} are beyond a grid's 2^31 tiles.", advice="Call it for parts of them."
        )
    return _operand_refusal(args) or _plan_refusal(args, target)


def _operand_refusal(args: GemmArguments) -> UnsupportedError | None:
    tensors = [("A", args.A.traits), ("B", args.B.traits)]
    tensors += [(n, t) for n, t in zip(args.bound.names.loads, args.bound.load_traits, strict=True) if t is not None]
    tensors += list(zip(args.bound.names.stores, args.bound.output_traits, strict=True))
    for name, traits in tensors:
        if traits.alignment_bytes < traits.dtype.bytes:
            return UnsupportedError(
                f"{name} is not aligned to its own element of {traits.dtype.bytes} bytes.",
                advice=f"Pass {name}.clone(), which torch aligns.",
                subject=name,
            )
    return None


def _plan_refusal(args: GemmArguments, target: TargetSm | None) -> UnsupportedError | None:
    plan = args.plan
    for compute in plan.computes:
        if compute.primitive not in PRIMITIVES:
            return UnsupportedError(
                f"The GPU kernels have no primitive {compute.primitive}.",
                advice="Write it in other operations, or pass CPU tensors.",
                subject=compute.primitive,
            )
    narrow = [*(load.dtype for load in plan.loads), *(s.dtype for s in plan.stores), *(r.dtype for r in plan.reduces)]
    cast_to = [value for c in plan.computes for name, value in c.attributes if name == "dtype"]
    for dtype in [*narrow, *cast_to]:
        if getattr(dtype, "name", "").startswith("float8") and target is not None and target.cc < FP8_CAPABILITY:
            return UnsupportedError(
                f"{dtype} needs compute capability 8.9 or later, not {target.cc / 10}.",
                advice="Pass a tensor of another dtype, such as float16.",
            )
    folds = args.problem_size.L > 1
    why = workspace.refusal(plan, folds)
    if why is None:
        return None
    return UnsupportedError(
        f"The GPU kernels do not do {why}.",
        advice="Store the values as an output and reduce that with torch; the CPU provider reduces as it is written.",
    )


def _route_refusal(args: GemmArguments, ways: Ways) -> UnsupportedError | None:
    """A user's override of how a tensor moves that cannot be kept."""
    if args.epilogue is None or not args.epilogue.transports:
        return None
    traits, names = traits_of(args.bound, args.problem_size.L), args.bound.names
    operands = [load.operand for load in args.plan.loads if load.operand >= 0]
    tensors = {names.loads[position]: tensor for position, tensor in zip(operands, traits.loads, strict=True)}
    tensors |= zip(names.stores, traits.outputs, strict=True)
    boxes = dict(zip((names.loads[position] for position in operands), ways.boxes.loads, strict=False))
    boxes |= zip(names.stores, ways.boxes.outputs, strict=False)
    for name, move in args.epilogue.transports.items():
        tensor = tensors.get(name)
        if move.route is None or tensor is None:
            continue
        if move.route.via is Transport.TMA:
            if boxes.get(name) is None:
                return _no_tensor_copy(name, ways.title)
            continue
        elements = min(tensor.elements(traits.axis), ways.run)
        bits, possible = move.route.bits_per_copy, 8 * tensor.dtype.bytes * elements
        if bits is not None and bits != possible:
            return UnsupportedError(
                f"{name} was asked to move with num_bits_per_copy={bits}, but its address, strides and extents and the "
                f"{ways.title} allow {possible} bits of {tensor.dtype.name} along the epilogue's axis ({traits.axis}).",
                advice="Leave num_bits_per_copy out: each tensor moves as widely as it can.",
                subject=name,
            )
    return None


def _no_tensor_copy(name: str, title: str) -> UnsupportedError:
    return UnsupportedError(
        f"{name} was asked to move by TMA, which the {title} does not do with it.",
        advice="Leave `via` out, or name sync_gmem_load, async_gmem_load or sync_gmem_store. Kernels that have tensor "
        "copies use them for full tensors with rows of stride 1 and other strides and addresses of 16 bytes.",
        subject=name,
    )
