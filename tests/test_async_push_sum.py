"""Asynchronous push-sum: nobody waits, and nothing is lost, whoever straggles."""

from __future__ import annotations

import time
import warnings

import numpy as np
import pytest
import torch
from torch import Tensor

from decentral.algorithms.async_push_sum import AsyncPushSum
from decentral.network.local import LocalNetwork
from decentral.network.processes import ProcessNetwork, join
from decentral.network.settings import Carrier, NetworkSettings
from decentral.network.transports.shared_memory import Segments
from decentral.network.windows.window import SmallWeight
from decentral.network.world import World
from decentral.registry import components
from decentral.report.summary import summary
from decentral.store import RunStore
from decentral.topology.delivery import Losses
from decentral.topology.rounds import Rounds
from decentral.topology.weights import Weights

CERTAIN = Losses(0.0, seed=0)
CARRIERS = [Carrier.shared_memory, Carrier.torch]
N, P = 5, 7  # P is odd, so that the two halves of a model differ
SMALL = ["algo=async_push_sum", "task=quadratics", "task.dimension=5", "num_workers=5", "lr=0.05"]


def schedule(name: str, n: int = N) -> Rounds:
    settings = {} if name == "one_peer_exponential" else {"weights": Weights.uniform}
    return components("topology")[name](**settings).schedule(n)


def start_values(n: int = N) -> Tensor:
    return torch.arange(n * P, dtype=torch.float64).view(n, P).sin() + 1


def opened(
    world: World, name: str, carrier: Carrier, losses: Losses = CERTAIN
) -> tuple[ProcessNetwork, Tensor, Tensor]:
    """A network, and x and p of its local workers."""
    settings = NetworkSettings(transport=carrier, timeout_s=20)
    net = join(schedule(name), losses, world.device, world.rank, world.size, settings)
    rows = start_values()[net.workers.start : net.workers.stop].clone()
    return net, rows, torch.ones(len(rows), net.rounds.num_pieces, dtype=torch.float64)


# -- the verb ----------------------------------------------------------------------------------------------------------


def in_step(world: World, name: str, carrier: Carrier, rounds: int) -> list:
    """Push and drain, so that all are in step."""
    net, x, p = opened(world, name, carrier)
    for round in range(rounds):
        x, p = net.push(x, p, round)
        x, p = net.drain(x, p)
        assert net.flushed
    found = [net.gather(x), net.gather(p), net.bytes_sent, net.messages_sent, net.wire_bytes, net.wire_messages]
    net.close()
    return found


