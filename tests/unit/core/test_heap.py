"""Memory that is used again: the kernel need not find its pages anew."""

import platform
import subprocess
import sys

import pytest

# Six pieces of 4 MiB at a time, as a server has them, twenty times; prints how many pages were found anew.
_PROGRAM = """
import resource, sys
from mainstem.core.heap import keep_freed_memory

if sys.argv[1] == "kept":
    keep_freed_memory()
for turn in range(21):
    pieces = [b"x" * (4 << 20) for _ in range(6)]
    del pieces
    if turn == 0:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""

# What eight threads used at one time, and no more; prints how many MiB the process has after it.
_THREADS = """
import threading
from pathlib import Path
from mainstem.core.heap import give_back_freed_memory, keep_freed_memory

def use():
    pieces = [b"x" * (4 << 20) for _ in range(12)]
    together.wait()

keep_freed_memory()
together = threading.Barrier(8)
threads = [threading.Thread(target=use) for _ in range(8)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
give_back_freed_memory()
(line,) = [line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmRSS")]
print(int(line.split()[1]) >> 10)
"""


def faults(how: str) -> int:
    # With one place to take memory from, as the main thread has.
    done = subprocess.run([sys.executable, "-c", _PROGRAM, how], capture_output=True, text=True, check=True)
    return int(done.stdout)


glibc_only = pytest.mark.skipif(
    platform.libc_ver()[0] != "glibc", reason="says how glibc keeps memory; elsewhere nothing is set"
)


@glibc_only
def test_what_was_freed_is_used_again():
    assert faults("kept") < 1_000
    # Without it nearly all of the 120 times 1,024 pages.
    assert faults("not kept") > 10_000


@glibc_only
def test_what_is_not_used_again_is_given_back():
    done = subprocess.run([sys.executable, "-c", _THREADS], capture_output=True, text=True, check=True)
    assert int(done.stdout) < 100  # of 384
