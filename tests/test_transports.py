"""What carries rows and payloads between processes: unchanged, counted, and who is gone is named."""

from __future__ import annotations

import gc
import os
import time
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
import torch
from torch import Tensor

from decentral.cluster.clock import Clock
from decentral.cluster.cluster import Machines
from decentral.cluster.compute import ComputeTimes
from decentral.cluster.links import Links
from decentral.errors import ConfigError
from decentral.network.local import LocalNetwork
from decentral.network.network import Network
from decentral.network.payload import Payload
from decentral.network.processes import ProcessNetwork, join, split_workers
from decentral.network.settings import Carrier, NetworkSettings
from decentral.network.transports import choose
from decentral.network.world import World
from decentral.randomness import numpy_generator
from decentral.registry import components
from decentral.topology.delivery import Losses
from decentral.topology.topology import Topology

# -- What carries rows between processes: nobody reads too early or writes too soon, and who is gone is n --------------

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


WORKS = [
    (mix_often, "ring", Carrier.shared_memory),
    (mix_often, "one_peer_exponential", Carrier.torch),
    (average_often, "ring", Carrier.shared_memory),
    (relay_two_things, "dbt", Carrier.shared_memory),
    (relay_two_things, "dbt", Carrier.torch),
]


def at_a_different_pace(world: World, work, name: str, carrier: Carrier) -> Tensor:
    settings = NetworkSettings(transport=carrier)
    net = join(topology(name).schedule(N), CERTAIN, world.device, world.rank, world.size, settings)
    found = net.gather(work(net, Hurry(world.rank)))
    net.close()
    return found


@pytest.mark.parametrize(("work", "name", "carrier"), WORKS)
def test_processes_of_different_pace_agree_with_one_process(worlds, work, name, carrier):
    expected = work(LocalNetwork(topology(name).schedule(N), CERTAIN), lambda: None)
    for found in worlds(3).call(at_a_different_pace, work, name, carrier):
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
def test_a_silent_process_is_named(worlds, leaves, says):
    heard, _ = worlds(2).call(left_alone, leaves)
    assert heard.startswith(says)


def test_shared_memory_that_cannot_be_had_is_refused_by_name():
    with mock.patch.object(choose, "possible", return_value=False), pytest.raises(ConfigError) as refusal:
        choose.open_transport(
            NetworkSettings(transport=Carrier.shared_memory), split_workers(4, 2), torch.device("cpu")
        )
    assert "network.transport=shared_memory" in str(refusal.value)
    assert "network.transport=auto" in str(refusal.value)


# -- Payloads over the network: what is sent comes, whatever its types and lengths; bytes are counted; no --------------

CARRIERS = [Carrier.shared_memory, Carrier.torch]
DTYPES = [torch.uint8, torch.int32, torch.bfloat16, torch.int64, torch.float64]
Plain = dict[str, tuple[str, list[float]]]


def drawn(worker: int, step: int, lengths: list[int] | None = None) -> Payload:
    """A tensor of each type; lengths that differ by worker and step, some of them zero, unless they are given."""
    draws = numpy_generator(0, "payload", worker, step)
    lengths = lengths or (draws.integers(0, 9, len(DTYPES)) * draws.integers(0, 2, len(DTYPES))).tolist()
    numbers = (draws.integers(0, 200, length) for length in lengths)
    return Payload({str(kind): torch.from_numpy(each).to(kind) for kind, each in zip(DTYPES, numbers, strict=True)})


def plain(payload: Payload) -> Plain:
    return {name: (str(each.dtype), each.tolist()) for name, each in payload.tensors.items()}


def use_every_verb(net: Network, name: str, steps: int, lengths: list[int] | None) -> list[object]:
    sizes = drawn(0, 0, lengths).sizes if lengths else None
    found: list[object] = []
    for step in range(steps):
        ours = [drawn(worker, step, lengths) for worker in net.workers]
        found.append([plain(each) for each in net.allgather(ours, sizes)])
        root = step % net.n
        payload = ours[root - net.workers.start] if root in net.workers else None
        found.append(plain(net.broadcast(payload, root, drawn(root, step, lengths).sizes)))
        swapped = net.swap(ours, step, sizes)
        heard = {i: {j: plain(each) for j, each in one.items()} for i, one in zip(net.workers, swapped, strict=True)}
        found.append(heard)
        if lengths and name in RELAYED:
            found.append(use_edges(net, step, lengths))
    return found


RELAYED = ("chain", "dbt")


