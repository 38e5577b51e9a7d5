"""One run: assemble, loop, evaluate, record. Names no algorithm, data set or topology."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from decentral import faults
from decentral.algorithms.algorithm import Algorithm
from decentral.allocator import keep_freed_memory
from decentral.config import Config
from decentral.evaluation import Evaluation, evaluate
from decentral.interrupt import Interrupt
from decentral.network.local import LocalNetwork
from decentral.network.network import Network
from decentral.network.rounds import Losses
from decentral.optim.optimizer import LocalRule
from decentral.oracle import GradientOracle
from decentral.progress import Progress
from decentral.recorder import Recorder
from decentral.resume import from_parts, rows_into, to_part
from decentral.store import RunStore, Status
from decentral.store.checkpoints import Written
from decentral.tasks.task import Problem
from decentral.trace import Trace
from decentral.wishes import Wishes
from decentral.world import World


@dataclass
class Run:
    """Everything a run needs, assembled; the same on every process but for the workers it hosts."""

    config: Config
    world: World
    problem: Problem
    net: Network
    algorithm: Algorithm
    oracle: GradientOracle
    total_steps: int
    eval_every_steps: float
    trace: Trace | None
    state: Any
    start: int = 0
    wall_s: float = 0.0
    rejected: list[str] = field(default_factory=list)

    def close(self) -> None:
        """Release what the problem and the network hold."""
        self.problem.close()
        self.net.close()


def run(config: Config, world: World, directory: Path) -> Status:
    """Carry out a run, or what is left of it, together with the other processes of the world; the leader records it."""
    with torch.no_grad(), Recorder.open(config, world, directory) as recorder:
        assembled = assemble(config, world)
        try:
            restore(assembled, recorder.store, world)
            recorder.begin(assembled)
            with Interrupt() as interrupt, recorder.progress(assembled) as progress:
                status, step = loop(assembled, recorder, progress, interrupt)
            recorder.end(assembled, status, step)
            return status
        except Exception as error:
            error.add_note(f"in step {assembled.oracle.t}")
            raise
        finally:
            assembled.close()


def assemble(config: Config, world: World) -> Run:
    """The problem, the network and the algorithm of this process, at step 0."""
    assert config.num_workers is not None and config.eval_every_epochs is not None
    keep_freed_memory()
    schedule = config.rounds()
    losses = Losses(config.network.drop_probability, config.seed)
    net: Network
    if world.distributed:
        from decentral.network.processes import join

        net = join(schedule, losses, world.device, world.rank, world.size, config.network)
    else:
        net = LocalNetwork(schedule, losses)
    net.delay_s = config.network.delay_s(net.workers)
    problem = config.task.open(config, net.workers, world.device)
    algorithm = config.algo.using(LocalRule(config.optim, learning_rate(config, problem)))
    x = problem.init(config.seed).repeat(len(net.workers), 1)
    total_steps = config.steps or max(1, round(config.epochs * problem.steps_per_epoch))
    trace = Trace(total_steps, net.n, x) if config.trace and world.leader else None
    state = algorithm.init(x, net)
    return Run(
        config,
        world,
        problem,
        net,
        algorithm,
        GradientOracle(problem, torch.zeros(len(net.workers), device=world.device).double()),
        total_steps,
        max(1.0, config.eval_every_epochs * problem.steps_per_epoch),
        trace,
        state,
    )


def learning_rate(config: Config, problem: Problem) -> Callable[[int], float]:
    """Step -> lr * factor of the schedule."""
    return lambda t: config.lr * config.schedule.factor(t, problem.steps_per_epoch)


def evaluates_at(t: int, r: Run) -> bool:
    """Whether to evaluate after t steps: at step 0, after every `eval_every_epochs`, and after the last step."""
    number = t / r.eval_every_steps  # evaluation i is after round(i * eval_every_steps) steps
    regular = any(round(i * r.eval_every_steps) == t for i in (math.floor(number), math.ceil(number)))
    return t in (0, r.total_steps) or regular


def loop(r: Run, recorder: Recorder, progress: Progress, interrupt: Interrupt) -> tuple[Status, int]:
    """Steps start ... total_steps - 1 with evaluations in between; returns how it ended, and after which step."""
    oracle, injector = r.oracle, faults.injector(r.world.rank, recorder.store.path)
    s, began = r.state, time.perf_counter()
    wishes = Wishes(r.world, r.start)
    for t in range(r.start, r.total_steps + 1):
        evaluated = evaluates_at(t, r) and (t > r.start or t == 0)
        if evaluated:
            s = r.algorithm.settle(s, r.net)
            synchronize(r.world)
            r.wall_s += time.perf_counter() - began
            found = examine(r, s, t, oracle.mean_loss(), recorder, progress)
            if found.diverged:
                return Status.diverged, t
            began = time.perf_counter()
        if t == r.total_steps:
            break
        if t > r.start and (evaluated or wishes.due(t)):
            checkpoint, stop = wishes.ask(t, recorder.checkpoint_due(evaluated), interrupt.requested)
            if checkpoint or stop:
                s = r.algorithm.settle(s, r.net)
                r.wall_s += time.perf_counter() - began
                save(r, s, t, recorder)
                began = time.perf_counter()
            if stop:
                return Status.interrupted, t
        oracle.at(t)
        if injector is not None:
            injector.at(t)
        s = r.algorithm.step(s, oracle, r.net, t)
        if r.config.trace:
            s = r.algorithm.settle(s, r.net)
            models = r.net.gather(r.algorithm.models(s))
            if r.trace is not None:
                r.trace.record(t + 1, models)
        loss = f"{oracle.recent_loss():.3g}" if progress.due() else ""
        progress.update(t + 1, (t + 1) / r.problem.steps_per_epoch, loss=loss)
    return Status.done, r.total_steps


def examine(r: Run, s: Any, t: int, train_loss: Tensor, recorder: Recorder, progress: Progress) -> Evaluation:
    """Evaluate and record after t steps."""
    models = r.algorithm.models(s)
    if r.config.trace and t == 0:
        initial = r.net.gather(models)
        if r.trace is not None:
            r.trace.record(0, initial)
    found = evaluate(r.problem, models, r.net, train_loss, r.world.rank, r.world.size)
    recorder.record(r, t, found, progress)
    return found


def save(r: Run, s: Any, t: int, recorder: Recorder) -> None:
    """Checkpoint the state after t steps: every process its part, then the leader the manifest."""
    part = to_part(s, r.problem, r.net)
    part["rows"]["losses"], part["num_losses"] = r.oracle.losses, r.oracle.count
    if r.trace is not None:
        part["trace"] = r.trace.so_far(t)
    written = recorder.store.save_checkpoint_part(t, f"process{r.world.rank}", part)
    recorder.commit(r, t, [Written.unpack(packed) for packed in r.world.collect(written.pack())])


def restore(r: Run, store: RunStore, world: World) -> None:
    """Continue from the newest valid checkpoint, if there is one."""
    checkpoint = store.newest_checkpoint() if world.leader else None
    step = world.agree(checkpoint.step if checkpoint else -1)
    r.rejected = store.rejected_checkpoints
    if step < 0:
        return
    if checkpoint is None:
        checkpoint = store.checkpoint_at(step)
    parts = [store.load_part(checkpoint, name) for name in checkpoint.parts]
    from_parts(parts, r.state, r.problem, r.net)
    rows_into(parts, "losses", r.net.workers, r.oracle.losses)
    r.oracle.count = int(parts[0]["num_losses"])
    r.start = checkpoint.step
    r.wall_s = float(checkpoint.meta["wall_s"])
    r.net.bytes_sent, r.net.messages_sent = int(checkpoint.meta["bytes_sent"]), int(checkpoint.meta["messages_sent"])
    if r.trace is not None:
        r.trace.restore(next(part["trace"] for part in parts if "trace" in part))


def synchronize(world: World) -> None:
    """Let the device finish, so that the clock tells the truth."""
    if world.device.type == "cuda":
        torch.cuda.synchronize(world.device)
