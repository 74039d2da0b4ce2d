# SPDX-License-Identifier: Apache-2.0
"""The emulated driver, called as compiled host code calls it: C functions and raw memory."""

import ctypes
import struct
import threading

import pytest

from epifuse.emulator import HostCallError, NoDeviceError, hostabi, queries
from epifuse.emulator.device import entered
from epifuse.emulator.driver import Driver

PTX = """
.version 8.6
.target sm_90a
.address_size 64
.visible .entry scale(.param .u64 scale_param_0, .param .u32 scale_param_1, .param .align 4 .b8 scale_param_2[12])
.maxntid 128, 1, 1
{
    .shared .align 16 .b8 tile[512];
    ret;
}
.visible .entry paired(.param .u64 paired_param_0)
.reqnctapercluster 2, 1, 1
{
    ret;
}
"""
FATBIN = struct.pack("<IHHQ", 0xBA55ED50, 1, 16, 8) + b"machine!"


class Host:
    """What compiled host code does, in Python: it has pointers and looks at statuses only."""

    def __init__(self) -> None:
        self.driver = Driver()
        self.image = ctypes.create_string_buffer(FATBIN)

    def call(self, name: str, *arguments: object) -> int:
        return self.driver.c_function(name)(*arguments)

    def library(self) -> int:
        library = ctypes.c_void_p()
        image = ctypes.addressof(self.image)
        status = self.call("cudaLibraryLoadData", ctypes.addressof(library), image, 0, 0, 0, 0, 0, 0)
        return library.value if not status else -status

    def kernel(self, name: bytes = b"scale") -> int:
        kernel, text = ctypes.c_void_p(), ctypes.create_string_buffer(name)
        where = ctypes.addressof(kernel)
        status = self.call("cudaLibraryGetKernel", where, self.library(), ctypes.addressof(text))
        return kernel.value if not status else -status

    def launch(self, kernel, grid=(2, 1, 1), block=(128, 1, 1), shared=0, attributes=()) -> int:
        values = [ctypes.c_uint64(0x1234), ctypes.c_uint32(7), (ctypes.c_uint32 * 3)(1, 2, 3)]
        pointers = (ctypes.c_void_p * 3)(*(ctypes.addressof(value) for value in values))
        packed = b"".join(struct.pack("<I4xIII52x", number, *value) for number, value in attributes)
        extra = ctypes.create_string_buffer(packed, len(packed) + 1)
        at, count = ctypes.addressof(extra), len(attributes)
        config = ctypes.create_string_buffer(struct.pack("<6IQQQI4x", *grid, *block, shared, 0, at, count))
        return self.call("cudaLaunchKernelEx", ctypes.addressof(config), kernel, ctypes.addressof(pointers))

    def number(self, name: str, *arguments: int) -> int:
        value = ctypes.c_int32(-1)
        assert self.call(name, ctypes.addressof(value), *arguments) == 0, self.driver.failures.take()
        return value.value

    def failure(self) -> str:
        error = self.driver.failures.take()
        assert isinstance(error, HostCallError)
        return str(error)


@pytest.fixture
def host():
    made = Host()
    made.driver.add_image(PTX)
    return made


@pytest.fixture(autouse=True)
def device(recording_device):
    with entered(recording_device("90a")) as made:
        yield made


def test_a_launch_reaches_the_executor_with_everything_host_code_said(host, executor, device):
    assert host.launch(host.kernel(), shared=1024) == 0
    (launch,) = executor.launches
    assert (launch.kernel, launch.ptx) == ("scale", PTX)
    assert (launch.grid, launch.block, launch.cluster) == ((2, 1, 1), (128, 1, 1), (1, 1, 1))
    assert launch.dynamic_smem_bytes == 1024
    assert launch.params == [struct.pack("<Q", 0x1234), struct.pack("<I", 7), struct.pack("<III", 1, 2, 3)]
    assert (launch.chip, launch.memory) == (device.chip, device.memory)
    assert device.reports == [launch]


def test_the_older_launch_call_takes_six_integers(host, executor):
    value = ctypes.c_uint64(5)
    pointers = (ctypes.c_void_p * 3)(*[ctypes.addressof(value)] * 3)
    kernel = host.kernel(b"paired")
    assert host.call("cudaLaunchKernel", kernel, 4, 1, 1, 64, 2, 1, ctypes.addressof(pointers), 16, 0) == 0
    assert executor.launches[0].block == (64, 2, 1)
    assert executor.launches[0].params == [struct.pack("<Q", 5)]


