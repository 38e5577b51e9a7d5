"""What a job would take, from carrying out a little of it: in a process of its own, for seconds; nothing is kept."""

from __future__ import annotations

import contextlib
import math
import os
import resource
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial, singledispatch
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from decentral.config.schema import Config
from decentral.host.orphans import die_with_parent
from decentral.jobs.computation import Computation
from decentral.jobs.training_run import TrainingRun
from decentral.scheduling.job import Job
from decentral.store.failures import describe
from decentral.store.files import size_below
from decentral.store.lines import LineFile

if TYPE_CHECKING:
    import torch

    from decentral.training.assemble import Run

_MOST_STEPS = 200  # more say no more
_SHARE_OF_STEPS, _SHARE_OF_GRADIENTS = 0.6, 0.5  # of the time that a rehearsal has, and of that
_SHARE_OF_EVALUATIONS = 0.3
_MORE = 4  # times as many workers at once in the next attempt
_ROW_BYTES = 150  # of a line of metrics.jsonl
_FILES_BYTES = 12_000  # of the configuration, the status, the provenance and the description of the metrics
_FEW_EXAMPLES = 256
FORK_S = 0.5  # until a process, forked from one that has PyTorch in memory, is there


class Rehearsal(NamedTuple):
    """What was seen. Seconds are those of one process on one core, or on one GPU."""

    start_s: float = 0.0
    """Until the first step."""
    step_s: float = 0.0
    evaluation_s: float = 0.0
    """Of an evaluation before the last one."""
    last_evaluation_s: float = 0.0
    steps_per_epoch: float = 1.0
    total_s: float = 0.0
    """Of all of a job that has no steps."""
    memory_bytes: float = 0.0
    """At its peak, less what PyTorch takes in every process; on a GPU, its memory."""
    shared_bytes: float = 0.0
    """What PyTorch takes, which the processes of a launcher share."""
    row_bytes: float = 0.0
    """That an evaluation adds to the metrics."""
    models_bytes: float = 0.0
    """Of the models that are kept in the end."""
    checkpoint_bytes: float = 0.0
    disk_bytes: float = 0.0
    """Of all results of a job that has no steps."""

    def seconds(self, config: Config) -> float:
        """Of a whole job with this configuration."""
        if self.total_s:
            return self.total_s
        steps, evaluations = self.extent(config)
        on_the_way = max(0, evaluations - 1) * self.evaluation_s
        return self.start_s + steps * self.step_s + on_the_way + self.last_evaluation_s

    def disk(self, config: Config) -> float:
        """Bytes of the results of a job with this configuration."""
        if self.disk_bytes:
            return self.disk_bytes
        return _FILES_BYTES + self.extent(config)[1] * self.row_bytes + self.models_bytes

    def extent(self, config: Config) -> tuple[int, int]:
        """Steps and evaluations of a run."""
        return extent(config, self.steps_per_epoch)


def extent(config: Config, steps_per_epoch: float) -> tuple[int, int]:
    """Steps and evaluations of a run with this configuration."""
    steps = config.steps or max(1, round(config.epochs * steps_per_epoch))
    if (every_s := config.evaluation.every_simulated_s) is not None:
        return steps, min(steps, math.floor(_gradient_s(config) * steps / every_s) + 1) + config.evaluation.initial
    every = max(1.0, (config.evaluation.every_epochs or 1.0) * steps_per_epoch)
    regular = math.floor(steps / every)
    last = round(regular * every) != steps
    return steps, regular + last + config.evaluation.initial


def _gradient_s(config: Config) -> float:
    """Simulated seconds that a step takes at least, on average: a gradient."""
    from decentral.cluster.cluster import VirtualCluster
    from decentral.training.assemble import mean_seconds

    cluster, n = config.cluster, config.num_workers
    if not isinstance(cluster, VirtualCluster) or n is None:
        return 1.0
    times = cluster.gradient_times(n, config.seed)
    return 1.0 if times.passes else mean_seconds(times)


class NotMeasured(Exception):
    """Why there is nothing to see, in a few words."""


