"""`decentral.wrap(algo=...)`: a script's own loop takes the very steps of `decentral-run`."""

from __future__ import annotations

import copy
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import decentral
from decentral.algorithms.features import Feature
from decentral.compression.rows import RowLayout
from decentral.errors import ConfigError
from decentral.network.local import LocalNetwork
from decentral.network.world import World
from decentral.registry import components
from decentral.topology.delivery import Losses
from table import ALGORITHMS, in_rounds
from worlds import are_named

N, P, STEPS = 4, 11, 5
MOMENTUM = ("SGD", {"lr": 0.05, "momentum": 0.9, "weight_decay": 0.01})
NESTEROV = ("SGD", {"lr": 0.05, "momentum": 0.9, "nesterov": True})
PLAIN = ("SGD", {"lr": 0.05})
ADAM = ("Adam", {"lr": 0.02, "weight_decay": 0.01})
OF_RUNS = {"momentum": "optim.momentum", "weight_decay": "optim.weight_decay", "nesterov": "optim.nesterov", "lr": "lr"}


@dataclass(frozen=True)
class Case:
    """One algorithm, as a script and as a run says it."""

    algo: str
    topology: str
    optimizer: tuple[str, dict[str, Any]] = PLAIN
    algo_settings: dict[str, Any] = field(default_factory=dict)
    settings: dict[str, Any] = field(default_factory=dict)
    compress: str | None = None
    compress_settings: dict[str, Any] = field(default_factory=dict)
    whole: bool = False
    """Whether the model is one vector, as in a run of quadratics, where a matrix would make a difference."""

    def as_a_run(self, problem: Path) -> list[str]:
        kind, options = self.optimizer
        return [
            *("task=quadratics", f"task.problem={problem}", f"num_workers={N}", f"steps={STEPS}", "trace=true"),
            *(f"algo={self.algo}", f"topology={self.topology}", f"optim={kind.lower()}"),
            *(f"{OF_RUNS[key]}={str(value).lower()}" for key, value in options.items()),
            *(f"algo.{key}={str(value).lower()}" for key, value in self.algo_settings.items()),
            *([f"compress={self.compress}"] if self.compress else []),
            *(f"compress.{key}={str(value).lower()}" for key, value in self.compress_settings.items() if key != "seed"),
            f"seed={self.compress_settings.get('seed', 0)}",
            *(
                f"{'communication' if key in ('every', 'workers_per_machine') else 'topology'}.{key}={value}"
                for key, value in self.settings.items()
            ),
        ]


