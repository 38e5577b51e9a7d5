"""The cores, GPUs, memory and optional packages of this machine, without importing torch."""

from __future__ import annotations

import gc
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from glob import glob
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

from decentral.errors import ConfigError

_PROCESSOR, _MEMORY = Path("/proc/cpuinfo"), Path("/proc/meminfo")
_GROUP, _GROUPS = Path("/proc/self/cgroup"), "/sys/fs/cgroup"
_BF16 = {"avx512_bf16", "amx_bf16", "bf16", "svebf16"}  # as the kernel names them, on x86 and on Arm
_share_of_cores: int | None = None


class Lazy(ModuleType):
    """`torch = Lazy("torch")`: a module that is imported when something of it is asked for first."""

    def __getattr__(self, name: str) -> Any:
        found = getattr(import_module(self.__name__), name)
        setattr(self, name, found)
        return found


def num_cores() -> int:
    """Return the number of cores that this process may use."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return cores if _share_of_cores is None else min(cores, _share_of_cores)


def share_cores(count: int) -> None:
    """Use no more than `count` cores in this process from now on: others run beside it."""
    global _share_of_cores
    _share_of_cores = count


def computes_bf16() -> bool | None:
    """Return whether the processor has instructions for bfloat16, without which it is many times slower than float32;
    None where the system does not tell."""
    try:
        lines = _PROCESSOR.read_text(encoding="utf-8").splitlines()
    except OSError:
        return None
    flags = [line.partition(":")[2].split() for line in lines if line.lower().startswith(("flags", "features"))]
    return not _BF16.isdisjoint(flags[0]) if flags else None


def num_gpus() -> int:
    """Return the number of GPUs that this process may use, by the device nodes and CUDA_VISIBLE_DEVICES."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    present = len(glob("/dev/nvidia[0-9]*"))
    if visible is None:
        return present
    return min(present, len([entry for entry in visible.split(",") if entry.strip() not in ("", "-1")]))


def visible_gpus() -> list[str]:
    """Return the GPUs that this process may use, as CUDA_VISIBLE_DEVICES would name them."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    named = [str(i) for i in range(num_gpus())] if visible is None else [v.strip() for v in visible.split(",")]
    return named[: num_gpus()]


def free_gpu_memory() -> dict[str, int]:
    """Return GPU, as CUDA_VISIBLE_DEVICES names it (number and uuid) -> free bytes; {} if the driver does not tell."""
    query = ["nvidia-smi", "--query-gpu=index,uuid,memory.free", "--format=csv,noheader,nounits"]
    try:
        told = subprocess.run(query, capture_output=True, text=True, timeout=10, check=True).stdout
        rows = [[cell.strip() for cell in line.split(",")] for line in told.splitlines()]
        return {name: int(free) << 20 for index, uuid, free in rows for name in (index, uuid)}
    except (OSError, ValueError, subprocess.SubprocessError):
        return {}


@contextmanager
def without_garbage_collection() -> Iterator[None]:
    """Disable garbage collection where many objects are made that stay: it takes a fifth of the time of importing
    torch, and of drawing a figure."""
    before = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if before:
            gc.enable()


def refuse_if_too_large(setting: str, num_bytes: float) -> None:
    """Raise ConfigError if `setting`, as key=value, needs more memory than this machine has available."""
    there = available_memory()
    if num_bytes > there:
        raise ConfigError(
            f"{setting} is too large: its numbers alone are {num_bytes / 1e9:,.0f} GB, and this machine has "
            f"{there / 1e9:,.0f} GB of memory available."
        )


def available_memory() -> int:
    """Return the number of bytes, with swap space, that processes can still allocate: the kernel's estimate, and at
    most what the control group of this process has left. Where the system tells neither, all memory counts."""
    free = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    with suppress(OSError, ValueError, KeyError):
        sizes = dict(line.split(":") for line in _MEMORY.read_text(encoding="utf-8").splitlines())
        free = sum(int(sizes[key].split()[0]) << 10 for key in ("MemAvailable", "SwapFree"))
    with suppress(OSError, ValueError):
        group = Path(_GROUPS + _GROUP.read_text(encoding="utf-8").rpartition("::")[2].strip())
        most, used = ((group / name).read_text(encoding="utf-8").split() for name in ("memory.max", "memory.stat"))
        free = min(free, int(most[0]) - int(used[1]))  # used: anonymous pages
    return free


def require(package: str, setting: str, cure: str) -> None:
    """Raise ConfigError unless `package`, which `setting` needs, is installed; without importing it."""
    spec = find_spec(package)
    if spec is None or spec.origin is None:  # a mere folder of that name in the current directory has no origin
        raise ConfigError(f"{setting} needs the package '{package}': {cure}.")