@singledispatch
def rehearse(job: Job, limit_s: float, begin: Callable[[], None], show: Callable[[Rehearsal], None]) -> Rehearsal:
    """Carry out a little of a job, for about `limit_s` from where it calls `begin`; `show` takes what is known on the
    way.

    Raises NotMeasured, and whatever the job itself raises.
    """
    raise NotMeasured("this kind is not measured")


@rehearse.register
def _training_run(
    job: TrainingRun, limit_s: float, begin: Callable[[], None], show: Callable[[Rehearsal], None]
) -> Rehearsal:
    """Steps and an evaluation of a run in this process, without a directory."""
    from decentral.network.world import World
    from decentral.training.assemble import assemble

    config = replace(job.config, processes="1", trace=False)
    device = _device(config)
    config.task.prepare(config)
    began = time.process_time()
    run = assemble(config, World(0, 1, device))
    try:
        start_s = FORK_S + time.process_time() - began
        begin()
        step_s = _time_of_a_step(run, limit_s * _SHARE_OF_STEPS)
        seen = Rehearsal(start_s, step_s, steps_per_epoch=run.problem.steps_per_epoch, **_bytes(run))
        show(seen)
        on_the_way, last = _times_of_evaluations(run, limit_s * _SHARE_OF_EVALUATIONS)
        return seen._replace(evaluation_s=on_the_way, last_evaluation_s=last)
    finally:
        run.close()


def _device(config: Config) -> torch.device:
    import torch

    from decentral.runtime.devices import device_kind

    kind = device_kind(config)
    return torch.device(config.device if ":" in config.device else kind)


def _seconds(run: Run, work: Callable[[], object]) -> float:
    """Of a core, whoever else is on this machine; on a GPU by the clock on the wall."""
    from decentral.training.run import synchronize

    clock = time.perf_counter if run.world.device.type == "cuda" else time.process_time
    synchronize(run.world)
    began = clock()
    work()
    synchronize(run.world)
    return clock() - began


def _time_of_a_step(run: Run, limit_s: float) -> float:
    """Seconds; where a step takes longer than there is time for, from the gradients of some workers."""
    import numpy as np

    def gradients(workers: Sequence[int]) -> object:
        return run.problem.gradient(run.stepper.models[: len(workers)], np.zeros(len(workers), dtype=np.int64), workers)

    end = time.monotonic() + limit_s
    if run.net.n > 1:
        gradients_s, number = _of_all(run, gradients, limit_s * _SHARE_OF_GRADIENTS)
        if number < run.net.n and 2 * gradients_s > end - time.monotonic():
            return gradients_s
    step_s = _seconds(run, run.stepper.step)
    times: list[float] = []
    while len(times) < _MOST_STEPS and time.monotonic() + step_s < end:
        times.append(_seconds(run, run.stepper.step))
    run.stepper.settle()
    return sum(times) / len(times) if times else step_s


def _of_all(run: Run, work: Callable[[Sequence[int]], object], limit_s: float) -> tuple[float, int]:
    """Seconds of work for all workers, by that for as many of the first ones as the time allows, and how many those
    are: what is done for several at once takes less for each."""
    end, number = time.monotonic() + limit_s, 1
    _seconds(run, lambda: work([0]))  # what is imported and laid out at the first call is no part of it
    spent_s = _seconds(run, lambda: work([0]))
    while number < run.net.n and time.monotonic() + _MORE * spent_s < end:
        number = min(_MORE * number, run.net.n)
        spent_s = _seconds(run, partial(work, range(number)))
    return spent_s * run.net.n / number, number


def _times_of_evaluations(run: Run, limit_s: float) -> tuple[float, float]:
    """Seconds of an evaluation on the way, and of the last one; where there are test examples, from a few of them."""
    from decentral.tasks.evaluation import WHOLE, Scope
    from decentral.training.evaluation import evaluate

    x, problem, n = run.stepper.models, run.problem, run.net.n
    counts = run.config.task.num_examples(run.config)
    if counts is None:
        losses = run.oracle.take_losses()
        whole_s = _seconds(run, lambda: evaluate(problem, x, run.net, losses, 0, 1, WHOLE))
        return whole_s, whole_s
    few = Scope(min(counts[1], _FEW_EXAMPLES))
    assert few.examples is not None
    mean = run.net.average(x)
    all_s, _ = _of_all(run, lambda workers: problem.worker_statistics(x[: len(workers)], workers, few), limit_s)
    average_s = _seconds(run, lambda: problem.average_statistics(mean, 0, 1, few))
    fixed_s = max(0.0, average_s - all_s / n)  # the statistics of batch norm, whatever the examples
    each_s = all_s * (n + 1) / n / few.examples
    return fixed_s + (run.examples_on_the_way or counts[1]) * each_s, fixed_s + counts[1] * each_s


