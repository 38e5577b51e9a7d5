"""A few steps of a configuration, in one process or in several: what the properties are about."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from decentral.compression.row_layout import RowLayout
from decentral.config.schema import Config
from decentral.network.local import LocalNetwork
from decentral.network.world import World
from decentral.runtime.launch import in_processes
from decentral.store import Status
from decentral.topology.delivery import Losses
from decentral.training.assemble import Run, assemble, with_rate
from decentral.training.checkpoint import from_parts, to_part
from decentral.training.stepper import Stepper

if TYPE_CHECKING:
    from collections.abc import Sequence

_FILE = "walk.npz"


class Walk(NamedTuple):
    """The models after each step, and what was sent for them."""

    iterates: np.ndarray
    """[steps + 1, n, P]."""
    bytes_sent: int
    messages_sent: int
    wire_bytes: int
    """What all processes really sent."""
    all_reduced: bool
    """Whether something was averaged over all workers at once, which processes send in their own way."""


def walk(config: Config, processes: int) -> Walk:
    """The steps of the configuration with so many processes."""
    with TemporaryDirectory(prefix="decentral-check-") as folder:
        config = replace(config, processes=str(processes), restarts=0, run_dir=folder, device="cpu", progress=False)
        in_processes(config, Path(folder), steps)
        with np.load(Path(folder) / _FILE) as file:
            sent, messages, wire, reduced = (int(number) for number in file["counts"])
            return Walk(file["iterates"], sent, messages, wire, bool(reduced))


def steps(config: Config, world: World, directory: Path) -> Status:
    """What each process does: all steps, with everything brought home after each."""
    with torch.no_grad():
        r = assemble(config, world)
        try:
            reduced = _watch_mean(r)
            iterates = _iterates(r, r.total_steps)
            wire = getattr(r.net, "wire_bytes", 0) / len(r.net.workers)
            total = r.net.gather(torch.full((len(r.net.workers), 1), wire, dtype=torch.float64)).sum()
            if world.leader:
                counts = [r.net.bytes_sent, r.net.messages_sent, round(float(total)), bool(reduced)]
                np.savez(directory / _FILE, iterates=iterates, counts=np.array(counts, dtype=np.int64))
        finally:
            r.close()
    return Status.done


def _iterates(r: Run, number: int) -> np.ndarray:
    """The models of all workers before the first and after each of so many steps."""
    found = [_models(r)]
    for _ in range(number):
        r.stepper.step()
        r.stepper.flush()
        found.append(_models(r))
    return np.stack(found)


def _models(r: Run) -> np.ndarray:
    return np.array(r.net.gather(r.stepper.models.clone()))


def _watch_mean(r: Run) -> list[bool]:
    """Something in it as soon as the network's exact mean was asked for."""
    asked: list[bool] = []
    mean: Callable[[Tensor], Tensor] = r.net.mean

    def watched(x: Tensor) -> Tensor:
        asked.append(True)
        return mean(x)

    r.net.mean = watched  # type: ignore[method-assign]
    return asked


def saved_and_loaded(config: Config, at: int, folder: Path) -> tuple[np.ndarray, np.ndarray]:
    """The last models [n, P] of a run, and of one that was saved after `at` steps and loaded by a new one."""
    alone = World(0, 1, torch.device("cpu"))
    last: list[np.ndarray] = []
    with torch.no_grad():
        first, second = assemble(config, alone), assemble(config, alone)
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
        """As an algorithm asks for it; every worker is asked for once in the first step."""
        if self.first is None:
            return torch.zeros_like(x)
        if workers is None:
            g, self.first = self.first.clone(), None
            return g
        g = self.first[list(workers)].clone()
        self.first[list(workers)] = 0
        return g


def simulated(config: Config, x: Tensor, oracle: Any) -> Stepper:
    """The algorithm in this process with learning rate 1, from the models x [n, P]."""
    net = LocalNetwork(config.rounds(), Losses(0.0, config.seed))
    return Stepper(with_rate(config, lambda t: 1.0, RowLayout.flat(x.shape[1])), net, oracle, x)
