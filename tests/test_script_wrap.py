"""A training script of somebody's own, wrapped: its steps are the formulas, whatever the buckets and the overlap."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import decentral
from decentral.errors import ConfigError
from decentral.network.world import World
from decentral.registry import components
from decentral.topology.communication import Communication
from decentral.topology.topology import Weights
from worlds import are_named

STEPS = 5
N = 4


def network() -> nn.Module:
    """Three layers, one of them used twice, and a parameter that no loss depends on."""
    torch.manual_seed(3)
    shared = nn.Linear(4, 4)
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), shared, nn.Tanh(), shared, nn.Linear(4, 2)).double()
    model.register_parameter("unused", nn.Parameter(torch.ones(2, dtype=torch.float64)))
    return model


def batch(rank: int, step: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1000 * rank + step)
    return torch.randn(5, 3, generator=generator).double(), torch.randint(2, (5,), generator=generator)


OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.01),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.02),
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=0.01, momentum=0.5),
    "groups": lambda p: torch.optim.SGD([{"params": list(p)[:2], "lr": 0.3}, {"params": list(p)[2:]}], lr=0.1),
}


def flat(model: nn.Module) -> Tensor:
    return torch.cat([p.detach().reshape(-1) for p in model.parameters()])


def put(model: nn.Module, row: Tensor) -> None:
    start = 0
    for p in model.parameters():
        p.data.copy_(row[start : start + p.numel()].view(p.shape))
        start += p.numel()


def by_the_formula(mode: str, optimizer: str, topology: str, settings: dict[str, Any], micro: int = 1) -> Tensor:
    """All ranks in one process, each with a torch optimizer of its own, mixed by dense matrices: [n, P]."""
    options = dict(settings)
    communication = Communication(
        **{key: options.pop(key) for key in ("every", "workers_per_machine", "global_every") if key in options}
    )
    schedule = communication.schedule(components("topology")[topology](**options), N)
    models = [network() for _ in range(N)]
    optimizers = [OPTIMIZERS[optimizer](model.parameters()) for model in models]
    w = np.ones(N)
    for step in range(STEPS):
        for rank, (model, opt) in enumerate(zip(models, optimizers, strict=True)):
            opt.zero_grad()
            for part in range(micro):
                x, y = batch(rank, micro * step + part)
                F.cross_entropy(model(x), y).backward()
        W = torch.from_numpy(schedule.matrices(step)[0].copy())
        if mode == "awc":
            mixed = W @ torch.stack([flat(model) for model in models])
            for model, row, opt in zip(models, mixed, optimizers, strict=True):
                put(model, row)
                opt.step()
            continue
        z = torch.stack([flat(model) for model in models])
        for opt in optimizers:
            opt.step()
        x = torch.from_numpy(w)[:, None] * z + torch.stack([flat(model) for model in models]) - z
        w = W.numpy() @ w if mode == "push_sum" else w
        for model, row in zip(models, (W @ x) / torch.from_numpy(w)[:, None], strict=True):
            put(model, row)
    return torch.stack([flat(model) for model in models])


def trained(
    world: World, mode: str, optimizer: str, topology: str, settings: dict[str, Any], overlap: bool, micro: int = 1
) -> Tensor:
    model = network()
    if world.rank:
        put(model, torch.zeros_like(flat(model)))  # everybody starts with what rank 0 has
    with decentral.join(topology, **settings) as peers:
        opt = decentral.wrap(
            model, OPTIMIZERS[optimizer](model.parameters()), peers=peers, mode=mode, overlap=overlap, bucket_mb=1e-4
        )
        for step in range(STEPS):
            opt.zero_grad()
            for part in range(micro - 1):
                x, y = batch(world.rank, micro * step + part)
                with opt.accumulate():
                    F.cross_entropy(model(x), y).backward()
            x, y = batch(world.rank, micro * step + micro - 1)
            F.cross_entropy(model(x), y).backward()
            opt.step()
        opt.close()
    return flat(model)


CASES = [
    ("atc", "sgd", "one_peer_exponential", {}, True, 1),
    ("atc", "adamw", "ring", {}, False, 1),
    ("atc", "rmsprop", "exponential", {}, True, 1),
    ("atc", "groups", "star", {}, False, 1),
    ("atc", "sgd", "ring", {"every": 2, "global_every": 2}, True, 1),
    ("atc", "sgd", "ring", {"workers_per_machine": 2}, False, 1),
    ("atc", "sgd", "ring", {}, True, 3),
    ("awc", "sgd", "one_peer_exponential", {}, True, 1),
    ("awc", "adamw", "ring", {}, False, 3),
    ("awc", "groups", "ring", {"workers_per_machine": 2}, True, 1),
    ("push_sum", "adamw", "star", {"weights": Weights.uniform}, False, 1),
    ("push_sum", "sgd", "one_peer_exponential", {}, False, 1),
    ("allreduce", "groups", "ring", {}, False, 1),
]


@pytest.mark.parametrize(("mode", "optimizer", "topology", "settings", "overlap", "micro"), CASES)
def test_steps_are_the_formula(worlds, mode, optimizer, topology, settings, overlap, micro):
    """With a linear optimizer all-reduce of gradients is ATC on the complete graph."""
    as_formula = ("atc", optimizer, "complete") if mode == "allreduce" else (mode, optimizer, topology)
    expected = by_the_formula(*as_formula, settings, micro)
    found = torch.stack(worlds(N).call(trained, mode, optimizer, topology, settings, overlap, micro))
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)


def uneven(world: World, sized: bool) -> tuple[list[int], int]:
    """Rank r has 2 + r batches, each of two parts; which of them it takes, and how many steps that makes."""
    model, taken = network(), []
    with decentral.join("ring") as peers:
        opt = decentral.wrap(model, OPTIMIZERS["sgd"](model.parameters()), peers=peers)
        for epoch in range(2):
            batches = range(10 * epoch, 10 * epoch + 2 + world.rank)
            for step in peers.equally(batches if sized else (one for one in batches)):
                opt.zero_grad()
                with opt.no_sync():
                    F.cross_entropy(model(batch(world.rank, step)[0]), batch(world.rank, step)[1]).backward()
                F.cross_entropy(model(batch(world.rank, step)[0]), batch(world.rank, step)[1]).backward()
                opt.step()
                taken.append(step)
        rounds = opt.round
        opt.close()
    return taken, rounds


@pytest.mark.parametrize("sized", [True, False])
def test_ranks_with_different_numbers_of_batches_step_equally_often(worlds, sized: bool):
    assert worlds(N).call(uneven, sized) == [([0, 1, 10, 11], 4)] * N


def mistakes(world: World) -> list[str]:
    """What is said of them; the group works on afterwards."""
    told: list[str] = []

    def said(action: Callable[[], object]) -> None:
        try:
            action()
        except (ConfigError, RuntimeError, TypeError, ValueError) as error:
            told.append(str(error))
        else:
            told.append("")

    def loss(model: nn.Module) -> Tensor:
        x, y = batch(world.rank, 0)
        return F.cross_entropy(model(x), y)

    sgd = OPTIMIZERS["sgd"]
    model, other, different = network(), network(), nn.Linear(3, 2 + world.rank)
    for wrapped, parameters, arguments, settings in (
        (model, model, (), {"mode": "act"}),
        (model, other, (), {}),
        (model, model, ("star",), {"weights": "uniform"}),
        (model, model, (np.eye(3),), {"peers": decentral.join("ring")}),
        (model, model, ("ring",), {"mode": "allreduce", "every": 2}),
        (model, model, ("ring",), {"evry": 2}),
        (different, different, (), {}),
    ):
        said(partial(decentral.wrap, wrapped, sgd(parameters.parameters()), *arguments, **settings))
    opt = decentral.wrap(model, sgd(model.parameters()), "ring", overlap=True, bucket_mb=1e-4)
    said(lambda: decentral.wrap(model, opt))
    said(lambda: opt.add_param_group({"params": []}))
    loss(model).backward()
    said(opt.state_dict)
    said(lambda: loss(model).backward())
    opt.close()
    model = network()
    opt = decentral.wrap(model, sgd(model.parameters()), "ring")
    with opt.averaged():
        said(opt.step)
    opt.close()
    opt.peers.close()
    said(lambda: opt.peers.allreduce(torch.ones(2)))
    return told


def test_mistakes_are_named_on_every_rank(worlds):
    expected = [
        "mode='act' does not exist. Did you mean",
        "parameters that are not in the model",
        "use weights='metropolis' on an undirected topology",
        "topology and settings come from decentral.join",
        "every=2 cannot be used with mode='allreduce'",
        "Did you mean 'every'?",
        "disagree",
        "already decentralized",
        "before decentral.wrap",
        "state_dict() between",
        "a second backward() before step()",
        "step() inside averaged() would be undone",
        "allreduce after the group was closed",
    ]
    are_named(worlds(3).call(mistakes), expected)


def evaluated(world: World) -> tuple[Tensor, Tensor, Tensor]:
    """Parameters and statistics of batch norm before, inside and after."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2)).double()
    opt = decentral.wrap(model, OPTIMIZERS["sgd"](model.parameters()), decentral.join("ring"))
    x, y = batch(world.rank, 0)
    F.cross_entropy(model(x), y).backward()
    opt.step()

    def everything() -> Tensor:
        return torch.cat([flat(model), model[1].running_mean, model[1].running_var])

    before = everything()
    with opt.averaged():
        inside = everything()
    opt.close()
    return before, inside, everything()


