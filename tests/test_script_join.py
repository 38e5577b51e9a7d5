"""`decentral.join` in somebody's own training script: models, optimizers, and torchrun."""

from __future__ import annotations

import subprocess
import sys
import warnings
from collections.abc import Callable
from typing import Any

import networkx as nx
import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

import decentral
from decentral.errors import ConfigError
from decentral.network.windows.window import SmallWeight
from decentral.network.world import World
from worlds import lose_patience


def model(rank: int) -> nn.Module:
    """Parameters, buffers and a counter that differ from rank to rank; weights in two dtypes."""
    torch.manual_seed(rank)
    net = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2).double())
    net[1](torch.randn(5 + rank, 4))
    for _ in range(rank):
        net[1](torch.randn(5, 4))
    return net


def state(net: nn.Module) -> list[torch.Tensor]:
    return [value.clone() for value in net.state_dict().values()]


def start_alike(world: World) -> list[list[torch.Tensor]]:
    with decentral.join() as peers:
        one, other = model(world.rank), model(world.rank)
        peers.broadcast_parameters(one, root=1)
        peers.allreduce_parameters(other)
        return [state(one), state(other)]


def test_models_are_broadcast_and_averaged_with_their_buffers(worlds):
    states = [state(model(rank)) for rank in range(3)]
    answers = worlds(3).call(start_alike)
    for broadcast, averaged in answers:
        assert all(torch.equal(ours, theirs) for ours, theirs in zip(broadcast, states[1], strict=True))
        for found, *originals in zip(averaged, *states, strict=True):
            if found.is_floating_point():
                torch.testing.assert_close(found, sum(originals) / 3)
    counters = [[value for value in averaged if not value.is_floating_point()] for _, averaged in answers]
    assert [int(counter) for (counter,) in counters] == [1, 2, 3]


OPTIMIZERS = {
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9, nesterov=True),
    "plain sgd": lambda parameters: torch.optim.SGD(parameters, lr=0.1),
    "adam": lambda parameters: torch.optim.AdamW(parameters, lr=0.1, amsgrad=True),
    "lbfgs": lambda parameters: torch.optim.LBFGS(parameters, lr=0.1, max_iter=2),
}


def continue_like_root(world: World, name: str) -> tuple[float, list[torch.Tensor]]:
    """Only rank 1 has taken steps, with another learning rate; then all take the same step."""
    with decentral.join() as peers:
        net = nn.Linear(3, 2)
        peers.broadcast_parameters(net)
        optimizer = OPTIMIZERS[name](net.parameters())
        x = torch.ones(4, 3)

        def loss() -> torch.Tensor:
            optimizer.zero_grad()
            value = net(x).square().sum()
            value.backward()
            return value

        if world.rank == 1:
            optimizer.param_groups[0]["lr"] = 0.05
            optimizer.step(loss)
        peers.broadcast_optimizer_state(optimizer, root=1)
        peers.broadcast_parameters(net, root=1)
        optimizer.step(loss)
        return optimizer.param_groups[0]["lr"], state(net)


def test_optimizers_go_on_like_that_of_the_root(worlds):
    for name in OPTIMIZERS:
        (lr, first), (other_lr, second) = worlds(2).call(continue_like_root, name)
        assert lr == other_lr == 0.05, name
        assert all(map(torch.equal, first, second)), name


def test_alone_the_same_script_runs_without_torchrun(monkeypatch):
    for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    for _ in range(2):  # what was left can be joined again
        with decentral.join("ring", every=2) as peers:
            assert (peers.rank, peers.size) == (0, 1)
            x = torch.arange(3.0)
            assert torch.equal(peers.neighbor_allreduce(x, 1), x)
            assert torch.equal(peers.neighbor_allreduce(x, self_weight=2, dst_weights={}), 2 * x)
            assert peers.neighbor_allgather(x).shape == (0,)
        assert not dist.is_initialized()
    with decentral.join("dbt") as peers:  # which would need two
        assert torch.equal(peers.neighbor_allreduce(torch.ones(3)), torch.ones(3))
    with pytest.raises(decentral.ConfigError, match="Did you mean"):
        decentral.join("rign")
    assert not dist.is_initialized()


def test_importing_the_package_does_not_import_torch():
    code = "import decentral, sys; decentral.ConfigError; assert 'torch' not in sys.modules"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    assert {"join", "Peers", "Window", "wrap", "ConfigError"} <= set(dir(decentral))
    with pytest.raises(AttributeError, match="no attribute 'jion'"):
        decentral.jion  # noqa: B018


def value(rank: int) -> Tensor:
    return torch.arange(6, dtype=torch.float64).view(2, 3) + 10 * rank


