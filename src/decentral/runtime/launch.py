"""Carry out a run: in this process, in new processes, or in the world that torchrun started."""

from __future__ import annotations

import contextlib
import gc
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from decentral.config.identity import run_directory, run_id
from decentral.config.parsing import dump
from decentral.config.schema import Config
from decentral.errors import ConfigError
from decentral.host.machine import num_gpus, without_garbage_collection
from decentral.host.processes import no_silent_end
from decentral.host.torch_state import keep_freed_memory
from decentral.host.torchrun import check_launcher, place, under_torchrun
from decentral.runtime.devices import device_kind, num_processes, set_threads
from decentral.store import RunStore, Status
from decentral.store.failures import Failure, RunFailed
from decentral.store.run_store import id_in_config
from decentral.terminal.console import is_leader

if TYPE_CHECKING:
    from decentral.runtime.supervise import Part


class Outcome(NamedTuple):
    """The status and directory of a run, and whether it had been done before."""

    status: Status
    directory: Path
    done_before: bool = False


def launch(config: Config) -> Outcome:
    """Carry out a (resolved) run, unless its directory says that it is done and `rerun` is false.

    With `rerun=true` what a finished run has stored is set aside, into its folder `before`, until the new one is
    finished, and put back if that is refused. A run that is not finished goes on: the same command, given again after
    an interruption, loses nothing. Raises ConfigError for what cannot work, `failures.RunFailed` if a process of the
    run died.
    """
    check_launcher()
    directory = run_directory(config)
    if under_torchrun():
        return _join(config, directory)
    finished = RunStore.finished(directory, run_id(config))
    if finished is not None and not config.rerun:
        if id_in_config(directory) is None:  # somebody has emptied the file
            with contextlib.suppress(ConfigError, OSError):  # a copy that cannot be written is left as it is
                RunStore.open(directory, run_id(config), dump(config)).close()
        return Outcome(finished, directory, done_before=True)
    return Outcome(in_processes(config, directory), directory)


def _begun_again(config: Config, directory: Path) -> Config:
    """Set aside what a finished run has stored if `rerun=true`; return the configuration to carry out."""
    if config.rerun and is_leader() and RunStore.finished(directory, run_id(config)) is not None:
        RunStore.forget(directory, run_id(config))
    return replace(config, rerun=False)


def in_processes(config: Config, directory: Path, part: Part | None = None) -> Status:
    """Carry out the run, or another `part` of its configuration, in this process or in `num_processes` new ones."""
    processes = num_processes(config)
    threads = set_threads(processes, config.task.useful_processes(config) > 1)
    if processes == 1:
        config.task.prepare(config)
        return _here(config, directory, threads, part)
    from decentral.runtime.supervise import prepare_server, supervise

    prepare_server()  # first: whatever prepares the data may start it
    config.task.prepare(config)
    return supervise(_begun_again(config, directory), directory, processes, part)


def _here(config: Config, directory: Path, threads: int, part: Part | None) -> Status:
    first = "torch" not in sys.modules
    with without_garbage_collection():
        import torch

        from decentral.network.world import World
        from decentral.training.run import run

        if first:
            gc.freeze()  # nor later among these
    torch.set_num_threads(threads)
    keep_freed_memory()
    kind = device_kind(config)
    if kind == "cuda" and not torch.cuda.is_available():
        raise ConfigError(f"device={config.device} finds a GPU, but this PyTorch cannot use it: use device=cpu.")
    if kind == "cuda":
        index = int(config.device.partition(":")[2] or 0)
        torch.cuda.set_device(index)
    device = torch.device("cuda", torch.cuda.current_device()) if kind == "cuda" else torch.device("cpu")
    config = _begun_again(config, directory)
    ended = RunFailed("its code, such as your own model, called os._exit(0)", Failure.error)
    with no_silent_end(ended):
        return (part or run)(config, World(0, 1, device), directory)


def _join(config: Config, directory: Path) -> Outcome:
    """Carry out the run as one of the processes that torchrun started, whatever `processes` says."""
    rank, size, local_rank, here, attempt = place()
    assert config.num_workers is not None
    if size > config.num_workers:
        raise ConfigError(
            f"torchrun started {size} processes for num_workers={config.num_workers}: start at most one process per "
            "worker."
        )
    if device_kind(config) == "cuda" and here > num_gpus():
        raise ConfigError(
            f"torchrun started {here} processes for {num_gpus()} GPUs: start at most one process per GPU."
        )
    config.task.prepare(config)
    set_threads(here, config.task.useful_processes(config) > 1)
    from decentral.runtime.process_group import joined, stay_on_this_machine
    from decentral.training.run import run

    if here == size:
        stay_on_this_machine()
    with joined(config, rank, size, local_rank, attempt, run_id(config)) as world:
        config = _begun_again(config, directory)
        finished = RunStore.finished(directory, run_id(config)) if world.leader else None
        codes = [None, Status.done, Status.diverged]
        finished = codes[world.agree(codes.index(finished))]
        if finished is not None:
            return Outcome(finished, directory, done_before=True)
        return Outcome(run(config, world, directory), directory)
