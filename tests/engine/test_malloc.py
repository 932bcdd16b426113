"""Memory of blocks is recycled where dask tells the allocator to give it back."""

import os
import platform
import subprocess
import sys

import pytest

from daskmm.engine import malloc

pytestmark = pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="needs glibc's malloc")

# Page faults of twenty blocks of 8 MB, one after the other: before, within, and after.
# The module is loaded by itself, as importing the package takes seconds.
PROGRAM = """
import importlib.util, resource, sys

spec = importlib.util.spec_from_file_location("malloc", sys.argv[1])
spec.loader.exec_module(module := importlib.util.module_from_spec(spec))
memory_recycled = module.memory_recycled

def faults():
    bytes(8 << 20)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(20):
        block = b"x" * (8 << 20)
        del block
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

before = faults()
with memory_recycled():
    with memory_recycled():
        faults()
    within = faults()
print(before, within, faults())
"""
PAGES = 20 * (8 << 20) // 4096


def faults_of(**environment):
    """Page faults before, within and after."""
    plain = {name: value for name, value in os.environ.items() if "MALLOC" not in name}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, malloc.__file__],
        env=plain | environment,
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    return [int(number) for number in done.stdout.split()]


def test_blocks_in_a_worker_reuse_freed_memory_within_the_context():
    before, within, after = faults_of(MALLOC_TRIM_THRESHOLD_="65536")
    assert before > PAGES / 2
    assert within < PAGES / 10
    assert after > PAGES / 2


def test_a_mapping_threshold_that_the_user_set_is_left_unchanged():
    before, within, after = faults_of(
        MALLOC_TRIM_THRESHOLD_="65536", MALLOC_MMAP_THRESHOLD_="65536"
    )
    assert min(before, within, after) > PAGES / 2


def test_blocks_outside_of_workers_reuse_freed_memory_anyway():
    assert faults_of()[1] < PAGES / 10


@pytest.mark.parametrize("threshold", ["99999999999", "nonsense"])
def test_odd_values_of_the_trim_threshold_raise_no_error(threshold):
    assert len(faults_of(MALLOC_TRIM_THRESHOLD_=threshold)) == 3