def _bytes(run: Run) -> dict[str, float]:
    """What its lines, its models and a checkpoint take on the disk."""
    from decentral.config.schema import Save
    from decentral.training.checkpoint import to_part
    from decentral.training.keeping import LIMIT_BYTES, keeps_models

    x, n = run.stepper.models, run.net.n
    part = to_part(run.stepper.state, run.problem, run.oracle, run.net)
    tensors = [value for group in ("rows", "edges", "shared") for value in part[group].values()]
    each = x[0].numel() * x.element_size()
    kept = n + 1 if n * each <= LIMIT_BYTES else 2
    keeps = run.config.save is not Save.none and keeps_models(run.problem)
    return {
        "row_bytes": _ROW_BYTES * (len(run.problem.metrics) * (n + 3) + 3),
        "models_bytes": float(kept * each) if keeps else 0.0,
        "checkpoint_bytes": float(sum(value.numel() * value.element_size() for value in tensors)),
    }


@rehearse.register
def _computation(
    job: Computation, limit_s: float, begin: Callable[[], None], show: Callable[[Rehearsal], None]
) -> Rehearsal:
    """The job itself in a temporary folder, stopped after a while: what it says of its progress is extrapolated."""
    import torch

    if (job.demand.processes or 1) > 1:
        raise NotMeasured("what takes several processes is not measured")
    with tempfile.TemporaryDirectory(prefix="decentral-plan-", ignore_cleanup_errors=True) as folder, torch.no_grad():
        here = replace(job, config=replace(job.config, results_dir=folder))
        here.directory.mkdir(parents=True)
        began, spent = time.monotonic(), time.process_time()
        begin()
        seen = Rehearsal()

        def tell(fraction: float, text: str) -> None:
            nonlocal seen
            if fraction > 0:
                disk = size_below(here.directory) / fraction + _FILES_BYTES
                seen = Rehearsal(total_s=FORK_S + (time.process_time() - spent) / fraction, disk_bytes=disk)
                show(seen)

        with closing(LineFile(here.directory / here.lines)) as lines:
            if here.work(lines, lambda: time.monotonic() - began > limit_s, tell):
                tell(1.0, "")
    if not seen.total_s:
        raise NotMeasured(f"{limit_s:.0f} s are too short for a part of it")
    return seen


def rehearse_main(job: Job, limit_s: float, pipe: Connection, environment: dict[str, str]) -> None:
    """In a process of its own: ("begun", None), then ("seen", Rehearsal) as often as there is news, and at the end
    ("over", why it was not measured, or '')."""
    os.setpgid(0, 0)
    die_with_parent(with_group=True)
    os.environ.update(environment)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.dup2(nowhere, 2)
    import torch

    torch.set_num_threads(1)
    before = _resident_bytes()
    why = ""

    def show(seen: Rehearsal) -> None:
        pipe.send(("seen", seen._replace(memory_bytes=_own_memory(before), shared_bytes=before)))

    def begin() -> None:
        pipe.send(("begun", None))

    try:
        with torch.no_grad():
            show(rehearse(job, limit_s, begin, show))
    except NotMeasured as error:
        why = str(error)
    except Exception as error:
        why = describe(error)
    pipe.send(("over", why))
    os._exit(0)


def _own_memory(before: float) -> float:
    torch: Any = sys.modules["torch"]
    if torch.cuda.is_initialized():
        return float(torch.cuda.max_memory_reserved())
    unit = 1 if sys.platform == "darwin" else 1024
    return max(0.0, float(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit) - before)


def _resident_bytes() -> float:
    with contextlib.suppress(OSError):
        return float(int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE"))
    return 0.0
