"""The verbs of the network and the rounds of communication: over processes they do the same, and send what they say."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from decentral.network import kernels
from decentral.network.local import LocalNetwork
from decentral.network.network import Network
from decentral.network.processes import join
from decentral.network.settings import Carrier, NetworkSettings
from decentral.network.transports.shared_memory import SharedMemory
from decentral.network.transports.torch_distributed import TorchDistributed
from decentral.network.world import World
from decentral.registry import components
from decentral.topology.communication import Communication
from decentral.topology.delivery import Losses
from decentral.topology.rounds import Rounds, Split
from decentral.topology.topology import Topology
from table import TOPOLOGIES, a_third, topology_overrides

# -- The verbs of the network, for every topology; over processes they do the same, and send what they sa --------------

TREES = [name for name, case in TOPOLOGIES.items() if case.tree]
CERTAIN = Losses(0.0, seed=0)
P = 7  # odd, so that the two halves of a model differ in size


@pytest.fixture
def build(tmp_path):
    """(name, n) -> topology."""

    def _build(name: str) -> Topology:
        fields = (override.removeprefix("topology.").split("=") for override in topology_overrides(name, tmp_path))
        return components("topology")[name](**dict(fields))

    return _build


def local(topology: Topology, n: int, losses: Losses = CERTAIN) -> LocalNetwork:
    return LocalNetwork(topology.schedule(n), losses)


def whole_numbers(*shape: int) -> Tensor:
    """Sums of them are exact."""
    return torch.from_numpy(np.random.default_rng(0).integers(-1000, 1000, shape)).double()


@pytest.mark.filterwarnings("ignore:Accessing the data pointer of FakeTensor")  # of two rows, to see if they are one
@pytest.mark.parametrize("name", ["chain", "dbt", "exponential"])
def test_rows_on_another_device_stay_there(build, name):
    net, gpu = local(build(name), TOPOLOGIES[name].n), torch.device("cuda:0")
    with FakeTensorMode():  # tensors without values, which know where they are: no GPU is needed
        x = torch.zeros(net.n, 1 << 18, device=gpu)
        p = torch.ones(net.n, net.rounds.num_pieces, dtype=torch.float64)
        found = [net.mix(x, 0), net.mix(x, 0, lazy=True), net.mean(x), net.average(x), net.push(x, p, 0)[0]]
        if name in TREES:
            m = net.relay(x, net.no_messages(x), 0)
            found += [m, net.collect(m, x), net.collect(m, x, weight=0.5)]
        assert {each.device for each in found} == {gpu}


@pytest.mark.parametrize("name", TOPOLOGIES)
def test_mixing_applies_the_matrix_of_the_round_to_every_piece(build, name):
    for lazy in [False, True]:
        schedule = build(name).schedule(TOPOLOGIES[name].n)
        net, x = LocalNetwork(schedule, CERTAIN), whole_numbers(schedule.num_workers, 2, P)
        for round in range(2 * schedule.period):
            expected = torch.empty_like(x)
            for W, piece in zip(schedule.matrices(round), schedule.slices(P), strict=True):
                W = (W + np.eye(len(W))) / 2 if lazy else W
                expected[..., piece] = torch.einsum("ij,j...->i...", torch.tensor(W), x[..., piece])
            torch.testing.assert_close(net.mix(x.clone(), round, lazy), expected, rtol=0, atol=1e-10)


@pytest.mark.parametrize("name", ["ring", "dbt", "star", "exponential"])
def test_mixing_spreads_a_nan_to_receivers_only(build, name):
    schedule = build(name).schedule(TOPOLOGIES[name].n)
    net, sender = LocalNetwork(schedule, CERTAIN), 1
    x = whole_numbers(schedule.num_workers, P)
    x[sender] = torch.nan
    mixed = net.mix(x, 0)
    for W, piece in zip(schedule.matrices(0), schedule.slices(P), strict=True):
        takes = torch.tensor(W[:, sender] != 0)
        assert mixed[takes][:, piece].isnan().all()
        assert mixed[~takes][:, piece].isfinite().all()


@pytest.mark.parametrize("shape", [(7,), (2, 7), (1,), (300_000,)])
def test_the_mean_is_exact_for_all_workers(shape):
    x = whole_numbers(4, *shape)
    mean = LocalNetwork(components("topology")["ring"]().schedule(4), CERTAIN).mean(x.clone())
    assert torch.equal(mean, x.mean(0, keepdim=True).expand(4, *shape))


def relay_cases():
    sizes = {name: [2, TOPOLOGIES[name].n] for name in TREES}
    sizes["star"].append(100)
    sizes["dbt"] += [5, 16]
    return [
        *((name, n, {}, P) for name in TREES for n in sizes[name]),
        *(("dbt", n, {"split": Split.interleaved}, P) for n in sizes["dbt"]),
        *((name, n, {}, 1 << 18) for name, n in (("dbt", 6), ("star", 6), ("chain", 5))),  # rows in blocks
    ]


def use_every_verb(net: Network, x: Tensor) -> dict[str, Tensor]:
    """What the verbs give for all workers, whoever hosts them; x [n, 2, P]."""
    mine = slice(net.workers.start, net.workers.stop)
    found = {"gather": net.gather(x[mine].clone()), "average": net.average(x[mine, 0].clone())}
    for round in range(3):
        found[f"mix {round}"] = net.gather(net.mix(x[mine].clone(), round))
        found[f"lazy {round}"] = net.gather(net.mix(x[mine, 1].clone(), round, lazy=True))
    return found


def relay_three_times(net: Network, x: Tensor) -> dict[str, Tensor]:
    mine = slice(net.workers.start, net.workers.stop)
    m, found = net.no_messages(x[mine, 0]), {}
    for round in range(3):
        m = net.relay(x[mine, 0].clone(), m, round)
        found[f"relay {round}"] = net.gather(net.collect(m, x[mine, 0].clone()))
    return found


def over_processes(world: World, topology: Topology, n: int, tree: bool, x: Tensor, losses: Losses, carrier: Carrier):
    """On every process: what the verbs give, and what was counted and really sent by those that send."""
    net = join(topology.schedule(n), losses, world.device, world.rank, world.size, NetworkSettings(transport=carrier))
    found = use_every_verb(net, x) | (relay_three_times(net, x) if tree else {})
    sent = net.wire_bytes, net.wire_messages, net.traffic.bytes_sent, net.traffic.messages_sent
    mean = net.gather(net.mean(x[net.workers.start : net.workers.stop].clone()))
    assert isinstance(net.transport, SharedMemory if carrier is Carrier.shared_memory else TorchDistributed)
    net.close()
    return found | {"mean": mean}, sent, list(net.workers)


SHARED, SOCKETS = Carrier.shared_memory, Carrier.torch


SPREAD = [
    *((name, 2, 0.3, SHARED) for name in TOPOLOGIES),
    *((name, 3, 0.0, SOCKETS) for name in ("ring", "dbt", "star", "base_graph", "one_peer_exponential")),
    *((name, 3, 0.0, SHARED) for name in ("ring", "dbt", "exponential")),
    *((name, 2, 0.3, SOCKETS) for name in ("dbt", "epidemic")),
]


@pytest.mark.parametrize(("name", "processes", "drop_probability", "carrier"), a_third(SPREAD))
def test_the_verbs_do_the_same_over_processes_and_send_what_they_count(
    worlds, build, name, processes, drop_probability, carrier
):
    topology, case, losses = build(name), TOPOLOGIES[name], Losses(drop_probability, seed=5)
    n = case.n if name in ("social", "hypercube", "inner_outer_exponential", "inner_outer_ring") else 5
    n = processes if processes == 3 else n
    x = whole_numbers(n, 2, P)
    net = LocalNetwork(topology.schedule(n), losses)
    expected = use_every_verb(net, x) | (relay_three_times(net, x) if case.tree else {})
    counted = net.traffic.bytes_sent, net.traffic.messages_sent
    expected["mean"] = net.mean(x.clone())
    answers = worlds(processes).call(over_processes, topology, n, case.tree, x, losses, carrier)
    assert [worker for _, _, workers in answers for worker in workers] == list(range(n))
    for found, sent, _ in answers:
        assert sent[2:] == counted
        assert found.keys() == expected.keys()
        for verb, rows in expected.items():
            assert torch.allclose(found[verb], rows, rtol=0, atol=1e-10), verb
    wire = np.sum([sent[:2] for _, sent, _ in answers], axis=0)
    if n == processes and drop_probability == 0:
        assert tuple(wire) == counted
    else:  # between workers of one process nothing travels, and a lost message need not
        assert 0 < wire[0] < counted[0] and 0 < wire[1] <= counted[1]


def mixed_in_processes(world: World, name: str, n: int, x: Tensor) -> Tensor:
    settings = NetworkSettings(transport=Carrier.shared_memory)
    rounds = components("topology")[name]().schedule(n)
    net = join(rounds, CERTAIN, world.device, world.rank, world.size, settings)
    found = net.gather(net.mix(x[net.workers.start : net.workers.stop].clone(), 0))
    net.close()
    return found


@pytest.mark.parametrize(("name", "n"), [("complete", 100), ("exponential", 1200)])
def test_many_workers_are_mixed_alike_in_one_process_and_two(worlds, name, n):
    """So many that there is a product with the matrix, of the local rows and of those that come."""
    x, rounds = whole_numbers(n, 2, 200), components("topology")[name]().schedule(n)
    (W,) = rounds.matrices(0)
    expected = torch.einsum("ij,jkl->ikl", torch.tensor(W), x)
    torch.testing.assert_close(LocalNetwork(rounds, CERTAIN).mix(x.clone(), 0), expected, rtol=0, atol=1e-9)
    for found in worlds(2).call(mixed_in_processes, name, n, x):
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-9)


def test_a_product_with_a_matrix_takes_long_rows_in_blocks_the_last_of_which_is_shorter(monkeypatch):
    n, columns, in_a_block = 100, 200, 60
    monkeypatch.setattr(kernels, "_PRODUCT_BYTES", in_a_block * n * 8)
    rounds, x = components("topology")["complete"]().schedule(n), whole_numbers(n, columns)
    mixed = LocalNetwork(rounds, CERTAIN).mix(x.clone(), 0)
    torch.testing.assert_close(mixed, x.mean(0).expand(n, columns), rtol=0, atol=1e-9)


def in_blocks(patch: pytest.MonkeyPatch) -> None:
    """As if the rows were long."""
    patch.setattr(kernels, "_LIMIT_NUMBERS", 0)
    patch.setattr(kernels, "_BLOCK_BYTES", 1)
    patch.setattr(kernels, "_LEAST_COLUMNS", 3)


def over_processes_in_blocks(world: World, *arguments: Any):
    with pytest.MonkeyPatch.context() as patch:
        in_blocks(patch)
        return over_processes(world, *arguments)


@pytest.mark.parametrize("processes", [1, 2])
@pytest.mark.parametrize("name", ["ring", "dbt", "star"])
def test_in_blocks_of_columns_the_last_of_which_is_shorter_the_verbs_do_the_same(
    worlds, monkeypatch, build, name, processes
):
    topology, tree, x = build(name), TOPOLOGIES[name].tree, whole_numbers(5, 2, P)

    def found() -> dict[str, Tensor]:
        net = local(topology, 5)
        verbs = use_every_verb(net, x) | (relay_three_times(net, x) if tree else {})
        return verbs | {"mean": net.mean(x.clone())}

    expected = found()
    if processes == 1:
        in_blocks(monkeypatch)
        ours = found()
    else:
        (ours, *_), *_ = worlds(processes).call(over_processes_in_blocks, topology, 5, tree, x, CERTAIN, SHARED)
    for verb, rows in expected.items():
        torch.testing.assert_close(ours[verb], rows, rtol=0, atol=1e-10, msg=verb)


STEPS, N, BYTES = 3, 16, 8  # float64
EXPECTED_BYTES = {  # of all workers, per step and coordinate of the model
    ("dpsgd", "ring"): 2 * N,  # a message to both neighbors
    **dict.fromkeys([("d2", "ring"), ("decentlam", "ring"), ("extra", "ring")], 2 * N),
    ("qg_dpsgd", "torus"): 4 * N,
    **dict.fromkeys([("gradient_tracking", "ring"), ("dmsgd", "ring")], 2 * 2 * N),  # two vectors in one message
    ("sgp", "one_peer_exponential"): N,
    ("relaysgd", "chain"): 2 * (N - 1),  # both ways over every edge
    ("relaysgd", "dbt"): 2 * (N - 1),  # two trees, each with half a model
    ("relaysgd_grad", "star"): 2 * (N - 1),
    ("relay_mean", "bt"): 2 * (N - 1),
    ("allreduce", "ring"): 2 * (N - 1),  # a ring all-reduce
    ("model_averaging", "ring"): 2 * (N - 1),
}
EXPECTED_MESSAGES = {
    ("gradient_tracking", "ring"): 2 * N,
    ("dmsgd", "ring"): 2 * N,
    ("relaysgd", "dbt"): 2 * 2 * (N - 1),
    ("allreduce", "ring"): 2 * (N - 1) * N,  # in pieces of 1/n
    ("model_averaging", "ring"): 2 * (N - 1) * N,
}


@pytest.mark.parametrize(("algo", "topology"), EXPECTED_BYTES)
def test_a_run_sends_as_much_as_the_formula_says(start, algo, topology):
    task = "mean_estimation" if algo == "relay_mean" else "quadratics"
    overrides = [f"algo={algo}", f"topology={topology}", f"task={task}", f"task.dimension={P}", f"num_workers={N}"]
    result = start(*overrides, f"steps={STEPS}", "evaluation.every_epochs=1")
    assert result.facts["bytes_sent"] == STEPS * P * BYTES * EXPECTED_BYTES[algo, topology]
    messages = EXPECTED_MESSAGES.get((algo, topology), EXPECTED_BYTES[algo, topology])
    assert result.facts["messages_sent"] == STEPS * messages
    per_step = P * BYTES * EXPECTED_BYTES[algo, topology]
    assert {(row["step"], row["bytes_sent"]) for row in result.rows} == {(t, t * per_step) for t in range(STEPS + 1)}


@pytest.mark.parametrize(("name", "n", "fields", "width"), relay_cases())
def test_relayed_sums_are_complete_after_the_diameter_and_forget_a_nan_after_it(build, name, n, fields, width):
    net, y = local(dataclasses.replace(build(name), **fields), n), whole_numbers(n, width) + 5000
    diameter, before = int(net.rounds.hops().max()), y.clone()
    m, c = net.no_messages(y), net.no_counts()
    for round in range(2 * diameter):
        m, c = net.relay(y, m, round), net.relay_counts(c, round)
        complete = torch.equal(net.collect(m, y.clone()), y.sum(0).expand(n, width))
        assert complete == (round + 1 >= diameter)
        assert complete == bool((1 + net.collect_counts(c) == n).all())
    poisoned = y.clone()
    poisoned[n - 1] = torch.nan
    m = net.relay(poisoned, m, 2 * diameter)
    assert not net.collect(m, y.clone()).isfinite().all()
    for round in range(diameter):
        m = net.relay(y, m, 2 * diameter + 1 + round)
    assert torch.equal(net.collect(m, y.clone()), y.sum(0).expand(n, width)) and torch.equal(y, before)


# -- How often workers communicate, how often all of them agree, and machines with several workers: for e --------------

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


def mixed(net: Network, rounds: int, lazy: bool = False) -> Tensor:
    x = start(net.n)[net.workers.start : net.workers.stop]
    for round in range(rounds):
        x = net.mix(x, round, lazy)
    return net.gather(x)


def rounds_in_processes(world: World, case: int, rounds: int, carrier: Carrier) -> tuple[Tensor, int, int]:
    schedule = scheduled(*CASES[case])
    net = join(schedule, CERTAIN, world.device, world.rank, world.size, NetworkSettings(transport=carrier))
    found = mixed(net, rounds), net.traffic.bytes_sent, net.traffic.messages_sent
    net.close()
    return found


def test_a_worker_of_a_machine_sends_its_shards_only(worlds):
    """Of 6 coordinates with L = 3: twice a shard within the machine, one to the next machine, twice one back."""
    case = CASES.index((Communication(workers_per_machine=3), "one_peer_exponential", 12))
    schedule = scheduled(*CASES[case])
    net = LocalNetwork(schedule, CERTAIN)
    net.mix(torch.zeros(12, 6, dtype=torch.float64), 0)
    assert net.traffic.bytes_sent == 12 * (2 + 1 + 2) * 2 * 8
    assert net.traffic.messages_sent == 12 * (2 + 1 + 2)


def several_on_their_way(world: World, carrier: Carrier) -> Tensor:
    """Three vectors of two shapes, begun at once and waited for in another order, while machines exchange in parts."""
    schedule = scheduled(Communication(workers_per_machine=2), "ring", 6)
    net = join(schedule, CERTAIN, world.device, world.rank, world.size, NetworkSettings(transport=carrier))
    x = start(6)[net.workers.start : net.workers.stop]
    a, b, c = x.clone(), x.cos(), x[:, :3].exp()
    for round in range(4):
        mixings = [net.begin_mix(rows, round) for rows in (a, b, c)]
        for number in (0, 2, 1) if round % 2 else (2, 1, 0):
            mixings[number]()
    found = net.gather(torch.cat([a, b, c], 1))
    net.close()
    return found


@pytest.mark.parametrize("carrier", [Carrier.shared_memory, Carrier.torch])
def test_several_exchanges_can_be_on_their_way(worlds, carrier):
    schedule = scheduled(Communication(workers_per_machine=2), "ring", 6)
    W = torch.from_numpy(np.linalg.matrix_power(schedule.matrices(0)[0], 4))
    x = start(6)
    expected = torch.cat([W @ x, W @ x.cos(), W @ x[:, :3].exp()], 1)
    for found in worlds(2).call(several_on_their_way, carrier):
        torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)


def test_a_matrix_may_depend_on_data():
    net, x = LocalNetwork(scheduled(Communication(), "ring", 5), CERTAIN), start(5)
    W = np.linspace(0, 1, 25).reshape(5, 5)
    torch.testing.assert_close(net.mix_with(x.clone(), W), torch.from_numpy(W) @ x, rtol=0, atol=1e-14)
    assert net.traffic.messages_sent == 20  # all off-diagonal entries: the first entry, on the diagonal, is the zero


def test_one_process_and_several_agree_with_the_matrices(worlds):
    """Over sockets in every third case."""
    for case, (communication, name, n) in enumerate(CASES):
        schedule = scheduled(communication, name, n)
        rounds = min(2 * schedule.period, 14)
        net = LocalNetwork(schedule, CERTAIN)
        expected = dense(schedule, start(n), rounds)
        torch.testing.assert_close(mixed(net, rounds), expected, rtol=1e-12, atol=1e-12)
        for processes, carrier in ((2, Carrier.shared_memory), (3, Carrier.torch))[: 1 + (case % 3 == 0)]:
            for found, *sent in worlds(processes).call(rounds_in_processes, case, rounds, carrier):
                torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
                assert sent == [net.traffic.bytes_sent, net.traffic.messages_sent]
