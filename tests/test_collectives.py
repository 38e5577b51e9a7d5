"""All-reduces made of messages: they equal the sum, for any number of processes and any size, the same on all."""

from __future__ import annotations

import itertools
import math
import queue
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import Tensor

from decentral.network.collectives import Peers, chosen
from decentral.network.processes import join, split_workers
from decentral.network.settings import Carrier, CollectiveChoice, NetworkSettings
from decentral.network.transports.choose import open_transport
from decentral.network.transports.transport import Buffer, Expected, Transport, binomial_tree
from decentral.network.world import World
from decentral.registry import components
from decentral.topology.delivery import Losses

CARRIERS = [Carrier.shared_memory, Carrier.torch]
OURS = [each for each in CollectiveChoice if each not in (CollectiveChoice.library, CollectiveChoice.auto)]
KINDS = [torch.float32, torch.float64, torch.bfloat16]
SIZES = [1, 2, 16, 17, 1000]
Found = dict[tuple[str, int, torch.dtype], tuple[Tensor, int, int]]
"""By algorithm, size and type: what came out, and the messages and bytes that a process has sent."""


def row(rank: int, length: int, kind: torch.dtype) -> Tensor:
    return torch.arange(1, length + 1, dtype=torch.float64).add(37 * rank).sin().to(kind)


def rounding(kind: torch.dtype) -> dict[str, float]:
    return {"rtol": 0, "atol": 8 * torch.finfo(kind).eps}


def totals(world: World, carrier: Carrier, factor: float) -> Found:
    """Of every algorithm, with the messages and bytes that this process has sent."""
    settings = NetworkSettings(transport=carrier)
    transport = open_transport(settings, split_workers(world.size, world.size), world.device)
    found = of_every_kind(transport, world.rank, world.size, factor)
    transport.close()
    return found


def of_every_kind(transport: Transport, rank: int, size: int, factor: float) -> Found:
    found: Found = {}
    for choice, length, kind in itertools.product(OURS, SIZES, KINDS):
        x, algorithm = row(rank, length, kind), chosen(choice, 0, None)
        before = transport.wire_messages, transport.wire_bytes
        assert algorithm is not None
        algorithm.total(x, factor, Peers(transport, rank, size))
        found[choice.name, length, kind] = x, transport.wire_messages - before[0], transport.wire_bytes - before[1]
    return found


class Post:
    """A transport between threads, as far as a collective uses it: as many "processes" as one likes."""

    def __init__(self, rank: int, queues: dict[tuple[int, int], queue.Queue[Tensor]]) -> None:
        self.rank, self.queues, self.wire_messages, self.wire_bytes, self.most = rank, queues, 0, 0, 0

    count = Transport.count

    def reserve(self, num_bytes: int) -> None:
        self.most = num_bytes

    def done(self) -> None:
        return None

    def exchange(
        self, buffers: list[Buffer], expected: list[Expected], device: torch.device, unchanged: bool
    ) -> list[Tensor]:
        assert sum(buffer.num_bytes for buffer in buffers) <= self.most
        for buffer in buffers:
            packed = torch.empty(buffer.num_bytes, dtype=torch.uint8)
            buffer.pack(packed)
            for peer in buffer.peers:
                self.queues[self.rank, peer].put(packed)
        came = [
            self.queues[buffer.peer, self.rank].get(timeout=60) if buffer.num_bytes else torch.empty(0).byte()
            for buffer in expected
        ]
        assert [len(each) for each in came] == [buffer.num_bytes for buffer in expected]
        return came


def between_threads(size: int, factor: float) -> list[Found]:
    queues: dict[tuple[int, int], queue.Queue[Tensor]] = {
        (a, b): queue.Queue() for a in range(size) for b in range(size)
    }
    with ThreadPoolExecutor(size) as threads:
        works = [threads.submit(of_every_kind, Post(rank, queues), rank, size, factor) for rank in range(size)]
        return [work.result() for work in works]


