# SPDX-License-Identifier: Apache-2.0
"""What surrounds a kernel at run time: tensors and their traits, rounding, compiled artifacts."""
