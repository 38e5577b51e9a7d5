"""Messages between workers, pairs that average at any time: everything arrives, and nobody hangs."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor

from decentral.network.asynchronous.mailbox import Mailbox
from decentral.network.asynchronous.meeting import Pairs
from decentral.network.asynchronous.messages import Message
from decentral.network.processes import split_workers
from decentral.network.settings import Carrier, NetworkSettings
from decentral.network.world import World
from decentral.randomness import numpy_generator
from worlds import how_it_ends

# -- Messages between workers: everything arrives, in order and unchanged; nobody hangs, and nothing is l --------------

CARRIERS = [Carrier.shared_memory, Carrier.torch]
WORLDS = [(Carrier.auto, 1), (Carrier.shared_memory, 2), (Carrier.torch, 2)]
DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.int64]


@contextmanager
def opened(world: World, carrier: Carrier, num_workers: int) -> Iterator[Mailbox]:
    """It leaves no thread."""
    settings = NetworkSettings(transport=carrier, timeout_s=20.0)
    before = set(threading.enumerate())
    with Mailbox.of(settings, split_workers(num_workers, world.size), world.device) as mailbox:
        assert mailbox.shared == (carrier is not Carrier.torch and world.size > 1)
        yield mailbox
    assert set(threading.enumerate()) <= before


def in_threads(mailbox: Mailbox, work: Callable[[int], Any]) -> list[Any]:
    """What each local worker comes to, in a thread of its own."""
    with ThreadPoolExecutor(len(mailbox.workers)) as pool:
        return list(pool.map(work, mailbox.workers))


def row(source: int, destination: int, number: int) -> Tensor:
    """Another length and dtype for every number."""
    values = torch.arange(1 + 1000 * (number % 3)) + 100 * source + 10 * destination + number
    return values.to(DTYPES[number % len(DTYPES)])


def exchange_all(world: World, carrier: Carrier, num_workers: int) -> bool:
    """Everybody writes 6 messages to everybody, itself included, and receives them in the opposite order."""
    numbers = range(6)
    with opened(world, carrier, num_workers) as mailbox:

        def work(worker: int) -> bool:
            for number in numbers:
                for other in range(num_workers):
                    rows = row(worker, other, number)
                    mailbox.send(worker, other, 3, number, rows)
                    rows.zero_()
            same = []
            for number in reversed(numbers):
                for other in reversed(range(num_workers)):
                    message = mailbox.receive(worker, 3, number, other)
                    same.append(torch.equal(message.rows, row(other, worker, number)))
                    same.append(message.rows.dtype == row(other, worker, number).dtype)
                    same.append((message.source, message.destination) == (other, worker))
                    message.release()
            return all(same)

        return all(in_threads(mailbox, work))


@pytest.mark.parametrize(("carrier", "processes"), WORLDS)
def test_every_message_arrives_as_it_was_when_it_was_sent(worlds, carrier, processes):
    assert all(worlds(processes).call(exchange_all, carrier, 5))


def opened_alone(world: World, carrier: Carrier, timeout_s: float) -> Mailbox:
    """For two workers, with nothing that happens at its end."""
    return Mailbox.of(NetworkSettings(transport=carrier, timeout_s=timeout_s), split_workers(2, 2), world.device)


def wait_in_vain(world: World, carrier: Carrier) -> list[str]:
    """The second process is there, but does not write; then it leaves."""
    mailbox, said = opened_alone(world, carrier, 20.0), []
    if world.rank == 0:
        mailbox.timeout_s = 0.2
        said.append(how_it_ends(lambda: mailbox.receive(0, 1, 7, source=1)))
        said.append(how_it_ends(lambda: mailbox.receive(0, 1, 7)))
        mailbox.timeout_s = 20.0
    world.barrier()
    if world.rank == 0:
        said.append(how_it_ends(lambda: mailbox.receive(0, 1, 8, source=1)))
        said.append(how_it_ends(lambda: mailbox.send(0, 1, 1, 9)))
    mailbox.close()
    return said


def test_waiting_in_vain_names_the_worker(worlds):
    for carrier in CARRIERS:
        said, _ = worlds(2).call(wait_in_vain, carrier)
        assert said == [
            "TimeoutError: timed out after 0.2 s of waiting for process 1 of this run to answer for worker 1",
            "TimeoutError: timed out after 0.2 s of waiting for a message",
            "ConnectionError: connection closed by process 1 of this run",
            "ConnectionError: connection closed by process 1 of this run",
        ]


def give_up_with_rows_on_their_way(world: World) -> str:
    """The first process closes its memory before the second one has opened it; the third one waits for the first."""
    mailbox = Mailbox(split_workers(3, 3), 20.0, shared=True)
    if world.rank == 0:
        draft = mailbox.draft(1, torch.ones(8))
        mailbox._sharing.close()
        mailbox.send(0, 1, 1, 0, draft)
        mailbox.fail(ConnectionError("given up"))
        said = "given up"
    else:
        said = how_it_ends(lambda: mailbox.receive(world.rank, 1, 0, source=0))
    mailbox.close()
    return said


def test_a_worker_that_gives_up_is_missed_by_all(worlds):
    gone = "ConnectionError: connection closed by process 0 of this run"
    assert worlds(3).call(give_up_with_rows_on_their_way) == ["given up", gone, gone]


def fail_while_others_wait(world: World) -> list[str]:
    """A handler fails in the thread that receives: whoever waits hears of it."""
    mailbox = Mailbox(split_workers(2, 2), 20.0)

    def fail(message: Message) -> None:
        raise ValueError(f"message {message.number} is wrong")

    said = []
    if world.rank == 0:
        mailbox.handle(1, fail)
    mailbox.barrier()
    if world.rank == 1:
        mailbox.send(1, 0, 1, 5)
    else:
        said.append(how_it_ends(lambda: mailbox.receive(0, 2, 0)))
        said.append(how_it_ends(lambda: mailbox.send(0, 0, 2, 0)))
    world.barrier()
    return said


def test_a_failure_of_a_thread_is_raised_where_somebody_waits_or_sends(pair):
    said, _ = pair.call(fail_while_others_wait)
    assert said == ["RuntimeError: another thread of this process failed: message 5 is wrong"] * 2


def outlive(world: World, carrier: Carrier) -> list[str]:
    """The second process is killed, first of all while nobody waits for it."""
    mailbox = opened_alone(world, carrier, 60.0)
    world.barrier()
    if world.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    said = [how_it_ends(lambda: mailbox.receive(0, 1, 0)), how_it_ends(lambda: mailbox.send(0, 1, 1, 0))]
    mailbox.close()
    return said


@pytest.mark.parametrize("carrier", CARRIERS)
def test_the_death_of_a_process_is_noticed_without_waiting(pair, carrier):
    said = pair.survivor(0, outlive, carrier)
    assert said == ["ConnectionError: connection closed by process 1 of this run"] * 2


# -- Pairs that average at any time: the mean stays, concurrent gradients are kept, nobody waits in a cir --------------

P = 5


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


def lose_one(world: World, carrier: Carrier, lost: int) -> list[str]:
    site = Site(world, carrier, 2, timeout_s=60.0)
    if world.rank == lost:
        threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGKILL)).start()
    said = site.each(lambda site, worker: how_it_ends(lambda: gossip(site, worker, 10**6, 1e-6)))
    site.close()
    return said


@pytest.mark.parametrize("lost", [0, 1])
@pytest.mark.parametrize("carrier", CARRIERS)
def test_a_killed_partner_is_noticed_with_a_sentence_by_a_passive_worker_too(pair, carrier, lost):
    said = pair.survivor(1 - lost, lose_one, carrier, lost)
    assert said == [f"ConnectionError: connection closed by process {lost} of this run"]