def use_edges(net: Network, step: int, lengths: list[int]) -> dict[int, Plain | None]:
    """What comes over each edge, by its number; payloads of the second piece are longer by a number of each type."""
    of_piece = [[length + h for length in lengths] for h in range(net.rounds.num_pieces)]
    first, edges = net.local_edges.start, net.edges
    ours = [drawn(int(edges.reverse[e]), step, of_piece[edges.piece[e]]) for e in net.local_edges]
    came = net.relay_payloads(ours, step, [drawn(0, 0, each).sizes for each in of_piece])
    return {e: None if one is None else plain(one) for e, one in enumerate(came, start=first)}


def merged(answers: list[list[object]]) -> list[object]:
    """What processes found: the same where they all hear the same, otherwise all of it."""
    together = []
    for each in zip(*answers, strict=True):
        if isinstance(each[0], dict) and all(isinstance(key, int) for key in each[0]):
            together.append({i: heard for one in each for i, heard in one.items()})
        else:
            assert all(one == each[0] for one in each)
            together.append(each[0])
    return together


def over_processes(world: World, name: str, n: int, losses: Losses, carrier: Carrier, lengths: list[int] | None):
    settings = NetworkSettings(transport=carrier)
    net = join(topology(name).schedule(n), losses, world.device, world.rank, world.size, settings)
    found = use_every_verb(net, name, 4, lengths)
    counts = (net.traffic.bytes_sent, net.traffic.messages_sent), (net.wire_bytes, net.wire_messages)
    net.close()
    return found, *counts


CASES = [
    ("ring", 3, 3, 0.0, CARRIERS[0]),
    ("ring", 3, 3, 0.0, CARRIERS[1]),
    ("one_peer_exponential", 7, 2, 0.0, CARRIERS[1]),
    ("dbt", 3, 3, 0.0, CARRIERS[0]),
    ("dbt", 6, 2, 0.3, CARRIERS[0]),
    ("dbt", 6, 2, 0.3, CARRIERS[1]),
]


@pytest.mark.parametrize(("name", "n", "processes", "drop_probability", "carrier"), CASES)
def test_payloads_and_counts_are_the_same_over_processes(worlds, name, n, processes, drop_probability, carrier):
    for lengths in [None, [3, 5, 0, 2, 1], [0, 0, 0, 0, 0]]:
        losses = Losses(drop_probability, seed=5)
        net = LocalNetwork(topology(name).schedule(n), losses)
        expected = use_every_verb(net, name, 4, lengths)
        answers = worlds(processes).call(over_processes, name, n, losses, carrier, lengths)
        assert merged([found for found, _, _ in answers]) == expected
        assert {counted for _, counted, _ in answers} == {(net.traffic.bytes_sent, net.traffic.messages_sent)}
        wire = tuple(np.sum([sent for _, _, sent in answers], axis=0).tolist())
        if n == processes and drop_probability == 0:
            assert wire == (net.traffic.bytes_sent, net.traffic.messages_sent)
        else:
            assert wire[0] <= net.traffic.bytes_sent and 0 < wire[1] < net.traffic.messages_sent


def numbers(*lengths: int) -> list[Payload]:
    """One for each worker, with so many bytes."""
    return [Payload({"values": torch.zeros(length, dtype=torch.uint8)}) for length in lengths]


def timed(name: str, n: int) -> LocalNetwork:
    """With links of half a second and 2 seconds per byte."""
    net = LocalNetwork(topology(name).schedule(n), CERTAIN)
    links = Links(latency_s=0.5, bandwidth_gbps=4e-9, copy_gbps=1.0)
    machines = Machines(compute=ComputeTimes(mean_s=1.0), links=links)
    net.traffic.clock = Clock(n, None, machines.costs(n))  # type: ignore[arg-type]
    return net


def test_bytes_and_simulated_time_of_the_verbs_by_hand() -> None:
    known, said = {"values": (torch.uint8, 10)}, 8  # the length of the one tensor
    net = timed("chain", 4)
    net.allgather(numbers(10, 10, 10, 10), known)
    sent = net.traffic
    assert (sent.bytes_sent, sent.messages_sent, sent.clock.latest_s) == (
        4 * 3 * 10,
        12,
        2 * 0.5 + 3 * 10 * 2,
    )
    net = timed("chain", 4)
    net.allgather(numbers(1, 2, 0, 7))
    assert (net.traffic.bytes_sent, net.traffic.messages_sent) == (3 * (10 + 4 * said), 12)
    assert net.traffic.clock.latest_s == 2 * 0.5 + 3 * (7 + said) * 2
    net = timed("chain", 4)
    net.broadcast(numbers(10)[0], 2, known)
    sent = net.traffic
    assert (sent.bytes_sent, sent.messages_sent, sent.clock.latest_s) == (
        3 * 10,
        3,
        2 * (0.5 + 10 * 2),
    )


