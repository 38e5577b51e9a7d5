"""One-sided windows: what each operation does, in one process and in several, and that no mass is ever lost."""

from __future__ import annotations

import functools
import os
import signal
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
from torch import Tensor

from decentral.errors import ConfigError
from decentral.network.locks import ByteLocks
from decentral.network.processes import split_workers
from decentral.network.settings import Carrier, NetworkSettings
from decentral.network.transports.shared_memory import Segments
from decentral.network.windows.open import MessageWindow, OneProcessWindow, SharedMemoryWindow, open_window
from decentral.network.windows.window import Edges, LostMass, SmallWeight, Window
from decentral.network.world import World
from decentral.registry import components

N, P = 5, 3
CARRIERS = [Carrier.shared_memory, Carrier.torch]
GRAPHS: dict[str, Edges] = {
    name: Edges.of(components("topology")[name]().schedule(N).mixing(0)[0].graph)
    for name in ("ring", "star", "complete")
} | {
    "one-way ring with a short cut": Edges(N, [(i, (i + 1) % N) for i in range(N)] + [(0, 3)]),
    "two of five": Edges(N, [(1, 0), (0, 1)]),
}


def start_values(n: int = N) -> Tensor:
    return torch.arange(n * P, dtype=torch.float64).view(n, P).sin() + 1


def opened(world: World, carrier: Carrier, edges: Edges, zero_init: bool = True, timeout_s: float = 20.0) -> Window:
    """For the workers of this process; with one process, in plain memory."""
    layout = split_workers(edges.num_workers, world.size)
    own = layout[world.rank]
    t = start_values(edges.num_workers)[own.start : own.stop]
    return open_window(NetworkSettings(transport=carrier, timeout_s=timeout_s), edges, layout, t, zero_init)


def alone(edges: Edges, **settings: bool) -> OneProcessWindow:
    return OneProcessWindow(edges, start_values(edges.num_workers), **settings)


def with_small_weights(function: Callable[..., Any]) -> Callable[..., Any]:
    """What is called does not mind them: it pushes without end, or its weights are anything."""

    @functools.wraps(function)
    def quiet(*arguments: Any) -> Any:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SmallWeight)
            return function(*arguments)

    return quiet


# -- what the operations do --------------------------------------------------------------------------------------------


class Model:
    """The same in as many words: dictionaries of vectors [P + 1], the last number of which is p."""

    def __init__(self, edges: Edges, zero_init: bool) -> None:
        self.t = {i: np.append(row, 1.0) for i, row in enumerate(start_values().numpy())}
        self.slot = {(i, j): self.t[i] * (not zero_init) for i, j in edges.slots}
        self.version = dict.fromkeys(edges.slots, 0)

    def put(self, sender: int, weights: dict[int, float], self_weight: float) -> None:
        for i, w in weights.items():
            self.slot[i, sender] = w * self.t[sender]
            self.version[i, sender] += 1
        self.t[sender] = self_weight * self.t[sender]

    def accumulate(self, sender: int, weights: dict[int, float], self_weight: float) -> None:
        for i, w in weights.items():
            self.slot[i, sender] = self.slot[i, sender] + w * self.t[sender]
            self.version[i, sender] += 1
        self.t[sender] = self_weight * self.t[sender]

    def get(self, owner: int, weights: dict[int, float]) -> None:
        for j, w in weights.items():
            self.slot[owner, j] = w * self.t[j]
            self.version[owner, j] += 1

    def update(self, owner: int, weights: dict[int, float], self_weight: float, reset: bool) -> None:
        self.t[owner] = self_weight * self.t[owner]
        for j, w in weights.items():
            self.t[owner] = self.t[owner] + w * self.slot[owner, j]
            self.slot[owner, j] = self.slot[owner, j] * (not reset)
            self.version[owner, j] = 0

    def push(self, sender: int, weights: dict[int, float], self_weight: float) -> None:
        welcome = {i: w for i, w in weights.items() if not self.slot[i, sender].any()}
        kept = sum(w for i, w in weights.items() if i not in welcome)
        self.accumulate(sender, welcome, self_weight + kept)

    def collect(self, owner: int) -> None:
        mine = [j for i, j in self.slot if i == owner]
        self.update(owner, dict.fromkeys(mine, 1.0), 1.0, True)

    def state(self, workers: range) -> list:
        rows = [[*self.t[i].tolist()] for i in workers]
        return [rows, [{j: v for (i, j), v in self.version.items() if i == worker} for worker in workers]]


