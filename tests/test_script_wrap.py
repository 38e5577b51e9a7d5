"""A training script of somebody's own, wrapped: its steps are the formulas, whatever the buckets and the overlap."""

from __future__ import annotations

import random
from collections.abc import Callable
from copy import deepcopy
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
from worlds import are_named

STEPS = 7
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
    ("atc", "sgd", "one_peer_exponential", {}),
    ("atc", "adamw", "ring", {}),
    ("atc", "rmsprop", "exponential", {}),
    ("atc", "groups", "star", {}),
    ("atc", "sgd", "ring", {"every": 2, "global_every": 2}),
    ("atc", "sgd", "ring", {"workers_per_machine": 2}),
    ("awc", "sgd", "one_peer_exponential", {}),
    ("awc", "adamw", "ring", {}),
    ("awc", "groups", "ring", {"workers_per_machine": 2}),
]


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize(("mode", "optimizer", "topology", "settings"), CASES)
def test_steps_are_the_formula(worlds, mode, optimizer, topology, settings, overlap):
    expected = by_the_formula(mode, optimizer, topology, settings)
    found = torch.stack(worlds(N).call(trained, mode, optimizer, topology, settings, overlap))
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)


def by_mode_and_by_algorithm(world: World, optimizer: str) -> list[Tensor]:
    found = []
    for how in ({"mode": "awc"}, {"algo": "dpsgd", "algo_settings": {"mode": "awc"}}):
        model = network()
        with decentral.join("ring") as peers:
            opt = decentral.wrap(model, OPTIMIZERS[optimizer](model.parameters()), peers=peers, **how)
            for step in range(STEPS):
                opt.zero_grad(set_to_none=False)
                x, y = batch(world.rank, step)
                F.cross_entropy(model(x), y).backward()
                opt.step()
            opt.close()
        found.append(flat(model))
    return found


@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
def test_awc_is_one_formula_in_both_ways_to_ask_for_it(worlds, optimizer: str):
    """With weight decay, too, which acts on what has been averaged."""
    for mode, algorithm in worlds(N).call(by_mode_and_by_algorithm, optimizer):
        used = slice(2, None)  # a parameter without a gradient is one whose gradient is zero, or none at all
        torch.testing.assert_close(mode[used], algorithm[used], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
@pytest.mark.parametrize(("topology", "settings"), [("star", {"weights": "uniform"}), ("one_peer_exponential", {})])
def test_push_sum_is_right_on_irregular_graphs(worlds, optimizer, topology, settings):
    from decentral.topology.weights import Weights

    expected = by_the_formula("push_sum", optimizer, topology, {k: Weights[v] for k, v in settings.items()})
    found = torch.stack(worlds(N).call(trained, "push_sum", optimizer, topology, settings, False))
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("mode", ["atc", "awc"])
def test_gradients_of_all_micro_batches_count(worlds, mode, overlap):
    expected = by_the_formula(mode, "sgd", "ring", {}, micro=3)
    found = torch.stack(worlds(N).call(trained, mode, "sgd", "ring", {}, overlap, 3))
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


def test_no_sync_is_what_accumulate_is():
    opt = decentral.wrap(model := network(), OPTIMIZERS["sgd"](model.parameters()), "ring", overlap=True)
    x, y = batch(0, 0)
    with opt.no_sync():
        F.cross_entropy(model(x), y).backward()
    before = flat(model).clone()
    F.cross_entropy(model(x), y).backward()  # a second backward pass, which overlap refuses without it
    opt.step()
    assert not torch.equal(before, flat(model))
    opt.close()


def test_all_reduce_averages_gradients(worlds):
    """With a linear optimizer it is ATC on the complete graph, and all ranks stay together."""
    expected = by_the_formula("atc", "groups", "complete", {})
    found = torch.stack(worlds(N).call(trained, "allreduce", "groups", "ring", {}, False))
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)


