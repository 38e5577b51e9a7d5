"""The same run by the program and by `reference`, on one random problem: what the two tests against it share."""

from __future__ import annotations

import functools
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

import reference
from decentral.algorithms.sparta import SPARTA, Select
from decentral.config.checks import resolve
from decentral.config.composition import compose
from decentral.config.parsing import from_dict, plain
from decentral.config.prepared import prepare
from decentral.config.schema import Config
from decentral.network.world import World
from decentral.randomness import numpy_generator
from decentral.training.assemble import assemble
from reference import SGD, Adam, Setting
from reference_topology import Array, Edges, pieces
from worlds import Processes

LR = 0.1


@dataclass
class Case:
    """An algorithm with options on a topology with options; `edges` for topology=file."""

    algo: str
    topology: str
    n: int
    options: dict[str, Any] = field(default_factory=dict)
    place: dict[str, Any] = field(default_factory=dict)
    edges: Edges | None = None
    d: int = 7
    compress: dict[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        told = [f"{k}={v}" for k, v in (self.options | self.place | self.compress).items()]
        return "-".join([self.algo, self.topology, str(self.n), *told])


@dataclass
class Local:
    """A local optimizer and a schedule, in the program's words; the reference's learning rate by step."""

    optim: dict[str, Any] = field(default_factory=lambda: {"name": "sgd"})
    schedule: dict[str, Any] = field(default_factory=lambda: {"name": "constant"})

    def optimizer(self) -> Any:
        return {"sgd": SGD, "adam": Adam}[self.optim["name"]](**{k: v for k, v in self.optim.items() if k != "name"})

    def lr(self, t: int) -> float:
        """The learning rate of step t; an epoch of the quadratics is a step."""
        s = self.schedule
        if s["name"] == "exponential":
            return LR * s["gamma"] ** t
        if s["name"] == "multistep":
            warm = min(t / s["warmup_epochs"], 1) if s["warmup_epochs"] else 1.0
            return LR * warm * s["gamma"] ** sum(t >= milestone for milestone in s["milestones"])
        return LR


WARM_UP = {"name": "multistep", "warmup_epochs": 5.0, "milestones": [10.0, 15.0], "gamma": 0.3}
LOCALS = {
    "sgd": Local(),
    "momentum": Local({"name": "sgd", "momentum": 0.9}),
    "nesterov": Local({"name": "sgd", "momentum": 0.9, "nesterov": True, "weight_decay": 0.02}),
    "adam": Local({"name": "adam", "weight_decay": 0.02}),
    "decay": Local({"name": "sgd", "momentum": 0.8}, {"name": "exponential", "gamma": 0.95}),
    "warm_up": Local({"name": "sgd", "weight_decay": 0.02}, WARM_UP),
}


def one_way(n: int) -> Edges:
    """Directed, irregular, strongly connected: here the weights of push-sum are not 1."""
    return {(i, (i + 1) % n) for i in range(n)} | {(0, 2), (0, 3), (1, n - 1)}


def problem(n: int, d: int) -> dict[str, Array]:
    """Heterogeneous least squares with largest singular value 1, not starting from zero."""
    rng = np.random.default_rng([n, d])
    A = rng.normal(size=(n, d, d))
    A /= np.linalg.svd(A, compute_uv=False)[:, :1, None]
    return {"A": A, "b": rng.normal(size=(n, d)), "x0": rng.normal(size=d)}


@functools.cache
def _composed() -> dict[str, Any]:
    overrides = ["task=quadratics", "algo=allreduce", "topology=complete", "device=cpu"]
    return plain(compose(overrides))


def program(
    folder: Path,
    case: Case,
    local: Local,
    steps: int,
    *,
    processes: int = 1,
    worlds: Callable[[int], Processes] | None = None,
    given: dict[str, Array] | None = None,
    **keys: Any,
) -> Array:
    """iterates [steps + 1, n, d] of the program, by several processes those of `worlds`."""
    folder = folder / uuid.uuid4().hex
    folder.mkdir()
    np.savez(folder / "problem.npz", **(given or problem(case.n, case.d)))
    place = dict(case.place)
    if case.edges is not None:
        path = folder / "edges.csv"
        path.write_text("".join(f"{j},{i}\n" for j, i in sorted(case.edges)))
        place |= {"path": str(path), "directed": True}
    values = _composed() | {
        "algo": {"name": case.algo, **case.options},
        "topology": {"name": case.topology, **place},
        "compress": {"name": "none"} | case.compress,
        "task": {"name": "quadratics", "problem": str(folder / "problem.npz")},
        "optim": local.optim,
        "schedule": local.schedule,
        "num_workers": case.n,
        "steps": steps,
        "lr": LR,
        "processes": str(processes),
    }
    config = resolve(from_dict(values | keys))
    if worlds:
        return worlds(processes).call(iterates, config)[0]
    return iterates(World(0, 1, torch.device("cpu")), config)


def iterates(world: World, config: Config) -> Array:
    """The models [steps + 1, n, d] before the first and after each step, without a store."""
    with torch.no_grad():
        run = assemble(prepare(config), world)
        found = [run.net.gather(run.stepper.models).clone()]
        for _ in range(run.total_steps):
            run.stepper.step()
            found.append(run.net.gather(run.stepper.models).clone())
        run.close()
    return torch.stack(found).numpy()


def setting(case: Case, local: Local, lost: Any = reference.never) -> Setting:
    parts = pieces(case.topology, case.n, case.d, edges=case.edges, **case.place)
    return Setting(**problem(case.n, case.d), pieces=parts, optimizer=local.optimizer(), lr=local.lr, lost=lost)


def expected(case: Case, local: Local, steps: int, lost: Any = reference.never) -> Array:
    """iterates [steps + 1, n, d] of the reference."""
    options = case.options | compression(case) | drawn(case)
    assert hasattr(reference, case.algo), f"add the formula to tests/reference.py, as a function {case.algo}"
    return reference.run(getattr(reference, case.algo), setting(case, local, lost), steps, **options)


def drawn(case: Case) -> dict[str, Any]:
    """The permutations of the workers, the coordinates or the samples that the program draws, where an algorithm
    does."""
    if case.algo in ("gt_saga", "gt_sarah", "lt_admm_vr"):
        B, draw = case.options.get("batch", 1), lambda i, t: numpy_generator(0, "samples", i, t)
        return {"drawn": lambda t: [draw(i, t).integers(case.d, size=B) for i in range(case.n)]}
    if case.algo.startswith("sparta"):
        method = SPARTA(share=case.options["share"], select=Select(case.options.get("select", "random")))
        return {"drawn": lambda t: method.places(case.d, t)}
    if case.algo not in ("noloco", "teleportation"):
        return {}
    return {"orders": lambda round: numpy_generator(0, case.algo, round).permutation(case.n)}


def compression(case: Case) -> dict[str, Any]:
    """What the reference is told of compressed messages."""
    known = {
        "topk": lambda keep: {"compress": reference.topk(keep)},
        "sign": lambda: {"compress": reference.sign()},
        "bf16": lambda: {"compress": reference.bf16()},
        "dct_topk": lambda **settings: {"compress": reference.DCTTopK(**settings)},
        "artopk": lambda keep: {"star": keep},
    }
    settings = dict(case.compress)
    return known[settings.pop("name")](**settings) if settings else {}


def assert_agree(actual: Array, wanted: Array) -> None:
    """To 1e-12 of the largest number; names the first step that is not."""
    assert actual.shape == wanted.shape and actual.dtype == np.float64
    assert np.isfinite(wanted).all()
    error = np.abs(actual - wanted).reshape(len(wanted), -1).max(axis=1)
    bound = 1e-12 * max(1.0, np.abs(wanted).max())
    wrong = np.flatnonzero(~(error <= bound))
    assert not len(wrong), f"differ from step {wrong[0]} on, there by {error[wrong[0]]:.3g} (bound {bound:.1g})"
