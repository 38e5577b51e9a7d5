"""Payloads over the network: what is sent comes, whatever its types and lengths; bytes are counted; nothing is left."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import numpy as np
import pytest
import torch

from decentral.cluster.clock import Clock
from decentral.cluster.cluster import Machines
from decentral.cluster.compute import ComputeTimes
from decentral.cluster.links import Links
from decentral.network.local import LocalNetwork
from decentral.network.network import Network
from decentral.network.payload import Payload
from decentral.network.processes import join
from decentral.network.settings import Carrier, NetworkSettings
from decentral.network.world import World
from decentral.randomness import numpy_generator
from decentral.registry import components
from decentral.topology.communication import Communication
from decentral.topology.delivery import Losses
from worlds import Processes

N = 5
CERTAIN = Losses(0.0, seed=0)
CARRIERS = [Carrier.shared_memory, Carrier.torch]
DTYPES = [torch.uint8, torch.int32, torch.bfloat16, torch.int64, torch.float64]
Plain = dict[str, tuple[str, list[float]]]


def topology(name: str):
    return components("topology")[name]()


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
        found.append(plain(net.broadcast(payload, root, sizes)))
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
    counts = (net.bytes_sent, net.messages_sent), (net.wire_bytes, net.wire_messages)
    net.close()
    return found, *counts


CASES = [
    ("ring", 5, 5, 0.0),
    ("ring", 5, 2, 0.0),
    ("one_peer_exponential", 7, 3, 0.0),
    ("dbt", 5, 5, 0.0),
    ("dbt", 6, 2, 0.3),
    ("complete", 5, 5, 0.0),
    ("chain", 2, 2, 0.0),
]


@pytest.mark.parametrize("carrier", CARRIERS)
@pytest.mark.parametrize("lengths", [None, [3, 5, 0, 2, 1], [1, 0, 0, 0, 0], [0, 0, 0, 0, 0]])
@pytest.mark.parametrize(("name", "n", "processes", "drop_probability"), CASES)
def test_payloads_are_the_same_over_processes_and_so_is_what_is_counted(
    worlds, name, n, processes, drop_probability, lengths, carrier
):
    losses = Losses(drop_probability, seed=5)
    net = LocalNetwork(topology(name).schedule(n), losses)
    expected = use_every_verb(net, name, 4, lengths)
    answers = worlds(processes).call(over_processes, name, n, losses, carrier, lengths)
    assert merged([found for found, _, _ in answers]) == expected
    assert {counted for _, counted, _ in answers} == {(net.bytes_sent, net.messages_sent)}
    wire = tuple(np.sum([sent for _, _, sent in answers], axis=0).tolist())
    if n == processes and drop_probability == 0:
        assert wire == (net.bytes_sent, net.messages_sent)
    else:
        assert wire[0] <= net.bytes_sent and 0 < wire[1] < net.messages_sent


# -- accounts and time -------------------------------------------------------------------------------------------------


def numbers(*lengths: int) -> list[Payload]:
    """One for each worker, with so many bytes."""
    return [Payload({"values": torch.zeros(length, dtype=torch.uint8)}) for length in lengths]


def timed(name: str, n: int) -> LocalNetwork:
    """With links of half a second and 2 seconds per byte."""
    net = LocalNetwork(topology(name).schedule(n), CERTAIN)
    links = Links(latency_s=0.5, bandwidth_gbps=4e-9, copy_gbps=1.0)
    machines = Machines(compute=ComputeTimes(mean_s=1.0), links=links)
    net.clock = Clock(n, None, machines.costs(n))  # type: ignore[arg-type]
    return net


def test_bytes_and_simulated_time_of_the_verbs_by_hand() -> None:
    known, said = {"values": (torch.uint8, 10)}, 8  # the length of the one tensor
    net = timed("chain", 4)
    net.allgather(numbers(10, 10, 10, 10), known)
    assert (net.bytes_sent, net.messages_sent, net.clock.latest_s) == (4 * 3 * 10, 12, 2 * 0.5 + 3 * 10 * 2)
    net = timed("chain", 4)
    net.allgather(numbers(1, 2, 0, 7))
    assert (net.bytes_sent, net.messages_sent) == (3 * (10 + 4 * said), 12)
    assert net.clock.latest_s == 2 * 0.5 + 3 * (7 + said) * 2
    net = timed("chain", 4)
    net.broadcast(numbers(10)[0], 2, known)
    assert (net.bytes_sent, net.messages_sent, net.clock.latest_s) == (3 * 10, 3, 2 * (0.5 + 10 * 2))
    net = timed("chain", 4)
    net.broadcast(numbers(10)[0], 2)
    assert (net.bytes_sent, net.clock.latest_s) == (3 * (10 + said), 2 * (0.5 + (10 + said) * 2))


def test_every_sender_of_a_swap_has_its_own_size() -> None:
    net = timed("chain", 3)
    net.swap(numbers(100, 1, 0), 0)
    assert (net.bytes_sent, net.messages_sent) == (100 + 2 * 1 + 0 + 4 * 8, 4)
    assert net.clock.now.tolist() == [0.5 + 2 * 108, 0.5 + 2 * (108 + 8), 0.5 + 2 * 9]


def test_a_payload_over_an_edge_is_the_senders_for_that_edge() -> None:
    net = LocalNetwork(topology("dbt").schedule(6), CERTAIN)
    found = use_edges(net, 3, [2, 0, 1, 0, 1])
    sizes = [[2, 0, 1, 0, 1], [3, 1, 2, 1, 2]]
    assert found == {e: plain(drawn(e, 3, sizes[h])) for e, h in enumerate(net.edges.piece.tolist())}


def test_bytes_and_simulated_time_over_edges_by_hand() -> None:
    net = timed("chain", 3)
    came = net.relay_payloads(numbers(10, 10, 10, 10), 0, [{"values": (torch.uint8, 10)}])
    assert all(each is not None for each in came)
    assert (net.bytes_sent, net.messages_sent) == (4 * 10, 4)
    assert net.clock.now.tolist() == [0.5 + 2 * 10, 0.5 + 2 * (10 + 10), 0.5 + 2 * 10]


def test_in_one_process_nothing_is_copied() -> None:
    net, payloads = LocalNetwork(topology("ring").schedule(3), CERTAIN), numbers(3, 4, 5)
    found = [*net.allgather(payloads), *net.swap(payloads, 0)[0].values(), net.broadcast(payloads[1], 1)]
    places = [each.tensors["values"].data_ptr() for each in found]
    a, b, c = (each.tensors["values"].data_ptr() for each in payloads)
    assert places == [a, b, c, b, c, b]


def test_a_round_of_several_exchanges_or_of_none_swaps_along_its_matrix() -> None:
    schedule = Communication(every=2, global_every=3).schedule(topology("ring"), 5)
    net, payloads = LocalNetwork(schedule, CERTAIN), numbers(1, 1, 1, 1, 1)
    for round in range(schedule.period):
        (W,) = schedule.matrices(round)
        heard = [sorted(one) for one in net.swap(payloads, round)]
        assert heard == [[j for j in range(5) if j != i and W[i, j]] for i in range(5)]


# -- memory ------------------------------------------------------------------------------------------------------------


def shared_blocks() -> set[str]:
    """The ranges of addresses at which shared memory is mapped."""
    maps = Path("/proc/self/maps").read_text().splitlines()
    return {line.split()[0] for line in maps if "memfd:decentral" in line}


def change_often(world: World, carrier: Carrier) -> tuple[list[int], list[int], list[int]]:
    """Files that are open, blocks of shared memory that are mapped, and their bytes, after every 50 of 200 rounds."""
    earlier = shared_blocks()  # of tests before this one in the same process
    settings = NetworkSettings(transport=carrier)
    net = join(topology("ring").schedule(N), CERTAIN, world.device, world.rank, world.size, settings)
    files, blocks, num_bytes = [], [], []
    for step in range(200):
        lengths = [1 + (step * 7919 + place * 104729) % 5000 for place in range(len(DTYPES))]
        ours = [drawn(worker, step, lengths) for worker in net.workers]
        gathered = net.allgather(ours, ours[0].sizes if step % 2 else None)
        assert torch.equal(gathered[-1].tensors["torch.int64"], drawn(N - 1, step, lengths).tensors["torch.int64"])
        net.swap(ours, step)
        net.broadcast(ours[0] if world.rank == 0 else None, 0)
        if step % 50 == 49:
            files.append(len(os.listdir("/proc/self/fd")))
            mapped = [block.split("-") for block in shared_blocks() - earlier]
            blocks.append(len(mapped))
            num_bytes.append(sum(int(end, 16) - int(start, 16) for start, end in mapped))
    net.close()
    return files, blocks, num_bytes


@pytest.mark.parametrize("carrier", CARRIERS)
def test_sizes_that_keep_changing_leave_nothing_behind(worlds, carrier):
    """At most 5000 numbers of 23 bytes from each of 3 workers; 2 processes have two halves, a power of two each."""
    for files, blocks, num_bytes in worlds(2).call(change_often, carrier):
        assert len(set(files)) == 1
        assert len(set(blocks)) == 1 and len(set(num_bytes)) == 1
        assert num_bytes[0] <= 2 * 2 * (1 << 19) + (1 << 16)


# -- what goes wrong ---------------------------------------------------------------------------------------------------


def test_payloads_that_are_not_what_was_said_are_refused() -> None:
    net = LocalNetwork(topology("ring").schedule(3), CERTAIN)
    with pytest.raises(ValueError, match="all were said to be"):
        net.allgather(numbers(1, 1, 2), {"values": (torch.uint8, 1)})
    with pytest.raises(ValueError, match="same names and types"):
        net.swap([*numbers(1, 1), Payload({"values": torch.zeros(1)})], 0)
    with pytest.raises(ValueError, match="one dimension"):
        net.broadcast(Payload({"values": torch.zeros(1, 1)}), 0)
    with pytest.raises(ValueError, match="2 payloads were given for 3"):
        net.allgather(numbers(1, 1))
    with pytest.raises(ValueError, match="worker 1 is here"):
        net.broadcast(None, 1)
    net = LocalNetwork(topology("chain").schedule(3), CERTAIN)
    with pytest.raises(ValueError, match="3 payloads of 1 sizes were given for 4 local edges of 1 pieces"):
        net.relay_payloads(numbers(1, 1, 1), 0, [{"values": (torch.uint8, 1)}])
    with pytest.raises(ValueError, match="all were said to be"):
        net.relay_payloads(numbers(1, 1, 2, 1), 0, [{"values": (torch.uint8, 1)}])


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


def left_alone(world: World, carrier: Carrier) -> list[str]:
    """What process 0 hears when process 1 is killed in the middle."""
    settings = NetworkSettings(transport=carrier)
    net = join(topology("ring").schedule(2), CERTAIN, world.device, world.rank, world.size, settings)
    ours, known = numbers(5), {"values": (torch.uint8, 5)}
    net.allgather(ours)
    net.swap(ours, 0, known)
    if world.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    said = []
    for verb in (lambda: net.allgather(ours, known), lambda: net.swap(ours, 0), lambda: net.broadcast(None, 1)):
        with pytest.raises((ConnectionError, RuntimeError)) as error:
            while True:  # a message may be on its way already
                verb()
        said.append(str(error.value))
    net.close()
    return said


@pytest.mark.parametrize("carrier", CARRIERS)
def test_who_was_killed_is_missed_at_once(carrier):
    group = Processes(2)
    try:
        for pipe in group.pipes:
            pipe.send((left_alone, (carrier,)))
        kind, said = group.pipes[0].recv()
        assert kind == "done", said
        assert all("onnection" in each or "closed" in each for each in said), said
    finally:
        group.stop()
