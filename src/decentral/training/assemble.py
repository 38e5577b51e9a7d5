"""Assemble a run from its configuration: problem, network and method, at step 0."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from decentral.algorithms.algorithm import Algorithm
from decentral.algorithms.asynchronous import AsynchronousAlgorithm, Team
from decentral.algorithms.features import Feature
from decentral.availability.availability import AlwaysPresent, Schedule
from decentral.cluster.clock import Clock
from decentral.cluster.cluster import Machines, VirtualCluster, WaitsFor
from decentral.cluster.compute import ComputeTimes, GradientTimes
from decentral.cluster.links import CollectiveName, LinkCosts, Links
from decentral.cluster.timeline import Spans
from decentral.compression.rows import RowLayout
from decentral.config.checks import check_probes, goes_by_itself, has_clock, is_virtual
from decentral.config.identity import init_directory
from decentral.config.schema import Config
from decentral.errors import ConfigError
from decentral.gradients.precision import Precision
from decentral.host.torch_state import keep_freed_memory
from decentral.network.asynchronous.mailbox import Mailbox
from decentral.network.collectives import Fastest
from decentral.network.local import LocalNetwork
from decentral.network.network import Network
from decentral.network.processes import ProcessNetwork, join, split_workers
from decentral.network.robust import Adversaries, PlainMixing
from decentral.network.settings import CollectiveChoice
from decentral.network.world import World
from decentral.optim.optimizer import UnevenRule
from decentral.store.models import AVERAGED, load_models
from decentral.tasks.task import Problem
from decentral.terminal.console import duration
from decentral.topology.delivery import Losses
from decentral.topology.present import Absent, PresentRule
from decentral.topology.requirements import check
from decentral.topology.rounds import Need
from decentral.training.adaptive import AdaptiveStepper, Probe
from decentral.training.attendance import Attendance
from decentral.training.between_processes import ThreadedStepper
from decentral.training.checkpoint import state_fields
from decentral.training.early_stop import Patience
from decentral.training.evaluation import scores_of
from decentral.training.given import GivenStepper
from decentral.training.operations import Operations
from decentral.training.oracle import Accumulated, GradientOracle, Sleep, uneven, with_measured
from decentral.training.stepper import Stepper
from decentral.training.virtual import AsynchronousStepper

_STEPS_AVERAGED = 256
_LONGEST_TRACE = 8 << 30  # bytes
_FEW_WORKERS = 128
_FEW = 1 << 20  # numbers, which take a millisecond or two
_EVALUATIONS = 100  # in a run of a task that does not say how often


@dataclass
class Run:
    """Everything a run needs; the same on every process except for its local workers."""

    config: Config
    world: World
    problem: Problem
    oracle: GradientOracle
    stepper: Stepper
    total_steps: int
    eval_every_steps: float
    examples_on_the_way: int | None
    """Number of test examples in evaluations before the last one; None for all."""
    trace: Tensor | None
    """[steps + 1, n, P]: the models of all workers after each step, on the leader of a run with trace=true."""
    traced: dict[str, list[Tensor]] = field(default_factory=dict)
    """Per step: each field of the state, with trace=state; `simulated_s` for asynchronous workers."""
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
    def notes(self) -> list[str]:
        """Return notes for readers of the metrics."""
        notes, counts = [*self.problem.notes, *self.heard], self.config.task.num_examples(self.config)
        if attackers := self.attackers:
            numbers = ", ".join(map(str, attackers))
            notes.append(f"attackers (attack={self.config.attack.name}): workers {numbers}")
        if (precision := self.config.evaluation.precision) is not Precision.fp32:
            notes.append(f"tests are in {precision.name} (evaluation.precision)")
        if (part := self.config.evaluation.part) != "all" and counts is not None:
            notes.append(f"tests are on the {part} half of the test examples, {counts[1]} of them (evaluation.part)")
        warmup = getattr(self.config.schedule, "warmup_epochs", 0)
        if warmup > self.total_steps / self.problem.steps_per_epoch:
            notes.append(f"the warm-up of {warmup:g} epochs (schedule.warmup_epochs) is longer than the run")
        notes += self.config.availability.notes(self.config.num_workers)
        attendance = self.stepper.attendance
        if attendance is not None and Need.tree in self.algorithm.needs:
            notes.append("trees that messages are relayed over are not rerouted: edges with an absent end rest")
        if self.examples_on_the_way is not None and counts is not None:
            notes.append(
                f"evaluations before the last one are on {self.examples_on_the_way} of the {counts[1]} test examples"
            )
        return notes

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


def assemble(config: Config, world: World) -> Run:
    """Create this process's problem, network and algorithm at step 0; all processes call this at once."""
    assert config.num_workers is not None
    keep_freed_memory()
    net = open_network(config, world)
    problem = config.task.open(config, net.workers, world.device)
    attackers = [] if config.attack.flips_labels else config.attack.attackers(net.n, config.seed)
    if attackers or not isinstance(config.robust, PlainMixing):
        net.combine = Adversaries(config.robust, config.attack, frozenset(attackers), config.seed).combine
    if config.accumulate > 1:
        problem = Accumulated(problem, config.accumulate)
    x0 = problem.init()
    if config.init is not None:
        x0 = problem.begin_with(load_models(init_directory(config))[AVERAGED])
    x = x0.expand(len(net.workers), -1).clone()
    total_steps = config.steps or max(1, round(config.epochs * problem.steps_per_epoch))
    shape, trace = (total_steps + 1, net.n, x.shape[-1]), None
    if config.trace and world.leader:
        if math.prod(shape) * x.element_size() > _LONGEST_TRACE:
            raise ConfigError(
                f"trace=true would keep {list(shape)} numbers in memory, more than 8 GiB: use fewer steps."
            )
        trace = torch.empty(shape, dtype=x.dtype)
    local_steps = config.local_steps()
    oracle = GradientOracle(problem, net.workers, world.device, local_steps)
    own = config.own("lr")
    rates = None if own is None else torch.from_numpy(own[net.workers.start : net.workers.stop, None]).to(x)
    lr = learning_rate(config, problem.steps_per_epoch, total_steps, rates)
    changes = config.schedule.group_settings(config.optim, problem.steps_per_epoch, total_steps)
    algorithm = with_rate(config, lr, problem.layout(x[0]), problem.steps_per_epoch, changes)
    if local_steps is not None:
        if changes is not None and any(map(changes, range(min(total_steps, _STEPS_AVERAGED)))):
            raise ConfigError(
                f"steps_per_worker cannot be used with schedule={config.schedule.name}, which changes more than the "
                "learning rate: leave one of them out, or set schedule.cycle_momentum=false."
            )
        algorithm = algorithm.bind(UnevenRule(algorithm.local, local_steps.of(net.workers)), algorithm.compressor)
    stepper = open_stepper(config, algorithm, net, oracle, x, total_steps)
    counts, epochs = config.task.num_examples(config), total_steps / problem.steps_per_epoch
    some = None if counts is None else config.evaluation.on_the_way(counts[0], counts[1], net.n, epochs)
    fields = state_fields(stepper.state)  # refuse an unstorable state now, not at the first checkpoint
    if config.trace == "state":
        rows = [value for _, _, values in fields for value in (values if isinstance(values, tuple) else [values])]
        if sum(each.nbytes for each in rows) * (total_steps + 1) * world.size > _LONGEST_TRACE:
            raise ConfigError("trace=state would keep more than 8 GiB in memory: use fewer steps, or trace=true.")
    return Run(
        config,
        world,
        problem,
        oracle,
        stepper,
        total_steps,
        eval_every_steps(config, problem.steps_per_epoch, total_steps),
        some,
        trace,
        patience=Patience(config.early_stop, scores_of(problem)) if config.early_stop.patience is not None else None,
    )


