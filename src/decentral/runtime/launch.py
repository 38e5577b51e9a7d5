"""Carry out a run: in this process, in new processes, or in the world that torchrun started."""

from __future__ import annotations

import contextlib
import gc
import sys
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from decentral.config.prepared import Prepared
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


def launch(run: Prepared) -> Outcome:
    """Carry out a run, unless its directory says that it is done and `rerun` is false.

    With `rerun=true` what a finished run has stored is set aside, into its folder `before`, until the new one is
    finished, and put back if that is refused. A run that is not finished goes on: the same command, given again after
    an interruption, loses nothing. Raises ConfigError for what cannot work, `failures.RunFailed` if a process of the
    run died.
    """
    check_launcher()
    if under_torchrun():
        return _join(run)
    finished = RunStore.finished(run.directory, run.id)
    if finished is not None and not run.rerun:
        if id_in_config(run.directory) is None:  # somebody has emptied the file
            with contextlib.suppress(ConfigError, OSError):  # a copy that cannot be written is left as it is
                RunStore.open(run.directory, run.id, run.text).close()
        return Outcome(finished, run.directory, done_before=True)
    return Outcome(in_processes(run), run.directory)


def _set_aside(run: Prepared) -> None:
    """Set aside what a finished run has stored, with `rerun=true`."""
    if run.rerun and is_leader() and RunStore.finished(run.directory, run.id) is not None:
        RunStore.forget(run.directory, run.id)


def in_processes(run: Prepared, part: Part | None = None) -> Status:
    """Carry out the run, or another `part` that uses its configuration, in this process or in several new ones."""
    processes = num_processes(run)
    threads = set_threads(processes, run.useful_processes > 1)
    if processes > 1:
        from decentral.runtime.supervise import prepare_server, supervise

        prepare_server()  # first: whatever prepares the data may start it
    run.config.task.prepare(run.config)
    if processes == 1:
        return _here(run, threads, part)
    _set_aside(run)
    return supervise(run, processes, part)


def _here(run: Prepared, threads: int, part: Part | None) -> Status:
    first = "torch" not in sys.modules
    with without_garbage_collection():
        import torch

        from decentral.network.world import World
        from decentral.training.run import carry_out

        if first:
            gc.freeze()  # nor later among these
    torch.set_num_threads(threads)
    keep_freed_memory()
    config, kind = run.config, device_kind(run.config)
    if kind == "cuda" and not torch.cuda.is_available():
        raise ConfigError(f"device={config.device} finds a GPU, but this PyTorch cannot use it: use device=cpu.")
    if kind == "cuda":
        index = int(config.device.partition(":")[2] or 0)
        torch.cuda.set_device(index)
    device = torch.device("cuda", torch.cuda.current_device()) if kind == "cuda" else torch.device("cpu")
    _set_aside(run)
    ended = RunFailed("its code, such as your own model, called os._exit(0)", Failure.error)
    with no_silent_end(ended):
        return (part or carry_out)(run, World(0, 1, device))


def _join(run: Prepared) -> Outcome:
    """Carry out the run as one process of a world that torchrun started; `processes` has no effect."""
    config, (rank, size, local_rank, here, attempt) = run.config, place()
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
    set_threads(here, run.useful_processes > 1)
    from decentral.runtime.process_group import joined, stay_on_this_machine
    from decentral.training.run import carry_out

    if here == size:
        stay_on_this_machine()
    with joined(run, rank, size, local_rank, attempt) as world:
        _set_aside(run)
        finished = RunStore.finished(run.directory, run.id) if world.leader else None
        codes = [None, Status.done, Status.diverged]
        finished = codes[world.agree(codes.index(finished))]
        if finished is not None:
            return Outcome(finished, run.directory, done_before=True)
        return Outcome(carry_out(run, world), run.directory)
