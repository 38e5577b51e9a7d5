"""Pairs that average at any time: the mean stays, concurrent gradients are kept, nobody waits in a circle."""

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

from decentral.errors import ConfigError
from decentral.network.asynchronous.mailbox import Mailbox
from decentral.network.asynchronous.pairs import Act, Event, Pairs
from decentral.network.processes import split_workers
from decentral.network.settings import Carrier, NetworkSettings
from decentral.network.world import World
from decentral.randomness import numpy_generator

P = 5
CARRIERS = [Carrier.shared_memory, Carrier.torch]


def start_rows(n: int) -> Tensor:
    return torch.arange(n * P, dtype=torch.float64).view(n, P).sin()


def gradient(x: Tensor, worker: int, number: int) -> Tensor:
    return (x + torch.arange(P, dtype=torch.float64) + worker + 0.1 * number).cos()


class Site:
    """Even workers are active; each worker does what it does in a thread of its own."""

    def __init__(self, world: World, carrier: Carrier, n: int, timeout_s: float = 20.0, **options: Any) -> None:
        settings = NetworkSettings(transport=carrier, timeout_s=timeout_s)
        self.mailbox = Mailbox.of(settings, split_workers(n, world.size), world.device)
        own = self.mailbox.workers
        self.rows = start_rows(n)[own.start : own.stop].clone()
        self.pairs = Pairs(self.mailbox, self.rows, range(0, n, 2), self.halve, **options)

    def halve(self, worker: int, sent: Tensor, received: Tensor) -> None:
        self.rows[worker - self.mailbox.workers.start].add_(received - sent, alpha=0.5)

    def each(self, work: Any, *arguments: Any) -> list[Any]:
        with ThreadPoolExecutor(len(self.mailbox.workers)) as pool:
            return list(pool.map(lambda worker: work(self, worker, *arguments), self.mailbox.workers))

    def close(self) -> None:
        self.pairs.close()
        self.mailbox.close()


@contextmanager
def opened(world: World, carrier: Carrier, n: int, **options: Any) -> Iterator[Site]:
    """It leaves no thread."""
    before = set(threading.enumerate())
    site = Site(world, carrier, n, **options)
    yield site
    site.mailbox.barrier()
    site.close()
    assert set(threading.enumerate()) <= before