CASES = {
    "allreduce": Case("allreduce", "ring", ADAM),
    "allreduce_topk": Case("allreduce", "ring", MOMENTUM, compress="topk", compress_settings={"keep": 0.3}),
    "allreduce_randomk": Case(
        "allreduce", "ring", ADAM, compress="randomk", compress_settings={"keep": 0.5, "seed": 3}
    ),
    "allreduce_threshold": Case("allreduce", "ring", compress="threshold", compress_settings={"threshold": 0.5}),
    "beer_topk": Case("beer", "ring", MOMENTUM, compress="topk", compress_settings={"keep": 0.5}),
    "choco": Case("choco", "ring", NESTEROV),
    "choco_int8": Case("choco", "ring", ADAM, {"gamma": 0.3}, compress="int8", compress_settings={"seed": 7}),
    "choco_topk": Case("choco", "ring", MOMENTUM, compress="topk", compress_settings={"keep": 0.2}),
    "d2": Case("d2", "ring", NESTEROV),
    "d2_adam": Case("d2", "ring", ADAM),
    "dadam": Case("dadam", "ring", ("SGD", {"lr": 0.05, "weight_decay": 0.01})),
    "dadam_atc": Case("dadam", "ring", PLAIN, {"mode": "atc", "accumulate_steps": 2}),
    "dmsgd": Case("dmsgd", "ring", ("SGD", {"lr": 0.05, "weight_decay": 0.01})),
    "dmsgd_ying": Case("dmsgd", "one_peer_exponential", ADAM, {"form": "ying"}),
    "dpsgd": Case("dpsgd", "one_peer_exponential", MOMENTUM),
    "dpsgd_bf16": Case("dpsgd", "one_peer_exponential", MOMENTUM, compress="bf16"),
    "dpsgd_every": Case("dpsgd", "ring", NESTEROV, settings={"every": 2}),
    "dpsgd_machines": Case("dpsgd", "ring", ADAM, settings={"workers_per_machine": 2}),
    "dpsgd_awc": Case("dpsgd", "ring", ADAM, {"mode": "awc"}),
    "exact_diffusion": Case("exact_diffusion", "star", MOMENTUM),
    "gpa": Case("gpa", "ring", MOMENTUM, {"average": 0.8, "gradient_average": 1}),
    "gradient_tracking_awc": Case("gradient_tracking", "ring", ADAM, {"mode": "awc"}),
    "motef_topk": Case("motef", "ring", ADAM, compress="topk", compress_settings={"keep": 0.5}),
    "push_diging_awc": Case("push_diging", "star", ADAM, {"mode": "awc"}, {"weights": "uniform"}),
    "qg_dpsgd": Case("qg_dpsgd", "ring", ("SGD", {"lr": 0.05, "weight_decay": 0.01})),
    "qg_dpsgd_adam": Case("qg_dpsgd", "ring", ADAM, {"nesterov": False}),
    "relaysgd": Case("relaysgd", "dbt", NESTEROV),
    "relaysgd_adam": Case("relaysgd", "chain", ADAM, {"fill": "previous", "overlap": True}),
    "relaysgd_corrected": Case("relaysgd", "dbt", MOMENTUM, {"correct_lr": True}),
    "relaysgd_every": Case("relaysgd", "dbt", NESTEROV, settings={"every": 2}),
    "kgt": Case("gradient_tracking", "ring", MOMENTUM, {"tracked": "mean"}, {"every": 2}),
    "proxskip": Case("exact_diffusion", "ring", MOMENTUM, {"probability": 0.5}),
    "slowmo": Case("slowmo", "one_peer_exponential", MOMENTUM, {"period_steps": 2, "base": "sgp"}),
    "exact_diffusion_every": Case("exact_diffusion", "ring", MOMENTUM, settings={"every": 2}),
    "relaysgd_grad": Case("relaysgd_grad", "dbt", MOMENTUM),
    "relaysgd_grad_receiver": Case("relaysgd_grad", "chain", ADAM, {"receiver_lr": True}),
    "sparseloco": Case("sparseloco", "ring", ADAM, {"period_steps": 2}, compress="topk"),
    "streaming_diloco": Case(
        "streaming_diloco", "ring", MOMENTUM, {"period_steps": 4, "fragments": 2, "delay_steps": 1, "own_share": 0.5}
    ),
}
"""Variants, with a model of two parameters; the other algorithms are added below."""


WRAPPED = {
    name
    for name, cls in in_rounds().items()
    if {Feature.training, Feature.batches} <= cls.supports and name != "desloc"
}


def of_the_table(name: str) -> Case:
    """Return the case of an algorithm's row in the table, with a model of one vector."""
    row = ALGORITHMS[name]
    algo, topology, compress = row.settings.values()
    return Case(name, row.nets[0].topology, MOMENTUM, algo, topology, compress.pop("", None), compress, whole=True)


CASES |= {name: of_the_table(name) for name in sorted(WRAPPED - CASES.keys())}


@pytest.fixture(scope="module")
def problem(tmp_path_factory) -> Path:
    """Workers that want different things; in a folder of its own."""
    path = tmp_path_factory.mktemp("wrapped") / "problem.npz"
    draw = np.random.default_rng(5)
    A, b, x0 = draw.normal(size=(N, P, P)) / 2, draw.normal(size=(N, P)), draw.normal(size=P)
    np.savez(path, A=A, b=b, x0=x0)
    return path