def interrupted(world: World) -> tuple[Tensor, Tensor]:
    """Seven steps at once; and three, saved, loaded into new objects, and four more, with a learning rate schedule."""

    def steps(model: nn.Module, opt: Any, scheduler: Any, which: range) -> None:
        for step in which:
            opt.zero_grad()
            x, y = batch(world.rank, step)
            F.cross_entropy(model(x), y).backward()
            opt.step()
            scheduler.step()

    def fresh() -> tuple[nn.Module, Any, Any]:
        model = network()
        opt = decentral.wrap(
            model, OPTIMIZERS["sgd"](model.parameters()), "star", weights="uniform", mode="push_sum", bucket_mb=1e-4
        )
        return model, opt, torch.optim.lr_scheduler.StepLR(opt, 2, 0.5)

    whole, opt, scheduler = fresh()
    steps(whole, opt, scheduler, range(7))
    opt.close()
    first, opt, scheduler = fresh()
    steps(first, opt, scheduler, range(3))
    saved = deepcopy((first.state_dict(), opt.state_dict(), scheduler.state_dict()))
    opt.close()
    second, opt, scheduler = fresh()
    for target, state in zip((second, opt, scheduler), saved, strict=True):
        target.load_state_dict(state)
    steps(second, opt, scheduler, range(3, 7))
    opt.close()
    return flat(whole), flat(second)


def test_training_goes_on_from_a_saved_state(worlds):
    for whole, resumed in worlds(N).call(interrupted):
        torch.testing.assert_close(resumed, whole, rtol=0, atol=0)


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
    model, other = network(), network()
    said(lambda: decentral.wrap(model, sgd(model.parameters()), mode="act"))
    said(lambda: decentral.wrap(model, sgd(model.parameters()), "rign"))
    said(lambda: decentral.wrap(model, sgd(other.parameters())))
    said(lambda: decentral.wrap(model, sgd(model.parameters()), "star", weights="uniform"))
    said(lambda: decentral.wrap(model, sgd(model.parameters()), np.eye(3), peers=decentral.join("ring")))
    said(lambda: decentral.wrap(model, sgd(model.parameters()), "ring", mode="allreduce", every=2))
    said(lambda: decentral.wrap(model, sgd(model.parameters()), "ring", evry=2))
    different = nn.Linear(3, 2 + world.rank)
    said(lambda: decentral.wrap(different, sgd(different.parameters())))
    opt = decentral.wrap(model, sgd(model.parameters()), "ring", overlap=True, bucket_mb=1e-4)
    said(lambda: decentral.wrap(model, opt))
    said(lambda: opt.step(lambda: 0.0))
    said(lambda: opt.add_param_group({"params": []}))
    loss(model).backward()
    said(opt.state_dict)
    said(lambda: loss(model).backward())
    opt.close()
    model = network()
    opt = decentral.wrap(model, sgd(model.parameters()), "ring")
    model.float()
    said(opt.step)
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
        "rign",
        "parameters that the model does not have",
        "use weights='metropolis' on an undirected topology",
        "topology and its settings belong to decentral.join",
        "leave out every, global_every",
        "Did you mean 'every'?",
        "do not agree",
        "decentralized already",
        "takes no closure",
        "before decentral.wrap",
        "state_dict() between",
        "a second backward() before step()",
        "are not where decentral.wrap has put them",
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


def test_inside_averaged_everybody_has_the_mean(worlds):
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


def test_what_has_no_mean_is_that_of_rank_0_inside_averaged(worlds):
    found = worlds(3).call(without_means)
    for before, inside, after in found:
        assert all(map(torch.equal, inside, found[0][0])) and all(map(torch.equal, after, before))


def scaled(world: World, mode: str) -> tuple[int, float, Tensor]:
    """Six steps with a GradScaler; in the third, the gradients of one rank overflow."""
    model = network()
    opt = decentral.wrap(model, OPTIMIZERS["sgd"](model.parameters()), "complete", mode=mode, overlap=False)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    for step in range(6):
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


def unscaled(world: World, mode: str) -> Tensor:
    model = network()
    opt = decentral.wrap(model, OPTIMIZERS["sgd"](model.parameters()), "complete", mode=mode, overlap=False)
    for step in (0, 1, 3, 4, 5):
        opt.zero_grad()
        x, y = batch(world.rank, step)
        F.cross_entropy(model(x), y).backward()
        opt.step()
    opt.close()
    return flat(model)


@pytest.mark.parametrize("mode", ["atc", "awc", "allreduce"])
def test_all_ranks_skip_a_step_in_which_the_scaled_gradients_of_one_overflow(worlds, mode: str):
    expected = worlds(3).call(unscaled, mode)
    for rank, (steps, scale, found) in enumerate(worlds(3).call(scaled, mode)):
        assert (steps, scale) == (5, 2.0 if rank == 1 else 4.0)
        torch.testing.assert_close(found, expected[rank], rtol=1e-12, atol=1e-12)