def random_calls(edges: Edges, num_calls: int) -> Iterator[tuple[int, str, tuple]]:
    """(worker that acts, operation, arguments): every operation, with some or all neighbors and any weights."""
    draw = np.random.default_rng(0)
    for _ in range(num_calls):
        worker, operation = int(draw.integers(N)), str(draw.choice(["put", "accumulate", "get", "update", "collect"]))
        near = edges.receivers[worker] if operation in ("put", "accumulate") else edges.senders[worker]
        chosen = [i for i in near if draw.random() < 0.7]
        weights = {i: float(draw.uniform(-1, 1)) for i in chosen}
        own = float(draw.uniform(0.2, 1.5))
        rest = {"get": (weights,), "collect": (), "update": (weights, own, bool(draw.random() < 0.5))}
        yield worker, operation, (worker, *rest.get(operation, (weights, own)))


def calls(edges: Edges) -> Iterator[tuple[int, str, tuple]]:
    """Random calls; then, with all slots empty, two pushes of every worker, the second of which finds them full."""
    yield from random_calls(edges, 30)
    yield from ((worker, "collect", (worker,)) for worker in range(N))
    pushes = [(j, "push", (j, dict.fromkeys(edges.receivers[j], 0.2), 0.1)) for j in range(N)]
    yield from [*pushes, *pushes]


def follow(window: Window, edges: Edges) -> list:
    """What the local workers have after each of many calls, each of which is seen by all before the next."""
    seen = []
    for worker, operation, arguments in calls(edges):
        if worker in window.workers:
            getattr(window, operation)(*arguments)
        window.fence()
        rows = torch.cat([window.t, window.p[:, None]], dim=1).tolist()
        seen.append([rows, [window.versions(i) for i in window.workers]])
        window.barrier()
    return seen


def expected(edges: Edges, zero_init: bool, workers: range) -> list:
    model, seen = Model(edges, zero_init), []
    for _, operation, arguments in calls(edges):
        getattr(model, operation)(*arguments)
        seen.append(model.state(workers))
    return seen


def compare(found: list, wanted: list) -> None:
    for (rows, versions), (wanted_rows, wanted_versions) in zip(found, wanted, strict=True):
        np.testing.assert_allclose(rows, wanted_rows, rtol=1e-12, atol=1e-12)
        assert versions == wanted_versions


@pytest.mark.parametrize("graph", GRAPHS)
def test_operations_in_one_process_do_what_they_say(graph):
    edges, zero_init = GRAPHS[graph], graph != "ring"
    seen = with_small_weights(follow)(alone(edges, zero_init=zero_init), edges)
    compare(seen, expected(edges, zero_init, range(N)))


@with_small_weights
def follow_apart(world: World, carrier: Carrier, graph: str, zero_init: bool) -> list:
    window = opened(world, carrier, GRAPHS[graph], zero_init)
    assert type(window) is {Carrier.shared_memory: SharedMemoryWindow, Carrier.torch: MessageWindow}[carrier]
    seen = follow(window, GRAPHS[graph])
    window.close()
    return seen


@pytest.mark.parametrize(
    ("graph", "processes", "carrier"),
    [
        ("ring", 2, CARRIERS[0]),
        ("star", 3, CARRIERS[0]),
        ("star", 3, CARRIERS[1]),
        ("one-way ring with a short cut", 2, CARRIERS[1]),
    ],
)
def test_operations_over_processes_do_the_same(worlds, graph, carrier, processes):
    zero_init = graph != "star"
    found = worlds(processes).call(follow_apart, carrier, graph, zero_init)
    for seen, workers in zip(found, split_workers(N, processes), strict=True):
        compare(seen, expected(GRAPHS[graph], zero_init, workers))


def test_a_missing_edge_is_refused_before_any_write():
    window = alone(GRAPHS["star"])
    before = window.t.clone()
    for call in (
        lambda: window.put(1, {0: 0.5, 2: 0.5}, self_weight=0.0),
        lambda: window.get(1, {0: 0.5, 2: 0.5}),
        lambda: window.update(1, {2: 0.5}, 0.5),
        lambda: window.mutex(1, 2),
    ):
        with pytest.raises(ConfigError, match=r"does not send to worker . in this window: the senders"):
            call()
    assert torch.equal(window.t, before) and window.versions(0) == {1: 0, 2: 0, 3: 0, 4: 0}


# -- concurrency -------------------------------------------------------------------------------------------------------


@with_small_weights
def hammer(world: World, carrier: Carrier) -> tuple[float, Tensor, float]:
    """Worker 0 pushes as fast as it can, worker 1 collects as fast as it can and gives back now and then."""
    window = opened(world, carrier, Edges(2, [(0, 1), (1, 0)]))
    flag = Segments([(1,), (1,)], torch.int64).tensors[0]
    if world.rank == 0:
        for push in range(200):
            window.accumulate(0, {1: 0.25}, self_weight=0.75)
            if push % 16 == 0:
                window.collect(0)
        flag.fill_(1)
    else:
        rounds = 0
        while not flag.item():
            window.collect(1)
            rounds += 1
            if rounds % 4 == 0:
                window.accumulate(1, {0: 0.5}, self_weight=0.5)
    window.drain()
    found = float(window.p[0]), window.t[0].clone(), float(window.wire_messages)
    window.close()
    return found