def use_all_of_it(world: World, transport: str) -> dict[str, Any]:
    """What a rank of a ring of 3 sees, step by step; between the steps everybody waits."""
    seen: dict[str, Any] = {}
    with decentral.join("ring") as peers, decentral.Window(value(world.rank), peers, transport=transport) as window:

        def see(name: str, what: Any) -> None:
            window.fence()
            seen[name] = what() if callable(what) else what
            window.fence()

        see("copies of t at first", window.update().clone())
        window.put(self_weight=0.5)
        see("put", lambda: (window.version, window.p, window.update(0, window.in_neighbors, reset=True).clone()))
        window.t.copy_(value(world.rank))
        window.accumulate([window.out_neighbors[0]])
        window.accumulate({window.out_neighbors[0]: 2})
        see("accumulate", lambda: (window.version, window.collect().clone(), window.version))
        with window.mutex():
            window.t.copy_(value(world.rank))
        window.fence()
        window.get({window.in_neighbors[-1]: 0.5})
        see("get", lambda: window.update(0.0, window.in_neighbors).clone())
    return seen


@pytest.mark.parametrize("transport", ["shared_memory", "torch"])
def test_a_window_in_a_script_has_all_operations(worlds, transport):
    n = 3
    for i, seen in enumerate(worlds(n).call(use_all_of_it, transport)):
        near = sorted({(i - 1) % n, (i + 1) % n})
        torch.testing.assert_close(seen["copies of t at first"], value(i))
        versions, p, t = seen["put"]
        assert versions == dict.fromkeys(near, 1) and p == 0.5
        torch.testing.assert_close(t, sum(value(j) for j in near))
        first_of = {j: min((j - 1) % n, (j + 1) % n) for j in near}
        told = [j for j in near if first_of[j] == i]
        before, t, after = seen["accumulate"]
        assert before == {j: 2 * (j in told) for j in near} and after == dict.fromkeys(near, 0)
        torch.testing.assert_close(t, value(i) + sum(3 * value(j) for j in told))
        torch.testing.assert_close(seen["get"], 0.5 * value(near[-1]))


def push_sum_in_a_loop(world: World, transport: str) -> tuple[Tensor, float]:
    """The example of the docstring."""
    with (
        warnings.catch_warnings(),
        decentral.join("exponential") as peers,
        decentral.Window(value(world.rank), peers, zero_init=True, transport=transport) as window,
    ):
        warnings.simplefilter("ignore", SmallWeight)  # whoever is first pushes without hearing anything
        share = 1 / (1 + len(window.out_neighbors))
        for _ in range(100):
            window.accumulate(dict.fromkeys(window.out_neighbors, share), share)
            window.collect()
        window.drain()
        for _ in range(60):  # now in step, so that all agree
            window.accumulate(dict.fromkeys(window.out_neighbors, share), share)
            window.drain()
        return window.estimate, window.p


@pytest.mark.slow
@pytest.mark.parametrize("transport", ["shared_memory", "torch"])
def test_push_sum_in_a_script_finds_the_mean(worlds, transport):
    found = worlds(5).call(push_sum_in_a_loop, transport)
    assert sum(p for _, p in found) == pytest.approx(5, rel=1e-12)
    for estimate, _ in found:
        torch.testing.assert_close(estimate, sum(value(i) for i in range(5)) / 5, rtol=1e-9, atol=1e-9)


def ask_for_nonsense(world: World) -> list[str]:
    """Each is refused on all ranks, and the group goes on working."""
    wrongs: list[tuple[Any, dict[str, Any]]] = [
        (torch.ones(3, dtype=torch.int64), {}),
        (torch.ones(3 + world.rank), {}),
        (torch.ones(3), {"edges": [(0, 5)]}),
        (torch.ones(3), {"transport": "pigeons"}),
        (torch.ones(3), {"edges": [3, 4] if world.rank else None}),
        (None if world.rank else torch.ones(3), {}),
        (torch.ones(3), {"transport": ["x"] if world.rank else "auto"}),
        (torch.ones(3).to_sparse() if world.rank else torch.ones(3), {}),
    ]
    said = []
    with decentral.join("ring") as peers:
        for t, settings in wrongs:
            with pytest.raises(ConfigError) as error:
                decentral.Window(t, peers, **settings)
            said.append(str(error.value))
        with decentral.Window(torch.ones(3), peers, edges=[(0, 1)]) as window:
            with pytest.raises(ConfigError) as error:
                window.put([1 - world.rank] if world.rank else [0])
            said.append(str(error.value))
            for owner, sender in ((99, 99), (-1, -1), (None, 7), (0, "one")):
                with pytest.raises(ConfigError) as error:
                    window.mutex(owner, sender)
                said.append(str(error.value))
    return said


def test_nonsense_is_refused_on_every_rank(worlds):
    for rank, said in enumerate(worlds(2).call(ask_for_nonsense)):
        parts = ["floating-point tensor, not torch.int64", "[4]", "edges has (0, 5)", "transport='pigeons' does not"]
        parts += ["edges are invalid: give pairs", "a window needs a dense tensor, not NoneType."]
        parts += ["transport=['x'] does not exist: use auto,", "not a tensor of layout torch.sparse_coo"]
        parts.append("worker 1 does not send to worker 0" if rank else "the caller itself")
        assert all(part in told for part, told in zip(parts, said[:9], strict=True)), said
        assert [told.startswith("rank 1: ") for told in said[5:7]] == [rank == 0] * 2
        assert said[9:] == [
            "owner=99 is not a rank: use 0 to 1.",
            "owner=-1 is not a rank: use 0 to 1.",
            "sender=7 is not a rank: use 0 to 1.",
            "sender='one' is not a rank: use 0 to 1.",
        ]


