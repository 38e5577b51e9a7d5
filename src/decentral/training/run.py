"""One run: steps, with evaluations and checkpoints in between. Independent of algorithm, data set and topology."""

from __future__ import annotations

import math

import numpy as np
import torch

from decentral.config.prepared import Prepared
from decentral.host.interrupt import Interrupt
from decentral.host.torch_state import left_as_found
from decentral.network.world import World
from decentral.store import RunStore, Status, checkpoints
from decentral.store.checkpoints import Written
from decentral.tasks.task import Scope
from decentral.terminal.progress import Progress
from decentral.training import faults
from decentral.training.assemble import FEWEST_EVALUATIONS, Run, assemble
from decentral.training.checkpoint import Keeper, from_parts, to_part
from decentral.training.evaluation import Evaluation, evaluate
from decentral.training.operations import go_on_after
from decentral.training.oracle import TrainLosses
from decentral.training.recorder import Recorder
from decentral.training.votes import Stopwatch, Votes


def carry_out(run: Prepared, world: World) -> Status:
    """Execute a run, or the rest of it, together with the other processes of the world; the leader records it."""
    with left_as_found(), torch.no_grad(), Recorder.open(run, world) as recorder:
        assembled = assemble(run, world)
        try:
            restore(assembled, recorder.store, world)
            assembled.problem.prove(assembled.stepper.models, assembled.oracle.draws)
            assembled.hear(world)
            recorder.begin(assembled)
            with Interrupt() as interrupt:
                with recorder.progress(assembled) as progress:
                    status, step = loop(assembled, recorder, progress, interrupt)
                if status is Status.done:
                    recorder.keep_outputs(assembled)
                recorder.keep_operations(assembled)
                recorder.end(assembled, status, step)
            return status
        except Exception as error:
            error.add_note(f"in step {assembled.stepper.t}")
            raise
        finally:
            assembled.close()


def evaluates_at(t: int, r: Run) -> bool:
    """Return whether to evaluate after t steps: before the first, every `evaluation.every_epochs` (or interval of
    simulated seconds), and after the last. A run that ends after simulated seconds divides these, too, by default."""
    evaluation, stop_s, seconds = r.config.evaluation, r.config.stop_after_simulated_s, r.stepper.simulated_s
    every_s = evaluation.every_simulated_s
    if every_s is None and evaluation.every_epochs is None and stop_s is not None:
        every_s = stop_s / FEWEST_EVALUATIONS
    if every_s is not None and t > 0:
        assert seconds is not None
        if seconds // every_s > r.evaluated_s // every_s:
            return True
        if evaluation.every_simulated_s is not None:
            return r.ends_at(t)
    number = t / r.eval_every_steps  # evaluation i is after round(i * eval_every_steps) steps
    regular = any(round(i * r.eval_every_steps) == t for i in (math.floor(number), math.ceil(number)))
    return r.ends_at(t) or (regular and (t > 0 or r.config.evaluation.initial))


def next_evaluation(t: int, r: Run) -> int:
    """Return the step of the next evaluation, unless simulated time decides."""
    i = math.floor(t / r.eval_every_steps)
    while round(i * r.eval_every_steps) <= t:
        i += 1
    return min(round(i * r.eval_every_steps), r.total_steps)


