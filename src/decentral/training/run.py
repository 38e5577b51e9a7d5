"""One run: steps, with evaluations and checkpoints in between. Names no algorithm, data set or topology."""

from __future__ import annotations

import math
from pathlib import Path

import torch

from decentral.config.schema import Config
from decentral.host.interrupt import Interrupt
from decentral.network.world import World
from decentral.store import RunStore, Status
from decentral.store.checkpoints import Written
from decentral.tasks.evaluation import Scope
from decentral.terminal.progress import Progress
from decentral.training import faults
from decentral.training.assemble import Run, assemble
from decentral.training.checkpoint import from_parts, to_part
from decentral.training.evaluation import Evaluation, evaluate
from decentral.training.keeping import Keeper
from decentral.training.oracle import TrainLosses
from decentral.training.recorder import Recorder
from decentral.training.times import Stopwatch, Times
from decentral.training.votes import Votes


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
            error.add_note(f"in step {assembled.stepper.t}")
            raise
        finally:
            assembled.close()


def evaluates_at(t: int, r: Run) -> bool:
    """Whether to evaluate after t steps: before the first, every `evaluation.every_epochs`, and after the last."""
    number = t / r.eval_every_steps  # evaluation i is after round(i * eval_every_steps) steps
    regular = any(round(i * r.eval_every_steps) == t for i in (math.floor(number), math.ceil(number)))
    return t == r.total_steps or (regular and (t > 0 or r.config.evaluation.initial))


def loop(r: Run, recorder: Recorder, progress: Progress, interrupt: Interrupt) -> tuple[Status, int]:
    """Steps start ... total_steps - 1 with evaluations in between; returns how it ended, and after which step."""
    oracle, stepper, injector = r.oracle, r.stepper, faults.injector(r.world.rank, recorder.store.path)
    stopwatch = Stopwatch(r.times, lambda: r.net.waited_s)
    votes, keeper = Votes(r.world, r.start), Keeper(r, recorder.store)
    for t in range(r.start, r.total_steps + 1):
        evaluated = evaluates_at(t, r) and (t > r.start or t == 0)
        if evaluated:
            stepper.settle()
            synchronize(r.world)
            stopwatch.turn_to("evaluation")
            found = examine(r, t, oracle.take_losses(), recorder, progress)
            if sentence := keeper.evaluated(t, found):
                progress.line(sentence)
            stopwatch.turn_to("steps")
            if found.diverged:
                return Status.diverged, t
        if t == r.total_steps:
            break
        if t > r.start and (evaluated or votes.due(t)):
            checkpoint, stop = votes.ask(t, recorder.checkpoint_due(evaluated), interrupt.requested)
            if checkpoint or stop:
                stepper.settle()
                synchronize(r.world)
                stopwatch.turn_to("checkpoints")
                progress.doing("writing a checkpoint")
                save(r, t, recorder)
                stopwatch.turn_to("steps")
            if stop:
                return Status.interrupted, t
        if injector is not None:
            injector.at(t)
        stepper.step()
        if r.config.trace:
            stepper.settle()
            trace(r, t + 1)
        loss = f"{oracle.recent_loss():.3g}" if progress.due() else ""
        progress.update(t + 1, (t + 1) / r.problem.steps_per_epoch, loss=loss)
    return Status.done, r.total_steps


def trace(r: Run, step: int) -> None:
    """Keep the models of all workers after `step` steps."""
    models = r.net.gather(r.stepper.models)
    if r.trace is not None:
        r.trace.record(step, models)


def examine(r: Run, t: int, train_loss: TrainLosses, recorder: Recorder, progress: Progress) -> Evaluation:
    """Evaluate and record after t steps."""
    if r.config.trace and t == 0:
        trace(r, 0)
    scope = Scope(None if t == r.total_steps else r.examples_on_the_way, progress.doing)
    found = evaluate(r.problem, r.stepper.models, r.net, train_loss, r.world.rank, r.world.size, scope)
    recorder.record(r, t, found, progress)
    return found


def save(r: Run, t: int, recorder: Recorder) -> None:
    """Checkpoint the state after t steps: every process its part, then the leader the manifest."""
    part = to_part(r.stepper.state, r.problem, r.oracle, r.net)
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
    from_parts(parts, checkpoint.step, r.stepper.state, r.problem, r.oracle, r.net)
    r.start = r.stepper.t = checkpoint.step
    r.times = Times.of(float(checkpoint.meta["wall_s"]), checkpoint.meta.get("times_s", {}))
    r.net.bytes_sent, r.net.messages_sent = int(checkpoint.meta["bytes_sent"]), int(checkpoint.meta["messages_sent"])
    if r.trace is not None:
        r.trace.restore(next(part["trace"] for part in parts if "trace" in part))


def synchronize(world: World) -> None:
    """Let the device finish, so that the clock tells the truth."""
    if world.device.type == "cuda":
        torch.cuda.synchronize(world.device)