def test_alone_it_is_the_optimizer_itself():
    model, plain = network(), network()
    opt = decentral.wrap(model, OPTIMIZERS["adamw"](model.parameters()))
    other = OPTIMIZERS["adamw"](plain.parameters())
    for step in range(STEPS):
        x, y = batch(0, step)
        for net, each in ((model, opt), (plain, other)):
            each.zero_grad()
            F.cross_entropy(net(x), y).backward()
            each.step()
    opt.close()
    torch.testing.assert_close(flat(model), flat(plain), rtol=0, atol=0)


@pytest.mark.parametrize("settings", [{"mode": "awc"}, {"algo": "choco", "compress": "topk"}], ids=str)
def test_generators_are_left_as_they_were(settings):
    def drawn() -> list[object]:
        return [torch.get_rng_state().tolist(), random.getstate(), np.random.get_state()[1].tolist()]

    model, (x, y), before = network(), batch(0, 0), drawn()
    opt = decentral.wrap(model, torch.optim.SGD(model.parameters(), lr=0.1), **settings)
    F.cross_entropy(model(x), y).backward()
    opt.step()
    opt.close()
    assert drawn() == before


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


def unlike(world: World) -> list[str]:
    """Ranks that wrap differently: the sentence that each hears."""
    told = []
    for number in range(4):
        model = network()
        parameters = list(model.parameters())
        mine = world.rank == 1
        try:
            decentral.wrap(
                model,
                OPTIMIZERS["sgd"](parameters[:2] if mine and number == 0 else parameters),
                "complete",
                bucket_mb=1.0 if mine and number == 1 else 8.0,
                broadcast_from=9 if number == 2 else 0,
                mode=["atc"] if mine and number == 3 else "atc",  # type: ignore[arg-type]
            )
        except ConfigError as error:
            told.append(str(error))
    return told


def test_ranks_that_wrap_differently_all_hear_of_it(worlds):
    for told in worlds(2).call(unlike):
        assert len(told) == 4
        assert "do not agree" in told[0] and "do not agree" in told[1]
        assert "broadcast_from=9 is no rank" in told[2] and "unhashable" in told[3]


def partly_frozen(world: World) -> list[Tensor]:
    model = network()
    model[0].requires_grad_(False)
    calls: list[int] = []
    opt = decentral.wrap(model, torch.optim.SGD(model.parameters(), lr=0.1), "complete", overlap=True, bucket_mb=1e-6)
    opt.register_step_post_hook(lambda *_: calls.append(1))
    before = model[0].weight.clone()
    for step in range(2):
        opt.zero_grad()
        x, y = batch(world.rank, step)
        F.cross_entropy(model(x), y).backward()
        opt.step()
    opt.close()
    return [flat(model), model[0].weight - before, torch.tensor(len(calls))]


def test_frozen_parameters_stay_and_hooks_are_called(worlds):
    found = worlds(3).call(partly_frozen)
    for everything, moved, calls in found:
        torch.testing.assert_close(everything, found[0][0], rtol=1e-12, atol=1e-12)
        assert not moved.any() and calls > 0


def many_buckets(world: World) -> Tensor:
    """Hundreds of bells that nobody hears until the end of a step."""
    torch.manual_seed(world.rank)
    model = nn.Sequential(*[nn.Linear(2, 2) for _ in range(150)]).double()
    opt = decentral.wrap(model, torch.optim.SGD(model.parameters(), lr=0.0), "complete", bucket_mb=1e-6)
    model(torch.ones(1, 2, dtype=torch.float64)).sum().backward()
    opt.step()
    handles = [opt.peers.neighbor_allreduce(torch.ones(3) * world.rank, async_op=True) for _ in range(250)]
    assert all(torch.equal(handle.wait(), torch.full((3,), 0.5)) for handle in handles)
    opt.close()
    opt.peers.close()
    return flat(model)


def test_hundreds_of_exchanges_can_be_on_their_way(worlds):
    one, other = worlds(2).call(many_buckets)
    torch.testing.assert_close(one, other, rtol=0, atol=0)
