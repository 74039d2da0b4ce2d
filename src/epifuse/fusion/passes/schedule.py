# SPDX-License-Identifier: Apache-2.0
"""The last step: nodes in canonical order, as a plan.

Order comes from structure alone. A node's digest covers what it is made of (forward) and what is made of it
(backward), never a name or a position; stores and the subtrees of an operation are taken in its order. Loads
are numbered by first use. So renamed, permuted and aliased functions come out equal, in every process.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b

from epifuse.fusion.ir.infer import first_two_commute
from epifuse.fusion.ir.node import Attribute, Broadcast, Kind
from epifuse.fusion.passes.program import Context, Program
from epifuse.fusion.passes.rounding import accumulate_dtype, rounding_of
from epifuse.fusion.plan import (
    Access,
    Binding,
    EpiloguePlan,
    Facts,
    PlanCompute,
    PlanConstant,
    PlanLoad,
    PlanReduce,
    PlanStore,
)
from epifuse.fusion.vocabulary import table
from epifuse.fusion.vocabulary.table import CostClass

_COMBINE = {"amax": "max", "amin": "min"}

_ROUNDS = 6
"""How often look-alikes are looked at; two rounds tell nearly all apart, and a tie costs a second compile, no more."""


def schedule(program: Program, context: Context) -> tuple[EpiloguePlan, Binding]:
    """The plan of a folded program, and the user's names for its loads and destinations."""
    order = _Order(program, context)
    order.visit()
    return _Assembly(program, context, order).plan()


# --- order ------------------------------------------------------------------------------------------------------------


class _Order:
    """The canonical order of a program: ``stores`` (node indices), and the other nodes as they are ``visited``."""

    def __init__(self, program: Program, context: Context) -> None:
        self.nodes = program.nodes
        self.types = program.types
        self.context = context
        self.commutes = [first_two_commute(node) for node in self.nodes]
        self.digests = self._refined([self._label(index) for index in range(len(self.nodes))])
        self.needs = self._needs()
        stores = [i for i, node in enumerate(self.nodes) if node.kind is Kind.STORE]
        self.rank: dict[int, int] = {}
        self.stores = sorted(stores, key=self._store_order)

    def visit(self) -> None:
        """Number every value, operands before users, the operand that keeps more values alive first."""
        for store in self.stores:
            todo = [self.nodes[store].inputs[0]]
            while todo:
                index = todo[-1]
                waiting = [i for i in self.nodes[index].inputs if i not in self.rank]
                if waiting and index not in self.rank:
                    todo.append(min(waiting, key=self._preference))
                else:
                    todo.pop()
                    self.rank.setdefault(index, len(self.rank))
        self.stores.sort(key=self._store_order)  # symmetric stores follow the numbers that their values got

    def _preference(self, index: int) -> tuple[int, bytes]:
        return (-self.needs[index], self.digests[index])

    def _store_order(self, store: int) -> tuple[bool, bytes, bytes, int]:
        """Reductions last; then by what is stored how, by what else is made of it, and by the value's number."""
        (source,) = self.nodes[store].inputs
        reduced = self.nodes[source].kind is Kind.REDUCE
        return (reduced, self.digests[store], self.digests[source], self.rank.get(source, 0))

    def _label(self, index: int) -> bytes:
        node, kind = self.nodes[index], self.nodes[index].kind
        if kind is Kind.COMPUTE:
            text = f"{node.op} {self.types[index].dtype.name} {_spelled(node.attributes)}"
        elif kind is Kind.LOAD:
            spec = self.context.typing.operands[node.name]
            text = f"load {spec.access.name} {spec.dtype.name} {spec.broadcast.name} {spec.halved} {spec.route}"
        elif kind is Kind.CONSTANT:
            text = f"constant {node.literal.text} {node.literal.integer}"
        elif kind is Kind.STORE:
            out = self.context.output(node)
            text = f"store {out.dtype.name} {out.axes} {out.route} {node.name in self.context.halved_outputs}"
        else:
            text = f"{kind.name} {_COMBINE.get(node.op, node.op)}"
        return text.encode()

    def _refined(self, labels: list[bytes]) -> list[bytes]:
        """A digest for each node. What looks alike after one look down and one up (two loads of a kind, in sums of a
        kind) is looked at again with what was found, while that tells more apart; what never differs is symmetric.
        """
        digests, apart = labels, 0
        for _ in range(_ROUNDS):
            digests = self._backward(self._forward(digests))
            found = len(set(digests))
            if found in (apart, len(digests)):
                break
            apart = found
        return digests

    def _forward(self, labels: list[bytes]) -> list[bytes]:
        """Digests of each node's label and of what it is made of."""
        digests: list[bytes] = []
        for index, node in enumerate(self.nodes):
            below = [digests[i] for i in node.inputs]
            if self.commutes[index] and below[1] < below[0]:
                below[0], below[1] = below[1], below[0]
            digests.append(_digest(b"".join(below) + labels[index]))
        return digests

    def _backward(self, digests: list[bytes]) -> list[bytes]:
        """Those digests, and of who uses the node in which place."""
        above: list[list[bytes]] = [[] for _ in self.nodes]
        for index in range(len(self.nodes) - 1, -1, -1):
            digests[index] = own = _digest(digests[index] + b"".join(sorted(above[index])))
            commutes = self.commutes[index]
            for position, i in enumerate(self.nodes[index].inputs):
                above[i].append(own + (b"\0" if commutes and position < 2 else bytes((position,))))
        return digests

    def _needs(self) -> list[int]:
        """Per node, how many values of one element are alive at once while it is computed (as if it were a tree)."""
        needs: list[int] = []
        for index, node in enumerate(self.nodes):
            below = sorted((needs[i] for i in node.inputs), reverse=True)
            kept = [need + position for position, need in enumerate(below)]
            needs.append(max([int(_is_full(self.types[index].broadcast)), *kept]))
        return needs


