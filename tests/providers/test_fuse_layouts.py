# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: PLC0415 - the DSL is imported where something is compiled
"""The engine on fragments as other architectures have them: pairs of ``wgmma``, rows of ``tcgen05``.

A bare kernel calls the hooks and knows nothing of the plan. Its accumulators come from memory, in that layout, or from
a ``tcgen05`` product in tensor memory.
"""

import struct
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch

import epifuse as ops
from epifuse.emulator import machine, memory, ptx
from epifuse.emulator.chips import chip
from epifuse_cpu.evaluate import evaluate
from epifuse_cpu.gemm import accumulate
from epifuse_cutedsl import compat
from epifuse_cutedsl.compile import entry_name
from epifuse_cutedsl.fuse.facts import KernelFacts
from epifuse_cutedsl.fuse.params import parameters, traits_of, values
from epifuse_cutedsl.fuse.workspace import workspace_bytes

M, N, K, L = 150, 88, 24, 2
MAIN = ("q", "q", "i", "i", "i", "i", "i")


@dataclass(frozen=True)
class Pairs:
    """``wgmma``: warp w has rows 16 w to 16 w + 15; a lane's pairs lie 8 columns apart, in two rows 8 apart."""

    facts = KernelFacts(64, 32, 128, 90, run=2, positions=4, lanes=4, lines=2)
    steps = 1
    product = False

    def runs(self, thread: Any, step: int) -> list[tuple[Any, Any, int, int]]:
        row, column = thread // 32 * 16 + thread % 32 // 4, thread % 4 * 2
        return [(row + 8 * line, column + 8 * at, at, line) for at in range(4) for line in range(2)]


@dataclass(frozen=True)
class Rows:
    """``tcgen05``: a thread has a row, in steps of 32 columns."""

    facts = KernelFacts(128, 64, 128, 100, run=32, positions=1, lanes=1, steps_along=True, lines=1, barrier=1)
    steps = 2
    product: bool = False
    """Whether ``tcgen05.mma`` makes the accumulators, of float16 operands."""

    def runs(self, thread: Any, step: int) -> list[tuple[Any, Any, int, int]]:
        return [(thread, 32 * step, 0, 0)]


LAYOUTS = {"pairs": (Pairs(), "90a"), "rows": (Rows(), "100a"), "tcgen05": (Rows(product=True), "100a")}


