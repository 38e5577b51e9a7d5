"""Carry out a run: in this process, in new processes, or in the world that torchrun started."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from decentral.config import Config, dump
from decentral.errors import ConfigError
from decentral.identity import run_directory, run_id
from decentral.launch.devices import device_kind, num_gpus, num_processes, set_threads
from decentral.store import RunStore, Status
from decentral.store.ownership import id_in_config

if TYPE_CHECKING:
    from decentral.launch.entry import Part


class Outcome(NamedTuple):
    """How a run ended, where it is, and whether it had been done before."""

    status: Status
    directory: Path
    done_before: bool = False


def under_torchrun() -> bool:
    """Whether torchrun (or another launcher with its conventions) started this process."""
    return all(key in os.environ for key in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"))


def launch(config: Config) -> Outcome:
    """Carry out a (resolved) run, unless its directory says that it is done.

    Raises ConfigError for what cannot work, `failures.RunFailed` if a process of the run died.
    """
    directory = run_directory(config)
    if under_torchrun():
        return _join(config, directory)
    finished = RunStore.finished(directory, run_id(config))
    if finished is not None:
        _mend(config, directory)
        return Outcome(finished, directory, done_before=True)
    return Outcome(in_processes(config, directory), directory)


def in_processes(config: Config, directory: Path, part: Part | None = None) -> Status:
    """The run, or another `part` that uses its configuration, in this process or in as many new ones as it deserves."""
    processes = num_processes(config)
    threads = set_threads(processes, config.task.worth_processes(config))
    if processes == 1:
        config.task.prepare(config)
        return _here(config, directory, threads, part)
    from decentral.launch.supervise import prepare_server, supervise

    prepare_server()  # first: whatever prepares the data may start it
    config.task.prepare(config)
    return supervise(config, directory, processes, part)


def _mend(config: Config, directory: Path) -> None:
    """Write the configuration of a finished run again if somebody has emptied the file."""
    if id_in_config(directory) is None:
        with contextlib.suppress(ConfigError, OSError):  # a copy that cannot be written is left as it is
            RunStore.open(directory, run_id(config), dump(config)).close()


def _here(config: Config, directory: Path, threads: int, part: Part | None) -> Status:
    import torch

    from decentral.run import run
    from decentral.world import World

    torch.set_num_threads(threads)
    kind = device_kind(config)
    if kind == "cuda" and not torch.cuda.is_available():
        raise ConfigError(f"device={config.device} finds a GPU, but this PyTorch cannot use it: use device=cpu.")
    if kind == "cuda":
        index = int(config.device.partition(":")[2] or 0)
        torch.cuda.set_device(index)
        return (part or run)(config, World(0, 1, torch.device("cuda", index)), directory)
    return (part or run)(config, World(0, 1, torch.device("cpu")), directory)


def _join(config: Config, directory: Path) -> Outcome:
    """One process of a world that torchrun started; as many of them as there are, whatever `processes` says."""
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    assert config.num_workers is not None
    if size > config.num_workers:
        raise ConfigError(
            f"torchrun started {size} processes for num_workers={config.num_workers}: every process hosts at "
            "least one worker."
        )
    here = int(os.environ.get("LOCAL_WORLD_SIZE", size))
    if device_kind(config) == "cuda" and here > num_gpus():
        raise ConfigError(
            f"torchrun started {here} processes for {num_gpus()} GPUs: every process needs one of its own."
        )
    config.task.prepare(config)
    set_threads(here, config.task.worth_processes(config))
    from decentral.launch.group import joined, stay_on_this_machine
    from decentral.run import run

    if here == size:
        stay_on_this_machine()
    attempt = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))
    local_rank = int(os.environ.get("LOCAL_RANK", rank))
    with joined(config, rank, size, local_rank, attempt, run_id(config)) as world:
        finished = RunStore.finished(directory, run_id(config)) if world.leader else None
        codes = [None, Status.done, Status.diverged]
        finished = codes[world.agree(codes.index(finished))]
        if finished is not None:
            return Outcome(finished, directory, done_before=True)
        return Outcome(run(config, world, directory), directory)
