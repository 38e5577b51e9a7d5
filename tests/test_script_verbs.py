"""The verbs of `decentral.join` against dense formulas: one worker per process, in groups of 1, 2, 4 and 5."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import decentral
from decentral.network.world import World
from waiting import until

SIZES = [1, 3, 4]
DTYPES = [
    torch.float64, torch.float16, torch.bfloat16, torch.complex64,
]  # fmt: skip
SHAPES = {
    "a number": lambda x: x[0].clone(),
    "nothing": lambda x: x[:0],
    "a vector": lambda x: x,
    "a matrix": lambda x: x.view(4, 6),
    "transposed": lambda x: x.view(4, 6).T,
    "strided": lambda x: x[1::3],
    "expanded": lambda x: x[:1].expand(5),
    "channels last": lambda x: x.view(2, 3, 2, 2).to(memory_format=torch.channels_last),
}


def values(rank: int, size: int = 24, dtype: torch.dtype = torch.float64) -> Tensor:
    """What a rank has at the start."""
    x = torch.arange(size, dtype=torch.float64).add(100 * rank).sin()
    return torch.complex(x, x.cos()).to(dtype) if dtype.is_complex else x.to(dtype)


def everybody(size: int) -> np.ndarray:
    """[n, P]."""
    return np.stack([values(rank).numpy() for rank in range(size)])


def weights(size: int, seed: int = 0) -> np.ndarray:
    """A random matrix [n, n], about half of whose entries off the diagonal are zero; rows sum to 1."""
    draws = np.random.default_rng(seed)
    W = draws.uniform(0.1, 1, (size, size)) * (draws.uniform(size=(size, size)) < 0.5)
    np.fill_diagonal(W, draws.uniform(0.1, 1, size))
    return W / W.sum(1, keepdims=True)


def agree(found: list, expected: np.ndarray) -> None:
    for i, x in enumerate(found):
        np.testing.assert_allclose(np.asarray(x), expected[i], rtol=1e-12, atol=1e-12)


# -- rounds of the schedule --------------------------------------------------------------------------------------------


def mix(world: World, rounds: list[int], topology, settings: dict) -> list[Tensor]:
    with decentral.join(topology, **settings) as peers:
        return [peers.neighbor_allreduce(values(world.rank), round) for round in rounds]


SCHEDULES = [
    ("ring", {}),
    ("exponential", {"base": 3}),
    ("one_peer_exponential", {}),
    ("star", {"weights": "uniform"}),
    ("dbt", {}),
    ("ring", {"every": 2, "global_every": 2}),
]


@pytest.mark.parametrize(
    ("topology", "settings", "size"),
    [(*case, size) for case in SCHEDULES for size in SIZES if (case[0], size) != ("dbt", 1)],  # one is no tree
)
def test_a_round_applies_the_matrices_of_the_schedule(worlds, topology, settings, size):
    rounds = [0, 1, 2, 3]
    found = worlds(size).call(mix, rounds, topology, settings)
    X, schedule = everybody(size), schedule_of(topology, size, **settings)
    for round in rounds:
        expected = X.copy()
        for piece, W in zip(schedule.slices(X.shape[1]), schedule.matrices(round), strict=True):
            expected[:, piece] = W @ X[:, piece]
        agree([of_rank[round] for of_rank in found], expected)


def schedule_of(
    topology: str, size: int, every: int = 1, global_every: int | None = None, machine: int = 1, **settings
):
    from decentral.script.components import chosen
    from decentral.topology.communication import Communication

    communication = Communication(every=every, global_every=global_every, workers_per_machine=machine)
    return communication.schedule(chosen("topology", topology, settings), size)


@pytest.mark.parametrize("size", SIZES)
def test_matrices_are_authoritative(worlds, size):
    pull = [weights(size, seed) for seed in (1, 2)]
    found = worlds(size).call(mix, [0, 1, 2], pull, {})
    for round, W in enumerate([*pull, pull[0]]):
        agree([of_rank[round] for of_rank in found], W @ everybody(size))
    push = weights(size, 3).T.copy()
    agree([x for (x,) in worlds(size).call(mix, [5], push, {})], push @ everybody(size))


# -- weights of one call -----------------------------------------------------------------------------------------------


def sides(rank: int, A: np.ndarray, r: np.ndarray | None, s: np.ndarray | None) -> dict:
    """src_weights and dst_weights of a rank on the graph A, for r_ij and s_ij; none where these are none."""
    given = {}
    if r is not None:
        given["src_weights"] = {int(j): float(r[rank, j]) for j in np.flatnonzero(A[rank])}
    if s is not None:
        given["dst_weights"] = {int(i): float(s[i, rank]) for i in np.flatnonzero(A[:, rank])}
    return given


def call_with_weights(world: World, A, own, r, s, check) -> Tensor:
    x = values(world.rank)
    with decentral.join("ring") as peers:
        for _ in range(2):  # the group and the caller's tensor are as they were
            found = peers.neighbor_allreduce(x, self_weight=own[world.rank], check=check, **sides(world.rank, A, r, s))
    assert torch.equal(x, values(world.rank)) and found.data_ptr() != x.data_ptr()
    return found


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize(("kind", "check"), [("push", None), ("pull", None), ("both", None), ("both", False)])
def test_push_pull_and_push_pull_on_a_graph_of_their_own(worlds, kind, check, size):
    draws = np.random.default_rng(size)
    A = draws.uniform(size=(size, size)) < 0.5
    np.fill_diagonal(A, False)
    own, r, s = draws.normal(size=size), draws.normal(size=(size, size)), draws.normal(size=(size, size))
    pull, push = kind in ("pull", "both"), kind in ("push", "both")
    found = worlds(size).call(call_with_weights, A, own, r if pull else None, s if push else None, check)
    W = np.diag(own) + A * (r if pull else 1) * (s if push else 1)
    agree(found, W @ everybody(size))


def test_the_sum_starts_with_x_and_goes_on_by_ascending_source(worlds):
    found = worlds(4).call(order_of_sum)
    x = [values(rank, 1000, torch.float32) for rank in range(4)]
    for i in range(4):
        expected = x[i] * 0.3
        for j in range(4):
            if j != i:
                expected.add_(x[j] * 0.7, alpha=0.1)
        assert torch.equal(found[i], expected)


def order_of_sum(world: World) -> Tensor:
    others = [j for j in (3, 1, 0, 2) if j != world.rank]
    with decentral.join() as peers:
        return peers.neighbor_allreduce(
            values(world.rank, 1000, torch.float32),
            self_weight=0.3, src_weights=dict.fromkeys(others, 0.1), dst_weights=dict.fromkeys(others, 0.7),
        )  # fmt: skip


# -- what is given -----------------------------------------------------------------------------------------------------


def every_shape(world: World, dtype: torch.dtype) -> dict[str, list[Tensor]]:
    found = {}
    neighbors = {"src_weights": [1 - world.rank], "dst_weights": {1 - world.rank: 0.5}}
    with decentral.join("ring") as peers:
        for name, view in SHAPES.items():
            x = view(values(world.rank, dtype=dtype))
            before = x.clone()
            found[name] = [
                peers.neighbor_allreduce(x),
                peers.neighbor_allreduce(x, self_weight=0.5, **neighbors),
                peers.pair_gossip(x, 1 - world.rank),
                peers.hierarchical_neighbor_allreduce(x, 1, self_weight=0.5, src_machine_weights={1 - world.rank: 0.5}),
                peers.allreduce(x),
                peers.allreduce(x, workers_per_machine=2),
            ]
            assert torch.equal(x, before)
    return found


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: str(dtype).removeprefix("torch."))
def test_every_dtype_and_shape(worlds, dtype):
    for found in worlds(2).call(every_shape, dtype):
        for name, view in SHAPES.items():
            expected = (view(values(0, dtype=dtype)) + view(values(1, dtype=dtype))) / 2
            for result in found[name]:
                assert result.shape == expected.shape and result.dtype == dtype
                torch.testing.assert_close(result, expected)


class Model(nn.Module):
    def __init__(self, rank: int) -> None:
        super().__init__()
        self.one = nn.Parameter(values(rank, 6, torch.float32).view(2, 3))
        self.two = nn.Parameter(values(rank, 4))
        self.three = nn.Parameter(values(rank, 5, torch.float32))


def several(world: World) -> list[list[Tensor]]:
    model, pair = Model(world.rank), [1 - world.rank]
    tensors = list(model.parameters())
    with decentral.join("ring") as peers:
        found = [
            peers.neighbor_allreduce(tensors),
            peers.neighbor_allreduce(model, self_weight=0.5, src_weights={1 - world.rank: 0.5}),
            peers.allreduce(model),
        ]
        assert all(torch.equal(a, b) for a, b in zip(tensors, Model(world.rank).parameters(), strict=True))
        for inplace in (
            lambda model: peers.neighbor_allreduce(model, inplace=True),
            lambda model: peers.neighbor_allreduce(
                model, self_weight=0.5, src_weights=pair, dst_weights={pair[0]: 0.5}, inplace=True
            ),
            lambda model: peers.allreduce(model, inplace=True),
            lambda model: peers.pair_gossip(list(model.parameters()), *pair, inplace=True),
            lambda model: peers.hierarchical_neighbor_allreduce(model, 2, self_weight=1, inplace=True),
        ):
            fresh = Model(world.rank)
            inplace(fresh)
            assert all(parameter.grad is None and parameter.is_leaf for parameter in fresh.parameters())
            found.append([parameter.detach() for parameter in fresh.parameters()])
        return found


def test_tensors_and_modules_travel_together_and_in_place(worlds):
    expected = [(a + b).detach() / 2 for a, b in zip(Model(0).parameters(), Model(1).parameters(), strict=True)]
    for found in worlds(2).call(several):
        for results in found:
            for result, mean in zip(results, expected, strict=True):
                torch.testing.assert_close(result.detach(), mean)


# -- pairs, machines, everybody ----------------------------------------------------------------------------------------


def gossip(world: World, check: bool | None) -> Tensor:
    partner = {0: 3, 3: 0}.get(world.rank)
    with decentral.join() as peers:
        if partner is None and not check:
            return values(world.rank)
        return peers.pair_gossip(values(world.rank), partner, self_weight=0.75, pair_weight=0.5, check=check)


@pytest.mark.parametrize("check", [None, True])
def test_pair_gossip_leaves_the_others_alone(worlds, check):
    X = everybody(4)
    expected = 0.75 * X + 0.5 * X[[3, 1, 2, 0]]
    expected[1:3] = X[1:3]
    agree(worlds(4).call(gossip, check), expected)


def between_machines(world: World, L: int, own, sources, destinations, length: int) -> Tensor:
    m = world.rank // L
    with decentral.join() as peers:
        return peers.hierarchical_neighbor_allreduce(
            values(world.rank, length), L, self_weight=own,
            src_machine_weights=sources[m], dst_machine_weights=destinations[m],
        )  # fmt: skip


@pytest.mark.parametrize("sent", [None, [{1: 0.25}, {0: 2.0}]])
def test_machines_average_inside_and_mix_outside(worlds, sent):
    length = 7
    received = [{1: 0.5}, {0: 0.25}]
    found = worlds(4).call(between_machines, 2, 0.5, received, sent or [None, None], length)
    s = sent or [{1: 1.0}, {0: 1.0}]
    means = everybody(4)[:, :length].reshape(2, 2, -1).mean(1)
    mixed = [0.5 * means[m] + received[m][1 - m] * s[1 - m][m] * means[1 - m] for m in (0, 1)]
    agree(found, np.repeat(mixed, 2, 0))


def all_together(world: World) -> list[Tensor]:
    with decentral.join() as peers:
        x = values(world.rank)
        whole = torch.arange(3) + world.rank
        found = [
            peers.allreduce(x),
            peers.allreduce(x, "sum"),
            peers.broadcast(x, root=peers.size - 1),
            peers.allgather(x[: world.rank].view(-1, 1)).view(-1),
            peers.allreduce(whole, "sum"),
            peers.broadcast(whole > 1),
            peers.allgather(whole > 1),
            peers.allreduce(x, "sum", workers_per_machine=2 if peers.size == 4 else 1),
            peers.allreduce(whole, "sum", workers_per_machine=2 if peers.size == 4 else 1),
        ]
        assert found[-1].dtype == torch.int64
        peers.barrier()
        assert torch.equal(x, values(world.rank))
        return found


@pytest.mark.parametrize("size", SIZES)
def test_collective_verbs_follow_their_formulas(worlds, size):
    X, L = everybody(size), 2 if size == 4 else 1
    whole = np.arange(3) + np.arange(size)[:, None]
    expected = [X.mean(0), X.sum(0), X[-1], np.concatenate([X[i, :i] for i in range(size)])]
    expected += [whole.sum(0), whole[0] > 1, (whole > 1).ravel()]
    for rank, found in enumerate(worlds(size).call(all_together)):
        machine = slice(rank // L * L, rank // L * L + L)
        for result, right in zip(found, [*expected, X[machine].sum(0), whole[machine].sum(0)], strict=True):
            np.testing.assert_allclose(result, right, rtol=1e-12, atol=1e-12)


# -- gathering of neighbors -------------------------------------------------------------------------------------------


def gather(world: World, src, dst, check: bool | None, ragged: bool) -> Tensor:
    length = world.rank + 1 if ragged else 2
    x = torch.full((length, 3), world.rank, dtype=torch.int16)
    with decentral.join("ring", direction="left") as peers:
        named = {key: value[world.rank] for key, value in (("src_ranks", src), ("dst_ranks", dst)) if value}
        found = peers.neighbor_allgather(x, check=check, **named)
    assert found.dtype == torch.int16 and found.shape[1] == 3
    return found[:, 0]


SOURCES = [[3, 1], [], [1, 0], [0]]
DESTINATIONS = [[2, 3], [0, 2], [], [0]]


@pytest.mark.parametrize("ragged", [False, True])
@pytest.mark.parametrize(
    ("src", "dst", "check"),
    [(SOURCES, DESTINATIONS, None), (SOURCES, DESTINATIONS, False), (SOURCES, None, None), (None, DESTINATIONS, False)],
)
def test_neighbors_tensors_in_the_order_of_the_sources(worlds, src, dst, check, ragged):
    found = worlds(4).call(gather, src, dst, check, ragged)
    for rank, order in enumerate(SOURCES if src else [sorted(sources) for sources in SOURCES]):
        assert found[rank].tolist() == [j for j in order for _ in range(j + 1 if ragged else 2)]


def infer(world: World) -> list:
    """Once for a graph that stays; then without any check."""
    with decentral.join() as peers:
        found = peers.infer_ranks(dst_ranks=np.array(DESTINATIONS[world.rank], dtype=np.int64))
        assert found == peers.infer_ranks(src_ranks=SOURCES[world.rank])
        assert found == peers.infer_ranks(*found)
        sources, destinations = found
        x = peers.neighbor_allreduce(
            values(world.rank), self_weight=1, src_weights=sources, dst_weights=destinations, check=False
        )
        return [*found, x]


def test_sources_follow_from_destinations_and_the_reverse(worlds):
    X = everybody(4)
    for rank, (sources, destinations, x) in enumerate(worlds(4).call(infer)):
        assert sources == sorted(SOURCES[rank]) and destinations == DESTINATIONS[rank]
        np.testing.assert_allclose(x, X[rank] + X[sources].sum(0), rtol=1e-12, atol=1e-12)


# -- in the background -------------------------------------------------------------------------------------------------


def in_the_background(world: World) -> list[Tensor]:
    """Several verbs at once, waited for in another order."""
    x, pair = values(world.rank), {world.rank ^ 1: 0.5}
    with decentral.join("ring") as peers:
        handles = [
            peers.neighbor_allreduce(x, async_op=True),
            peers.neighbor_allreduce(x + 1, async_op=True),
            peers.neighbor_allreduce(x, self_weight=0.5, src_weights=pair, async_op=True),
            peers.neighbor_allreduce(x + 1, self_weight=0.5, src_weights=pair, async_op=True),
            peers.allreduce(x, async_op=True),
            peers.neighbor_allgather(x.view(1, -1), [world.rank ^ 1], [world.rank ^ 1], async_op=True),
            peers.hierarchical_neighbor_allreduce(x, 2, self_weight=1, async_op=True),
            peers.pair_gossip(x, world.rank ^ 1, async_op=True),
        ]
        found = [handle.wait() for handle in reversed(handles)][::-1]
        assert all(handle.done() and handle.wait() is result for handle, result in zip(handles, found, strict=True))
        return [result.view(-1) for result in found]


def test_handles_may_be_waited_for_in_any_order(worlds):
    X = everybody(4)
    W, swapped = schedule_of("ring", 4).matrices(0)[0], X[[1, 0, 3, 2]]
    mean = (X + swapped) / 2
    expected = [W @ X, W @ X + 1, mean, mean + 1, np.repeat([X.mean(0)], 4, 0), swapped, mean, mean]
    for results, right in zip(zip(*worlds(4).call(in_the_background), strict=True), expected, strict=True):
        agree(list(results), right)


def ask(world: World) -> Tensor:
    """Rank 0 asks before and after rank 1 has sent anything; of a round of the schedule nobody can ask."""
    pair = {1 - world.rank: 1.0}
    with decentral.join() as peers:
        scheduled = peers.neighbor_allreduce(values(0), async_op=True)
        with pytest.raises(decentral.ConfigError, match="wait"):
            scheduled.done()
        scheduled.wait()
        assert scheduled.done()
        if world.rank == 1:
            peers.barrier()
        handle = peers.pair_gossip(values(world.rank), *pair, async_op=True)
        if world.rank == 0:
            assert not handle.done() and not handle.done()
            peers.barrier()
            until(handle.done)
        return handle.wait()


def test_a_handle_says_truly_whether_its_messages_have_arrived(worlds):
    agree(worlds(2).call(ask), np.repeat([everybody(2).mean(0)], 2, 0))