@pytest.mark.parametrize("processes", [2, 5])
@pytest.mark.parametrize("carrier", CARRIERS)
@pytest.mark.parametrize("name", ["star", "dbt", "one_peer_exponential"])
def test_pushing_in_step_is_multiplying_with_the_matrix(worlds, name, carrier, processes):
    plan, rounds = schedule(name), 4
    net, x = LocalNetwork(plan, CERTAIN), start_values()
    p = torch.ones(N, plan.num_pieces, dtype=torch.float64)
    wanted, weights = start_values(), p.clone()
    for round in range(rounds):
        x, p = net.push(x, p, round)
        for h, (W, piece) in enumerate(zip(plan.matrices(round), plan.slices(P), strict=True)):
            wanted[:, piece] = torch.tensor(W) @ wanted[:, piece]
            weights[:, h] = torch.tensor(W) @ weights[:, h]
    found = worlds(processes).call(in_step, name, carrier, rounds)
    for rows, numbers, bytes_sent, messages_sent, *_ in [(x, p, net.bytes_sent, net.messages_sent), *found]:
        torch.testing.assert_close(rows, wanted, rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(numbers, weights, rtol=1e-12, atol=1e-12)
        assert (bytes_sent, messages_sent) == (net.bytes_sent, net.messages_sent)
    if processes == N:
        assert sum(wire_bytes for *_, wire_bytes, _ in found) == net.bytes_sent
        assert sum(wire_messages for *_, wire_messages in found) == net.messages_sent


def out_of_step(world: World, name: str, carrier: Carrier, p_lost: float) -> list:
    """Everybody pushes as fast as it can; the process of worker 1 sleeps."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SmallWeight)
        net, x, p = opened(world, name, carrier, Losses(p_lost, seed=3))
        finished = Segments([(1,)] * world.size, torch.int64).tensors
        slow = 1 in net.workers
        at_least, round = 12 if slow else 40, 0
        while round < at_least or any(int(flag) == 0 for flag in finished):
            if slow:
                time.sleep(0.005)
            x, p = net.push(x, p, round)
            round += 1
            if round == at_least:
                finished[world.rank].fill_(1)
        assert not net.flushed
        x, p = net.drain(x, p)
        drained = [net.gather(x), net.gather(p), round]
        for round in range(80):  # in step, so that all agree
            x, p = net.drain(*net.push(x, p, round))
        estimates = net.gather(net.scale(x.clone(), 1 / p))
        net.close()
    return [*drained, estimates]


@pytest.mark.parametrize("processes", [2, 4])
@pytest.mark.parametrize("carrier", CARRIERS)
@pytest.mark.parametrize(("name", "p_lost"), [("star", 0.0), ("dbt", 0.0), ("one_peer_exponential", 0.3)])
def test_nothing_is_lost_out_of_step(worlds, name, p_lost, carrier, processes):
    found = worlds(processes).call(out_of_step, name, carrier, p_lost)
    total = start_values().sum(0)
    for x, p, _, estimates in found:
        np.testing.assert_allclose(p.sum(0), N, rtol=1e-12)
        torch.testing.assert_close(x.sum(0), total, rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(estimates, (total / N).expand(N, P), rtol=1e-6, atol=1e-6)


def push_to_one_who_is_asleep(world: World, carrier: Carrier) -> list[float]:
    """p of worker 0 of 2 after each of its pushes, while worker 1 does nothing."""
    settings = NetworkSettings(transport=carrier, timeout_s=20)
    net = join(schedule("chain", 2), CERTAIN, world.device, world.rank, 2, settings)
    x, p = start_values(2)[net.workers.start : net.workers.stop].clone(), torch.ones(1, 1, dtype=torch.float64)
    x, p = net.drain(*net.push(x, p, 0))
    seen = [float(p)]
    for round in range(1, 5 if world.rank == 0 else 1):
        x, p = net.push(x, p, round)
        seen.append(float(p))
    world.barrier()
    if world.rank == 1:  # takes what has waited, so that there is room again
        x, p = net.push(x, p, 1)
    x, p = net.drain(x, p)
    net.close()
    return [*seen, float(p)]


@pytest.mark.parametrize("carrier", CARRIERS)
def test_a_share_for_one_who_has_not_taken_the_last_one_stays(worlds, carrier):
    awake, asleep = worlds(2).call(push_to_one_who_is_asleep, carrier)
    assert awake == [1, 0.5, 0.5, 0.5, 0.5, 1] and asleep == [1, 1]


def test_a_lost_share_stays_with_its_sender_although_rows_sum_to_one():
    net = LocalNetwork(schedule("one_peer_exponential"), Losses(0.5, seed=1))
    x, p = start_values(), torch.ones(N, 1, dtype=torch.float64)
    for round in range(20):
        x, p = net.push(x, p, round)
        assert abs(float(p.sum()) - N) < 1e-12
    torch.testing.assert_close(x.sum(0), start_values().sum(0), rtol=1e-12, atol=1e-12)
    assert float((p - 1).abs().max()) > 0.1


# -- the algorithm -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("topology", ["star", "dbt", "one_peer_exponential"])
def test_in_one_process_it_is_sgp(start, topology):
    place = [f"topology={topology}", "topology.weights=uniform", "steps=15", "trace=true", "optim=momentum"]
    ours, theirs = (start(*SMALL, *place, f"algo={name}", directory=name) for name in ("async_push_sum", "sgp"))
    np.testing.assert_allclose(ours.iterates, theirs.iterates, rtol=0, atol=1e-13)


def test_in_one_process_there_is_nothing_to_flush():
    net, state = LocalNetwork(schedule("star"), CERTAIN), object()
    assert net.flushed and AsyncPushSum().flush(state, net) is state


def do_not_mind(world: World) -> None:
    """From now on small weights are no errors in this process: pace depends on what else the machine does."""
    warnings.simplefilter("ignore", SmallWeight)


@pytest.mark.parametrize("processes", [2, 5])
@pytest.mark.parametrize("carrier", CARRIERS)
def test_a_run_with_a_straggler_descends_and_keeps_all_weights(start, worlds, carrier, processes):
    """Every evaluation drains, which raises LostMass if something is lost."""
    overrides = [
        *SMALL, "topology=exponential", "task.initial_distance=10", "steps=60", "evaluation.every_epochs=20",
        "checkpoint_every_s=0", f"network.transport={carrier.name}",
    ]  # fmt: skip
    slow = ("mode=fixed", "workers=[1]", "count=null", "delay_s=0.001")
    straggler = [
        f"processes={processes}",
        "cluster=two_delayed",
        *(f"cluster.stragglers.{setting}" for setting in slow),
    ]
    worlds(processes).call(do_not_mind)
    result = start(*overrides, *straggler, processes=processes)
    assert result.status == "done"
    steps = sorted({row["step"] for row in result.rows})
    assert steps == [0, 20, 40, 60]
    losses = [row["value"] for row in result.rows if (row["metric"], row["worker"]) == ("suboptimality", "averaged")]
    assert losses[-1] < 0.5 * losses[0]  # a single worker's depends on when the machine let it run last
    alone = start(*overrides, directory="alone")
    assert f"{processes} processes" in summary(result.directory) and "depends on their pace" in summary(
        result.directory
    )
    assert "makes no difference to the result but rounding" in summary(alone.directory)
    assert result.facts["bytes_sent"] == alone.facts["bytes_sent"]
    assert result.facts["messages_sent"] == alone.facts["messages_sent"]


def test_a_checkpoint_holds_all_shares_and_a_run_goes_on_from_it(start, worlds):
    for processes in (2, 5):
        worlds(processes).call(do_not_mind)
    overrides = [*SMALL, "topology=exponential", "steps=30", "evaluation.every_epochs=10", "checkpoint_every_s=0"]
    crashed = start(*overrides, processes=5, crash_at=23)
    assert crashed.status == "crashed"
    store = RunStore.view(crashed.directory)
    checkpoint = store.newest_checkpoint()
    assert checkpoint is not None and checkpoint.step == 20
    parts = [store.load_part(checkpoint, name) for name in checkpoint.parts]
    assert sum(float(part["rows"]["p"].sum()) for part in parts) == pytest.approx(5, rel=1e-12)
    assert start(*overrides, processes=2).status == "done"
