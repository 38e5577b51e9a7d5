"""All-reduces made of messages, which of them is cheapest; and networks whose messages are late."""

from __future__ import annotations

import itertools
import json
from functools import partial
from math import inf
from unittest import mock

import pytest
import torch
from torch import Tensor

import decentral
from decentral.cluster.clock import Clock
from decentral.cluster.cluster import NoCluster, fastest_collective
from decentral.cluster.links import CollectiveName, LinkCosts, Links
from decentral.compression.artopk import Flexible
from decentral.compression.rows import RowLayout
from decentral.network.collectives import Peers, all_reduce
from decentral.network.local import LocalNetwork
from decentral.network.network import Network
from decentral.network.payload import Payload
from decentral.network.processes import join, split_workers
from decentral.network.settings import Carrier, CollectiveChoice, NetworkSettings
from decentral.network.transports import posting
from decentral.network.transports.choose import open_transport
from decentral.network.transports.posting import Limiter, Limits
from decentral.network.transports.transport import Transport
from decentral.network.world import World
from decentral.registry import components
from decentral.report.summary import summary
from decentral.topology.delivery import Losses
from decentral.training.faults import VARIABLE, Injected
from table import FREE

# -- All-reduces made of messages, and which of them is cheapest -------------------------------------------------------

CARRIERS = [Carrier.shared_memory, Carrier.torch]
OURS = [each for each in CollectiveChoice if each not in (CollectiveChoice.library, CollectiveChoice.auto)]
KINDS = [torch.float32, torch.float64, torch.bfloat16]
SIZES = [1, 17, 1000]
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
        x, before = row(rank, length, kind), (transport.wire_messages, transport.wire_bytes)
        assert all_reduce(choice, x, factor, Peers(transport, rank, size))
        found[choice.name, length, kind] = x, transport.wire_messages - before[0], transport.wire_bytes - before[1]
    return found


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


@pytest.mark.parametrize(("processes", "carrier"), [(2, CARRIERS[0]), (5, CARRIERS[1])])
def test_all_reduces_equal_the_sum_between_processes(worlds, processes, carrier):
    are_right(worlds(processes).call(totals, carrier, 1 / 3), 1 / 3)


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


def extremes(kind: torch.dtype) -> Tensor:
    """The largest and smallest normal numbers, in more columns than there are processes."""
    limits = torch.finfo(kind)
    return torch.tensor([limits.max, limits.min, limits.tiny, 1.0, 0.0, limits.max], dtype=torch.float64).to(kind)


def means_of_equal_values(world: World, workers: int) -> list[str]:
    """The ways to a mean that do not return what all workers have, bit for bit."""
    wrong, peers = [], decentral.join("complete")
    kinds = [torch.float16, torch.bfloat16, *([torch.float32, torch.float64] if world.size != 3 else [])]
    for carrier, choice in itertools.product(CARRIERS, CollectiveChoice):
        settings = NetworkSettings(transport=carrier, collective=choice)
        rounds = components("topology")["complete"]().schedule(workers)
        net = join(rounds, Losses(0.0, 0), world.device, world.rank, world.size, settings)
        for kind, way in itertools.product(kinds, (net.mean, net.average, partial(net.mix, round=0))):
            rows = extremes(kind).expand(len(net.workers), -1)
            found = way(rows.clone())
            wrong += [] if torch.equal(found, rows[0].expand_as(found)) else [f"{way} {carrier} {choice} {kind}"]
        net.close()
    for kind in kinds[1:3]:  # of the verbs of scripts, which use the same network
        x, model = extremes(kind), torch.nn.Module()
        model.register_buffer("x", x.clone())
        model.p = torch.nn.Parameter(x.clone())
        everyone = {"workers_per_machine": world.size}
        with decentral.Window(x, peers) as window:
            window.put()
            window.fence()
            found = {"update": window.update()}
        found |= {
            "allreduce": peers.allreduce(x),
            "inplace": peers.allreduce(x.clone(), inplace=True),
            "machine": peers.allreduce(x, **everyone),
            "neighbor_allreduce": peers.neighbor_allreduce(x),
            "hierarchical": peers.hierarchical_neighbor_allreduce(
                x, world.size, self_weight=1.0, src_machine_weights={}
            ),
        }
        peers.allreduce_parameters(model)
        found |= {"parameter": model.p.data, "buffer": model.x}
        for mode in ("atc", "allreduce"):
            optimizer = decentral.wrap(model, torch.optim.SGD(model.parameters(), lr=0.0), peers=peers, mode=mode)
            model.p.grad = torch.zeros_like(x)
            optimizer.step()
            with optimizer.averaged():
                found |= {f"averaged {mode}": model.p.data.clone(), f"averaged buffer {mode}": model.x.clone()}
            optimizer.close()
        wrong += [f"{way} {kind}" for way, mean in found.items() if not torch.equal(mean, x)]
    peers.close()
    return wrong


