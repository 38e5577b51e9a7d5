"""The kind of device of a run and its numbers of processes and threads, without importing torch."""

from __future__ import annotations

import os

from decentral.config.prepared import Prepared
from decentral.config.schema import Config
from decentral.errors import ConfigError
from decentral.gradients.precision import Precision
from decentral.host.machine import computes_bf16, num_cores, num_gpus

_USER_THREADS = os.environ.get("OMP_NUM_THREADS")


def device_kind(config: Config) -> str:
    """'cpu' or 'cuda'. Raises ConfigError for a GPU that is not there, and for a precision that the device lacks."""
    kind = kind_of(config.device, num_gpus())
    for key, precision in _precisions(config).items():
        if kind == "cpu" and precision is Precision.tf32:
            raise ConfigError(f"{key}=tf32 needs a GPU, and this run is on the CPU: use {key}=fp32, or bf16 for speed.")
    return kind


def slow_precision(config: Config) -> str:
    """A sentence if this processor lacks the instructions that the precision is chosen for, else ''."""
    on_cpu = kind_of(config.device, num_gpus()) == "cpu"
    slow = [key for key, precision in _precisions(config).items() if precision is Precision.bf16]
    if not slow or not on_cpu or computes_bf16() is not False:
        return ""
    return (
        f"{slow[0]}=bf16 is slow here: this CPU lacks bfloat16 instructions, and a pass takes many times longer than "
        f"with {slow[0]}=fp32."
    )


def _precisions(config: Config) -> dict[str, Precision]:
    """Return the precisions of training and of tests, by their keys."""
    return {"precision": config.precision, "evaluation.precision": config.evaluation.precision}


def kind_of(device: str, gpus: int) -> str:
    """'cpu' or 'cuda', for `device` (cpu, cuda, cuda:N or auto) on a machine with so many GPUs.

    Raises ConfigError for a GPU that is not there.
    """
    if device == "auto":
        return "cuda" if gpus else "cpu"
    kind, _, number = device.partition(":")
    if kind == "cuda" and not gpus:
        raise ConfigError(f"device={device} needs a GPU, and none is visible here: use device=cpu or device=auto.")
    if number and int(number) >= gpus:
        known = "cuda:0" if gpus == 1 else f"cuda:0 to cuda:{gpus - 1}"
        raise ConfigError(
            f"device={device} does not exist: this machine has {known}; use one of these, or device=cuda for any free "
            "GPU."
        )
    return kind


def num_processes(run: Prepared) -> int:
    """Return the number of processes: `processes`, or one per core (or GPU), but no more than the run is long enough
    for.

    Raises ConfigError for more processes than GPUs, and for several on a certain one.
    """
    config, kind = run.config, device_kind(run.config)
    assert config.num_workers is not None
    if config.processes == "auto" and (run.kind.in_one_process or ":" in config.device):
        return 1
    if config.processes != "auto":
        count = int(config.processes)
        if count > 1 and ":" in config.device:
            raise ConfigError(
                f"processes={count} with device={config.device}: every process needs its own GPU. Use device=cuda, "
                "with CUDA_VISIBLE_DEVICES to choose the GPUs, or leave processes= out."
            )
        if kind == "cuda" and count > max(1, num_gpus()):
            raise ConfigError(f"processes={count} exceeds the {num_gpus()} GPUs here: use at most one process per GPU.")
        return count
    slots = num_gpus() if kind == "cuda" else num_cores()
    return max(1, int(min(slots, config.num_workers, run.useful_processes)))


def set_threads(processes: int, worth_threads: bool) -> int:
    """Share the cores out: return the number of threads of a process; child processes get it by the environment.

    With threads left at their default, n processes start n times as many as there are cores, and a step takes ten times
    as long. Someone who has set OMP_NUM_THREADS knows better.
    """
    threads = max(1, num_cores() // processes) if worth_threads else 1
    if _USER_THREADS is not None and _USER_THREADS.isdigit() and int(_USER_THREADS) > 0:
        threads = int(_USER_THREADS)
    os.environ["OMP_NUM_THREADS"] = str(threads)
    return threads