def test_bytes_and_simulated_time_over_edges_by_hand() -> None:
    net = timed("chain", 3)
    came = net.relay_payloads(numbers(10, 10, 10, 10), 0, [{"values": (torch.uint8, 10)}])
    assert all(each is not None for each in came)
    assert (net.traffic.bytes_sent, net.traffic.messages_sent) == (4 * 10, 4)
    assert net.traffic.clock.now.tolist() == [0.5 + 2 * (10 + 10)] * 3, "ends wait for the middle's port"


def shared_blocks() -> set[str]:
    """The ranges of addresses at which shared memory is mapped."""
    maps = Path("/proc/self/maps").read_text().splitlines()
    return {line.split()[0] for line in maps if "memfd:decentral" in line}


def change_often(world: World, carrier: Carrier) -> tuple[list[int], list[int], list[int]]:
    """Files that are open, blocks of shared memory that are mapped, and their bytes, after every 20 of 80 rounds."""
    gc.collect()  # what tests before this one in the same process have left
    earlier = shared_blocks()
    settings = NetworkSettings(transport=carrier)
    net = join(topology("ring").schedule(N), CERTAIN, world.device, world.rank, world.size, settings)
    files, blocks, num_bytes = [], [], []
    for step in range(80):
        lengths = [1 + (step * 7919 + place * 104729) % 5000 for place in range(len(DTYPES))]
        ours = [drawn(worker, step, lengths) for worker in net.workers]
        gathered = net.allgather(ours, ours[0].sizes if step % 2 else None)
        assert torch.equal(gathered[-1].tensors["torch.int64"], drawn(N - 1, step, lengths).tensors["torch.int64"])
        net.swap(ours, step)
        net.broadcast(ours[0] if world.rank == 0 else None, 0, drawn(0, step, lengths).sizes)
        if step % 20 == 19:
            files.append(len(os.listdir("/proc/self/fd")))
            mapped = [block.split("-") for block in shared_blocks() - earlier]
            blocks.append(len(mapped))
            num_bytes.append(sum(int(end, 16) - int(start, 16) for start, end in mapped))
    net.close()
    return files, blocks, num_bytes


@pytest.mark.parametrize("carrier", [CARRIERS[0], pytest.param(CARRIERS[1], marks=pytest.mark.slow)])
def test_sizes_that_keep_changing_leave_nothing_behind(worlds, carrier):
    """At most 5000 numbers of 23 bytes from each of 3 workers; 2 processes have two halves, a power of two each."""
    for files, blocks, num_bytes in worlds(2).call(change_often, carrier):
        assert len(set(files)) == 1
        assert len(set(blocks)) == 1 and len(set(num_bytes)) == 1
        assert num_bytes[0] <= 2 * 2 * (1 << 19) + (1 << 16)


def test_unannounced_payloads_are_refused() -> None:
    net = LocalNetwork(topology("ring").schedule(3), CERTAIN)
    chain, sizes = LocalNetwork(topology("chain").schedule(3), CERTAIN), {"values": (torch.uint8, 1)}
    for says, call, *arguments in (
        ("all were said to be", net.allgather, numbers(1, 1, 2), sizes),
        ("same names and types", net.swap, [*numbers(1, 1), Payload({"values": torch.zeros(1)})], 0),
        ("one dimension", net.broadcast, Payload({"values": torch.zeros(1, 1)}), 0, {}),
        ("2 payloads were given for 3", net.allgather, numbers(1, 1)),
        ("worker 1 is here", net.broadcast, None, 1, {}),
        (
            "3 payloads of 1 sizes were given for 4 local edges",
            chain.relay_payloads,
            numbers(1, 1, 1),
            0,
            [sizes],
        ),
        ("all were said to be", chain.relay_payloads, numbers(1, 1, 2, 1), 0, [sizes]),
    ):
        with pytest.raises(ValueError, match=says):
            call(*arguments)


def other_kinds(world: World, carrier: Carrier) -> str:
    settings = NetworkSettings(transport=carrier)
    net = join(topology("ring").schedule(2), CERTAIN, world.device, world.rank, world.size, settings)
    kind = torch.float32 if world.rank else torch.int32
    with pytest.raises(ValueError) as error:
        net.allgather([Payload({"values": torch.zeros(3, dtype=kind)})])
    net.close()
    return str(error.value)


@pytest.mark.parametrize("carrier", CARRIERS)
def test_processes_with_other_kinds_of_payloads_say_so(worlds, carrier):
    for rank, said in enumerate(worlds(2).call(other_kinds, carrier)):
        assert said == f"the payloads of process {1 - rank} have tensors of other names or types than ours"