@pytest.mark.parametrize(
    ("processes", "workers"), [(2, 4), *(pytest.param(n, n, marks=pytest.mark.slow) for n in (2, 3))]
)
def test_the_mean_of_equal_values_is_that_value(worlds, processes: int, workers: int) -> None:
    assert worlds(processes).call(means_of_equal_values, workers) == [[]] * processes


def test_the_mean_of_equal_rows_is_that_row() -> None:
    for kind, n in itertools.product([torch.float16, torch.bfloat16, torch.float32, torch.float64], [2, 3, 4]):
        if n == 3 and kind.itemsize > 2:
            continue
        net, rows = LocalNetwork(components("topology")["complete"]().schedule(n), Losses(0.0, 0)), extremes(kind)
        for way in (net.mean, net.average, partial(net.mix, round=0)):
            found = way(rows.repeat(n, 1))
            assert torch.equal(found, rows.expand_as(found)), (way, kind, n)
    x = torch.randn(30, 70_001)
    assert torch.equal(
        LocalNetwork(components("topology")["ring"]().schedule(30), Losses(0.0, 0)).average(x), x.mean(0)
    )


MODELS = {"resnet18": 11_689_512, "resnet50": 25_557_032, "alexnet": 61_100_840, "vit_l_16": 304_326_632}


def costs(latency_s: float, gbps: float, collective: CollectiveName, n: int = 8) -> LinkCosts:
    """With log2 as in the paper's formulas."""
    links = Links(latency_s=latency_s, bandwidth_gbps=gbps, copy_gbps=inf, collective=collective, whole_phases=False)
    return LinkCosts(links, n)


def clock(latency_s: float, gbps: float, n: int = 8, collective: CollectiveName = CollectiveName.ring_or_tree) -> Clock:
    return Clock(n, None, costs(latency_s, gbps, collective, n))  # type: ignore[arg-type]


def cheapest(time: Clock, parameters: int, keep: float) -> tuple[str, float]:
    """What the flexible compressor takes: ring, tree or allgather, and its seconds."""
    compressor = Flexible(keep=keep).bound(RowLayout.flat(parameters), 0)
    way = compressor._cheaper(time, 0, torch.float32)
    seconds = way.planned_s(time, 0, torch.float32)
    if way is compressor.ways[1]:
        return "allgather", seconds
    k = way.count(parameters, 0)
    return time.costs.all_reduce(time.n, 4 * k)[0].name, seconds


@pytest.mark.parametrize(
    ("n", "c1", "c2", "c3"),
    [(4, 1.25, 0.417, 0), (6, 0.725, 0.575, 0.434),
     (8, 0.531, 0.661, 0.833), (16, 0.278, 0.804, 2.25), (32, 0.155, 0.888, 4.7),
     (64, 0.088, 0.937, 9.0)],
)  # fmt: skip
def test_the_cheapest_collective_depends_on_latency_times_bandwidth(n: int, c1: float, c2: float, c3: float) -> None:
    parameters, keep = 10_000_000, 0.1
    Q = 4 * parameters * keep
    borders = [(c1, "ring", "tree"), (c3, "tree", "allgather")] if c1 < c3 else [(c2, "ring", "allgather")]
    for border, below, above in borders:
        for factor, expected in ((0.99, below), (1.01, above)):
            assert cheapest(clock(factor * border * Q * 1e-9, 8.0, n), parameters, keep)[0] == expected