def _spelled(attributes: tuple[tuple[str, Attribute], ...]) -> str:
    return " ".join(f"{key}={value!r}" for key, value in attributes)


def _digest(data: bytes) -> bytes:
    return blake2b(data, digest_size=12).digest()


def _is_full(broadcast: Broadcast) -> bool:
    return broadcast.m and broadcast.n


# --- assembly ---------------------------------------------------------------------------------------------------------


class _Assembly:
    """Turns a program in canonical order into the records of a plan."""

    def __init__(self, program: Program, context: Context, order: _Order) -> None:
        self.nodes = program.nodes
        self.types = program.types
        self.context = context
        self.order = order
        ranked = sorted(order.rank, key=order.rank.__getitem__)
        by_kind: dict[Kind, list[int]] = {kind: [] for kind in Kind}
        for index in ranked:
            by_kind[self.nodes[index].kind].append(index)
        self.loads = by_kind[Kind.ACCUM] + by_kind[Kind.LOAD]
        self.constants = by_kind[Kind.CONSTANT]
        self.computes = by_kind[Kind.COMPUTE]
        self.slots = {index: slot for slot, index in enumerate(self.loads + self.constants + self.computes)}

    def plan(self) -> tuple[EpiloguePlan, Binding]:
        """The records, and the names that they stand for."""
        loads, names = self._loads()
        reduces, stores = self._outputs()
        computes = tuple([self._compute(index) for index in self.computes])
        plan = EpiloguePlan(
            accumulator_dtype=self.context.typing.accumulator_dtype,
            loads=loads,
            constants=tuple(
                [PlanConstant(self.slots[i], self.nodes[i].literal, self.types[i].dtype) for i in self.constants]
            ),
            computes=computes,
            reduces=reduces,
            stores=stores,
            facts=facts_of(loads, computes, reduces, stores),
        )
        return plan, Binding(names, tuple([self.nodes[i].name for i in self.order.stores]))

    def _loads(self) -> tuple[tuple[PlanLoad, ...], tuple[str, ...]]:
        typing = self.context.typing
        loads: list[PlanLoad] = []
        names: list[str] = []
        for slot, index in enumerate(self.loads):
            node, found = self.nodes[index], self.types[index]
            if node.kind is Kind.ACCUM:
                dtype = typing.accumulator_dtype
                loads.append(PlanLoad(slot, Access.ACCUM, -1, found.broadcast, dtype, found.dtype))
                continue
            spec = typing.operands[node.name]
            loads.append(
                PlanLoad(
                    slot, spec.access, len(names), spec.broadcast, spec.dtype, found.dtype, found.halved, spec.route
                )
            )
            names.append(node.name)
        return tuple(loads), tuple(names)

    def _compute(self, index: int) -> PlanCompute:
        node, found = self.nodes[index], self.types[index]
        operands = [self.slots[i] for i in node.inputs]
        if self.order.commutes[index]:
            operands[:2] = sorted(operands[:2])  # slots are canonical by now
        return PlanCompute(
            slot=self.slots[index],
            primitive=node.op,
            operands=tuple(operands),
            operand_dtype=self.types[node.inputs[-1]].dtype,  # the last one: the first of ``where`` is its condition
            compute_dtype=found.dtype,
            broadcast=found.broadcast,
            attributes=node.attributes,
            halved=found.halved,
        )

    def _outputs(self) -> tuple[tuple[PlanReduce, ...], tuple[PlanStore, ...]]:
        reduces: list[PlanReduce] = []
        stores: list[PlanStore] = []
        for destination, index in enumerate(self.order.stores):
            node = self.nodes[index]
            out = self.context.output(node)
            source = self.nodes[node.inputs[0]]
            halved = node.name in self.context.halved_outputs
            if source.kind is Kind.REDUCE:
                operand = source.inputs[0]
                combine = _COMBINE.get(source.op, source.op)
                partial = accumulate_dtype(combine, self.types[operand].dtype)
                result = self.context.typing.float if combine == "mean" else partial
                assert out.axes is not None, f"{node.name} is a reduction, and its OutputSpec names no axes"
                reduces.append(
                    PlanReduce(
                        self.slots[operand],
                        combine,
                        out.axes,
                        partial,
                        destination,
                        out.dtype,
                        rounding_of(result, out.dtype),
                        halved,
                    )
                )
            else:
                rounding = rounding_of(self.types[node.inputs[0]].dtype, out.dtype)
                slot = self.slots[node.inputs[0]]
                stores.append(PlanStore(slot, destination, out.dtype, rounding, halved, out.route))
        return tuple(reduces), tuple(stores)


