"""Assemble a run from its configuration: problem, network and method, at step 0."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from torch import Tensor

from decentral.algorithms.algorithm import Algorithm
from decentral.cluster.cluster import VirtualCluster
from decentral.config.prepared import Prepared
from decentral.config.schema import Config
from decentral.host.torch_state import keep_freed_memory
from decentral.network.network import Network
from decentral.network.robust import Adversaries, PlainMixing
from decentral.network.world import World
from decentral.store.models import AVERAGED, load_models
from decentral.tasks.task import Problem
from decentral.terminal.console import duration
from decentral.training.ahead import AheadOracle
from decentral.training.checkpoint import state_fields
from decentral.training.evaluation import scores_of
from decentral.training.method import attendance_of, open_algorithm, open_network
from decentral.training.oracle import GradientOracle
from decentral.training.stepper import Extension, Stepper

if TYPE_CHECKING:
    from decentral.training.early_stop import Patience

_EVALUATIONS = 100  # in a run of a task that does not say how often
FEWEST_EVALUATIONS = 10  # in a run of any other task, after the initial one


@dataclass
class Run:
    """The parts of a run; the same on every process except for its local workers."""

    prepared: Prepared
    world: World
    problem: Problem
    oracle: GradientOracle
    stepper: Stepper
    total_steps: int
    eval_every_steps: float
    num_examples: tuple[int, int] | None
    """Numbers of training and test examples; None without examples."""
    examples_on_the_way: int | None
    """Number of test examples in evaluations before the last one; None for all."""
    start: int = 0
    """Number of steps before this attempt."""
    evaluated_s: float = 0.0
    """The simulated time of the last evaluation."""
    times: Counter[str] = field(default_factory=Counter)
    """Seconds in all attempts so far: `steps`, including waits; of these `waiting` for messages of other processes, or
    asleep as a straggler (averaged over the threads of a process's workers); and, of earlier attempts, `data` and
    `passes`. Besides steps: `evaluation` and `checkpoints`."""
    rejected: list[str] = field(default_factory=list)
    """A sentence for each damaged checkpoint that was skipped."""
    patience: Patience | None = None
    """The early-stopping rule."""
    ended_early: bool = False
    heard: list[str] = field(default_factory=list)
    """Notes that only other processes have."""

    def hear(self, world: World) -> None:
        """Collect the notes of all processes, which call this together."""
        for rank, text in enumerate(world.collect_any("\n".join(self.problem.notes).encode())):
            new = [note for note in text.decode().split("\n") if note and note not in self.problem.notes]
            self.heard += [f"process {rank}: {note}" for note in new]

    def ends_at(self, t: int) -> bool:
        """Return whether the run ends: all steps taken, simulated time over, or no improvement."""
        stop_s, simulated_s = self.config.stop_after_simulated_s, self.stepper.simulated_s
        over = t == self.total_steps or self.ended_early
        return over or (stop_s is not None and simulated_s is not None and simulated_s >= stop_s)

    @property
    def config(self) -> Config:
        """The configuration."""
        return self.prepared.config

    @property
    def net(self) -> Network:
        """The network."""
        return self.stepper.net

    @property
    def algorithm(self) -> Algorithm:
        """The method, with its local rule."""
        return self.stepper.algorithm

    @property
    def attackers(self) -> list[int]:
        """The attackers, ascending."""
        return self.config.attack.attackers(self.net.n, self.config.seed)  # type: ignore[no-any-return]

    @property
    def simulated(self) -> str:
        """Return the current simulated time in words; '' without simulated time."""
        return "" if self.stepper.simulated_s is None else duration(self.stepper.simulated_s)

    @property
    def spent_s(self) -> dict[str, float]:
        """Return the seconds spent on each part, in all attempts.

        passes        in forward and backward passes; on a GPU, where work is queued, until their results are used
        exchange      the rest of the steps: averaging, messages, the optimizer
        waiting       for messages of other processes, or asleep
        data          until batches were ready
        evaluation    in evaluations
        checkpoints   in checkpoints
        """
        times, data = self.times, self.times["data"] + self.problem.data_s
        passes = times["passes"] + self.oracle.seconds - self.problem.data_s
        rest = times["steps"] - data - passes
        waiting = max(0.0, min(times["waiting"], rest))  # while others compute, in threads
        parts = {"passes": passes, "exchange": max(0.0, rest - waiting), "waiting": waiting, "data": data}
        parts |= {"evaluation": times["evaluation"], "checkpoints": times["checkpoints"]}
        return {part: round(value, 6) for part, value in parts.items()}

    def close(self) -> None:
        """Release the resources of the stepper, the problem and the network."""
        self.stepper.close()
        self.problem.close()
        self.net.close()


def assemble(run: Prepared, world: World) -> Run:
    """Create this process's problem, network and algorithm at step 0; all processes call this at once."""
    config = run.config
    keep_freed_memory()
    net = open_network(config, run.rounds, world, has_clock=run.kind.has_clock)
    problem = config.task.open(config, net.workers, world.device)
    attackers = [] if config.attack.flips_labels else config.attack.attackers(net.n, config.seed)
    if attackers or not isinstance(config.robust, PlainMixing):
        net.combine = Adversaries(config.robust, config.attack, frozenset(attackers), config.seed).combine
    if config.accumulate > 1:
        from decentral.training.accumulate import Accumulated

        problem = Accumulated(problem, config.accumulate)
    problem = config.privacy.protect(problem, config, net.workers)
    x0 = problem.init()
    if run.init is not None:
        x0 = problem.begin_with(load_models(run.init)[AVERAGED])
    x = x0.expand(len(net.workers), -1).clone()
    total_steps = config.steps or max(1, round(config.epochs * problem.steps_per_epoch))
    oracle_type = AheadOracle if run.kind.asynchronous else GradientOracle
    oracle = oracle_type(problem, net.workers, world.device, run.local_steps)
    algorithm = open_algorithm(run, problem, net, x, total_steps)
    stepper = open_stepper(run, algorithm, net, oracle, x, total_steps)
    state_fields(stepper.state)  # refuse an unstorable state now, not at the first checkpoint
    patience = None
    if config.trace:
        from decentral.training.trace import Trace

        stepper.extend(Trace(run, world, total_steps))
    if config.early_stop.patience is not None:
        from decentral.training.early_stop import Patience

        patience = Patience(config.early_stop, scores_of(problem))
        stepper.extend(patience)
    counts, epochs = config.task.num_examples(config), total_steps / problem.steps_per_epoch
    every = eval_every_steps(config, problem.steps_per_epoch, total_steps)
    every_epochs = config.evaluation.every_epochs or every / problem.steps_per_epoch
    some = None if counts is None else config.evaluation.on_the_way(counts[0], counts[1], net.n, epochs, every_epochs)
    return Run(run, world, problem, oracle, stepper, total_steps, every, counts, some, patience=patience)


def eval_every_steps(config: Config, steps_per_epoch: float, total_steps: int) -> float:
    """Return the number of steps between two evaluations: by default those of the task, or fewer in short runs."""
    if config.evaluation.every_epochs is not None:
        return max(1.0, config.evaluation.every_epochs * steps_per_epoch)
    if config.task.eval_every_epochs is not None:
        return max(1.0, min(config.task.eval_every_epochs * steps_per_epoch, total_steps / FEWEST_EVALUATIONS))
    if config.stop_after_simulated_s is not None:  # the number of steps is unknown
        return 1.0
    return max(1.0, round(total_steps / _EVALUATIONS))


def open_stepper(
    run: Prepared, algorithm: Algorithm, net: Network, oracle: GradientOracle, x: Tensor, total_steps: int
) -> Stepper:
    """Create the stepper with its extensions, in this order: time, probe, attendance, adaptation.

    `assemble` appends the trace and early stopping.
    """
    config = run.config
    if config.record_operations:
        from decentral.training.operations import record

        record(oracle, net, run.kind)
    if run.kind.asynchronous:
        from decentral.training.asynchronous import open_asynchronous

        return open_asynchronous(run, algorithm, net, oracle, x, total_steps)
    attendance, extensions = attendance_of(config, algorithm, net, oracle, total_steps), list[Extension]()
    if isinstance(config.cluster, VirtualCluster):
        from decentral.training.clock import time_of

        extensions = time_of(run, net, oracle, x, total_steps, attendance)
    if config.network.measure:
        from decentral.training.probe import Probe

        extensions.append(Probe(config, net))
    stepper = Stepper(algorithm, net, oracle, x, extensions, attendance)
    if config.compress.adapts:
        from decentral.training.adaptive import Adaptation

        stepper.extend(Adaptation(stepper))
    return stepper