def test_averaged_gives_every_rank_the_mean(worlds):
    found = worlds(3).call(evaluated)
    mean = torch.stack([before for before, _, _ in found]).mean(0)
    for before, inside, after in found:
        torch.testing.assert_close(inside, mean, rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(after, before, rtol=0, atol=0)


def without_means(world: World) -> list[tuple[Tensor, ...]]:
    """Buffers of which there is no mean, before and inside `averaged()`, and after a mean for good."""
    torch.manual_seed(world.rank)
    model = nn.Sequential(
        nn.utils.parametrizations.spectral_norm(nn.Linear(3, 4)), nn.utils.spectral_norm(nn.Linear(4, 2))
    )
    model.register_buffer("small", torch.full((2,), 1.0 + world.rank).to(torch.float8_e4m3fn))
    model.register_buffer("count", torch.tensor(world.rank))
    opt = decentral.wrap(model, torch.optim.SGD(model.parameters(), lr=0.1), "ring", broadcast_from=None)
    found = [tuple(buffer.float().clone() for buffer in model.buffers())]
    with opt.averaged():
        found.append(tuple(buffer.float().clone() for buffer in model.buffers()))
    opt.peers.allreduce_parameters(model)
    found.append(tuple(buffer.float().clone() for buffer in model.buffers()))
    opt.close()
    return found


def test_buffers_without_a_mean_are_those_of_rank_0(worlds):
    found = worlds(3).call(without_means)
    for before, inside, after in found:
        assert all(map(torch.equal, inside, found[0][0])) and all(map(torch.equal, after, before))


def scaled(world: World, mode: str, scales: bool) -> tuple[int, float, Tensor]:
    """Six steps with a GradScaler; in the third, the gradients of one rank overflow. Or the other five without it."""
    model = network()
    opt = decentral.wrap(model, OPTIMIZERS["sgd"](model.parameters()), "complete", mode=mode, overlap=False)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0, enabled=scales)
    assert not opt._step_supports_amp_scaling  # for trainers, which would not clip gradients
    for step in range(6) if scales else (0, 1, 3, 4, 5):
        opt.zero_grad()
        x, y = batch(world.rank, step)
        loss = F.cross_entropy(model(x), y) * (float("inf") if (step, world.rank) == (2, 1) else 1.0)
        scaler.scale(loss).backward()
        if step % 2:
            scaler.unscale_(opt)
        scaler.step(opt)
        scaler.update()
    opt.close()
    return opt.round, scaler.get_scale(), flat(model)


