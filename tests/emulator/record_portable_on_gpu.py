# SPDX-License-Identifier: Apache-2.0
"""Records what the portable kernel gives on a GPU: python record_portable_on_gpu.py FOLDER [PROCESSES].

Writes FOLDER/portable_sm90.npz, which tests/data holds and test_portable_recorded.py compares with the emulator.
"""

import concurrent.futures
import multiprocessing
import sys
from pathlib import Path

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).parent))
import portable_cases


def record(kernel: int) -> dict[str, np.ndarray]:
    """The outputs of one kernel's problems, and the operators' names."""
    found: dict[str, np.ndarray] = {}
    for case in portable_cases.cases()[kernel * portable_cases.PROBLEMS : (kernel + 1) * portable_cases.PROBLEMS]:
        outputs, name, _ = portable_cases.outputs_of(case, "cuda")
        found |= {f"{case.name}:{output}": bits for output, bits in outputs.items()}
        found[f"{case.name}:operator"] = np.array(name)
    return found


def main(folder: str, processes: int) -> None:
    """Record everything into FOLDER/portable_sm90.npz."""
    context = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(processes, mp_context=context) as pool:
        parts = list(pool.map(record, range(portable_cases.KERNELS)))
    found = {name: value for part in parts for name, value in part.items()}
    found["device"] = np.array(torch.cuda.get_device_name())
    path = Path(folder) / "portable_sm90.npz"
    np.savez_compressed(path, **found)  # type: ignore[arg-type]
    print(f"{len(found)} arrays, {path.stat().st_size} bytes")


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 4)