@pytest.mark.parametrize(
    ("keep", "ring", "tree", "gathered"),
    [(0.1, 55.9, 82.6, 117.5), (0.033, 29.8, 33.3, 40.8), (0.011, 21.3, 17.1, 15.6), (0.001, 17.4, 9.7, 4.1)],
)
def test_the_papers_example(keep: float, ring: float, tree: float, gathered: float) -> None:
    """ResNet-50, 8 workers, 1 ms, 10 Gbit/s: milliseconds."""
    parameters = MODELS["resnet50"]
    for collective, expected in ((CollectiveName.ring, ring), (CollectiveName.tree, tree)):
        compressor = Flexible(keep=keep).bound(RowLayout.flat(parameters), 0)
        times = [1e3 * way.planned_s(clock(1e-3, 10.0, 8, collective), 0, torch.float32) for way in compressor.ways]
        assert times == [pytest.approx(expected, abs=0.06), pytest.approx(gathered, abs=0.06)]
    best = min((ring, "ring"), (tree, "tree"), (gathered, "allgather"))
    assert cheapest(clock(1e-3, 10.0), parameters, keep) == (best[1], pytest.approx(best[0] * 1e-3, abs=6e-5))


RUN = ("task=quadratics", "task.dimension=50", "num_workers=8", "steps=20", "evaluation.every_epochs=5")
CHANGES = (
    *(*FREE, "cluster.links.latency_s=null", "cluster.links.bandwidth_gbps=null", "cluster.network.mode=steps"),
    *("cluster.network.segment_epochs=8", "cluster.network.latency_s=[0.001,1]"),
    *("cluster.network.bandwidth_gbps=[1e-6,1e-5]", "checkpoint_every_s=0.000001"),
)
"""Rows have 400 bytes (float64). At first a byte takes 8 ms and latency is 1 ms, then a byte 0.8 ms and latency 1 s."""


def test_every_choice_is_recorded(start) -> None:
    run = start("algo=allreduce", *RUN, *CHANGES, "cluster.links.collective=ring_or_tree")
    ring_s, tree_s = 14 * (0.001 + 400 / 8 * 8e-3), 6 * (1 + 400 * 8e-4)
    assert run.facts["collectives"] == {
        "ring": [8, pytest.approx(8 * ring_s)],
        "tree": [12, pytest.approx(12 * tree_s)],
    }
    assert run.facts["simulated_s"] == pytest.approx(20 + sum(spent for _, spent in run.facts["collectives"].values()))
    seen = [
        (row["step"], row["metric"], row["value"])
        for row in run.rows
        if row["split"] == "collective" and row["metric"] in ("ring", "tree")
    ]
    assert seen == [
        *((5, "ring", 5.0), (10, "ring", 8.0), (10, "tree", 2.0), (15, "ring", 8.0), (15, "tree", 7.0)),
        *((20, "ring", 8.0), (20, "tree", 12.0)),
    ]
    assert "Chosen:   ring 8 times (" in summary(run.directory)


@pytest.mark.parametrize("collective", ["ring", "auto"])
def test_a_run_that_chooses_resumes_bit_for_bit(start, monkeypatch, collective: str) -> None:
    settings = ["algo=allreduce", *RUN, *CHANGES, f"cluster.links.collective={collective}"]
    settings += ["compress=flexible", "compress.keep=0.2"]
    straight = start(*settings, directory="straight")
    monkeypatch.setenv(VARIABLE, json.dumps([{"rank": 0, "step": step, "kind": "raise"} for step in (7, 13)]))
    for _ in range(2):
        with pytest.raises(Injected):
            start(*settings, directory="broken")
    broken = start(*settings, directory="broken")
    strip = [[{key: row[key] for key in row if key != "wall_s"} for row in run.rows] for run in (straight, broken)]
    assert strip[0] == strip[1]
    assert broken.facts["collectives"] == straight.facts["collectives"]
    assert {"allgather", "broadcast"} <= set(straight.facts["collectives"])


# -- Limited networks: messages are late by latency and bandwidth, all of them, and otherwise nothing cha --------------

N, P = 4, 10
CERTAIN = Losses(0.0, seed=0)


