"""What carries rows between processes: nobody reads too early or writes too soon, and who is gone is named."""

from __future__ import annotations

import os
import time
from unittest import mock

import pytest
import torch
from torch import Tensor

from decentral.errors import ConfigError
from decentral.network.local import LocalNetwork
from decentral.network.network import Network
from decentral.network.processes import ProcessNetwork, join, split_workers
from decentral.network.settings import Carrier, NetworkSettings
from decentral.network.transports import choose
from decentral.network.world import World
from decentral.randomness import numpy_generator
from decentral.registry import components
from decentral.topology.delivery import Losses
from decentral.topology.topology import Topology

N, P, ROUNDS = 5, 6, 12
CERTAIN = Losses(0.0, seed=0)


def topology(name: str) -> Topology:
    return components("topology")[name]()


def start_values() -> Tensor:
    return torch.arange(N * P, dtype=torch.float64).view(N, P).sin()


def mix_often(net: Network, hurry: Hurry) -> Tensor:
    x = start_values()[net.workers.start : net.workers.stop]
    for round in range(ROUNDS):
        hurry()
        x = net.mix(x, round)
    return x


def average_often(net: Network, hurry: Hurry) -> Tensor:
    x = start_values()[net.workers.start : net.workers.stop]
    for round in range(ROUNDS):
        hurry()
        x = net.mean(x * (1 + round + torch.arange(net.workers.start, net.workers.stop)[:, None]))
    return x


def relay_two_things(net: Network, hurry: Hurry) -> Tensor:
    """Two sets of messages that take turns, as in a method that relays two vectors in each step."""
    x = start_values()[net.workers.start : net.workers.stop]
    one, two = net.no_messages(x), net.no_messages(x)
    for round in range(ROUNDS):
        hurry()
        one = net.relay(x, one, round)
        hurry()
        two = net.relay(x.cos(), two, round)
        x = net.collect(one, x.clone(), weight=0.1) + net.collect(two, x.clone(), weight=0.1)
    return x


class Hurry:
    """Waits for a moment, a different one each time, so that processes run ahead of each other."""

    def __init__(self, rank: int) -> None:
        self.draws = numpy_generator(0, "hurry", rank)

    def __call__(self) -> None:
        time.sleep(float(self.draws.random()) * 0.01)


WORKS = [(mix_often, "ring"), (mix_often, "one_peer_exponential"), (average_often, "ring"), (relay_two_things, "dbt")]


def at_a_different_pace(world: World, work, name: str, carrier: Carrier) -> Tensor:
    settings = NetworkSettings(transport=carrier)
    net = join(topology(name).schedule(N), CERTAIN, world.device, world.rank, world.size, settings)
    found = net.gather(work(net, Hurry(world.rank)))
    net.close()
    return found


@pytest.mark.parametrize("carrier", [Carrier.shared_memory, Carrier.torch])
@pytest.mark.parametrize("processes", [2, 5])
@pytest.mark.parametrize(("work", "name"), WORKS)
def test_processes_of_different_pace_agree_with_one_process(worlds, work, name, processes, carrier):
    expected = work(LocalNetwork(topology(name).schedule(N), CERTAIN), lambda: None)
    for found in worlds(processes).call(at_a_different_pace, work, name, carrier):
        torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)


def left_alone(world: World, leaves: bool) -> str:
    """What process 0 hears when process 1 hangs up, or does nothing, instead of mixing."""
    settings = NetworkSettings(transport=Carrier.shared_memory)
    net = join(topology("ring").schedule(N), CERTAIN, world.device, world.rank, world.size, settings)
    x = start_values()[net.workers.start : net.workers.stop]
    try:
        net.mix(x, 0)
        world.barrier()
        said = ""
        if world.rank == 0:
            if not leaves:
                lose_patience(net, 0.2)
            with pytest.raises((ConnectionError, TimeoutError)) as error:
                net.mix(x, 1)
            said = str(error.value)
        if not leaves:
            world.barrier()
        return said
    finally:
        net.close()


def lose_patience(net: ProcessNetwork, timeout_s: float) -> None:
    """From now on this process waits no longer than that: the one before it had all the time that it wanted."""
    signals = net.transport.signals
    signals.timeout_s = timeout_s
    for connection in signals._sockets.values():
        connection.settimeout(timeout_s)


@pytest.mark.parametrize(
    ("leaves", "says"), [(True, "connection closed by process 1"), (False, "timed out after 0.2 s")]
)
def test_who_does_not_take_part_is_named(worlds, leaves, says):
    heard, _ = worlds(2).call(left_alone, leaves)
    assert heard.startswith(says)


def test_shared_memory_that_cannot_be_had_is_refused_by_name():
    with mock.patch.object(choose, "possible", return_value=False), pytest.raises(ConfigError) as refusal:
        choose.open_transport(
            NetworkSettings(transport=Carrier.shared_memory), split_workers(4, 2), torch.device("cpu")
        )
    assert "network.transport=shared_memory" in str(refusal.value)
    assert "network.transport=auto" in str(refusal.value)


def test_without_shared_memory_torch_carries_the_rows():
    with mock.patch.object(choose, "possible", return_value=False):
        transport = choose.open_transport(NetworkSettings(), split_workers(4, 2), torch.device("cpu"))
    assert isinstance(transport, choose.TorchDistributed)


def files_open(world: World) -> list[int]:
    """How many files a process has open before and after rows of several shapes were exchanged."""
    settings = NetworkSettings(transport=Carrier.shared_memory)
    net = join(topology("ring").schedule(N), CERTAIN, world.device, world.rank, world.size, settings)
    counts = []
    for width in range(1, 6):
        x = torch.ones(len(net.workers), width)
        net.mean(net.mix(x, 0))
        counts.append(len(os.listdir("/proc/self/fd")))
    net.close()
    return counts


def test_shared_memory_keeps_no_file_open(worlds):
    for counts in worlds(2).call(files_open):
        assert len(set(counts)) == 1