PARTS = ["t", "p", "estimate", "version"]
VERBS = ["put", "accumulate", "push", "get", "update", "collect", "mutex", "fence", "drain"]


def use_what_is_gone(world: World, transport: str) -> tuple[list[str], list[int]]:
    said = []
    with decentral.join("ring") as peers:
        with decentral.Window(torch.ones(3), peers, transport=transport) as window:
            window.free()
        window.free()
        for name in PARTS:
            with pytest.raises(RuntimeError) as error:
                getattr(window, name)
            said.append(str(error.value))
        for name in VERBS:
            with pytest.raises(RuntimeError) as error:
                getattr(window, name)()
            said.append(str(error.value))
    return said, window.in_neighbors


@pytest.mark.parametrize(("transport", "ranks"), [("auto", 1), ("shared_memory", 2), ("torch", 2)])
def test_a_freed_window_refuses_every_verb(worlds, transport, ranks):
    for rank, (said, near) in enumerate(worlds(ranks).call(use_what_is_gone, transport)):
        assert said == [f"{name} after the window was freed: create a new decentral.Window" for name in PARTS + VERBS]
        assert near == [i for i in range(ranks) if i != rank]


def leave_alone(world: World) -> list[str]:
    """Rank 0 frees its window, and rank 1 comes too late."""
    said = []
    with decentral.join("ring") as peers:
        window = decentral.Window(torch.ones(3), peers, transport="torch")
        lose_patience(window._opened, 1.0)
        if world.rank == 0:
            with pytest.raises(TimeoutError) as error:
                window.free()
            with pytest.raises(RuntimeError, match="put after the window was freed"):
                window.put()
            said.append(str(error.value))
        world.barrier()
        if world.rank == 1:
            with pytest.raises((TimeoutError, ConnectionError)):
                window.free()
        world.barrier()
    return said


@pytest.mark.slow
def test_a_window_is_freed_although_another_rank_does_not_come(pair):
    said, _ = pair.call(leave_alone)
    assert said == ["timed out after 1 s of waiting for the other processes of this run"]


def test_arguments_of_wrong_types_are_refused(tmp_path):
    """A graph, a number, a text, None and an array, wherever a tensor, a module, an optimizer or the like is wanted."""
    net, usual = nn.Linear(2, 1), {"algo": "dpsgd", "topology": "ring", "x0": np.ones((4, 1)), "steps": 1}
    usual["oracle"] = lambda x, t: x
    optimizer, peers, x = torch.optim.SGD(net.parameters(), lr=0.1), decentral.join("ring"), torch.ones(2)
    on_tensors = ("allreduce", "broadcast", "allgather", "neighbor_allreduce", "broadcast_parameters")
    on_tensors += ("allreduce_parameters", "broadcast_optimizer_state", "equally")
    calls: dict[str, Callable[[Any], object]] = {
        "Window": lambda wrong: decentral.Window(wrong, peers),
        "Window, peers": lambda wrong: decentral.Window(x, wrong),
        "wrap, model": lambda wrong: decentral.wrap(wrong, optimizer, peers=peers),
        "wrap, optimizer": lambda wrong: decentral.wrap(net, wrong, peers=peers),
        "wrap, peers": lambda wrong: decentral.wrap(net, optimizer, peers=3 if wrong is None else wrong),
        "join, needs": lambda wrong: decentral.join("ring", needs=wrong),
        "train, model": lambda wrong: decentral.train(wrong, [], []),
        "train, word": lambda wrong: decentral.train(net, [], [], wrong),
        "train, data": lambda wrong: decentral.train(net, wrong, [(x, 0)], results_dir=tmp_path),
        "oracle": lambda wrong: decentral.iterates(**usual | {"oracle": lambda x, t: wrong}),
        **{key: lambda wrong, key=key: decentral.iterates(**usual | {key: wrong}) for key in [*usual, "lr"]},
        "load": decentral.load,
        "runs": decentral.runs,
        "table": lambda wrong: decentral.table(wrong, rows="algo"),
        "table, rows": lambda wrong: decentral.table(tmp_path, rows=wrong),
        **{name: getattr(peers, name) for name in on_tensors},
        "hierarchical": lambda wrong: peers.hierarchical_neighbor_allreduce(x, wrong),
        "pair_gossip": lambda wrong: peers.pair_gossip(wrong, None),
    }
    refused = 0
    for call in calls.values():
        for wrong in (nx.cycle_graph(4), 3.5, "abc", None, np.ones((3, 2))):
            try:
                call(wrong)  # some are accepted, such as a matrix as a topology; nothing else is raised
            except ConfigError as error:
                assert "\n" not in str(error)
                refused += 1
    assert refused > 4 * len(calls)
    peers.close()