def eval_every_steps(config: Config, steps_per_epoch: float, total_steps: int) -> float:
    """Return the number of steps between two evaluations."""
    if config.evaluation.every_epochs is not None:
        return max(1.0, config.evaluation.every_epochs * steps_per_epoch)
    if config.stop_after_simulated_s is not None:  # the number of steps is unknown
        return 1.0
    return max(1.0, round(total_steps / _EVALUATIONS))


def open_stepper(
    config: Config, algorithm: Algorithm, net: Network, oracle: GradientOracle, x: Tensor, total_steps: int
) -> Stepper:
    """Create the stepper: synchronous, with a clock if there is a cluster, or asynchronous.

    Between processes stragglers sleep; synchronous methods have the same clock there.
    """
    alone, virtual = isinstance(net, LocalNetwork), isinstance(config.cluster, VirtualCluster)
    by_itself = isinstance(algorithm, AsynchronousAlgorithm) and goes_by_itself(config)
    if config.record_operations:
        recorded = Operations()
        oracle.record(recorded, each=alone)
        if isinstance(net, ProcessNetwork) and not by_itself:

            def note(piece: int, worker: int, what: str, others: list[int]) -> None:
                pushes = net.rounds.num_pieces * (int(oracle.draws[worker - net.workers.start]) - 1) + piece
                recorded.note(worker, what, pushes + (what == "take"), others=others)

            net.note_pushes = note
    attendance = None if by_itself else _attendance(config, algorithm, net, oracle, total_steps)
    if alone and not (by_itself or is_virtual(config)):
        stepper = Stepper(algorithm, net, oracle, x)
        stepper.attendance = attendance
        return stepper
    cluster = config.cluster if isinstance(config.cluster, VirtualCluster) else _EQUALLY_FAST
    times = cluster.gradient_times(net.n, config.seed)
    if alone:
        times = with_measured(times, config, oracle.problem, x)
    times = uneven(times, config)
    sleep = Sleep(times) if virtual and not alone else None
    if not by_itself:
        oracle.sleep = sleep
        timekeeper, described, per_epoch = None, cluster.num_parameters, oracle.problem.steps_per_epoch
        if described is not None and has_clock(config) and known_without_training(config):
            of_steps = described, config.precision.dtype, total_steps
            timekeeper = without_training(config, cluster, times, *of_steps, steps_per_epoch=per_epoch)
            if attendance is not None:
                attendance.timekeeper = timekeeper.attendance
        elif alone or has_clock(config):
            clock = oracle.clock = net.traffic.clock = _clock(config, cluster, times, per_epoch)
            clock.chooses |= config.compress.chooses
            if described is not None:
                clock.bytes_scale = net.traffic.scale = _bytes(config, described) / (x.shape[1] * x.element_size())
        stepper = (AdaptiveStepper if algorithm.compressor.adapts else Stepper)(algorithm, net, oracle, x)
        stepper.attendance = attendance
        stepper.probe = _probe(config, net) if config.network.measure else None
        stepper.timekeeper = timekeeper
        return stepper
    assert isinstance(algorithm, AsynchronousAlgorithm)
    team = Team(config.rounds(), total_steps, config.seed, mean_seconds(times))
    if alone and (events := algorithm.given_events(net.n)):
        return GivenStepper(algorithm, net, oracle, x, team, events)
    if alone:
        machines, described = (times, cluster.costs(net.n)), cluster.num_parameters
        num_bytes = x.shape[1] * x.element_size() if described is None else _bytes(config, described)
        simulated = AsynchronousStepper(
            algorithm, net, oracle, x, team, machines, num_bytes, schedule=schedule_of(config, total_steps)
        )
        simulated.tells_time = has_clock(config)
        return simulated
    mailbox = Mailbox.of(config.network, split_workers(net.n, dist.get_world_size()), x.device)
    return ThreadedStepper(algorithm, net, oracle, x, team, mailbox, sleep)