# --- facts ------------------------------------------------------------------------------------------------------------


def facts_of(
    loads: Sequence[PlanLoad],
    computes: Sequence[PlanCompute],
    reduces: Sequence[PlanReduce],
    stores: Sequence[PlanStore],
) -> Facts:
    """What ranking needs, counted for one element of the accumulator (a value with N/2 columns counts half)."""
    cost = {CostClass.FREE: 0.0, CostClass.ALU: 0.0, CostClass.FMA: 0.0, CostClass.SPECIAL: 0.0}
    for compute in computes:
        if _is_full(compute.broadcast):
            cost[table.lookup(compute.primitive).cost] += _share(compute.halved)
    tensors = [x for x in loads if x.access is Access.MEMORY and _is_full(x.broadcast)]
    return Facts(
        load_bytes=sum(x.dtype.bytes * _share(x.halved) for x in tensors),
        store_bytes=sum(x.dtype.bytes * _share(x.halved) for x in stores),
        alu_operations=cost[CostClass.ALU],
        fma_operations=cost[CostClass.FMA],
        special_operations=cost[CostClass.SPECIAL],
        live_slots=_live_slots(loads, computes, reduces, stores),
        halved=any(c.halved for c in computes),
    )


def _share(halved: bool) -> float:
    return 0.5 if halved else 1.0


def _live_slots(
    loads: Sequence[PlanLoad],
    computes: Sequence[PlanCompute],
    reduces: Sequence[PlanReduce],
    stores: Sequence[PlanStore],
) -> int:
    """The largest number of full values alive at once: the accumulator from the start, other loads from first use, what
    is stored or reduced until the end.
    """
    # Two moments a compute: 2 t before it, with its operands, and 2 t + 1 after it, with its result.
    end = 2 * len(computes)
    first: dict[int, int] = {x.slot: 0 for x in loads if x.access is Access.ACCUM}
    last: dict[int, int] = {}
    for time, compute in enumerate(computes):
        if _is_full(compute.broadcast):
            first[compute.slot] = 2 * time + 1
        for slot in compute.operands:
            last[slot] = 2 * time
    full_loads = {x.slot for x in loads if _is_full(x.broadcast)}
    for slot in [x.operand for x in reduces] + [x.operand for x in stores]:
        last[slot] = end
    for time, compute in enumerate(computes):
        for slot in full_loads.intersection(compute.operands):
            first.setdefault(slot, 2 * time)
    for slot in full_loads:
        first.setdefault(slot, end)
    changes = [0] * (end + 2)
    for slot, start in first.items():
        changes[start] += 1
        changes[last[slot] + 1] -= 1
    alive = most = 0
    for change in changes:
        alive += change
        most = max(most, alive)
    return most
