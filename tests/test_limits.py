"""Limited networks: messages are late by latency and bandwidth, all of them, and otherwise nothing changes."""

from __future__ import annotations

from unittest import mock

import pytest
import torch
from torch import Tensor

from configure import configure
from decentral.config.identity import identity
from decentral.errors import ConfigError
from decentral.network.local import LocalNetwork
from decentral.network.network import Network
from decentral.network.payload import Payload
from decentral.network.processes import join, split_workers
from decentral.network.settings import Carrier, CollectiveChoice, NetworkSettings
from decentral.network.transports import posting
from decentral.network.transports.choose import open_transport
from decentral.network.transports.posting import Late, Limiter, Limits
from decentral.network.transports.shared_memory import SharedMemory
from decentral.network.world import World
from decentral.registry import components
from decentral.topology.delivery import Losses
from decentral.training.assemble import fastest_collective

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
    found["broadcast"] = net.broadcast(payloads[0] if 0 in net.workers else None, 0).tensors["values"].clone()
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
    counted = lengths * (N * (N - 1) + (N - 1) + 2 * (N - 1))
    assert extra == 2 * everybody + 1024 * (N - 1) - counted
    assert sum(late for *_, late, _ in answers) == 2 * (N - 1) * P * 4, "as much as a ring"


def sent_to(world: World, carrier: Carrier) -> list[int]:
    """To whom process 0 sends what it broadcasts, in which order."""
    settings = NetworkSettings(transport=carrier, latency_ms=0.1)
    told: list[int] = []
    ring, late = SharedMemory._announce, Late.__init__
    with (
        mock.patch.object(SharedMemory, "_announce", lambda *args: (told.append(args[1]), ring(*args))[1]),
        mock.patch.object(Late, "__init__", lambda *args: (told.append(args[2].peer), late(*args))[1]),
    ):
        rounds = components("topology")["chain"]().schedule(world.size)
        net = join(rounds, CERTAIN, world.device, world.rank, world.size, settings)
        payload = Payload({"values": torch.zeros(3)})
        net.broadcast(payload if world.rank == 0 else None, 0, payload.sizes)
        net.close()
    return told


@pytest.mark.parametrize("carrier", [Carrier.shared_memory, Carrier.torch])
def test_who_has_most_to_pass_on_hears_of_a_broadcast_first(worlds, carrier):
    assert worlds(5).call(sent_to, carrier) == [[4, 2, 1], [], [3], [], []]


@pytest.mark.parametrize(
    ("overrides", "says"),
    [
        (["processes=1", "network.latency_ms=5"], "network.latency_ms=5 is for messages between processes"),
        (["cluster=even", "network.bandwidth_gbps=1"], "network.bandwidth_gbps=1 is for messages between processes"),
        (["algo=adpsgd", "processes=2", "network.latency_ms=5"], "algo=adpsgd nobody waits"),
    ],
)
def test_limits_that_make_no_sense_are_refused(overrides, says):
    with pytest.raises(ConfigError) as refusal:
        configure("task=quadratics", *overrides)
    assert says in str(refusal.value)


def test_limits_are_refused_where_nothing_crosses_or_gpus_send() -> None:
    settings = NetworkSettings(latency_ms=1.0)
    with pytest.raises(ConfigError, match="in one process nothing crosses"):
        open_transport(settings, split_workers(4, 1), torch.device("cpu"))
    with pytest.raises(ConfigError, match="use device=cpu"):
        open_transport(settings, split_workers(4, 2), torch.device("cuda"))


def test_limits_make_another_run_and_collectives_do_not() -> None:
    plain, overrides = identity(configure("task=quadratics")), ["task=quadratics", "processes=2"]
    assert identity(configure(*overrides, "network.collective=ring")) == plain
    assert identity(configure(*overrides, "network.latency_ms=2"))["network"]["latency_ms"] == 2
    assert "bandwidth_gbps" not in plain["network"]


def test_auto_takes_what_is_fastest_by_the_model() -> None:
    overrides = ["task=quadratics", "num_workers=8", "processes=8", "network.collective=auto"]
    assert fastest_collective(configure(*overrides), 8) is None
    fastest = fastest_collective(configure(*overrides, "network.latency_ms=10", "network.bandwidth_gbps=1"), 8)
    assert fastest is not None
    assert fastest(1) is CollectiveChoice.star, "two latencies"
    assert fastest(10**6) is CollectiveChoice.recursive_doubling, "three"
    assert fastest(10**9) is CollectiveChoice.rabenseifner, "as few bytes as a ring, six latencies"