def schedule_of(config: Config, total_steps: int) -> Schedule | None:
    """Return the schedule of present workers; None: all workers, always."""
    if isinstance(config.availability, AlwaysPresent):
        return None
    found: Schedule = config.availability.open(config.num_workers, config.seed, total_steps)
    return found


def _attendance(config: Config, algorithm: Algorithm, net: Network, oracle: Any, total_steps: int) -> Attendance | None:
    """Return the attendance of workers. Raises ConfigError if, in some step, the topology does not exist for the number
    of present workers, or does not satisfy the method's needs."""
    availability, relays = config.availability, Need.tree in algorithm.needs
    if (schedule := schedule_of(config, total_steps)) is None:
        return None
    absent = Absent.induced if relays else availability.absent
    rule = PresentRule(absent, availability.weights, partial(config.communication.schedule, config.topology))
    attendance = Attendance(availability, schedule, rule, algorithm, net, oracle)
    if absent is Absent.induced or Feature.topology not in algorithm.supports:
        return attendance
    sizes: dict[int, str] = {}
    if availability.in_seconds and net.n <= _FEW_WORKERS:
        sizes = dict.fromkeys(range(availability.least, net.n), "at some time")
    for t in () if availability.in_seconds else range(0, total_steps, algorithm.attends_steps):
        sizes.setdefault(int(attendance.attends(t).sum()), f"in step {t}")
    for m, when in sizes.items():
        if m in (0, 1, net.n):
            continue
        try:
            check(
                rule.schedule(m), algorithm.needs, algorithm.name, config.topology.name, config.topology.weights_given()
            )
        except ConfigError as error:
            or_else = "availability.absent=induced, which keeps the edges among them"
            if config.communication.workers_per_machine > 1:
                or_else = "availability=exactly, with whole machines of present workers"
            raise ConfigError(
                f"availability={availability.name} has {m} workers present {when}, and availability.absent=rerouted "
                f"needs a topology of that size: {error} (Or use {or_else}.)"
            ) from None
    return attendance


