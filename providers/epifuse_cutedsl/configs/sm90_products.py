# SPDX-License-Identifier: Apache-2.0
"""What ``wgmma`` multiplies: one row for each combination of dtypes of A, B and the accumulator.

PTX ISA, "Asynchronous Warpgroup Level Matrix Instructions: wgmma.mma_async": shapes, types, and which of them take
matrices of either major.
"""

from __future__ import annotations

from epifuse.arguments import GemmArguments
from epifuse.records import NamedTuple
from epifuse_cutedsl.tile.operand import INSTRUCTION_K_BYTES

PROMOTED_STEPS = 4
"""Instructions, 128 positions of K, between two promotions; what that does to errors: ``epifuse.check.measure``."""
_LONG_K, _FEW_BITS = 2048, 16
"""From so many positions of K on, where no output has more bits and nothing is reduced, promotions are half as many:
additions keep the tensor cores waiting (2 % of 8192 x 8192 x 4096, 6 of 4096^3), and what that loses is less than such
outputs are rounded by."""
MOST_ACCUMULATORS = 192
"""Registers a thread that may hold sums; the other 40 of a consumer hold addresses and the like."""
_LEAST_PART = 64
"""Columns of an instruction below which, where a tile has more, it waits for shared memory: it reads 2 KiB of A and
``32 n`` bytes of B at 128 bytes a clock, and multiplies in ``n / 2`` clocks."""

# PTX name and bytes of an element, by dtype.
_ELEMENTS = {
    "float16": ("f16", 2),
    "bfloat16": ("bf16", 2),
    "float8_e4m3fn": ("e4m3", 1),
    "float8_e5m2": ("e5m2", 1),
    "int8": ("s8", 1),
    "uint8": ("u8", 1),
    "float32": ("tf32", 4),
}
_ACCUMULATORS = {"float32": "f32", "float16": "f16", "int32": "s32"}


class ProductKind(NamedTuple):
    """One row: dtypes of A, B and the accumulator by name."""

    a: str
    b: str
    accumulator: str
    promoted: bool = False
    """Whether a few instructions (``interval``) are summed up by themselves and then added in float32: the tensor cores
    keep few bits of sums of 8-bit floats (14 on Hopper, as DeepSeek-V3's report found: arXiv 2412.19437, section
    3.3.2)."""

    @property
    def types(self) -> str:
        """The instruction's type suffixes: accumulator, A, B."""
        return f"{_ACCUMULATORS[self.accumulator]}.{_ELEMENTS[self.a][0]}.{_ELEMENTS[self.b][0]}"

    @property
    def element_bytes(self) -> int:
        """Bytes of an element of A and of B."""
        return _ELEMENTS[self.a][1]

    @property
    def instruction_k(self) -> int:
        """Positions of K of one instruction."""
        return INSTRUCTION_K_BYTES // self.element_bytes

    def interval(self, args: GemmArguments) -> int:
        """Instructions between two promotions; 0 where sums are not promoted."""
        if not self.promoted:
            return 0
        plan = args.plan
        few = not plan.reduces and all(store.dtype.bits <= _FEW_BITS for store in plan.stores)
        return 2 * PROMOTED_STEPS if few and args.problem_size.K >= _LONG_K else PROMOTED_STEPS

    @property
    def result(self) -> str:
        """The dtype in which the epilogue finds accumulators: float16 ones are widened."""
        return "int32" if self.accumulator == "int32" else "float32"

    @property
    def packed(self) -> bool:
        """Whether a register holds two accumulators."""
        return self.accumulator == "float16"

    @property
    def integer(self) -> bool:
        """Whether the accumulators are integers."""
        return self.accumulator == "int32"

    @property
    def rounded(self) -> bool:
        """Whether A and B are rounded to TF32 before: the tensor cores would drop the bits that they do not take."""
        return self.a == "float32"

    @property
    def majors(self) -> tuple[str, ...]:
        """Majors that A and B may have: elements of 8 and of 32 bits lie along K."""
        return ("k", "mn") if self.element_bytes == 2 else ("k",)


class Part(NamedTuple):
    """What a promoted product sums up at a time: ``n`` columns of 64 rows, in ``buffers`` sets of registers by turns.

    With two buffers a part is added while the next one is multiplied; with one, the other warpgroup multiplies.
    """

    n: int
    buffers: int


def part_of(blocks: int, tile_n: int, k_bytes: int, *, alternating: bool) -> Part | None:
    """The widest part with which a warpgroup's tile of ``blocks`` times 64 rows fits the registers; None without one.

    ``alternating``: one warpgroup multiplies at a time, so that two buffers are worth narrower parts. They take parts
    in pairs; a K tile of ``k_bytes`` has one or more along K.
    """
    along_k = k_bytes // (PROMOTED_STEPS * INSTRUCTION_K_BYTES)
    forms = [(tile_n // parts, parts, buffers) for parts in (1, 2, 4) for buffers in (2, 1) if tile_n % parts == 0]
    if alternating:
        forms.sort(key=lambda form: -form[2])
    for n, parts, buffers in forms:
        fits = (blocks * tile_n + buffers * n) // 2 <= MOST_ACCUMULATORS
        if fits and n % 8 == 0 and n >= min(_LEAST_PART, tile_n) and blocks * parts * along_k % buffers == 0:
            return Part(n, buffers)
    return None


_FLOAT8 = ("float8_e4m3fn", "float8_e5m2")
_INTEGERS = ("int8", "uint8")
_KINDS = (
    ProductKind("float16", "float16", "float32"),
    ProductKind("bfloat16", "bfloat16", "float32"),
    ProductKind("float16", "float16", "float16"),
    *(ProductKind(a, b, "float32", promoted=True) for a in _FLOAT8 for b in _FLOAT8),
    *(ProductKind(a, b, "int32") for a in _INTEGERS for b in _INTEGERS),
    ProductKind("float32", "float32", "float32"),
)
KINDS: dict[tuple[str, str, str], ProductKind] = {(kind.a, kind.b, kind.accumulator): kind for kind in _KINDS}
"""The rows by dtype names of A, B and the accumulator."""


def product_of(args: GemmArguments) -> tuple[str, str, str]:
    """Names of the dtypes of A, B and the accumulator: a key of ``KINDS``, if the kernel multiplies them."""
    return args.A.traits.dtype.name, args.B.traits.dtype.name, args.accumulator_type.name
