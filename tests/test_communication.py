"""How often workers communicate, how often all of them agree, and machines with several workers: for every topology."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from configure import configure
from decentral.config.composition import compose
from decentral.config.identity import identity, run_id
from decentral.errors import ConfigError
from decentral.network.local import LocalNetwork
from decentral.network.network import Network
from decentral.network.processes import join
from decentral.network.settings import Carrier, NetworkSettings
from decentral.network.world import World
from decentral.registry import components
from decentral.topology.communication import Communication
from decentral.topology.delivery import Losses
from decentral.topology.rounds import Rounds, slices

CERTAIN = Losses(0.0, seed=0)
P = 7

CASES = [
    (Communication(every=3), "ring", 5),
    (Communication(global_every=2), "one_peer_exponential", 6),
    (Communication(every=2, global_every=3), "dbt", 5),
    (Communication(workers_per_machine=2), "ring", 6),
    (Communication(workers_per_machine=3), "one_peer_exponential", 12),
    (Communication(workers_per_machine=4), "ring", 4),
    (Communication(every=2, global_every=2, workers_per_machine=2), "exponential", 6),
]


def scheduled(communication: Communication, name: str, n: int) -> Rounds:
    return communication.schedule(components("topology")[name](), n)


def start(n: int) -> Tensor:
    return torch.arange(n * P, dtype=torch.float64).view(n, P).sin()


def dense(schedule: Rounds, x: Tensor, rounds: int) -> Tensor:
    """With the matrices of the rounds, however they are carried out."""
    x = x.clone()
    for round in range(rounds):
        for W, piece in zip(schedule.matrices(round), schedule.slices(P), strict=True):
            x[:, piece] = torch.from_numpy(W.copy()) @ x[:, piece]
    return x


@pytest.mark.parametrize(("communication", "name", "n"), CASES)
def test_the_exchanges_of_a_round_applied_in_turn_are_its_matrices(communication, name, n):
    schedule = scheduled(communication, name, n)
    for round in range(min(schedule.period, 40)):
        for h, piece in enumerate(schedule.slices(P)):
            for column in range(P)[piece]:
                product = np.eye(n)
                for phase in schedule.phases(round):
                    W = np.full((n, n), 1 / n)
                    if phase.matrices:
                        pieces = slices(P, len(phase.matrices), phase.split)
                        parts = zip(phase.matrices, pieces, strict=True)
                        W = next(matrix.dense() for matrix, part in parts if column in range(P)[part])
                    product = W @ product
                np.testing.assert_allclose(product, schedule.matrices(round)[h], atol=1e-15)


def test_local_steps_and_global_averages_take_their_turns():
    schedule, ring = scheduled(Communication(every=2, global_every=3), "ring", 4), scheduled(Communication(), "ring", 4)
    kinds = []
    for round in range(schedule.period):
        (W,) = schedule.matrices(round)
        known = {"nothing": np.eye(4), "ring": ring.matrices(0)[0], "all": np.full((4, 4), 0.25)}
        kinds.append(next(kind for kind, matrix in known.items() if np.array_equal(W, matrix)))
    assert kinds == ["nothing", "ring", "nothing", "ring", "nothing", "all"]


def test_machines_mix_their_means():
    schedule = scheduled(Communication(workers_per_machine=2), "ring", 6)
    x = start(6)
    means = x.view(3, 2, P).mean(1)
    expected = means.mean(0).expand(6, P)  # of three machines on a ring, everybody is everybody's neighbour
    torch.testing.assert_close(LocalNetwork(schedule, CERTAIN).mix(x, 0), expected, rtol=0, atol=1e-15)


def mixed(net: Network, rounds: int, lazy: bool = False) -> Tensor:
    x = start(net.n)[net.workers.start : net.workers.stop]
    for round in range(rounds):
        x = net.mix(x, round, lazy)
    return net.gather(x)


def mixed_in_processes(world: World, case: int, rounds: int, carrier: Carrier) -> tuple[Tensor, int, int, int]:
    schedule = scheduled(*CASES[case])
    net = join(schedule, CERTAIN, world.device, world.rank, world.size, NetworkSettings(transport=carrier))
    found = mixed(net, rounds)
    wire, counted, messages = net.wire_bytes, net.bytes_sent, net.messages_sent
    net.close()
    return found, wire, counted, messages


@pytest.mark.parametrize("case", range(len(CASES)))
def test_one_process_applies_the_matrices(case):
    schedule = scheduled(*CASES[case])
    rounds = min(2 * schedule.period, 14)
    found = mixed(LocalNetwork(schedule, CERTAIN), rounds)
    torch.testing.assert_close(found, dense(schedule, start(schedule.num_workers), rounds), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("carrier", [Carrier.shared_memory, Carrier.torch])
@pytest.mark.parametrize("processes", [2, 5])
@pytest.mark.parametrize("case", range(len(CASES)))
def test_processes_agree_with_one(worlds, case, processes, carrier):
    if processes > CASES[case][2]:
        processes = CASES[case][2]
    schedule = scheduled(*CASES[case])
    rounds = min(2 * schedule.period, 14)
    net = LocalNetwork(schedule, CERTAIN)
    expected = mixed(net, rounds)
    for found, _, counted, messages in worlds(processes).call(mixed_in_processes, case, rounds, carrier):
        torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
        assert (counted, messages) == (net.bytes_sent, net.messages_sent)


def test_a_worker_of_a_machine_sends_its_shards_only(worlds):
    """Of 6 coordinates with L = 3: twice a shard within the machine, one to the next machine, twice one back."""
    case = CASES.index((Communication(workers_per_machine=3), "one_peer_exponential", 12))
    schedule = scheduled(*CASES[case])
    net = LocalNetwork(schedule, CERTAIN)
    net.mix(torch.zeros(12, 6, dtype=torch.float64), 0)
    assert net.bytes_sent == 12 * (2 + 1 + 2) * 2 * 8
    assert net.messages_sent == 12 * (2 + 1 + 2)


def test_what_is_counted_is_what_is_sent(worlds):
    case = CASES.index((Communication(workers_per_machine=2), "ring", 6))
    results = worlds(6).call(mixed_in_processes, case, 3, Carrier.torch)
    assert sum(wire for _, wire, _, _ in results) == results[0][2]


def test_the_lazy_matrix_of_machines_is_half_way(tmp_path):
    schedule = scheduled(Communication(workers_per_machine=2), "ring", 6)
    x = start(6)
    (W,) = schedule.matrices(0)
    expected = torch.from_numpy((W + np.eye(6)) / 2) @ x
    torch.testing.assert_close(mixed(LocalNetwork(schedule, CERTAIN), 1, lazy=True), expected, rtol=0, atol=1e-14)


def several_on_their_way(world: World, carrier: Carrier) -> Tensor:
    """Three vectors of two shapes, begun at once and waited for in another order, while machines exchange in parts."""
    schedule = scheduled(Communication(workers_per_machine=2), "ring", 6)
    net = join(schedule, CERTAIN, world.device, world.rank, world.size, NetworkSettings(transport=carrier))
    x = start(6)[net.workers.start : net.workers.stop]
    a, b, c = x.clone(), x.cos(), x[:, :3].exp()
    for round in range(4):
        mixings = [net.begin_mix(rows, round) for rows in (a, b, c)]
        for number in (0, 2, 1) if round % 2 else (2, 1, 0):
            mixings[number].wait()
    found = net.gather(torch.cat([a, b, c], 1))
    net.close()
    return found


@pytest.mark.parametrize("carrier", [Carrier.shared_memory, Carrier.torch])
def test_several_exchanges_can_be_on_their_way(worlds, carrier):
    schedule = scheduled(Communication(workers_per_machine=2), "ring", 6)
    W = torch.from_numpy(np.linalg.matrix_power(schedule.matrices(0)[0], 4))
    x = start(6)
    expected = torch.cat([W @ x, W @ x.cos(), W @ x[:, :3].exp()], 1)
    for found in worlds(3).call(several_on_their_way, carrier):
        torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)


def test_a_matrix_may_depend_on_data():
    net, x = LocalNetwork(scheduled(Communication(), "ring", 5), CERTAIN), start(5)
    W = np.linspace(0, 1, 25).reshape(5, 5)
    torch.testing.assert_close(net.mix_with(x.clone(), W), torch.from_numpy(W) @ x, rtol=0, atol=1e-14)
    assert net.messages_sent == 20  # all off-diagonal entries but none: the first entry, on the diagonal, is the zero


@pytest.mark.parametrize(
    ("overrides", "says"),
    [
        (["communication.workers_per_machine=3"], "communication.workers_per_machine=3 does not divide num_workers=16"),
        (["topology=dbt", "communication.workers_per_machine=2"], "needs one graph of machines, but topology=dbt is 2"),
        (["communication.global_every=50000", "communication.every=7"], "repeat after 350000 steps only"),
        (["communication.global_every=2", "network.drop_probability=0.1"], "what machines and all workers do together"),
        (["algo=allreduce", "communication.every=2"], "communication.every=2 has no meaning for it"),
        (
            ["algo=relaysgd", "topology=bt", "communication.every=2"],
            "relays over the same trees in every step, so that communication.every=2",
        ),
        (["algo=d2", "communication.global_every=3"], "algo=d2 needs the same graph in every step"),
        (["communication=2"], "communication is a group of settings: write communication.every=..."),
        (["communication.evry=2"], "every"),
    ],
)
def test_what_cannot_work_is_refused(overrides, says):
    with pytest.raises(ConfigError, match=says):
        compose(["algo=dpsgd", "topology=ring", "task=quadratics", *overrides])


def test_the_usual_communication_does_not_change_the_id_of_a_run():
    plain = configure("algo=dpsgd", "topology=ring", "task=quadratics")
    assert "communication" not in identity(plain)
    other = configure("algo=dpsgd", "topology=ring", "task=quadratics", "communication.every=2")
    assert run_id(plain) != run_id(other)