class Quadratic(nn.Module):
    """1/2 ||A x - b||^2, with x in a matrix and a vector, which make the model's row in this order, or `whole`."""

    def __init__(self, A: Tensor, b: Tensor, x0: Tensor, whole: bool = False) -> None:
        super().__init__()
        self.A, self.b = A, b
        parts = [x0] if whole else [x0[:6].view(2, 3), x0[6:]]
        self.x = nn.ParameterList(nn.Parameter(part.clone()) for part in parts)

    def forward(self) -> Tensor:
        return 0.5 * (self.A @ torch.cat([part.reshape(-1) for part in self.x]) - self.b).square().sum()


def in_a_script(world: World, case: Case, problem: Path, checkpoints: Path) -> np.ndarray:
    """Return the models of this rank after each step [steps + 1, P]; new objects resume after 3 steps."""
    torch.manual_seed(0)
    with np.load(problem) as file:
        A, b, x0 = (torch.from_numpy(file[key]) for key in ("A", "b", "x0"))
    kind, options = case.optimizer
    settings = {key: value for key, value in vars(case).items() if key not in ("optimizer", "settings", "whole")}

    def wrapped() -> tuple[nn.Module, Any]:
        model = Quadratic(A[world.rank], b[world.rank], x0, whole=case.whole)
        inner = getattr(torch.optim, kind)(model.parameters(), **options)
        return model, decentral.wrap(model, inner, **settings, **case.settings)

    model, optimizer = wrapped()
    found = [flat(model)]
    for step in range(STEPS):
        if step == 3:
            decentral.checkpoint(checkpoints, model, optimizer)
            optimizer.close()
            model, optimizer = wrapped()
            assert decentral.resume(checkpoints, model, optimizer) == {"step": 3}
        optimizer.zero_grad()
        model().backward()
        optimizer.step()
        if case.algo == "async_push_sum":  # delivers the messages in flight, as a run with trace=true does
            optimizer.state_dict()
        found.append(flat(model))
    optimizer.close()
    optimizer.peers.close()
    return torch.stack(found).numpy()


def test_methods_that_a_script_cannot_supply_are_refused():
    with pytest.raises(ConfigError, match=r"algo='gt_saga' needs gradients of given samples, which a script does not"):
        wrapped("gt_saga", "ring")
    with pytest.raises(ConfigError, match=r"algo='desloc' averages .* does not know that of a torch optimizer"):
        wrapped("desloc", "ring")


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_a_script_takes_the_steps_of_a_run(worlds, name: str, problem: Path, start, tmp_path: Path):
    expected = start(*CASES[name].as_a_run(problem)).iterates
    found = np.stack(worlds(N).call(in_a_script, CASES[name], problem, tmp_path / "checkpoints"), axis=1)
    assert np.abs(expected[-1] - expected[0]).max() > 1e-3
    np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-12)


# -- in a script, beside the steps -------------------------------------------------------------------------------------


def network() -> nn.Module:
    """With a parameter that no loss depends on."""
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).double()
    model.register_parameter("unused", nn.Parameter(torch.ones(2, dtype=torch.float64)))
    return model


def flat(model: nn.Module) -> Tensor:
    return torch.cat([p.detach().reshape(-1) for p in model.parameters()])


def train(model: nn.Module, optimizer: Any, rank: int, steps: range) -> None:
    for step in steps:
        generator = torch.Generator().manual_seed(100 * rank + step)
        optimizer.zero_grad()
        model(torch.randn(5, 3, generator=generator).double()).square().sum().backward()
        optimizer.step()


def wrapped(algo: str | None, topology: str, **settings: Any) -> tuple[nn.Module, Any]:
    model = network()
    inner = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    return model, decentral.wrap(model, inner, topology, algo=algo, **settings)


