# SPDX-License-Identifier: Apache-2.0
"""The copy of an operand that tensor copies cannot move: from any strides to padded rows along K."""
