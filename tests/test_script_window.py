"""`decentral.Window`: one-sided operations in a loop of one's own, one worker per process."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from torch import Tensor

import decentral
from decentral.errors import ConfigError
from decentral.network.windows.window import SmallWeight
from decentral.network.world import World
from worlds import lose_patience


def value(rank: int) -> Tensor:
    return torch.arange(6, dtype=torch.float64).view(2, 3) + 10 * rank


def use_all_of_it(world: World, transport: str) -> dict[str, Any]:
    """What a rank of a ring of 4 sees, step by step; between the steps everybody waits."""
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
def test_a_loop_of_ones_own_has_the_same_operations(worlds, transport):
    n = 4
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


@pytest.mark.parametrize("transport", ["shared_memory", "torch"])
def test_push_sum_in_a_loop_of_ones_own_finds_the_mean(worlds, transport):
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
        assert "floating-point tensor, not one of torch.int64" in said[0]
        assert "[3]" in said[1] and "[4]" in said[1]
        assert "edges has (0, 5)" in said[2]
        assert "transport='pigeons' does not exist" in said[3]
        assert "edges has to be pairs (source, destination)" in said[4]
        own = rank == 1
        assert said[5] == ("" if own else "rank 1: ") + "a window takes a dense tensor, not NoneType."
        assert said[6] == ("" if own else "rank 1: ") + (
            "transport=['x'] does not exist: use auto, shared_memory or torch."
        )
        assert "dense tensor, not a tensor of layout torch.sparse_coo" in said[7]
        assert ("which is the caller's own" if rank == 0 else "worker 1 does not send to worker 0") in said[8]
        assert said[9:] == [
            "owner=99 is no rank: ranks are numbered 0 to 1.",
            "owner=-1 is no rank: ranks are numbered 0 to 1.",
            "sender=7 is no rank: ranks are numbered 0 to 1.",
            "sender='one' is no rank: ranks are numbered 0 to 1.",
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
def test_a_freed_window_says_so_whatever_it_is_asked(worlds, transport, ranks):
    for rank, (said, near) in enumerate(worlds(ranks).call(use_what_is_gone, transport)):
        assert said == [f"{name} after the window was freed: make another decentral.Window" for name in PARTS + VERBS]
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


def test_a_window_is_freed_although_another_rank_does_not_come(pair):
    said, _ = pair.call(leave_alone)
    assert said == ["timed out after 1 s of waiting for the other processes of this run"]


def alone_in_the_group(world: World) -> float:
    with decentral.join("ring") as peers, decentral.Window(torch.ones(3), peers, zero_init=True) as window:
        window.accumulate()
        window.collect()
        return float(window.drain().sum())


def test_one_rank_alone_keeps_what_it_has(worlds):
    assert worlds(1).call(alone_in_the_group) == [3.0]
