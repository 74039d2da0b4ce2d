# SPDX-License-Identifier: Apache-2.0
"""One function for each PTX instruction that kernels use, grouped by unit and named after the instruction.

Registers are DSL scalars. The main loop treats all of them as bits (``Int32``, ``Int64``, whatever they mean), as PTX
does, and a bit pattern needs no moves between types. Shared addresses are ``Int32``, global ones ``Int64``; a static
displacement goes into the instruction's text. Every predicate stands inside the instruction. An output that is set
before an input has been read is kept in a register of the block's own: the compiler may give both the same one.
"""