def test_messages_go_one_after_the_other_and_arrive_the_latency_later() -> None:
    now, slept, sent = [100.0], [], []
    clock = mock.Mock(perf_counter=lambda: now[0], sleep=slept.append)
    with mock.patch.object(posting, "time", clock):
        way_out = Limiter(Limits(latency_s=0.5, seconds_per_byte=2.0))
        assert way_out.later(3, lambda: sent.append("a")) == 100 + 3 * 2 + 0.5
        assert way_out.later(1, lambda: sent.append("b")) == 100 + 3 * 2 + 1 * 2 + 0.5
        now[0] = 200.0
        assert way_out.later(0, lambda: sent.append("c")) == 200.5, "nothing was saved up meanwhile"
        assert way_out.later(1, lambda: sent.append("d")) == 202.5
        way_out.close()
    assert sent == ["a", "b", "c", "d"]
    assert len(slept) == 4 and slept[2:] == [0.5, 2.5]


def use_every_verb(net: Network) -> dict[str, Tensor]:
    x = torch.arange(N * P, dtype=torch.float64).view(N, P).sin()[net.workers.start : net.workers.stop]
    found = {"mix": net.gather(net.mix(x.clone(), 0))}
    m = net.no_messages(x)
    for round in range(3):
        m = net.relay(x.clone(), m, round)
        found[f"relay {round}"] = net.gather(net.collect(m, x.clone()))
    payloads = [Payload({"values": row, "indices": torch.arange(i + 1)}) for i, row in enumerate(x)]
    found["allgather"] = torch.stack([each.tensors["values"].clone() for each in net.allgather(payloads)])
    first = Payload({"values": x[0], "indices": torch.arange(1)})
    sent = net.broadcast(first if 0 in net.workers else None, 0, first.sizes)
    found["broadcast"] = sent.tensors["values"].clone()
    heard = [each for one in net.swap(payloads, 0) for _, each in sorted(one.items())]
    found["swap"] = torch.stack([each.tensors["values"].sum() for each in heard])
    return found


def limited(world: World, carrier: Carrier) -> tuple[dict[str, Tensor], range, int, int, int, Tensor]:
    """What the verbs give, and the bytes that were sent and that went through the limiter; of an all-reduce, too."""
    settings = NetworkSettings(transport=carrier, latency_ms=0.5, bandwidth_gbps=0.1)
    rounds = components("topology")["chain"]().schedule(N)
    late: list[int] = []
    later = Limiter.later
    with mock.patch.object(Limiter, "later", lambda *args: (late.append(args[1]), later(*args))[1]):
        net = join(rounds, CERTAIN, world.device, world.rank, world.size, settings)
        found, wire, through = use_every_verb(net), net.wire_bytes, sum(late)
        late.clear()
        mean = net.mean(torch.full((len(net.workers), P), float(world.rank)))
        net.close()
    return found, net.workers, wire, through, sum(late), mean


@pytest.mark.parametrize("carrier", [Carrier.shared_memory, Carrier.torch])
def test_every_message_is_late_and_the_same_as_ever(worlds, carrier):
    expected = use_every_verb(LocalNetwork(components("topology")["chain"]().schedule(N), CERTAIN))
    answers = worlds(N).call(limited, carrier)
    assert torch.equal(torch.cat([found.pop("swap") for found, *_ in answers]), expected.pop("swap"))
    for found, _, wire, through, _, mean in answers:
        for verb, rows in expected.items():
            torch.testing.assert_close(found[verb], rows, rtol=0, atol=1e-12)
        assert through >= wire > 0
        assert torch.equal(mean, torch.full_like(mean, (N - 1) / 2))
    lengths = 8 * 2  # of the two tensors of a payload, for the accounts: not counted, but they travel
    extra = sum(through - wire for _, _, wire, through, _, _ in answers)
    everybody = N * (N - 1) * (8 + lengths)  # by all-gather, with 8 bytes to compare kinds, before two of the verbs
    counted = lengths * (N * (N - 1) + 2 * (N - 1))
    assert extra == 2 * everybody - counted
    assert sum(late for *_, late, _ in answers) == 2 * (N - 1) * P * 4, "as much as a ring"


def test_auto_takes_what_is_fastest_by_the_model() -> None:
    assert fastest_collective(NetworkSettings(), NoCluster(), 8, 8) is None
    fastest = fastest_collective(NetworkSettings(latency_ms=10, bandwidth_gbps=1), NoCluster(), 8, 8)
    assert fastest is not None
    assert fastest(1) is CollectiveChoice.star, "two latencies"
    assert fastest(10**6) is CollectiveChoice.recursive_doubling, "three"
    assert fastest(10**9) is CollectiveChoice.rabenseifner, "as few bytes as a ring, six latencies"