def _probe(config: Config, net: Network) -> Probe:
    """Return the probe of the run's network: the real one, or in simulated time the virtual one.

    Between processes gloo and nccl all-reduce by a ring; in shared memory each process sums a share.
    """
    if net.traffic.clock is not None:
        assert isinstance(config.cluster, Machines)
        links = config.cluster.links
        return Probe(net, config.network, links.collective, links.whole_phases)
    collective = CollectiveName.direct if net.facts.get("transport") == "shared_memory" else CollectiveName.ring
    if (choice := config.network.collective) is not CollectiveChoice.library:
        collective = CollectiveName[choice.name]
    return Probe(net, config.network, collective, num_processes=dist.get_world_size())


def _clock(
    config: Config,
    cluster: VirtualCluster,
    times: GradientTimes,
    steps_per_epoch: float | None,
    spans: Spans | None = None,
) -> Clock:
    """Return the clock of a synchronous method, the same on every process: it depends on shared numbers only."""
    n = times.num_workers
    changing = cluster.changing(n, config.seed, steps_per_epoch)
    return Clock(n, times, cluster.costs(n), cluster.waits_for is WaitsFor.everyone, spans, changing)


def without_training(
    config: Config,
    cluster: VirtualCluster,
    times: GradientTimes,
    num_parameters: int,
    dtype: torch.dtype,
    total_steps: int,
    steps_per_epoch: float | None = None,
    spans: Spans | None = None,
) -> Stepper:
    """Return a stepper of a synchronous method with zero models of `num_parameters`, for time and bytes only.

    Raises ConfigError if the network changes by epochs, and there are none (None).
    """
    net, n = local_network(config), times.num_workers
    clock = net.traffic.clock = _clock(config, cluster, times, steps_per_epoch, spans)
    phases = [each for t in range(min(net.rounds.period, _STEPS_AVERAGED)) for each in net.rounds.phases(t)]
    pieces = math.lcm(net.rounds.num_pieces, *(len(each.matrices) or 1 for each in phases))
    few = pieces * min(num_parameters, config.compress.smallest_row)  # represent all of them
    x = torch.zeros(n, num_parameters if n * num_parameters <= _FEW else few, dtype=dtype)
    clock.bytes_scale = net.traffic.scale = num_parameters / x.shape[1]
    net.traffic.stands_for = {x.shape[1]: num_parameters}
    algorithm = with_rate(config, lambda t: 1.0, RowLayout.flat(x.shape[1]), steps_per_epoch or 1.0)
    oracle = _Instant(clock)
    stepper = Stepper(algorithm, net, oracle, x)
    stepper.attendance = _attendance(config, algorithm, net, oracle, total_steps)
    return stepper