@pytest.mark.parametrize(("algo", "other"), [("d2", "exact_diffusion"), ("dpsgd", "local_sgd")])
def test_the_state_of_another_algorithm_is_refused_and_changes_nothing(algo: str, other: str):
    model, optimizer = wrapped(algo, "ring")
    train(model, optimizer, 0, range(2))
    saved = optimizer.state_dict()
    fresh, second = wrapped(other, "ring")
    train(fresh, second, 0, range(1))
    before, momentum = flat(fresh), copy.deepcopy(second.inner.state_dict()["state"])
    with pytest.raises(ValueError, match="not of"):
        second.load_state_dict(saved)
    assert torch.equal(flat(fresh), before)
    for number, buffers in second.inner.state_dict()["state"].items():
        assert torch.equal(buffers["momentum_buffer"], momentum[number]["momentum_buffer"])
    for each in (optimizer, second):
        each.close()
        each.peers.close()


@pytest.mark.parametrize(("compress", "settings"), [("lwtopk", {}), ("powersgd", {"rank": 1}), ("dct_topk", {"k": 2})])
def test_compression_by_layer_knows_the_models_parameters(compress: str, settings: dict[str, int]):
    """Alone, with SGD at the rate 1, a step is the compressed gradient of the model's own layout."""
    model = network()
    layout = RowLayout(*zip(*((name, tuple(p.shape)) for name, p in model.named_parameters()), strict=True))
    before = flat(model)
    inner = torch.optim.SGD(model.parameters(), lr=1.0)
    given = components("compression")[compress](**settings)
    optimizer = decentral.wrap(model, inner, "ring", algo="allreduce", compress=given)
    train(model, optimizer, 0, range(1))
    g = torch.cat([(torch.zeros_like(p) if p.grad is None else p.grad).reshape(-1) for p in model.parameters()])
    bound = given.bound(layout, seed=0)
    rows = g[None].clone()
    alone = LocalNetwork(optimizer.peers.schedule, Losses(0.0, 0))
    sent, _, _ = bound.combine(rows, bound.residual(rows), bound.memory(rows, 1), alone, 0)
    optimizer.close()
    optimizer.peers.close()
    assert not torch.equal(sent[0], g)
    torch.testing.assert_close(before - flat(model), sent[0], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(("algo", "kind"), [
    ("relaysgd", torch.optim.AdamW), ("gradient_tracking", torch.optim.RMSprop), ("dmsgd", torch.optim.Adagrad),
])  # fmt: skip
def test_alone_any_torch_optimizer_does_what_it_does(algo: str, kind: Any):
    """With one worker and no momentum of its own, every algorithm is the optimizer itself."""
    model, plain = network(), network()
    del model.unused, plain.unused  # a gradient of zero is not the same as none, for weight decay
    settings = {"beta": 0.0} if algo in ("qg_dpsgd", "dmsgd") else {}
    topology = "chain" if algo == "relaysgd" else "ring"
    inner = kind(model.parameters(), lr=0.02, weight_decay=0.1)
    optimizer = decentral.wrap(model, inner, topology, algo=algo, algo_settings=settings)
    other = kind(plain.parameters(), lr=0.02, weight_decay=0.1)
    train(model, optimizer, 0, range(4))
    train(plain, other, 0, range(4))
    optimizer.close()
    optimizer.peers.close()
    torch.testing.assert_close(flat(model), flat(plain), rtol=1e-11, atol=1e-11)


def test_an_optimizer_of_sparse_gradients_gets_them():
    tables = [nn.Embedding.from_pretrained(torch.ones(5, 3), freeze=False, sparse=True) for _ in range(2)]
    plain, inner = (torch.optim.SparseAdam(table.parameters()) for table in tables)
    optimizer = decentral.wrap(tables[1], inner, "ring", mode="awc")
    for table, each in zip(tables, (plain, optimizer), strict=True):
        for step in range(3):
            each.zero_grad()
            table(torch.tensor([1, 2 + step])).square().sum().backward()
            each.step()
    optimizer.close()
    optimizer.peers.close()
    torch.testing.assert_close(tables[1].weight, tables[0].weight)


def groups() -> tuple[nn.Module, torch.optim.Optimizer]:
    model = network()
    first, *rest = model.parameters()
    return model, torch.optim.SGD([{"params": [first], "lr": 0.3}, {"params": rest}], lr=0.1)


def with_optimizer(kind: Any, **settings: Any) -> tuple[nn.Module, torch.optim.Optimizer]:
    model = network()
    return model, kind(model.parameters(), **settings)


RING, CHAIN, TOPK = {"topology": "ring"}, {"algo": "relaysgd", "topology": "chain"}, {"compress": "topk"}
REDUCE = {"algo": "allreduce", **RING}
MISTAKES: list[tuple[Any, str]] = [
    ({"algo": "relaysdg"}, "algo='relaysdg' does not exist. Did you mean 'relaysgd'"),
    ({"algo": "relay_mean", "topology": "chain"}, "algo='relay_mean' estimates a mean and has no optimizer to wrap"),
    (
        {"algo": "relaysgd", **RING},
        "relays over trees, but topology=ring with num_workers=3 is not a tree",
    ),
    ({"algo": "d2", "topology": "one_peer_exponential"}, "algo='d2' needs the same graph in every round"),
    (CHAIN | {"algo_settings": {"fil": "own"}}, "Did you mean 'fill'"),
    (CHAIN | {"algo_settings": {"fill": "mine"}}, "fill='mine' does not exist"),
    (CHAIN | {"algo_settings": {"initial_count": 2}}, "initial_count=2 is not a valid choice"),
    (CHAIN | {"mode": "atc"}, "mode='atc' and algo= conflict"),
    (CHAIN | {"overlap": True}, "overlap=True needs mode='atc' or 'awc'"),
    (REDUCE | {"every": 2}, "every=2 cannot be used with algo='allreduce', which does not use a topology"),
    ({"algo_settings": {"fill": "own"}}, "also give algo="),
    (REDUCE | {"compress": "topkk"}, "compress='topkk' does not exist. Did you mean 'topk'"),
    (REDUCE | TOPK | {"compress_settings": {"kep": 0.1}}, "compress='topk' has no setting 'kep'. Did you mean 'keep'"),
    (REDUCE | TOPK | {"compress_settings": {"keep": 2}}, "keep=2 is out of range"),
    (REDUCE | TOPK | {"compress_settings": {"warmup_epochs": 5}}, "needs the number of steps per epoch"),
    (REDUCE | {"compress_settings": {"keep": 0.1}}, "also give compress="),
    (RING | TOPK, "compress= needs algo="),
    ({"algo": "dpsgd", **RING, **TOPK}, "which sends models and needs every coordinate"),
    ({"algo": "choco", **RING, "compress": "powersgd"}, "compress='powersgd' cannot be used with algo='choco'"),
    ({"algo": "dpsgd", **RING, "compress": "bf16", "every": 2}, "compress='bf16' needs a round in every step"),
    ([REDUCE | TOPK, REDUCE | {"compress": "randomk"}], "disagree"),
    ([{"algo": "dpsgd", **RING}, {"algo": "gradient_tracking", **RING}], "disagree"),
    (
        {"algo": "dpsgd", **RING, "given": partial(with_optimizer, torch.optim.LBFGS)},
        "LBFGS computes several",
    ),
    ({"algo": "qg_dpsgd", **RING, "given": groups}, "the parameter groups have 0.1 and 0.3"),
    (
        {"algo": "dmsgd", **RING, "given": partial(with_optimizer, torch.optim.SGD, maximize=True)},
        "maximize=True",
    ),
]


def mistakes(world: World) -> list[str]:
    """What is said of them; the group works on afterwards."""
    told: list[str] = []
    for arguments, _ in MISTAKES:
        mine = dict(arguments[min(world.rank, 1)] if isinstance(arguments, list) else arguments)
        model, inner = mine.pop("given", partial(with_optimizer, torch.optim.SGD))()
        with pytest.raises(ConfigError) as error:
            optimizer = decentral.wrap(model, inner, **mine)
            optimizer.step()
        told.append(str(error.value))
    return told


@pytest.mark.slow
def test_mistakes_are_named_on_every_rank(worlds):
    are_named(worlds(3).call(mistakes), [says for _, says in MISTAKES])