def loop(r: Run, recorder: Recorder, progress: Progress, interrupt: Interrupt) -> tuple[Status, int]:
    """Run steps start ... total_steps - 1 with evaluations in between; return the final status and step."""
    oracle, stepper, injector = r.oracle, r.stepper, faults.injector(r.world.rank, recorder.store.path)
    stopwatch = Stopwatch(r.times, lambda: r.stepper.waited_s + r.oracle.slept_s)
    votes, keeper = Votes(r.world, r.start, patient=r.prepared.kind.asynchronous), Keeper(r, recorder.store)
    voted = -1
    for t in range(r.start, r.total_steps + 1):
        evaluated = evaluates_at(t, r) and (t > r.start or t == 0)
        if evaluated:
            stepper.flush()
            synchronize(r.world)
            stopwatch.turn_to("evaluation")
            losses = oracle.take_losses()
            found = examine(r, t, losses, recorder, progress)
            if ends_early(r, t, found) and r.examples_on_the_way is not None:
                found = examine(r, t, losses, recorder, progress)
            if sentence := keeper.evaluated(t, found):
                progress.line(sentence)
            stopwatch.turn_to("steps")
            if found.diverged:
                return Status.diverged, t
        if r.ends_at(t):
            return Status.done, t
        if t > r.start and (evaluated or votes.due(t)):
            voted = t
            checkpoint, stop = votes.ask(t, recorder.checkpoint_due(evaluated), interrupt.requested)
            if checkpoint or stop:
                stepper.flush()
                synchronize(r.world)
                stopwatch.turn_to("checkpoints")
                progress.doing("writing a checkpoint")
                save(r, t, recorder)
                stopwatch.turn_to("steps")
            if stop:
                return Status.interrupted, t
        if injector is not None:
            injector.at(t)
        if t == r.start or evaluated or t == voted:
            stepper.may_go_on_to(min(votes.next, next_evaluation(t, r)))
        stepper.step()
        loss, simulated = (f"{oracle.recent_loss():.3g}", r.simulated) if progress.due() else ("", "")
        progress.update(t + 1, (t + 1) / r.problem.steps_per_epoch, loss=loss, simulated=simulated)
    raise AssertionError("a run ends within its steps")


def ends_early(r: Run, t: int, found: Evaluation) -> bool:
    """Return whether early stopping ends the run at this evaluation, by the leader's numbers."""
    if r.patience is not None and not r.ends_at(t) and not found.diverged:
        r.ended_early = bool(r.world.agree(r.patience.ends(t, found)))
    return r.ended_early


def examine(r: Run, t: int, train_loss: TrainLosses, recorder: Recorder, progress: Progress) -> Evaluation:
    """Evaluate and record after t steps."""
    r.evaluated_s = r.stepper.simulated_s or 0.0
    scope = Scope(None if r.ends_at(t) else r.examples_on_the_way, progress.doing)
    part = r.world.rank, r.world.size
    compression_stats = getattr(r.stepper.state, "compression_stats", None)
    groups = {} if r.stepper.attendance is None else r.stepper.attendance.groups()
    if attackers := r.attackers:
        groups["honest"] = ~np.isin(np.arange(r.net.n), attackers)
    found = evaluate(r.problem, r.stepper.models, r.net, train_loss, *part, scope, compression_stats, groups)
    recorder.record(r, t, found, progress)
    return found


def save(r: Run, t: int, recorder: Recorder) -> None:
    """Checkpoint the state after t steps: every process writes its part, then the leader the manifest."""
    part = to_part(r.stepper.state, r.problem, r.oracle, r.net) | r.stepper.on_the_way()
    recorder.keep_operations(r)
    written = recorder.store.save_checkpoint_part(t, f"process{r.world.rank}", part)
    recorder.commit(r, t, [Written.unpack(packed) for packed in r.world.collect(written.pack())])


def restore(r: Run, store: RunStore, world: World) -> None:
    """Continue from the newest valid checkpoint, if there is one."""
    checkpoint = store.newest_checkpoint() if world.leader else None
    step = world.agree(checkpoint.step if checkpoint else -1)
    r.rejected = store.rejected_checkpoints
    if r.oracle.recorded is not None and world.leader:
        go_on_after(checkpoint.meta.get("operations") if checkpoint else 0, store.path)
    if step < 0:
        return
    if checkpoint is None:
        checkpoint = checkpoints.at(store.checkpoints, step)
    parts = [checkpoints.load_part(checkpoint, name) for name in checkpoint.parts]
    from_parts(parts, checkpoint.step, r.stepper.state, r.problem, r.oracle, r.net)
    r.stepper.go_on_from(checkpoint.step, parts[0])
    r.start, r.evaluated_s = checkpoint.step, float(checkpoint.meta.get("evaluated_s", 0.0))
    r.times.update({**checkpoint.meta.get("times_s", {}), "steps": float(checkpoint.meta["wall_s"])})
    r.net.traffic.bytes_begun, r.net.traffic.messages_begun = (
        int(checkpoint.meta["bytes_sent"]),
        int(checkpoint.meta["messages_sent"]),
    )


def synchronize(world: World) -> None:
    """Wait for the device, so that timings are correct."""
    if world.device.type == "cuda":
        torch.cuda.synchronize(world.device)
