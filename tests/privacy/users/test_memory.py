"""Ten million users fit in less than 400 MB, and batches in bounded memory; separate processes."""

from __future__ import annotations

import subprocess
import sys

import pytest

MEASURED = """
import sys
import numpy as np
from streaming_pca.privacy.users import UserShard, UserTable

def status(field):
    # Not ru_maxrss: on Linux that starts at the peak of the process that started this one.
    with open("/proc/self/status") as lines:
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(field))

table = UserTable(300)
random = np.random.default_rng(4)
draw = lambda m: random.integers(1, 2**64, (m, 2), dtype=np.uint64)
def admit_and_add(users):
    table.add(users[table.admit(users)])

admit_and_add(draw(10_000))  # loads what is loaded once
table = UserTable(300)
"""


def measured(script: str) -> list[int]:
    command = [sys.executable, "-c", MEASURED + script]
    ran = subprocess.run(command, capture_output=True, text=True, check=False, timeout=250)
    assert ran.returncode == 0, ran.stderr
    return [int(word) for word in ran.stdout.split()]


@pytest.mark.parametrize("users", [2_000_000, pytest.param(10_000_000, marks=pytest.mark.soak)])
def test_a_user_takes_less_than_40_bytes_while_they_come(users: int) -> None:
    used, nbytes, n = measured(f"""
before = status("VmRSS")
for start in range(0, {users}, 131_072):
    admit_and_add(draw(min(131_072, {users} - start)))
arrays = [getattr(shard, name) for shard in table._shards for name in UserShard.__slots__]
print(status("VmHWM") - before, sum(array.nbytes for array in arrays), len(table))
""")
    print(f"{used / 1e6:.0f} MB of memory, {nbytes / 1e6:.0f} MB of them in the table")
    assert n == users
    assert nbytes <= 18 * n
    # The measurement must include at least the table; otherwise it measures the wrong process.
    assert nbytes < used < 40 * users


@pytest.mark.parametrize("users", ["draw(m)", "np.ones((m, 2), np.uint64)"], ids=["distinct", "one user"])
def test_the_largest_batch_takes_20_bytes_a_record(users: str) -> None:
    used, n = measured(f"""
m = 2**22
users = {users}
before = status("VmRSS")
counted = table.admit(users)
print(status("VmHWM") - before, counted.sum())
""")
    assert n == (1 if "ones" in users else 2**22)
    print(f"{used / 2**22:.1f} bytes a record")
    # 8 MB for rounding by allocators.
    assert 2**22 < used < 20 * 2**22 + 8_000_000
