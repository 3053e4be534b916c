"""Memory that is kept: by the page faults of a process that frees a large block and asks for it again."""

import subprocess
import sys

from revisit.engine import freed_memory

FAULTS = """
import resource
from revisit.engine.freed_memory import keep_freed_memory
{}
def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt
counts = []
for _ in range(3):
    before = faults()
    block = bytearray(2**26)  # larger than glibc ever keeps by itself
    del block
    counts.append(faults() - before)
print(counts[0], counts[-1])
"""


def faults(before: str) -> tuple[int, int]:
    """Page faults as a block of 64 MiB is taken for the first and for the third time, after this statement."""
    ran = subprocess.run([sys.executable, "-c", FAULTS.format(before)], capture_output=True, text=True, check=True)
    first, third = map(int, ran.stdout.split())
    return first, third


def test_a_large_block_that_was_freed_costs_no_page_faults_again():
    first, third = faults("assert keep_freed_memory('cpu')")
    assert third < first / 100
    first, third = faults("keep_freed_memory('cuda')")
    assert third > first / 2


def test_a_c_library_without_the_option_changes_nothing(monkeypatch):
    monkeypatch.setattr(freed_memory.ctypes, "CDLL", lambda name: object())
    assert not freed_memory.keep_freed_memory("cpu")