@pytest.mark.parametrize("mode", ["atc", "awc", "allreduce"])
def test_all_ranks_skip_a_step_in_which_the_scaled_gradients_of_one_overflow(worlds, mode: str):
    expected = worlds(3).call(scaled, mode, False)
    for rank, (steps, scale, found) in enumerate(worlds(3).call(scaled, mode, True)):
        assert (steps, scale) == (5, 2.0 if rank == 1 else 4.0)
        torch.testing.assert_close(found, expected[rank][2], rtol=1e-12, atol=1e-12)


def evaluated_carelessly(world: World, mode: str) -> Tensor:
    """With gradients and in training mode, inside `averaged`: nothing may start to travel from there."""
    model = nn.Linear(1, 1, bias=False).double()
    opt = decentral.wrap(model, torch.optim.SGD(model.parameters(), lr=0.0), "complete", mode=mode, overlap=True)
    with torch.no_grad():
        model.weight.fill_(float(world.rank))
    with opt.averaged():
        model(torch.ones(1, 1, dtype=torch.float64)).backward()
    opt.zero_grad()
    model(torch.ones(1, 1, dtype=torch.float64)).backward()
    opt.step()
    opt.close()
    return flat(model)


@pytest.mark.parametrize("mode", ["atc", "awc"])
def test_an_evaluation_does_not_start_to_mix(worlds, mode):
    for found in worlds(2).call(evaluated_carelessly, mode):
        assert found.tolist() == [0.5]
