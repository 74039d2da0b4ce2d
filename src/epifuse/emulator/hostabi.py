# SPDX-License-Identifier: Apache-2.0
"""C functions made of Python ones: how compiled host code calls the emulated driver, and how failures come back."""

from __future__ import annotations

import ctypes
import hashlib
import struct
import threading
from collections.abc import Callable
from typing import Any

from .errors import HostCallError

# One letter an argument; the part before the arrow is the arguments, the part after it the result.
_C_TYPES: dict[str, Any] = {"p": ctypes.c_void_p, "i": ctypes.c_int32, "l": ctypes.c_int64, "v": None}
_UNKNOWN_ERROR = 999
_FATBIN_MAGIC = 0xBA55ED50
_ELF_MAGIC = b"\x7fELF"


class Failures(threading.local):
    """The first exception since the last look, for each thread; C code in between only sees a status."""

    pending: BaseException | None = None

    def keep(self, error: BaseException) -> None:
        """Remember an exception unless an earlier one is still waiting."""
        if self.pending is None:
            self.pending = error

    def take(self) -> BaseException | None:
        """Return the waiting exception and forget it."""
        error, self.pending = self.pending, None
        return error

    def raise_pending(self) -> None:
        """Raise the waiting exception, if there is one, with the traceback it was raised with."""
        error = self.take()
        if error is not None:
            raise error


def c_function(signature: str, answer: Callable[..., int | None], failures: Failures) -> Any:
    """Return a C callable for `answer`, such as "ppi->i"; an exception becomes its status and is kept in `failures`.

    Nothing is raised into C, which could not unwind it. `answer` returns a status, None standing for success.
    """
    arguments, _, result = signature.partition("->")
    returns_status = result == "i"

    def call(*values: Any) -> int | None:
        try:
            status = answer(*values)
        except BaseException as error:  # even an interrupt has to travel through C as a status
            failures.keep(error)
            status = error.code if isinstance(error, HostCallError) else _UNKNOWN_ERROR
        if result == "v":
            return None
        return (status or 0) if returns_status else status

    prototype = ctypes.CFUNCTYPE(_C_TYPES[result], *(_C_TYPES[letter] for letter in arguments))
    return prototype(call)


def address_of(function: Any) -> int:
    """The address of a ctypes function."""
    return int(ctypes.cast(function, ctypes.c_void_p).value or 0)


def write_pointer(address: int, value: int) -> None:
    """Store a pointer where C code asked for one."""
    ctypes.c_void_p.from_address(address).value = value


def write_int(address: int, value: int) -> None:
    """Store an int where C code asked for one."""
    ctypes.c_int32.from_address(address).value = value


def read_pointer(address: int) -> int:
    """Load a pointer."""
    return int(ctypes.c_void_p.from_address(address).value or 0)


def read_text(address: int) -> str:
    """Load a string that ends with a zero byte."""
    return ctypes.string_at(address).decode("utf-8", "replace")


def image_bytes(address: int) -> bytes:
    """The whole device image at `address`: a fat binary, or the ELF file of one cubin."""
    head = ctypes.string_at(address, 64)
    if struct.unpack_from("<I", head)[0] == _FATBIN_MAGIC:
        header_bytes, payload_bytes = struct.unpack_from("<HQ", head, 6)
        return ctypes.string_at(address, header_bytes + payload_bytes)
    if head.startswith(_ELF_MAGIC):
        section_table = struct.unpack_from("<Q", head, 40)[0]
        entry_bytes, entries = struct.unpack_from("<HH", head, 58)
        return ctypes.string_at(address, section_table + entry_bytes * entries)
    raise HostCallError(200, "the device image is neither a fat binary nor a cubin", advice="load PTX through its text")


def digest(image: bytes) -> str:
    """The name under which an image's PTX is filed."""
    return hashlib.sha256(image).hexdigest()
