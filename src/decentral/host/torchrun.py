"""The place of this process among those that torchrun or another launcher started."""

from __future__ import annotations

import os
import sys
from typing import NamedTuple

from decentral.errors import ConfigError

_TORCHRUN = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
_LAUNCHERS = [
    ("WORLD_SIZE", "RANK"),
    ("LOCAL_WORLD_SIZE", "LOCAL_RANK"),
    ("OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK"),
    ("PMI_SIZE", "PMI_RANK"),
    ("PMIX_SIZE", "PMIX_RANK"),
    ("MV2_COMM_WORLD_SIZE", "MV2_COMM_WORLD_RANK"),
    ("SLURM_STEP_NUM_TASKS", "SLURM_PROCID"),
]
"""Variables of launchers: the number of processes, and which of them this is."""


def under_torchrun() -> bool:
    """Return whether torchrun, or a launcher with its conventions, started this process."""
    return all(key in os.environ for key in _TORCHRUN)


def check_launcher(joins: bool = True) -> None:
    """Raise ConfigError if a launcher started this process as one of several that would work alone.

    They work together if torch.distributed is initialized, or if torchrun's variables say where they meet.

    joins  whether the caller joins the processes of torchrun; False: it starts processes itself
    """
    distributed = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_initialized():
        return
    joined = joins and under_torchrun()
    if joined and (os.environ["WORLD_SIZE"] != "1" or "TORCHELASTIC_RUN_ID" in os.environ):
        return
    launchers, in_batch = _LAUNCHERS, "SLURM_JOB_ID" in os.environ and "SLURM_STEP_ID" not in os.environ
    if "SLURM_PROCID" in os.environ and "SLURM_STEP_NUM_TASKS" not in os.environ and not in_batch:
        launchers = [*launchers, ("SLURM_NTASKS", "SLURM_PROCID")]  # in a batch script it counts tasks to come
    for size, rank in launchers:
        number, count = (int(text) if text.isdecimal() else 0 for text in map(os.environ.get, (rank, size), ("", "")))
        if number < 1 and count < 2:
            continue
        told = ", ".join(f"{key}={os.environ[key]}" for key in (rank, size) if key in os.environ)
        missing = " and ".join(key for key in _TORCHRUN if key not in os.environ)
        names = " ".join(key for key in dict.fromkeys((*_TORCHRUN, rank, size)) if key in os.environ)
        why = f"without {missing} each would work alone" if missing else "here each would work alone"
        variables = "" if rank == "RANK" else f", with RANK=${rank} and WORLD_SIZE=${size}"
        program = os.path.basename(sys.argv[0])
        if not joins:
            raise ConfigError(
                f"{told}: {program} starts its processes itself, and would do so in each of several: start it once, "
                f"without a launcher; for variables that another job left, `unset {names}`."
            )
        script = "-m decentral" if program == "decentral-run" else "script.py"
        raise ConfigError(
            f"{told}: a launcher started this as one of several processes, but {why}: use `torchrun "
            f"--nproc-per-node={count if count > 1 else 'N'} {script}`, or set RANK, WORLD_SIZE, MASTER_ADDR (the "
            f"host of rank 0) and MASTER_PORT (a free port there) in every process{variables}; for independent "
            f"processes, or variables that another job left, `unset {names}`."
        )


class Among(NamedTuple):
    """The rank of this process, and the number of processes."""

    rank: int
    size: int
    local_rank: int
    local_size: int
    attempt: int


def place() -> Among:
    """Read torchrun's variables. Raises ConfigError if they are invalid."""
    size, rank = _number("WORLD_SIZE", 1), _number("RANK", 0)
    if rank >= size:
        raise ConfigError(f"RANK={rank} is out of range with WORLD_SIZE={size}: ranks are 0 to {size - 1}.")
    _number("MASTER_PORT", 1, most=65535)
    return Among(
        rank,
        size,
        _number("LOCAL_RANK", 0, otherwise=rank),
        _number("LOCAL_WORLD_SIZE", 1, otherwise=size),
        _number("TORCHELASTIC_RESTART_COUNT", 0, otherwise=0),
    )


def _number(name: str, least: int, most: int = 2**31 - 1, otherwise: int = 0) -> int:
    text = os.environ.get(name, str(otherwise))
    if not (text.isdecimal() and least <= int(text) <= most):
        raise ConfigError(
            f"{name}={text} is invalid: torchrun, or another launcher of this process, must set it to a whole number "
            f"from {least} to {most}."
        )
    return int(text)
