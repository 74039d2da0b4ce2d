# SPDX-License-Identifier: Apache-2.0
"""The parser: every form of statement that compilers write, and the line of what it does not understand."""

import gc
import weakref

import pytest

from epifuse.emulator import chips, flow, machine, ptx
from epifuse.emulator.reports import PtxSyntaxError
from epifuse.emulator.syntax import Address, Discard, Immediate, Label, Pair, Register, Symbol, Vector

HEAD = ".version 9.0\n.target sm_90a\n.address_size 64\n"


def body_of(text: str, declarations: str = ".reg .b32 %r<9>;\n.reg .b64 %d<9>;\n.reg .pred %p<4>;\n"):
    module = ptx.parse(HEAD + ".visible .entry k()\n{\n" + declarations + text + "\n}\n")
    return module.functions["k"].body


def test_a_module_has_its_version_target_and_kernels():
    module = ptx.parse(HEAD + "// a comment\n/* and\nanother */\n.visible .entry k(\n.param .u32 n\n)\n{ret;}")
    assert (module.version, module.target) == ("9.0", "sm_90a")
    assert list(module.entries) == ["k"]
    assert module.entries["k"].line == 7


def test_a_module_that_ran_is_forgotten_with_its_last_user():
    module = ptx.parse(HEAD + ".visible .entry k()\n{\n.reg .b32 %r<2>;\nmov.u32 %r1, 1;\nret;\n}\n")
    machine.launch(module, "k", (1, 1, 1), (32, 1, 1), (1, 1, 1), 0, [], chip=chips.chip("90a"))
    remembered = weakref.ref(module)
    del module
    gc.collect()
    assert remembered() is None


def test_parameters_have_sizes_alignments_and_offsets():
    text = ".entry k(\n.param .u32 a,\n.param .align 64 .b8 b[128],\n.param .u64 .ptr .global .align 16 c\n)\n{ret;}"
    function = ptx.parse(HEAD + text).entries["k"]
    assert [(p.name, p.size_bytes, p.align_bytes) for p in function.params] == [
        ("a", 4, 4),
        ("b", 128, 64),
        ("c", 8, 16),
    ]
    assert function.param_offsets() == {"a": 0, "b": 64, "c": 192}


def test_shared_variables_are_placed_and_dynamic_ones_follow():
    text = (
        ".extern .shared .align 1024 .b8 dyn[];\n.shared .align 4 .b8 s[6];\n.entry k()\n{\n"
        ".shared .align 8 .b64 t[2];\nret;}"
    )
    function = ptx.parse(HEAD + text).entries["k"]
    assert function.shared_offsets == {"s": 0, "t": 8, "dyn": 1024}
    assert function.static_shared_bytes == 24


def test_directives_give_the_launch_bounds():
    function = ptx.parse(HEAD + ".entry k()\n.reqntid 128, 1, 1\n.maxntid 256\n.reqnctapercluster 2\n{ret;}").entries[
        "k"
    ]
    assert function.required_threads == (128, 1, 1)
    assert function.max_threads == (256, 1, 1)
    assert function.required_cluster == (2, 1, 1)


def test_operands_of_every_kind():
    (instruction,) = body_of(
        "@!%p1 foo.bar::x.b32 {%r1, _}, [%r2+-8], %r3|%p2, -5, 0x1FU, 0f3F800000, [%d1, {%r4, 0}];"
    )
    assert instruction.guard == Register("%p1", True)
    assert instruction.modifiers == ("bar::x", "b32")
    assert instruction.operands == (
        Vector((Register("%r1"), Discard())),
        Address(Register("%r2"), -8),
        Pair(Register("%r3"), Register("%p2")),
        Immediate(-5),
        Immediate(31),
        Immediate(0x3F800000, 32),
        Address(Register("%d1"), 0, (Vector((Register("%r4"), Immediate(0))),)),
    )


def test_names_that_are_no_registers_are_symbols():
    (instruction,) = body_of("mov.u32 %r1, %tid.x;")
    assert instruction.operands[1] == Symbol("%tid.x")


def test_scopes_have_registers_and_labels_of_their_own():
    body = body_of(
        "{\n.reg .pred P1;\nL:\nbar P1;\n@P1 bra.uni D;\nbra L;\nD:\n}\n{\n.reg .pred P1;\nL:\n"
        "@P1 bra L;\n}\nL:\nbra L;"
    )
    labels = [item.name for item in body if isinstance(item, Label)]
    assert labels == ["L#1", "D#1", "L#2", "L"]
    branches = [item.operands[0].name for item in body if not isinstance(item, Label) and item.opcode == "bra"]
    assert branches == ["D#1", "L#1", "L#2", "L"]
    assert body[1].operands == (Register("P1#1"),)


@pytest.mark.parametrize(
    ("text", "line", "what"),
    [
        ("mov.b32 %r1, ?;", 9, "unexpected character '?'"),
        ("mov.b32 %r1, [1.5];", 9, "an address is"),
        ("mov.b32 %r1 %r2;", 9, "expected ';'"),
        ("}\nnonsense", 10, "unexpected 'nonsense' at module level"),
    ],
)
def test_what_is_not_understood_is_named_with_its_line(text, line, what):
    with pytest.raises(PtxSyntaxError, match="where: PTX line") as caught:
        body_of(text)
    assert what in str(caught.value)
    assert caught.value.place.line == line


def test_a_branch_meets_again_at_its_post_dominator():
    body = "@%p1 bra A;\nmov.b32 %r1, 1;\nbra B;\nA:\nmov.b32 %r1, 2;\nB:\n@%p2 bra B;\nret;"
    function = ptx.parse(HEAD + ".entry k()\n{\n.reg .pred %p<4>;\n.reg .b32 %r<4>;\n" + body + "\n}\n").functions["k"]
    blocks = flow.blocks_of(function)
    assert [block.meets for block in blocks[:4]] == [3, 3, 3, 4]


def test_registers_of_one_block_need_no_merging_of_lanes():
    body = "mov.b32 %r1, 1;\nadd.s32 %r2, %r1, %r1;\nadd.s32 %r3, %r3, 1;\n@%p1 mov.b32 %r4, 1;\nret;"
    function = ptx.parse(HEAD + ".entry k()\n{\n.reg .pred %p<4>;\n.reg .b32 %r<9>;\n" + body + "\n}\n").functions["k"]
    assert flow.local_registers(flow.blocks_of(function)) == {"%r1", "%r2"}