def gossip(site: Site, worker: int, count: int, lr: float) -> None:
    """Active workers average with passive ones of a shared draw, in the background; all of them change their rows."""
    n, draw = site.mailbox.num_workers, numpy_generator(2, "partners", worker)
    for number in range(count):
        if worker % 2 == 0:
            site.pairs.begin(worker, 1 + 2 * int(draw.integers(n // 2)), number)
        with site.pairs.hold(worker, number) as row:
            x = row.clone()
        time.sleep(draw.exponential(0.0005))
        with site.pairs.hold(worker, number) as row:
            row.sub_(gradient(x, worker, number), alpha=lr)
    if worker % 2 == 0:
        site.pairs.finish(worker)


def gossip_all(world: World, carrier: Carrier, n: int, count: int, lr: float) -> list[tuple[list[float], list[Event]]]:
    with opened(world, carrier, n) as site:
        site.each(gossip, count, lr)
        site.mailbox.barrier()  # all answers have been given and taken
        return list(zip(site.rows.tolist(), site.pairs.log.values(), strict=True))


def replayed(n: int, logs: list[list[Event]], lr: float) -> Tensor:
    """The rows by the recorded events: each worker's in its order, an answer after what it answers."""
    x, waiting = start_rows(n), [list(reversed(log)) for log in logs]
    read: dict[int, Tensor] = {}
    asked: dict[tuple[int, int], Tensor] = {}
    answered: dict[tuple[int, int], Tensor] = {}

    def carry_out(worker: int, event: Event) -> bool:
        if event.act is Act.update and worker not in read:
            read[worker] = x[worker].clone()
        elif event.act is Act.update:
            x[worker] -= lr * gradient(read.pop(worker), worker, event.number)
        elif event.act is Act.ask:
            asked[worker, event.number] = x[worker].clone()
        elif event.act is Act.answer:
            key = event.partner, event.number
            if key not in asked:
                return False
            answered[key] = x[worker].clone()
            x[worker] = (x[worker] + asked[key]) / 2
        else:
            key = worker, event.number
            if key not in answered:
                return False
            x[worker] += (answered[key] - asked[key]) / 2
        return True

    while any(waiting):
        moved = False
        for worker, log in enumerate(waiting):
            while log and carry_out(worker, log[-1]):
                log.pop()
                moved = True
        assert moved
    return x


@pytest.mark.parametrize(("n", "processes"), [(4, 1), (4, 2), (4, 4), (8, 4)])
@pytest.mark.parametrize("carrier", CARRIERS)
def test_what_is_recorded_gives_the_rows_with_gradients_that_came_meanwhile(worlds, carrier, n, processes):
    count, lr = 60, 0.01
    found = [each for part in worlds(processes).call(gossip_all, carrier, n, count, lr) for each in part]
    rows, logs = torch.tensor([row for row, _ in found], dtype=torch.float64), [log for _, log in found]
    torch.testing.assert_close(rows, replayed(n, logs, lr), rtol=1e-12, atol=1e-12)
    for log in logs:
        assert [event.number for event in log if event.act is Act.update] == [t for t in range(count) for _ in "ru"]
        assert [event.at_ns for event in log] == sorted(event.at_ns for event in log)


# -- one averaging, step by step ---------------------------------------------------------------------------------------


def average_once(world: World) -> list[list[float]]:
    """Worker 0 changes its row between what it sent and what comes back, since worker 1 holds its own meanwhile."""
    with opened(world, Carrier.auto, 2) as site:
        if world.rank == 0:
            world.barrier()  # worker 1 holds its row
            site.pairs.begin(0, 1, 0)
            while not any(event.act is Act.ask for event in site.pairs.log[0]):
                time.sleep(0.001)
            with site.pairs.hold(0, 0) as row:
                row.add_(1.0)
            world.barrier()
            site.pairs.finish(0)
        else:
            with site.pairs.hold(1, 0) as row:
                world.barrier()
                world.barrier()  # worker 0 has changed its row
                row.add_(10.0)
        site.mailbox.barrier()
        return [site.rows[0].tolist(), [event.act for event in site.pairs.log[world.rank]]]


def test_a_gradient_that_comes_during_an_averaging_is_kept(worlds):
    (active, first), (passive, second) = worlds(2).call(average_once)
    x, y = start_rows(2)
    y = y + 10
    torch.testing.assert_close(torch.tensor(active, dtype=torch.float64), (x + y) / 2 + 1)
    torch.testing.assert_close(torch.tensor(passive, dtype=torch.float64), (x + y) / 2)
    assert first == [Act.ask, Act.update, Act.average] and second == [Act.update, Act.answer]


def test_two_active_or_two_passive_workers_are_refused():
    with opened(World(0, 1, torch.device("cpu")), Carrier.auto, 4) as site:
        for active, passive, kinds in ((0, 2, "active and active"), (1, 3, "passive and passive")):
            with pytest.raises(ConfigError) as error:
                site.pairs.begin(active, passive, 0)
            assert f"worker {active} cannot begin to average with worker {passive}" in str(error.value)
            assert str(error.value).endswith(f"but they are {kinds}.")


# -- processes that are killed -----------------------------------------------------------------------------------------


def how_it_ends(site: Site, worker: int) -> str:
    try:
        gossip(site, worker, 10**6, 1e-6)
    except (OSError, RuntimeError) as error:
        return f"{type(error).__name__}: {error}"
    return "it went well"


def lose_one(world: World, carrier: Carrier, lost: int) -> list[str]:
    site = Site(world, carrier, 2, timeout_s=60.0)
    if world.rank == lost:
        threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGKILL)).start()
    said = site.each(how_it_ends)
    site.close()
    return said


@pytest.mark.parametrize("lost", [0, 1])
@pytest.mark.parametrize("carrier", CARRIERS)
def test_a_killed_partner_is_noticed_with_a_sentence_by_a_passive_worker_too(pair, carrier, lost):
    for pipe in pair.pipes:
        pipe.send((lose_one, (carrier, lost)))
    assert pair.pipes[1 - lost].poll(30)
    kind, said = pair.pipes[1 - lost].recv()
    assert kind == "done"
    assert said == [f"ConnectionError: connection closed by process {lost} of this run"]