def test_a_cluster_comes_from_the_launch_or_from_the_kernel(host, executor):
    assert host.launch(host.kernel(), attributes=[(4, (2, 1, 1))]) == 0
    assert host.launch(host.kernel(b"paired")) == 0
    assert [launch.cluster for launch in executor.launches] == [(2, 1, 1), (2, 1, 1)]


def test_attributes_that_change_no_result_are_accepted(host, executor):
    assert host.launch(host.kernel(), attributes=[(6, (1, 0, 0)), (2, (0, 0, 0)), (8, (3, 0, 0))]) == 0
    assert len(executor.launches) == 1


@pytest.mark.parametrize(
    ("kernel", "shape", "text"),
    [
        (b"scale", {"grid": (0, 1, 1)}, "empty"),
        (b"scale", {"grid": (1, 65536, 1)}, "too large"),
        (b"scale", {"block": (129, 1, 1)}, "allows 128 threads"),
        (b"scale", {"block": (0, 1, 1)}, "allows 128 threads"),
        (b"paired", {"block": (1025, 1, 1)}, "allows 1024 threads"),
        (b"scale", {"shared": 48 * 1024 - 511}, "48640 are allowed"),
        (b"scale", {"grid": (3, 1, 1), "attributes": [(4, (2, 1, 1))]}, "not a multiple of the cluster"),
        (b"scale", {"grid": (16, 1, 1), "attributes": [(4, (16, 1, 1))]}, "at most 8"),
        (b"paired", {"attributes": [(4, (1, 1, 1))]}, "requires (2, 1, 1)"),
        (b"scale", {"attributes": [(2, (1, 0, 0))]}, "cooperative"),
        (b"scale", {"attributes": [(7, (0, 0, 0))]}, "attribute 7"),
    ],
)
def test_what_the_real_driver_refuses_is_refused(host, executor, kernel, shape, text):
    assert host.launch(host.kernel(kernel), **shape) != 0
    assert text in host.failure()
    assert executor.launches == []


def test_large_shared_memory_and_clusters_are_allowed_once_they_are_asked_for(host, executor):
    kernel = host.kernel()
    assert host.call("cudaKernelSetAttributeForDevice", kernel, 8, 232448 - 512, 0) == 0
    assert host.call("cudaFuncSetAttribute", kernel, 14, 1) == 0
    assert host.launch(kernel, (16, 1, 1), shared=232448 - 512, attributes=[(4, (16, 1, 1))]) == 0
    assert host.call("cudaFuncSetAttribute", kernel, 8, 232449) == 1
    assert "232448 exist" in host.failure()
    assert host.call("cudaFuncSetAttribute", kernel, 8, 232448) == 0
    assert host.launch(kernel, shared=232448) == 1
    assert "512 static" in host.failure()


def test_a_chip_without_clusters_refuses_them(host, recording_device):
    with entered(recording_device("90a", max_cluster_size=1)):
        assert host.launch(host.kernel(), attributes=[(4, (2, 1, 1))]) != 0
    assert "has no clusters" in host.failure()


def test_a_kernel_for_another_chip_is_refused(host, executor, recording_device):
    kernel = host.kernel()
    with entered(recording_device("100a")):
        assert host.launch(kernel) == 209
    assert "compiled for sm_90a" in host.failure()
    assert executor.launches == []


def test_without_a_device_a_launch_fails(host, monkeypatch):
    kernel = host.kernel()
    monkeypatch.setattr("epifuse.emulator.driver.current", lambda: None)
    assert host.launch(kernel) != 0
    assert isinstance(host.driver.failures.take(), NoDeviceError)


@pytest.mark.parametrize("error", [RuntimeError("mistake"), KeyboardInterrupt()])
def test_an_exception_travels_through_c_as_a_status(host, executor, error):
    executor.fail_with = error
    assert host.launch(host.kernel()) == 999
    assert host.driver.failures.take() is error
    assert host.driver.failures.take() is None


def test_failures_belong_to_the_thread_they_happened_in(host, executor):
    executor.fail_with = RuntimeError("theirs")
    thread = threading.Thread(target=lambda: host.launch(host.kernel()))
    thread.start()
    thread.join()
    assert host.driver.failures.take() is None


