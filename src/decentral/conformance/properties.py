"""A few steps of a configuration, in one process or in several, and the properties that the tests check, too, each with
a message that describes the violation."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from decentral.compression.rows import RowLayout
from decentral.config.prepared import Prepared, prepare
from decentral.config.schema import Config
from decentral.host.processes import no_script
from decentral.network.local import LocalNetwork
from decentral.network.world import World
from decentral.runtime.launch import in_processes
from decentral.store import Status
from decentral.tasks.problems.convex import random_problem
from decentral.topology.delivery import Exchange, Losses
from decentral.training.assemble import Run, assemble
from decentral.training.checkpoint import from_parts, to_part
from decentral.training.method import with_rate
from decentral.training.stepper import Stepper

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_FILE = "walk.npz"
_STILL_STEPS = 30
_AGREE_STEPS = 3000
_AGREED = 1e-9


class Walk(NamedTuple):
    """The models after each step, and the data sent for them."""

    iterates: np.ndarray
    """Models: [steps + 1, n, P]."""
    bytes_sent: int
    messages_sent: int
    wire_bytes: int
    """Bytes that all processes actually sent."""
    called: frozenset[str] = frozenset()
    """The collectives, and the functions for evaluation, that steps have called."""


def walk(config: Config, processes: int) -> Walk:
    """Take the steps of the configuration with this number of processes."""
    with TemporaryDirectory(prefix="decentral-check-") as folder:
        config = replace(config, processes=str(processes), restarts=0, run_dir=folder, device="cpu", progress=False)
        with no_script():
            in_processes(prepare(config, Path(folder)), steps)
        with np.load(Path(folder) / _FILE) as file:
            sent, messages, wire = file["counts"].tolist()
            return Walk(file["iterates"], sent, messages, wire, frozenset(file["called"].tolist()))


def steps(run: Prepared, world: World) -> Status:
    """Take all steps in each process, with everything brought home after each."""
    with torch.no_grad():
        r = assemble(run, world)
        try:
            called = _watched(r)
            iterates = _iterates(r, r.total_steps)
            wire = getattr(r.net, "wire_bytes", 0) / len(r.net.workers)
            total = r.net.gather(torch.full((len(r.net.workers), 1), wire, dtype=torch.float64)).sum()
            if world.leader:
                counts = np.array([r.net.traffic.bytes_sent, r.net.traffic.messages_sent, round(float(total))])
                np.savez(run.directory / _FILE, iterates=iterates, counts=counts, called=np.array([*called], dtype=str))
        finally:
            r.close()
    return Status.done


def _iterates(r: Run, number: int) -> np.ndarray:
    """Return the models of all workers before the first and after each of `number` steps."""
    iterates = []
    for t in range(number + 1):
        if t:
            r.stepper.step()
            r.stepper.flush()
        iterates.append(r.net.gather(r.stepper.models).clone().numpy())
    return np.stack(iterates)


def _watched(r: Run) -> set[str]:
    """Return an empty set, to which every step adds the names of what it calls: see `Walk.called`."""
    called: set[str] = set()
    verbs = [(r.net, "gather"), (r.net, "average"), (r.net.traffic, "begin_collective")]

    def watched(verb: Callable[..., Any], name: str, *arguments: Any, **keywords: Any) -> Any:
        called.add(arguments[0] if name == "begin_collective" else name)
        return verb(*arguments, **keywords)

    def step(advance: Callable[[], None] = r.stepper._advance) -> None:
        for owner, name in verbs:
            vars(owner)[name] = partial(watched, getattr(owner, name), name)
        advance()
        for owner, name in verbs:
            del vars(owner)[name]

    r.stepper._advance = step  # type: ignore[method-assign]
    return called


def saved_and_loaded(config: Config, at: int, folder: Path) -> tuple[np.ndarray, np.ndarray]:
    """Return the last models [n, P] of a run, and those of a run that was saved after `at` steps and loaded by a new
    one."""
    alone = World(0, 1, torch.device("cpu"))
    last: list[np.ndarray] = []
    with torch.no_grad():
        first, second = assemble(prepare(config), alone), assemble(prepare(config), alone)
        try:
            for r in (first, second):
                _iterates(r, at if r is first else 1)  # the second is somewhere else
                if r is first:
                    torch.save(to_part(r.stepper.state, r.problem, r.oracle, r.net), folder / "part.pt")
            parts = [torch.load(folder / "part.pt", weights_only=True)]
            from_parts(parts, at, second.stepper.state, second.problem, second.oracle, second.net)
            second.stepper.t = at
            last += [_iterates(r, first.total_steps - at)[-1] for r in (first, second)]
        finally:
            first.close()
            second.close()
    return last[0], last[1]


class Impulses:
    """An oracle whose first gradients are the given ones [n, P], and all others zero."""

    def __init__(self, first: Tensor | None = None) -> None:
        self.first = first

    def __call__(self, x: Tensor, workers: Sequence[int] | None = None) -> Tensor:
        """Return the gradients that an algorithm asks for; every worker is asked for once in the first step."""
        if self.first is None:
            return torch.zeros_like(x)
        if workers is None:
            g, self.first = self.first.clone(), None
            return g
        g = self.first[list(workers)].clone()
        self.first[list(workers)] = 0
        return g


def simulated(config: Config, x: Tensor, oracle: Any) -> Stepper:
    """Return the algorithm in this process with learning rate 1, from the models x [n, P]."""
    net = LocalNetwork(config.rounds(), Losses(0.0, config.seed))
    return Stepper(with_rate(config, lambda t: 1.0, RowLayout.flat(x.shape[1])), net, oracle, x)


class Overwriting(LocalNetwork):
    """A network that returns averages in new memory and overwrites the rows that it was given: as any network may."""

    def _begin_all(self, x: Tensor, exchanges: Sequence[Exchange], halve: bool = False) -> Callable[[], Tensor]:
        end = super()._begin_all(x.clone(), exchanges, halve)

        def ended() -> Tensor:
            mixed = end()
            x.fill_(math.nan)
            return mixed

        return ended

    def mean(self, x: Tensor) -> Tensor:
        """Return the mean, and overwrite x."""
        mean = super().mean(x.clone())
        x.fill_(math.nan)
        return mean


def rows_are_given_away(config: Config, steps: int) -> None:
    """Check that rows given to `mix` or `mean` are not read again: these may overwrite them."""
    assert config.num_workers is not None
    x0 = torch.linspace(1.0, 2.0, 6, dtype=torch.float64).repeat(config.num_workers, 1)
    optima = torch.arange(config.num_workers, dtype=torch.float64)[:, None] * x0
    gradients = lambda x, workers=None: x - (optima if workers is None else optima[list(workers)])  # noqa: E731
    ends = []
    for network in (LocalNetwork, Overwriting):
        net = network(config.rounds(), Losses(0.0, config.seed))
        with torch.no_grad():
            run = Stepper(with_rate(config, lambda t: 0.1, RowLayout.flat(6)), net, gradients, x0.clone())
            for _ in range(steps):
                run.step()
        ends.append(run.models)
    if not torch.allclose(ends[0], ends[1], rtol=1e-9):
        raise Violation(
            "rows that were given to net.mix or net.mean are read again, although these may overwrite them: give a "
            "copy, as in net.mix(y.clone(), t)."
        )


# -- properties -------------------------------------------------------------------------------------------------------


class Violation(AssertionError):
    """A property does not hold; the message describes the violation."""


def same(one: Walk, many: Walk, processes: int, tolerance: float = 1e-12) -> None:
    """Check that the number of processes does not matter: iterates agree up to rounding, and bytes and messages are
    equal."""
    scale = float(np.abs(one.iterates).max())
    error = np.abs(many.iterates - one.iterates).max(axis=(1, 2))
    if not (error <= tolerance * scale).all():
        step = int(np.argmax(~(error <= tolerance * scale)))
        raise Violation(
            f"with {processes} processes the models differ from those with one by {error[step]:.2g} after step {step} "
            f"(models are up to {scale:.2g}, rounding is up to {tolerance * scale:.2g}): a computation over one "
            "process's workers bypasses the network, or depends on the process."
        )
    for what in ("bytes_sent", "messages_sent"):
        ours, theirs = getattr(one, what), getattr(many, what)
        if ours != theirs:
            raise Violation(f"{what} is {ours} with one process and {theirs} with {processes}.")


def mean_kept(config: Config, slower: int = 1) -> None:
    """Check that models stay constant without gradients, and that every worker's update has the same weight in their
    mean, at consensus or after 3,000 steps, times `slower`."""
    n = config.num_workers
    assert n is not None
    with torch.no_grad():
        x0 = torch.linspace(1.0, 2.0, n, dtype=torch.float64)
        still = simulated(config, x0.repeat(n, 1), Impulses())
        for t in range(_STILL_STEPS):
            still.step()
            moved = float((still.models - x0).abs().max())
            if not moved <= 1e-12:
                raise Violation(
                    "the mean of the models is not preserved: although all workers agree and all gradients are zero, "
                    f"step {t} moves the models by {moved:.2g} (do the weights sum to one?)."
                )
    counted = (x0 - _settled(config, slower)[0]) * n  # what worker i's update has come to count, times n
    low, high = int(counted.argmin()), int(counted.argmax())
    if not float(counted[high] - counted[low]) <= 1e-6:
        raise Violation(
            f"the mean of the models is not preserved: an update of worker {high} counts {float(counted[high]):.4g} "
            f"times, one of worker {low} {float(counted[low]):.4g} times, instead of once each."
        )
    if not float(counted.min()) > 1e-6:
        raise Violation("updates of the workers are lost: they do not reach the models.")


def consensus(config: Config, slower: int = 1) -> None:
    """Check that the workers agree within 3,000 steps, times `slower`, after the last gradient."""
    apart = _settled(config, slower)[1]
    if not apart <= 1e-6:
        raise Violation(
            f"{slower * _AGREE_STEPS} steps after the last gradient the models of the workers still differ by "
            f"{apart:.2g}."
        )


def _settled(config: Config, slower: int) -> tuple[Tensor, float]:
    """Return the mean [n] of the models, and their largest distance from it, after worker i has subtracted 1 from
    coordinate i in the first step."""
    n = config.num_workers
    assert n is not None
    x0 = torch.linspace(1.0, 2.0, n, dtype=torch.float64)
    with torch.no_grad():
        moving = simulated(config, x0.repeat(n, 1), Impulses(torch.eye(n, dtype=torch.float64)))
        for _ in range(slower * _AGREE_STEPS):
            moving.step()
            mean = moving.models.mean(0)
            apart = float((moving.models - mean).abs().max())
            if apart <= _AGREED and moving.t > _STILL_STEPS:
                break
    return mean, apart


def plain_sgd(n: int, zeta2: float, number: int, optimizer: object, dimension: int = 6) -> np.ndarray:
    """Run `optimizer`, a function of parameters, on 1/n sum_i 1/2 ||A_i x - b_i||^2 by torch: [steps + 1,
    dimension]."""
    problem = random_problem(n, dimension, 0.5, 1.0, zeta2, 1.0, seed=0)
    with torch.enable_grad():
        x = problem.x0.clone().requires_grad_()
        assert callable(optimizer)
        rule, iterates = optimizer([x]), [x.detach().clone()]
        for _ in range(number):
            rule.zero_grad()
            residual = torch.einsum("nij,j->ni", problem.A, x) - problem.b
            (residual.square().sum() / (2 * n)).backward()
            rule.step()
            iterates.append(x.detach().clone())
    return torch.stack(iterates).numpy()


def as_sgd(walk: Walk, reference: np.ndarray, where: str) -> None:
    """Check that all models are those of plain SGD on the mean gradient: iterates [steps + 1, n, P], reference [steps +
    1, P]."""
    error = np.abs(walk.iterates - reference[:, None]).max(axis=(1, 2))
    if not (error <= 1e-12).all():
        step = int(np.argmax(~(error <= 1e-12)))
        raise Violation(
            f"{where} the models differ from those of plain SGD on the mean gradient by {error[step]:.2g} after step "
            f"{step}: declare the settings with which they are equal, setting(..., as_sgd=...), or remove "
            "Feature.plain_sgd from supports."
        )