def sent(name: str, size: int, length: int) -> tuple[int, int]:
    """Messages and numbers that all processes send together, of rows that all of them can share."""
    core = 1 << (size.bit_length() - 1)
    extra, log = size - core, core.bit_length() - 1
    return {
        "ring": (2 * (size - 1) * size, 2 * (size - 1) * length),
        "tree": (2 * (size - 1), 2 * (size - 1) * length),
        "star": (2 * (size - 1), 2 * (size - 1) * length),
        "recursive_doubling": (2 * extra + core * log, (2 * extra + core * log) * length),
        "rabenseifner": (2 * extra + 2 * core * log, (2 * extra + 2 * (core - 1)) * length),
    }[name]


@pytest.mark.parametrize("carrier", CARRIERS)
@pytest.mark.parametrize("processes", [1, 2, 3, 5])
def test_all_reduces_equal_the_sum_between_processes(worlds, processes, carrier):
    are_right(worlds(processes).call(totals, carrier, 1 / 3), 1 / 3)


@pytest.mark.parametrize("size", range(1, 18))
def test_all_reduces_equal_the_sum_for_any_number_of_processes_and_any_size(size):
    are_right(between_threads(size, 1 / size), 1 / size)


def are_right(answers: list[Found], factor: float) -> None:
    """The sum, the same everywhere, by as many messages and bytes as the formulas say."""
    processes = len(answers)
    for key, (first, _, _) in answers[0].items():
        name, length, kind = key
        exact = sum(row(rank, length, kind).double() for rank in range(processes)) * factor
        torch.testing.assert_close(first.double(), exact, **rounding(kind))
        assert all(torch.equal(found[key][0], first) for found in answers), "not the same on all processes"
        messages, numbers = (sum(found[key][place] for found in answers) for place in (1, 2))
        assert numbers == sent(name, processes, length)[1] * kind.itemsize
        if length >= processes:  # otherwise there are empty shares, which do not travel
            assert messages == sent(name, processes, length)[0]


def means(world: World, choice: CollectiveChoice) -> Tensor:
    """Of rows with something in between, 3 workers in a process or two."""
    settings = NetworkSettings(transport=Carrier.shared_memory, collective=choice)
    net = join(
        components("topology")["ring"]().schedule(5), Losses(0.0, 0), world.device, world.rank, world.size, settings
    )
    net.fastest = lambda num_bytes: CollectiveChoice.tree if num_bytes == 2 * 7 * 8 else CollectiveChoice.library
    x = torch.arange(5 * 2 * 7, dtype=torch.float64).view(5, 2, 7)[net.workers.start : net.workers.stop].clone()
    before = net.wire_messages
    found = net.mean(x)
    assert (net.wire_messages > before) == (choice is not CollectiveChoice.library)
    net.close()
    return found


@pytest.mark.parametrize("choice", list(CollectiveChoice))
def test_the_mean_goes_by_the_collective_that_was_chosen(worlds, choice):
    expected = torch.arange(5 * 2 * 7, dtype=torch.float64).view(5, 2, 7).mean(0)
    for found in worlds(2).call(means, choice):
        torch.testing.assert_close(found, expected.expand_as(found), rtol=1e-14, atol=0)


@pytest.mark.parametrize("size", range(1, 18))
def test_a_binomial_tree_reaches_all_within_the_logarithm(size):
    for root in range(size):
        phase, reached = {root: 0}, [root]
        for rank in reached:
            _, children = binomial_tree(rank, size, root)
            for number, child in enumerate(children, 1):
                assert binomial_tree(child, size, root)[0] == rank
                assert child not in phase
                phase[child] = phase[rank] + number  # a rank sends to one after the other
                reached.append(child)
        assert sorted(reached) == list(range(size))
        assert max(phase.values()) == math.ceil(math.log2(size))