def test_the_ptx_of_an_image_is_found_by_its_digest():
    host = Host()
    host.driver.add_image(PTX, "of another image")
    assert host.library() == -209
    assert "no PTX is known" in host.failure()
    host.driver.add_image(PTX, hostabi.digest(FATBIN))
    assert host.library() > 0


def test_a_cubin_is_measured_by_its_own_header():
    elf = bytearray(b"\x7fELF".ljust(64, b"\0") + b"sections")
    struct.pack_into("<Q", elf, 40, 64)
    struct.pack_into("<HH", elf, 58, 4, 2)
    image = ctypes.create_string_buffer(bytes(elf) + b"what follows in memory")
    assert hostabi.image_bytes(ctypes.addressof(image)) == bytes(elf)


def test_an_image_of_no_known_kind_is_refused():
    host = Host()
    host.image = ctypes.create_string_buffer(b"\0" * 64)
    assert host.library() == -200


def test_a_kernel_that_the_image_lacks_is_refused_with_those_it_has(host):
    assert host.kernel(b"scales") == -500
    assert "scale, paired" in host.failure()


@pytest.mark.parametrize("call", ["cudaLibraryUnload", "cudaLibraryGetKernel"])
def test_a_handle_that_is_none_of_ours_is_refused(host, call):
    arguments = (0x55,) if call == "cudaLibraryUnload" else (0, 0x55, ctypes.addressof(host.image))
    assert host.call(call, *arguments) == 400


def test_a_call_that_nobody_answers_is_named(host):
    assert host.call("cudaGraphLaunch") == 801
    assert "cudaGraphLaunch is not emulated" in host.failure()


def test_the_device_answers_for_its_chip(host, recording_device):
    assert host.number("cudaDeviceGetAttribute", 16, 0) == 132
    assert host.number("cudaDeviceGetAttribute", 97, 0) == 232448
    assert [host.number("cudaDeviceGetAttribute", number, 0) for number in (75, 76)] == [9, 0]
    with entered(recording_device("100a", sm_count=2)):
        assert host.number("cudaDeviceGetAttribute", 16, 0) == 2
        assert host.number("cudaDeviceGetAttribute", 75, 0) == 10
    assert (host.number("cudaGetDevice"), host.number("cudaGetDeviceCount")) == (0, 1)
    assert host.call("cudaSetDevice", 0) == 0
    assert host.call("cudaSetDevice", 1) == 101


def test_an_unknown_device_attribute_is_named(host):
    value = ctypes.c_int32()
    assert host.call("cudaDeviceGetAttribute", ctypes.addressof(value), 4711, 0) == 1
    assert "4711" in host.failure()


def test_a_kernel_answers_what_its_ptx_says(host):
    kernel = host.kernel()
    assert host.number("cuKernelGetAttribute", 0, kernel, 0) == 128
    assert host.number("cuKernelGetAttribute", 1, kernel, 0) == 512
    assert host.number("cudaOccupancyMaxActiveBlocksPerMultiprocessor", kernel, 128, 100_000) == 2


def test_memory_calls_act_on_host_memory(host):
    source, to = ctypes.create_string_buffer(b"abcd"), ctypes.create_string_buffer(4)
    assert host.call("cudaMemcpyAsync", ctypes.addressof(to), ctypes.addressof(source), 4, 1, 0) == 0
    assert to.raw == b"abcd"
    assert host.call("cudaMemset", ctypes.addressof(to), 0x7A, 2) == 0
    assert to.raw == b"zzcd"


@pytest.mark.parametrize(
    ("chip", "target", "runs"),
    [
        ("100a", "sm_100a", True),
        ("100a", "sm_100f", True),
        ("103a", "sm_100f", True),
        ("103a", "sm_100a", False),
        ("100a", "sm_103f", False),
        ("86", "sm_80", True),
        ("80", "sm_86", False),
        ("90a", "sm_80", False),
        ("90a", "90a", True),
        ("90a", "nonsense", False),
    ],
)
def test_which_images_a_chip_runs(recording_device, chip, target, runs):
    assert queries.runs_image_for(recording_device(chip).chip, target) is runs


def test_how_many_clusters_fit(recording_device):
    chip = recording_device("90a", sm_count=5).chip
    assert [queries.active_clusters(chip, size) for size in (1, 2, 8)] == [5, 2, 1]
    with pytest.raises(HostCallError, match="clusters of 32"):
        queries.active_clusters(chip, 32)
