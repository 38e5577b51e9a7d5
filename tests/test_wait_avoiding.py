"""Wait-avoiding groups between real processes: what is in a sum is what its members say, and nobody is left behind."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor

from decentral.algorithms.asynchronous import Team
from decentral.algorithms.eager_sgd import EagerSGD, Partial
from decentral.algorithms.wagma import WAGMA
from decentral.cluster.groups import Groups
from decentral.network.asynchronous.mailbox import Mailbox
from decentral.network.asynchronous.meeting import AllWorkers
from decentral.network.asynchronous.protocol import GroupRules
from decentral.network.asynchronous.wait_avoiding import WaitAvoidingGroups
from decentral.network.local import LocalNetwork
from decentral.network.processes import split_workers
from decentral.network.settings import Carrier, NetworkSettings
from decentral.network.world import World
from decentral.randomness import numpy_generator
from decentral.registry import components
from decentral.topology.delivery import Losses
from decentral.topology.groups import GroupSchedule
from decentral.training.between_processes import ThreadedStepper
from handmade_cluster import Costs, Oracle, Virtual, pulls
from table import a_third
from worlds import how_it_ends

T, TAU = 40, 10


def is_sync(version: int) -> bool:
    return (version + 1) % TAU == 0


class Site:
    """Groups of all workers, of which this process hosts some; what a worker does, it does in a thread of its own."""

    def __init__(
        self,
        world: World,
        carrier: Carrier,
        P: int,
        S: int,
        *,
        timeout_s: float = 20.0,
        dynamic: bool = True,
        **rules: Any,
    ) -> None:
        settings = NetworkSettings(transport=carrier, timeout_s=timeout_s)
        self.mailbox = Mailbox.of(settings, split_workers(P, world.size), world.device)
        rows = torch.zeros(len(self.mailbox.workers), P, dtype=torch.float64)
        self.everybody = AllWorkers(self.mailbox)
        self.contributed: dict[int, dict[int, int]] = {worker: {} for worker in self.mailbox.workers}
        schedule = GroupSchedule(P, S, dynamic)
        self.groups = WaitAvoidingGroups(self.mailbox, GroupRules(schedule, **rules), rows, note=self.note)

    def note(self, worker: int, what: str, version: int, began_ns: int, *, contributed: int) -> None:
        self.contributed[worker][version] = contributed

    def each(self, work: Any, *arguments: Any) -> list[Any]:
        with ThreadPoolExecutor(len(self.mailbox.workers)) as pool:
            return list(pool.map(lambda worker: work(self, worker, *arguments), self.mailbox.workers))

    def publish(self, worker: int, row: Tensor, version: int) -> None:
        self.groups.publish(worker, version, lambda buffer: buffer.copy_(row))

    def close(self) -> None:
        self.groups.close()
        self.everybody.close()
        self.mailbox.close()


@contextmanager
def opened(world: World, carrier: Carrier, P: int, S: int, **options: Any) -> Iterator[Site]:
    """It leaves no thread."""
    before = set(threading.enumerate())
    site = Site(world, carrier, P, S, **options)
    yield site
    site.mailbox.barrier()
    site.close()
    assert set(threading.enumerate()) <= before


def tagged(worker: int, version: int, P: int) -> Tensor:
    """Its sum over a group is the list of the versions that its members contributed, plus 1."""
    return torch.eye(P, dtype=torch.float64)[worker] * (version + 1)


# -- the sums ----------------------------------------------------------------------------------------------------------


def walk(site: Site, worker: int, pace_s: float, steps: int = T) -> list[tuple[int, list[float], int, int]]:
    """Versions with random pauses, synchronized every TAU; what this worker gets."""
    P, seen = site.mailbox.num_workers, []
    for t in range(steps):
        time.sleep(numpy_generator(1, "pause", worker, t).exponential(pace_s))
        site.publish(worker, tagged(worker, t, P), t)
        if is_sync(t):
            assert site.everybody.mean(worker, tagged(worker, t, P), t).tolist() == [(t + 1) / P] * P
        else:
            total, contributed, used = site.groups.join(worker, t)
            seen.append((t, total.tolist(), contributed, used))
    return seen


def walk_all(world: World, carrier: Carrier, P: int, S: int, options: dict[str, Any]) -> list[tuple[int, list, dict]]:
    with opened(world, carrier, P, S, synchronizes=is_sync, **options) as site:
        seen = site.each(walk, 0.002)
    return [(worker, each, site.contributed[worker]) for worker, each in zip(site.mailbox.workers, seen, strict=True)]


def collected(found: list) -> tuple[list[list], list[dict[int, int]]]:
    """By worker: what it saw, and what it contributed to each version."""
    flat = sorted(each for part in found for each in part)
    return [seen for _, seen, _ in flat], [contributed for _, _, contributed in flat]


@pytest.mark.parametrize("depth", [1, 2])
def test_a_late_worker_takes_a_newer_sum(worlds, depth):
    seen, contributed = collected(worlds(2).call(walk_all, Carrier.auto, 4, 2, {"depth": depth}))
    for worker in range(4):
        for t, total, own, used in seen[worker]:
            assert t <= used < t + TAU and own == contributed[worker][used] == total[worker] - 1 <= t


def test_blocking_groups_sum_the_rows_of_the_very_version(worlds):
    seen, _ = collected(worlds(2).call(walk_all, Carrier.auto, 4, 2, {"waits": True, "dynamic": False}))
    for worker in range(4):
        for t, total, contributed, used in seen[worker]:
            assert contributed == used == t
            assert total == [(t + 1.0) * (j // 2 == worker // 2) for j in range(4)]


# -- the simulated clock and threads -----------------------------------------------------------------------------------


class InOrder(ThreadedStepper):
    """Workers whose gradients end in a given order; meanwhile all that was begun before comes to an end."""

    order: list[int]
    parked: set[int]
    waits_in_join: dict[int, int]

    def mean(self, i: int) -> None:
        self.parked.add(i)
        super().mean(i)
        self.parked.discard(i)

    def publish(self, i: int, groups: Groups, version: int) -> None:
        super().publish(i, groups, version)
        if not groups.may_set_off(i, version):
            self.waits_in_join[i] = version

    def join(self, i: int, groups: Groups, version: int) -> None:
        super().join(i, groups, version)
        self.waits_in_join.pop(i, None)

    def seconds(self, workers: range, t: int) -> float:
        i = workers.start
        self.parked.add(i)
        while not (self.order[0] == i and self._is_quiet()):
            time.sleep(2e-4)
        self.parked.discard(i)
        del self.order[0]
        return 0.0

    def _is_quiet(self) -> bool:
        (groups,) = self._groups.values()
        members = groups._members
        last = max(member.called for member in members.values())
        waiting = {i for i, version in list(self.waits_in_join.items()) if members[i].called < version}
        return all(member.done == last for member in members.values()) and len(self.parked | waiting) == len(members)


@pytest.mark.parametrize(
    "method",
    [
        *(WAGMA(tau=tau, recv_depth=depth, group_size="2") for tau, depth in ((12, 1), (12, 2), (4, 4))),
        EagerSGD(period_steps=5),
        EagerSGD(Partial.majority.name, Partial.majority, 5),
    ],
    ids=["wagma, one sum kept", "wagma, two sums kept", "wagma", "eager_sgd", "eager_sgd majority"],
)
def test_the_simulated_clock_and_threads_give_the_same_rows(method):
    """The same order of arrivals, in which everything else takes no time: some come later than sums are kept."""
    n, steps = 8, 30
    times = 0.05 + numpy_generator(4, "times").exponential(size=(steps, n)) ** 2
    rounds = components("topology")["ring"]().schedule(n)
    virtual = Virtual(method, rounds, times, Costs(), steps)
    expected = virtual.run()

    net, mailbox = LocalNetwork(rounds, Losses(0.0, 0)), Mailbox([range(n)], 20.0)
    oracle: Any = Oracle(pulls(n, 3), n)
    oracle.recorded = None
    x = torch.zeros(n, 3, dtype=torch.float64)
    stepper = InOrder(virtual.algorithm, net, oracle, x, Team(rounds, steps, 0, 1.0), mailbox)
    stepper.sleep = stepper  # type: ignore[assignment]
    stepper.order = [arguments[0] for _, what, arguments in virtual.seen if what == "end_gradient"]
    stepper.parked, stepper.waits_in_join = set(), {}
    stepper.may_go_on_to(steps)
    for _ in range(steps):
        stepper.step()
    stepper.flush()
    torch.testing.assert_close(stepper.models, torch.from_numpy(expected), rtol=0, atol=1e-12)
    assert stepper.lateness().ages == virtual.timeline.lateness().ages
    stepper.close()


# -- processes that are killed, or do not come -------------------------------------------------------------------------


def how_a_walk_ends(site: Site, worker: int) -> str:
    return how_it_ends(lambda: walk(site, worker, 0.001, 10**6))


def lose_one(world: World, carrier: Carrier, P: int) -> list[str]:
    site = Site(world, carrier, P, 2, synchronizes=is_sync, timeout_s=60.0)
    if world.rank == 1:
        threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGKILL)).start()
    said = site.each(how_a_walk_ends)
    site.close()
    return said


@pytest.mark.parametrize(
    ("carrier", "P"), a_third([(Carrier.shared_memory, 4), (Carrier.torch, 4), (Carrier.shared_memory, 2)])
)
def test_a_killed_process_is_noticed_with_a_sentence(pair, carrier, P):
    said = pair.survivor(0, lose_one, carrier, P)
    assert len(said) == P // 2
    assert all(each.startswith("ConnectionError: connection closed by") for each in said), said


def wait_for_one(world: World) -> str:
    """Worker 1 does not come to a group in which all wait for each other."""
    site = Site(world, Carrier.auto, 2, 2, waits=True, timeout_s=0.5)
    said = how_a_walk_ends(site, 0) if world.rank == 0 else ""
    world.barrier()
    site.mailbox.close()
    return said


def test_a_missing_worker_is_named_after_the_timeout(pair):
    said, _ = pair.call(wait_for_one)
    assert said.startswith("TimeoutError: timed out after 0.5 s of waiting for")
    assert "worker 1" in said
