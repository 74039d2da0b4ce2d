# SPDX-License-Identifier: Apache-2.0
"""Control flow of one function: basic blocks, where divergent lanes meet again, and which registers stay in a block."""

from __future__ import annotations

from dataclasses import dataclass

from .reports import Place, PtxSyntaxError
from .syntax import Address, Function, Group, Instruction, Label, Operand, Pair, Register, Vector

_ENDS = {"bra", "ret", "exit", "trap", "brx"}
_NO_DESTINATION = {"bar", "barrier", "nanosleep", "wgmma", "call", "brx", "setmaxnreg", "bra"}


@dataclass(frozen=True)
class Block:
    """Instructions without the ending branch. `taken` is where the branch goes, `falls` where it does not.

    Both are block indices; the index that equals the number of blocks is the end of the function. `guard` is the
    predicate of the branch, None when it always goes to `taken`.
    """

    instructions: tuple[Instruction, ...]
    taken: int
    falls: int
    guard: Register | None
    end_line: int
    meets: int = -1


def blocks_of(function: Function) -> tuple[Block, ...]:
    """The basic blocks, the first being the entry; `meets` is each one's immediate post-dominator."""
    starts: dict[str, int] = {}
    chunks: list[list[Instruction]] = [[]]
    for item in function.body:
        if isinstance(item, Label):
            if chunks[-1]:
                chunks.append([])
            starts[item.name] = len(chunks) - 1
        else:
            chunks[-1].append(item)
            if item.opcode in _ENDS:
                chunks.append([])
    end = len(chunks)
    drafts = [_close(chunk, index, starts, end) for index, chunk in enumerate(chunks)]
    meets = _post_dominators(drafts, end)
    return tuple(
        Block(b.instructions, b.taken, b.falls, b.guard, b.end_line, meets[index]) for index, b in enumerate(drafts)
    )


def _close(chunk: list[Instruction], index: int, starts: dict[str, int], end: int) -> Block:
    following = index + 1
    last = chunk[-1] if chunk else None
    if last is None or last.opcode not in _ENDS or last.opcode == "trap":
        return Block(tuple(chunk), following, following, None, last.line if last else 0)
    if last.opcode == "brx":
        raise PtxSyntaxError("brx.idx (indexed branches) is not executed", Place(line=last.line))
    taken = end
    if last.opcode == "bra":
        name = getattr(last.operands[0], "name", "")
        if name not in starts:
            raise PtxSyntaxError(f"branch to an unknown label {name!r}", Place(line=last.line))
        taken = starts[name]
    falls = following if last.guard is not None else taken
    return Block(tuple(chunk[:-1]), taken, falls, last.guard, last.line)


def _post_dominators(blocks: list[Block], end: int) -> list[int]:
    predecessors: list[list[int]] = [[] for _ in range(end + 1)]
    for index, block in enumerate(blocks):
        for successor in {block.taken, block.falls}:
            predecessors[successor].append(index)
    order: list[int] = []
    seen = {end}
    stack = [(end, iter(predecessors[end]))]
    while stack:
        node, remaining = stack[-1]
        child = next((p for p in remaining if p not in seen), None)
        if child is None:
            order.append(node)
            stack.pop()
        else:
            seen.add(child)
            stack.append((child, iter(predecessors[child])))
    rank = {node: position for position, node in enumerate(order)}
    meets = _settle(blocks, end, order, rank)
    # Blocks from which the end is never reached (endless loops) meet nowhere.
    return [meets.get(index, end) for index in range(end)]


def _settle(blocks: list[Block], end: int, order: list[int], rank: dict[int, int]) -> dict[int, int]:
    meets = {end: end}
    changed = True
    while changed:
        changed = False
        for node in reversed(order):
            if node == end:
                continue
            candidates = [s for s in {blocks[node].taken, blocks[node].falls} if s in meets]
            found = candidates[0]
            for other in candidates[1:]:
                left, right = found, other
                while left != right:
                    while rank[left] < rank[right]:
                        left = meets[left]
                    while rank[right] < rank[left]:
                        right = meets[right]
                found = left
            if meets.get(node) != found:
                meets[node] = found
                changed = True
    return meets


def registers_in(operand: Operand) -> list[str]:
    """Names of all registers in an operand."""
    if isinstance(operand, Register):
        return [operand.name]
    if isinstance(operand, Vector | Group):
        return [name for element in operand.elements for name in registers_in(element)]
    if isinstance(operand, Pair):
        return registers_in(operand.first) + registers_in(operand.second)
    if isinstance(operand, Address):
        names = registers_in(operand.base)
        return names + [name for element in operand.extra for name in registers_in(element)]
    return []


def local_registers(blocks: tuple[Block, ...]) -> frozenset[str]:
    """Registers that every block using them defines first, in all lanes, so that no merge of lanes is needed.

    Such a register occurs in one block only, and first as the destination of an instruction without guard.
    """
    home: dict[str, int] = {}
    shared: set[str] = set()
    for index, block in enumerate(blocks):
        for instruction in block.instructions:
            operands = instruction.operands
            has_destination = bool(operands) and instruction.opcode not in _NO_DESTINATION
            written = registers_in(operands[0]) if has_destination and not isinstance(operands[0], Address) else []
            read = [name for operand in operands[1 if written else 0 :] for name in registers_in(operand)]
            if instruction.guard is not None:
                shared.update(written)
                read = [*read, instruction.guard.name]
            for name in read:
                if home.setdefault(name, -1) != index:
                    shared.add(name)
            for name in written:
                if home.setdefault(name, index) != index:
                    shared.add(name)
        if block.guard is not None and home.setdefault(block.guard.name, -1) != index:
            shared.add(block.guard.name)
    return frozenset(name for name in home if name not in shared)