class Tcgen05:
    """One 128 x 64 tile: operands by plain copies into core matrices of 8 rows of 16 bytes, two MMAs of K = 16.

    PTX ISA, "Tensorcore 5th Generation Instructions": matrix descriptor (leading and stride byte offsets from bits 16
    and 32, 1 at bit 46), instruction descriptor of ``kind::f16`` (float32 at bit 4, N / 8 at bit 17, M / 16 at bit 24).
    """

    rows, columns, k_steps = 128, 64, 2
    operand_bytes = (2 * 256 * 128 // 8, 2 * 256 * 64 // 8)
    smem_bytes = sum(operand_bytes) + 16

    def __init__(self, base: Any, thread: Any) -> None:
        self.base, self.thread, self.barrier = base, thread, base + sum(self.operand_bytes)

    def run(self, a: Any, b: Any, m0: Any, n0: Any, batch: Any, m: Any, n: Any) -> None:
        """Leave the product in tensor memory; ``self.memory`` is its address."""
        from cutlass import Int64
        from cutlass.cute import arch

        from epifuse_cutedsl.fuse.control import when
        from epifuse_cutedsl.kernels.ptx import mbarrier, shared
        from epifuse_cutedsl.kernels.ptx.asm import emit

        allocate = f"tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [{{$r0}}], {self.columns};"
        when(self.thread < 32, lambda: (
            emit(allocate, (), [self.barrier + 8]),
            emit("tcgen05.relinquish_alloc_permit.cta_group::1.sync.aligned;"),
        ))  # fmt: skip
        when(self.thread == 0, lambda: mbarrier.init(self.barrier, 1))
        self._copy(self.base, a + ((Int64(batch) * m + m0 + self.thread) * K) * 2, 2, m0 + self.thread < m)
        second = self.base + self.operand_bytes[0]
        inside = (self.thread < self.columns) & (n0 + self.thread < n)
        column = b + (Int64(batch) * K * n + n0 + self.thread) * 2
        when(self.thread < self.columns, lambda: self._copy(second, column, Int64(n) * 2, inside))
        emit("fence.proxy.async.shared::cta;")
        emit("tcgen05.fence::before_thread_sync;")
        arch.sync_threads()
        emit("tcgen05.fence::after_thread_sync;")
        self.memory = shared.ld_shared(self.barrier + 8)[0]
        when(self.thread == 0, lambda: self._multiply(self.base, second))
        mbarrier.wait_parity(self.barrier, 0)
        emit("tcgen05.fence::after_thread_sync;")

    def _copy(self, place: Any, address: Any, step_bytes: Any, inside: Any) -> None:
        """This thread's row of an operand: core matrices along K beside each other, along the rows 256 bytes apart."""
        from epifuse_cutedsl.kernels.ptx import gmem, shared

        chunk = (self.operand_bytes[0] if isinstance(step_bytes, int) else self.operand_bytes[1]) // self.k_steps
        row = place + self.thread // 8 * 256 + self.thread % 8 * 16
        for k in range(0, 16 * self.k_steps, 2):
            words = [gmem.ld_global_bits(address + (k + i) * step_bytes, 2, inside) if k + i < K else 0 for i in (0, 1)]
            at = k // 16 * chunk + k % 16 // 8 * 128 + k % 8 * 2
            shared.st_shared(row, [words[0] | words[1] << 16], at)

    def _multiply(self, first: Any, second: Any) -> None:
        from cutlass import Int64

        from epifuse_cutedsl.kernels.ptx.asm import emit

        kind = 1 << 4 | self.columns >> 3 << 17 | self.rows >> 4 << 24
        layout = (128 >> 4) << 16 | (256 >> 4) << 32 | 1 << 46
        for step in range(self.k_steps):
            a, b = (
                Int64((place + step * size // self.k_steps) >> 4) + layout
                for place, size in zip((first, second), self.operand_bytes, strict=True)
            )
            emit(
                f"{{\n.reg .pred more;\nsetp.ne.u32 more, {step}, 0;\n"
                f"tcgen05.mma.cta_group::1.kind::f16 [{{$r0}}], {{$r1}}, {{$r2}}, {kind}, more;\n}}",
                (),
                [self.memory, a, b],
            )
        commit = "tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [{$r0}];"
        emit(commit, (), [self.barrier])

    def read(self, step: int) -> list[Any]:
        """32 columns of this thread's row, as words."""
        from cutlass import Int32

        from epifuse_cutedsl.kernels.ptx.asm import braced, emit

        load = f"tcgen05.ld.sync.aligned.32x32b.x32.b32 {braced('w', 32)}, [{{$r0}}];\ntcgen05.wait::ld.sync.aligned;"
        return list(emit(load, [Int32] * 32, [self.memory + (self.thread // 32 << 21) + 32 * step]))

    def free(self) -> None:
        """Give the tensor memory back."""
        from cutlass.cute import arch

        from epifuse_cutedsl.fuse.control import when
        from epifuse_cutedsl.kernels.ptx.asm import emit

        emit("tcgen05.fence::before_thread_sync;")
        arch.sync_threads()
        free = f"tcgen05.dealloc.cta_group::1.sync.aligned.b32 {{$r0}}, {self.columns};"
        when(self.thread < 32, lambda: emit(free, (), [self.memory]))


def bare_kernel(layout: Any, epilogue: Any) -> Any:
    """One CTA a tile: accumulators from memory (row-major float32 or int32) or a product, then the hooks."""
    from cutlass import Int64, Uint8
    from cutlass.cute import arch

    from epifuse_cutedsl.fuse.convert import unpack
    from epifuse_cutedsl.fuse.fragment import Extents, Fragment, Run, TileCoordinates
    from epifuse_cutedsl.kernels.ptx import gmem

    facts, dtype = layout.facts, epilogue.plan.accumulator_dtype
    own = Tcgen05.smem_bytes if layout.product else 0
    smem = max(16, own + epilogue.scratch_bytes + epilogue.step_scratch_bytes)

    def one_tile(parameters: Any) -> None:
        address, other, m, n, batches, tiles_m, tiles_n = parameters[: len(MAIN)]
        thread, pid = arch.thread_idx()[0], arch.block_idx()[0]
        batch, tile = pid // (tiles_m * tiles_n), pid % (tiles_m * tiles_n)
        m0, n0 = tile // tiles_n * facts.tile_m, tile % tiles_n * facts.tile_n
        base = arch.get_dyn_smem(Uint8, alignment=128).toint()
        scratch = base + own
        product = Tcgen05(base, thread)
        if layout.product:
            product.run(address, other, m0, n0, batch, m, n)
        corner = TileCoordinates(m0, n0, batch, thread, thread // 32, thread % 32)
        step_scratch = scratch + epilogue.scratch_bytes
        bound = epilogue.bind(parameters[len(MAIN) :], corner, Extents(m, n, batches), step_scratch)
        state = None
        for step in range(layout.steps):
            places = layout.runs(thread, step)
            runs = [
                Run(i * facts.run, facts.run, m0 + r, n0 + c, at, line) for i, (r, c, at, line) in enumerate(places)
            ]
            fragment = Fragment("n", tuple(runs))
            state = bound.tile_begin(fragment) if state is None else state
            pieces = bound.load_step(fragment)
            registers = [unpack([w], dtype, 1, dtype)[0] for w in product.read(step)] if layout.product else []
            for run in () if layout.product else runs:
                for i in range(run.length):
                    offset = (Int64(batch) * m + run.m) * n + (run.n + i)
                    inside = (run.m < m) & (run.n + i < n)
                    word = gmem.ld_global_words(address + offset * 4, 1, inside)
                    registers += unpack(word, dtype, 1, dtype)
            state = bound.visit(replace(fragment, registers=registers), pieces, state)
        state = bound.reduce_flush(state, scratch)
        bound.tile_end(state)
        if layout.product:
            product.free()

    return launched(one_tile, facts.threads, smem)


def launched(one_tile: Any, threads: int, smem: int) -> Any:
    """A kernel object around the body of one CTA."""
    from cutlass import cute

    class Bare:
        block = (threads, 1, 1)
        smem_bytes = smem

        @cute.jit
        def __call__(self, parameters: list) -> None:
            grid = [parameters[5] * parameters[6] * parameters[4], 1, 1]
            self.kernel(parameters).launch(grid=grid, block=list(self.block), smem=smem)

        @cute.kernel
        def kernel(self, parameters: list) -> None:
            one_tile(parameters)

    return Bare()


def run_bare(layout: Any, target: str, args: ops.GemmArguments, accum: torch.Tensor, seed: int) -> None:
    from epifuse_cutedsl.fuse.driver import Epilogue

    facts = layout.facts
    traits = traits_of(args.bound, L)._replace(axis="n")
    epilogue = Epilogue(args.plan, traits, facts, folds_batches=True)
    codes = MAIN + tuple(p.code for p in parameters(args.plan, traits))
    kernel = bare_kernel(layout, epilogue)
    with compat.COMPILE_LOCK:
        text, _ = compat.compile_to_ptx_and_cubin(kernel, codes, target)
    tiles = (-(-M // facts.tile_m), -(-N // facts.tile_n))
    main = [args.A.view, args.B.view] if layout.product else [accum, accum]
    numbers = [*(tensor.data_ptr() for tensor in main), M, N, L, *tiles, *values(args.bound, traits, L)]
    tensors = [*main, *args.outputs, *(t for t in args.loads if isinstance(t, torch.Tensor))]
    if args.plan.reduces:
        size, zero = workspace_bytes(args.plan, True, (facts.tile_m, facts.tile_n), tiles, L)
        scratch = torch.full((size,), 0x7F, dtype=torch.uint8)
        scratch[:zero] = 0
        numbers += [scratch.data_ptr(), *tiles]
        tensors.append(scratch)
    space = memory.HostMemory()
    for tensor in tensors:
        space.register(tensor.data_ptr(), tensor.untyped_storage().nbytes())
    params = [struct.pack("@" + code, number) for code, number in zip(codes, numbers, strict=True)]
    machine.launch(
        ptx.parse(text), entry_name(text), grid=(tiles[0] * tiles[1] * L, 1, 1), block=kernel.block, cluster=(1, 1, 1),
        dynamic_smem_bytes=kernel.smem_bytes, params=params, chip=chip(target), options=machine.Options(seed=seed),
        memory=space,
    )  # fmt: skip


def elementwise(tools: Any) -> tuple[str, dict[str, Any]]:
    """Every broadcast, both majors, several outputs."""
    text = "def epi(accum, row, column, full, turned, each, one, alpha): D = accum * alpha + row + column * 2.0; "
    text += "E = D * full + turned; F = E - each + one; G = 1.5; return D, E, F, G"
    return text, {
        "row": tools.integers(N, dtype=torch.float32), "column": tools.integers(L, M, 1), "alpha": 0.5,
        "full": tools.integers(L, M, N), "turned": tools.integers(L, N, M, dtype=torch.float32).mT,
        "each": tools.integers(L, 1, 1), "one": torch.tensor(3.0), "D": torch.empty(L, M, N),
        "E": torch.empty(L, N, M).mT, "F": torch.empty(L, M, N, dtype=torch.float16), "G": torch.empty(L, M, N).half(),
    }  # fmt: skip


def reductions(tools: Any) -> tuple[str, dict[str, Any]]:
    """Every kind, beside a store."""
    text = "def epi(accum, row): D = accum + row; r = sum(D, dim=2); c = max(D, dim=1); k = sum(D * 2.0, dim=1); "
    text += "e = sum(D, dim=(1, 2)); a = min(D); x = mean(D, dim=(0, 2)); y = max(D, dim=(0, 1)); "
    text += "return D, r, c, k, e, a, x, y"
    shapes = {"D": (L, M, N), "r": (L, M), "c": (L, N), "k": (L, N), "e": (L,), "a": (1,), "x": (M,), "y": (N,)}
    outputs = {name: torch.full(shape, 7.0) for name, shape in shapes.items()}
    return text, {"row": tools.integers(N, dtype=torch.float32), **outputs}


def gated(tools: Any) -> tuple[str, dict[str, Any]]:
    """Pairs of columns within a run."""
    text = "def epi(accum, c): D = reglu(accum) + c; r = sum(D, dim=2); k = max(D, dim=1); return D, r, k"
    outputs = {"D": torch.empty(L, M, N // 2), "r": torch.empty(L, M), "k": torch.empty(L, N // 2)}
    return text, {"c": tools.integers(N // 2, dtype=torch.float32), **outputs}


@pytest.mark.parametrize("layout", list(LAYOUTS))
@pytest.mark.parametrize(
    ("make", "accumulator"),
    [
        (elementwise, torch.float32),
        (elementwise, torch.int32),
        (reductions, torch.float32),
        (gated, torch.float32),
    ],
)
def test_hooks_give_the_plans_results(fuse_tools, layout, make, accumulator):
    if LAYOUTS[layout][0].product and accumulator is not torch.float32:
        pytest.skip("the product is one of float16")
    text, operands = make(fuse_tools)
    args = fuse_tools.arguments(text, M, N, K, L, accumulator, operands)
    accum = accumulate(args.A.view, args.B.view, args.accumulator_type)
    loads = [load.clone() if isinstance(load, torch.Tensor) else load for load in args.loads]
    want = evaluate(args.plan, accum, loads)
    run_bare(*LAYOUTS[layout], args, accum.contiguous(), seed=2)
    for name, got, expected in zip(args.bound.names.stores, args.outputs, want, strict=True):
        assert not fuse_tools.differing(got, expected.reshape(got.shape)), name