@pytest.mark.parametrize("carrier", CARRIERS)
def test_hammering_a_slot_from_both_sides_loses_nothing(worlds, carrier):
    found = worlds(2).call(hammer, carrier)
    assert sum(p for p, _, _ in found) == pytest.approx(2, rel=1e-12)
    torch.testing.assert_close(sum(t for _, t, _ in found), start_values(2).sum(0), rtol=1e-12, atol=1e-12)
    assert found[0][2] == 200


def ask_in_vain(world: World, carrier: Carrier, holder: int) -> list[str]:
    """One holds the row of worker 0 for longer than the other waits; then each of them has it once more."""
    window = opened(world, carrier, Edges(2, [(0, 1), (1, 0)]))
    patience = window._locks if isinstance(window, SharedMemoryWindow) else window._mailbox
    said = []
    with window.mutex(0, 0) if world.rank == holder else nullcontext():
        world.barrier()
        if world.rank != holder:
            with mock.patch.object(patience, "timeout_s", 0.2), pytest.raises(TimeoutError) as error:
                window.mutex(0, 0).__enter__()
            said.append(str(error.value))
        world.barrier()
    for rank in (holder, 1 - holder, holder):
        with window.mutex(0, 0) if world.rank == rank else nullcontext():
            pass
        world.barrier()
    window.close()
    return said


@pytest.mark.parametrize("carrier", CARRIERS)
def test_a_lock_that_came_too_late_is_given_back(worlds, carrier):
    for holder in (0, 1):
        said = worlds(2).call(ask_in_vain, carrier, holder)
        assert said[holder] == []
        assert said[1 - holder][0].startswith("timed out after 0.2 s of waiting for")
        assert said[1 - holder][0].endswith("the row of worker 0")


HOLDER = """
import fcntl, os, sys, time
file = os.open(sys.argv[1], os.O_RDWR)
fcntl.lockf(file, fcntl.LOCK_EX, 1, 3)
print("held", flush=True)
time.sleep(60)
"""


def outlive(world: World) -> str:
    """Another process holds lock 3 and is killed: what happens to who waits for it before and afterwards."""
    locks = ByteLocks(timeout_s=0.05)
    said = ""
    if world.rank == 0:
        command = [sys.executable, "-c", HOLDER, f"/proc/{os.getpid()}/fd/{locks._file}"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as holder:
            assert holder.stdout is not None and holder.stdout.readline() == "held\n"
            with locks.hold(2, "the slot before"):
                pass
            with pytest.raises(TimeoutError) as error, locks.hold(3, "the slot of worker 1 at worker 0"):
                pass
            said = str(error.value)
            holder.send_signal(signal.SIGKILL)
    world.barrier()
    locks.timeout_s = 20.0
    with locks.hold(3, "the slot of worker 1 at worker 0"):
        pass
    world.barrier()
    locks.close()
    return said


def test_a_killed_holder_releases_its_lock(worlds):
    said, _ = worlds(2).call(outlive)
    assert said == "timed out after 0.05 s of waiting for the slot of worker 1 at worker 0"


# -- processes that do not come, or die --------------------------------------------------------------------------------


def outlive_a_holder(world: World) -> str:
    """The second process takes the row of the first one, by message, and is killed."""
    window = opened(world, Carrier.torch, Edges(2, [(0, 1), (1, 0)]))
    if world.rank == 1:
        with window.mutex(0, 0):
            world.barrier()
            os.kill(os.getpid(), signal.SIGKILL)
    world.barrier()
    with pytest.raises(ConnectionError) as error, window.mutex(0, 0):
        pass
    window.close()
    return str(error.value)


def test_waiting_for_a_killed_holder_of_a_row_ends(pair):
    assert pair.survivor(0, outlive_a_holder) == "connection closed by process 1 of this run"


# -- push-sum with a straggler -----------------------------------------------------------------------------------------


# -- the drain and its alarms ------------------------------------------------------------------------------------------


def test_a_drain_notices_lost_mass():
    window = alone(GRAPHS["ring"])
    window.accumulate(0, {1: 0.5}, self_weight=0.5)
    window.drain()
    assert window.p.tolist() == [0.5, 1.5, 1, 1, 1] and set(window.versions(1).values()) == {0}
    window.accumulate(1, {0: 0.5}, self_weight=0.5)
    window.put(1, {0: 0.5}, self_weight=0.5)  # over what had not been collected
    with pytest.raises(LostMass, match=r"add up to 4\.25 instead of 5"):
        window.drain()


def test_a_push_sum_weight_that_vanishes_gives_one_alarm():
    window = alone(GRAPHS["ring"])
    window.accumulate(2, {1: 1 - 1e-4}, self_weight=1e-4)
    with pytest.warns(SmallWeight, match=r"of worker \(rank\) 2 has fallen to 0\.0001, below 0\.001") as alarms:
        window.collect(2)
        window.collect(2)
    assert len(alarms) == 1