class _Instant:
    """An oracle that takes simulated time and returns zeros."""

    present: np.ndarray | None = None
    problem = None

    def __init__(self, clock: Clock) -> None:
        self.clock = clock

    def __call__(self, x: Tensor, workers: Sequence[int] | None = None) -> Tensor:
        if workers is None:  # counted like a run's oracle
            self.clock.gradient()
        return torch.zeros_like(x)


def known_without_training(config: Config) -> bool:
    """Return whether messages and times of a synchronous method are independent of gradients and measurements."""
    compress = config.compress
    return (
        compress.by_length
        and Feature.timeline in config.algo.supports
        and not (compress.adapts or compress.chooses or config.network.measure)
    )


_EQUALLY_FAST = Machines(
    compute=ComputeTimes(mean_s=1.0), links=Links(latency_s=0.0, bandwidth_gbps=math.inf, copy_gbps=math.inf)
)
"""A gradient takes a second, everything else no time."""


def _bytes(config: Config, num_parameters: int) -> int:
    """Return the bytes of `num_parameters` parameters, in the precision of the run."""
    return num_parameters * config.precision.dtype.itemsize


def mean_seconds(times: GradientTimes) -> float:
    """Return the mean time of a gradient, from the first ones."""
    return float(times.seconds(0, _STEPS_AVERAGED).mean())


def open_network(config: Config, world: World, *, loses: bool = True) -> Network:
    """Open the network of a configuration, for this process's workers; all processes call this at once.

    With loses=False no message is lost, regardless of the configuration.
    """
    rounds, losses = config.rounds(), Losses(config.network.drop_probability if loses else 0.0, config.seed)
    if not world.distributed:
        config.network.check_several(1)
        check_probes(config, several=False)
        return LocalNetwork(rounds, losses)
    net = join(rounds, losses, world.device, world.rank, world.size, config.network)
    net.fastest = fastest_collective(config, world.size)
    return net


def fastest_collective(config: Config, num_processes: int) -> Fastest | None:
    """Return the rule for `network.collective=auto`, by the cost model of limited messages between processes, or else
    of the cluster. None without either."""
    settings = config.network
    if settings.limited:
        links = Links(settings.latency_ms * 1e-3, settings.bandwidth_gbps or math.inf, copy_gbps=math.inf)
        costs = LinkCosts(links, num_processes)
    elif isinstance(config.cluster, VirtualCluster):
        assert config.num_workers is not None
        costs = config.cluster.costs(config.num_workers)
    else:
        return None
    return lambda num_bytes: CollectiveChoice[costs.fastest_all_reduce(num_processes, num_bytes)]


def local_network(config: Config) -> LocalNetwork:
    """Return the network of a configuration with all workers in this process and without losses."""
    return LocalNetwork(config.rounds(), Losses(0.0, config.seed))


def with_rate(
    config: Config,
    lr: Callable[[int], float],
    layout: RowLayout,
    steps_per_epoch: float = 1.0,
    changes: Callable[[int], dict[str, Any]] | None = None,
) -> Algorithm:
    """Return the configured algorithm with the configured local optimizer, this learning rate, step -> gamma_t, other
    `changes` of a schedule, and the configured compression for rows of this layout."""
    compressor = config.compress.bound(layout, config.seed, steps_per_epoch / config.algo.attends_steps)
    rule = config.optim.rule(lr, layout)
    algorithm: Algorithm = config.algo.bind(rule if changes is None else rule.scheduled(changes), compressor)
    return algorithm


def learning_rate(
    config: Config, steps_per_epoch: float, total_steps: int, own: Tensor | None = None
) -> Callable[[int], Any]:
    """Return step t -> lr, or the workers' `own` rates [k, 1], times the factor of the schedule."""
    rate, lr = config.schedule.rates(steps_per_epoch, total_steps), config.lr if own is None else own
    return lambda t: lr * rate(t)
