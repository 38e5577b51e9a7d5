"""Memory that a step frees stays with the process, alone or one of several: counted in page faults."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest

import page_faults

pytestmark = pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc can be told to keep memory")

A_FEW = 20  # a block of 100 MB has 25,000 pages, or 48 huge ones


def faults_per_block(folder: Path, processes: int, **environment: str) -> list[float]:
    """In each of the processes of a run."""
    ours = {key: value for key, value in os.environ.items() if not key.startswith(("MALLOC_", "GLIBC_TUNABLES"))}
    subprocess.run(
        [sys.executable, page_faults.__file__, str(folder), str(processes)], check=True, env=ours | environment
    )
    return [float((folder / str(rank)).read_text()) for rank in range(processes)]


@pytest.mark.parametrize("processes", [pytest.param(1, marks=pytest.mark.slow), 2])
def test_a_block_that_was_freed_costs_nothing_the_next_time(processes: int, tmp_path: Path) -> None:
    assert max(faults_per_block(tmp_path, processes)) < A_FEW


@pytest.mark.slow
@pytest.mark.parametrize("processes", [1, 2])
@pytest.mark.parametrize("told", [("MALLOC_MMAP_THRESHOLD_", "65536"),
                                  ("GLIBC_TUNABLES", "glibc.malloc.mmap_threshold=65536")])  # fmt: skip
def test_what_the_user_has_told_glibc_counts(told: tuple[str, str], processes: int, tmp_path: Path) -> None:
    assert min(faults_per_block(tmp_path, processes, **dict([told]))) > A_FEW
