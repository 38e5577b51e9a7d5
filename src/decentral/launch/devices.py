"""Which devices there are and how many processes a run deserves, without importing torch."""

from __future__ import annotations

import os
import subprocess
from glob import glob

from decentral.config import Config
from decentral.errors import ConfigError
from decentral.precision import Precision

_USER_THREADS = os.environ.get("OMP_NUM_THREADS")


_share_of_cores: int | None = None


def num_cores() -> int:
    """Cores that this process may use."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return cores if _share_of_cores is None else min(cores, _share_of_cores)


def share_cores(count: int) -> None:
    """Use no more than `count` cores in this process from now on: others run beside it."""
    global _share_of_cores
    _share_of_cores = count


def num_gpus() -> int:
    """GPUs that this process may use, by the device nodes and CUDA_VISIBLE_DEVICES."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    present = len(glob("/dev/nvidia[0-9]*"))
    if visible is None:
        return present
    return min(present, len([entry for entry in visible.split(",") if entry.strip() not in ("", "-1")]))


def visible_gpus() -> list[str]:
    """The GPUs that this process may use, as CUDA_VISIBLE_DEVICES would name them."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    named = [str(i) for i in range(num_gpus())] if visible is None else [v.strip() for v in visible.split(",")]
    return named[: num_gpus()]


def free_gpu_memory() -> dict[str, int]:
    """GPU, as CUDA_VISIBLE_DEVICES names it (number and uuid) -> free bytes. {} if the driver does not tell."""
    query = ["nvidia-smi", "--query-gpu=index,uuid,memory.free", "--format=csv,noheader,nounits"]
    try:
        told = subprocess.run(query, capture_output=True, text=True, timeout=10, check=True).stdout
        rows = [[cell.strip() for cell in line.split(",")] for line in told.splitlines()]
        return {name: int(free) << 20 for index, uuid, free in rows for name in (index, uuid)}
    except (OSError, ValueError, subprocess.SubprocessError):
        return {}


def device_kind(config: Config) -> str:
    """'cpu' or 'cuda'. Raises ConfigError for a GPU that is not there, and for a precision that the device lacks."""
    kind = kind_of(config.device, num_gpus())
    if kind == "cpu" and config.precision is Precision.tf32:
        raise ConfigError(
            "precision=tf32 is arithmetic of GPUs, and this run is on the CPU: use precision=fp32, or bf16 for speed."
        )
    return kind


def kind_of(device: str, gpus: int) -> str:
    """'cpu' or 'cuda', for `device` (cpu, cuda, cuda:N or auto) on a machine with so many GPUs.

    Raises ConfigError for a GPU that is not there.
    """
    if device == "auto":
        return "cuda" if gpus else "cpu"
    kind, _, number = device.partition(":")
    if kind == "cuda" and not gpus:
        raise ConfigError(f"device={device} needs a GPU, and this machine shows none: use device=cpu or device=auto.")
    if number and int(number) >= gpus:
        known = "cuda:0" if gpus == 1 else f"cuda:0 to cuda:{gpus - 1}"
        raise ConfigError(f"device={device} is not there: this machine shows {known}; device=cuda takes what is free.")
    return kind


def num_processes(config: Config) -> int:
    """How many processes host the workers: what was asked for, or one per core (or GPU) where steps are long enough.

    Raises ConfigError for more processes than GPUs.
    """
    assert config.num_workers is not None
    kind = device_kind(config)
    if config.processes != "auto":
        count = int(config.processes)
        if kind == "cuda" and count > max(1, num_gpus()):
            raise ConfigError(
                f"processes={count} is more than the {num_gpus()} GPUs here: every process needs one of its own."
            )
        return count
    slots = num_gpus() if kind == "cuda" else num_cores()
    return max(1, min(slots, config.num_workers)) if config.task.worth_processes(config) else 1


def set_threads(processes: int, worth_threads: bool) -> int:
    """Share the cores out: how many threads a process gets, also through the environment, for child processes.

    With threads left at their default, n processes start n times as many as there are cores, and a step takes ten times
    as long. Someone who has set OMP_NUM_THREADS knows better.
    """
    threads = max(1, num_cores() // processes) if worth_threads else 1
    if _USER_THREADS is not None and _USER_THREADS.isdigit() and int(_USER_THREADS) > 0:
        threads = int(_USER_THREADS)
    os.environ["OMP_NUM_THREADS"] = str(threads)
    if processes > 1:  # keep freed memory: large temporary tensors would cost a page fault per 4 kB, in every step
        os.environ.setdefault("MALLOC_MMAP_THRESHOLD_", str(4 << 30))
        os.environ.setdefault("MALLOC_TRIM_THRESHOLD_", str(4 << 30))
    return threads
