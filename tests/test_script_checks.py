"""Mistakes are one sentence on every rank, before anything is sent, and the group works on."""

from __future__ import annotations

import multiprocessing
import os
import sys
import threading
import time

import numpy as np
import pytest
import torch

import decentral
from decentral import ConfigError
from decentral.network.world import World
from decentral.script.peers import Peers
from decentral.topology.trees import Star


def ones(rank: int, *shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.full(shape or (3,), float(rank), dtype=dtype)


# -- calls -------------------------------------------------------------------------------------------------------------


def refused(world: World, mistake, **settings) -> str:
    """What a rank hears; afterwards the group averages as if nothing had happened."""
    with decentral.join("ring", **settings) as peers:
        with pytest.raises(ConfigError) as error:
            mistake(peers, world.rank)
        x = ones(world.rank)
        mean = peers.neighbor_allreduce(x, self_weight=1 / peers.size, src_weights=shares(peers))
        assert torch.allclose(mean, torch.full((3,), (peers.size - 1) / 2))
        return str(error.value)


def shares(peers: Peers) -> dict[int, float]:
    return {j: 1 / peers.size for j in range(peers.size) if j != peers.rank}


def unexpected_message(peers: Peers, rank: int) -> None:
    """Rank 0 sends to rank 2, which waits for rank 3."""
    destinations, sources = [[2], [], [], []], [[], [], [3], []]
    peers.neighbor_allreduce(ones(rank), self_weight=1, src_weights=sources[rank], dst_weights=destinations[rank])


def other_partner(peers: Peers, rank: int) -> None:
    peers.pair_gossip(ones(rank), [1, 2, 1, None][rank], check=True)


def other_shape(peers: Peers, rank: int) -> None:
    peers.neighbor_allreduce(ones(rank, 3 if rank else 4), self_weight=1, dst_weights=[])


def other_dtype(peers: Peers, rank: int) -> None:
    dtype = torch.float64 if rank == 2 else torch.float32
    peers.allreduce(ones(rank, dtype=dtype), check=True)


def other_verb(peers: Peers, rank: int) -> None:
    if rank == 3:
        peers.allgather(ones(rank))
    else:
        peers.neighbor_allgather(ones(rank), [], [])


def other_columns(peers: Peers, rank: int) -> None:
    peers.allgather(ones(rank, rank, 2 if rank == 1 else 3))


def one_forgets_its_weight(peers: Peers, rank: int) -> None:
    peers.neighbor_allreduce(ones(rank), self_weight=None if rank == 2 else 0.5, dst_weights=[])


@pytest.mark.parametrize(
    ("mistake", "says"),
    [
        (unexpected_message, ["rank 2 waits for rank 3", "rank 0 sends to rank 2, which does not receive from it"]),
        (other_partner, ["rank 0 waits for rank 1, which does not send to it", "pair_gossip"]),
        (
            other_shape,
            ["rank 0: neighbor_allreduce of float32 [4]", "ranks 1, 2, 3: neighbor_allreduce of float32 [3]"],
        ),
        (other_dtype, ["ranks 0, 1, 3: allreduce of mean of float32 [3]", "rank 2: allreduce of mean of float64 [3]"]),
        (other_verb, ["ranks 0, 1, 2: neighbor_allgather", "rank 3: allgather"]),
        (other_columns, ["ranks 0, 2, 3: allgather of float32 [any, 3]", "rank 1: allgather of float32 [any, 2]"]),
    ],
)
def test_ranks_that_disagree_are_all_told(worlds, mistake, says):
    heard = worlds(4).call(refused, mistake)
    assert len(set(heard)) == 1
    assert all(part in heard[0] for part in says), heard[0]


def test_an_error_on_one_rank_is_told_to_all(worlds):
    heard = worlds(4).call(refused, one_forgets_its_weight)
    assert heard[2].startswith("src_weights and dst_weights need self_weight")
    assert [heard[rank] for rank in (0, 1, 3)] == [f"rank 2: {heard[2]}"] * 3


WRONG = [
    (dict(self_weight=1, dst_weights=[7]), "dst_weights names rank 7: use 0 to 1"),
    (dict(self_weight=1, src_weights={-1: 1.0}), "src_weights names rank -1"),
    (dict(self_weight=1, src_weights={0: 1.0, 1: 1.0}), "the caller itself: use self_weight"),
    (dict(self_weight=float("nan"), dst_weights=[]), "self_weight=nan is not finite"),
    (dict(self_weight="much", dst_weights=[]), "self_weight='much' is not a number"),
    (dict(self_weight=1, src_weights={0.5: 1}), "src_weights names rank 0.5"),
    (dict(round=-1), "round=-1 is invalid: use a whole number >= 0"),
]


def wrong_arguments(world: World) -> list[str]:
    found = []
    with decentral.join() as peers:
        calls = [(lambda given=given: peers.neighbor_allreduce(ones(0), **given)) for given, _ in WRONG]
        calls += [
            lambda: peers.neighbor_allreduce(torch.arange(3)),
            lambda: peers.neighbor_allreduce([]),
            lambda: peers.neighbor_allreduce([1.0]),
            lambda: peers.allreduce(ones(0), "average"),
            lambda: peers.broadcast(ones(0), root=2),
            lambda: peers.allreduce(ones(0), workers_per_machine=3),
            lambda: peers.hierarchical_neighbor_allreduce(ones(0), 3),
            lambda: peers.allgather(torch.tensor(1.0)),
            lambda: peers.neighbor_allgather(torch.tensor(1.0)),
            lambda: peers.allreduce(ones(0).to("meta")),
            lambda: peers.pair_gossip(ones(0), 2),
            lambda: peers.allreduce(ones(0), "average", workers_per_machine=2),
        ]
        for call in calls:
            with pytest.raises(ConfigError) as error:
                call()
            found.append(str(error.value))
    return found


def test_invalid_arguments_are_refused(worlds):
    says = [part for _, part in WRONG] + [
        "int64 cannot hold", "x is an empty list: give a tensor",
        "x is float in a list: give a tensor", "op='average'", "root=2 is not a rank",
        "workers_per_machine=3 does not divide the 2 ranks", "workers_per_machine=3 does not divide the 2 ranks",
        "along dimension 0", "along dimension 0", "x is on meta", "target=2 is not a rank", "op='average'",
    ]  # fmt: skip
    for found in worlds(2).call(wrong_arguments):
        for heard, part in zip(found, says, strict=True):
            assert part in heard


def unchecked(world: World) -> bool:
    """Two ranks talk while the others do something else: nobody else has to call."""
    with decentral.join(check=False) as peers:
        if world.rank > 1:
            return True
        with pytest.raises(ConfigError, match="names rank 1 twice" if world.rank == 0 else "names rank 0 twice"):
            peers.neighbor_allreduce(ones(0), self_weight=1, src_weights=[1 - world.rank] * 2, dst_weights=[])
        pair = {1 - world.rank: 0.5}
        found = peers.neighbor_allreduce(ones(world.rank), self_weight=0.5, src_weights=pair, dst_weights=list(pair))
        with pytest.raises(ConfigError):
            peers.neighbor_allreduce(ones(0), self_weight=0.5, src_weights=pair, dst_weights=[world.rank])
        return bool((found == 0.5).all())


def test_without_the_check_only_the_callers_take_part(worlds):
    assert all(worlds(4).call(unchecked))


# -- joining -----------------------------------------------------------------------------------------------------------


def join_refused(world: World, topology, settings) -> str:
    """`topology` and `settings` of each rank."""
    with pytest.raises(ConfigError) as error:
        decentral.join(topology[world.rank], **settings[world.rank])
    with decentral.join() as peers:
        assert float(peers.allreduce(ones(world.rank)).mean()) == (world.size - 1) / 2
    return str(error.value)


def matrix(entry: float = 0.25, size: int = 4) -> np.ndarray:
    W = np.full((size, size), 0.25)
    W[1, 2] = entry
    return W


INVALID = [
    (["ring", "ring", "exponential", "ring"], [{}] * 4, "rank 2: join of topology exponential"),
    (["complete"] * 4, [{}, {}, {}, {"check": False}], "rank 3: "),
    (["complete"] * 4, [{}, {}, {}, {"workers_per_machine": 2}], "workers_per_machine=2"),
    (["ring"] * 4, [{"direction": "up"}, {}, {}, {}], "topology.direction='up' does not exist"),
    ("rign", {}, "topology='rign' does not exist. Did you mean 'ring'?"),
    ("ring", {"wieghts": "pull"}, "topology=ring has no setting 'wieghts'. Did you mean 'weights'?"),
    ("ring", {"weights": "unifrom"}, "topology.weights='unifrom' does not exist. Did you mean 'uniform'?"),
    ("ring", {"every": 0}, "every=0"),
    ("ring", {"workers_per_machine": 3}, "workers_per_machine=3 does not divide"),
    ("ring", {"device": "gpu"}, "device='gpu' does not exist"),
    ("ring", {"needs": ["doubly_stochastc"]}, "needs names 'doubly_stochastc', which does not exist. Did you mean"),
    ("star", {"weights": "uniform", "needs": ["doubly_stochastic"]}, "your algorithm needs a doubly stochastic"),
    (Star(), {"center": 1}, "'center' is neither an argument nor a setting"),
    (matrix(size=3), {}, "needs 3 workers, but there are 4 ranks"),
    (np.ones((4, 3)) / 3, {}, "numbers of shape [4, 3] are none of them"),
    (matrix(-0.25), {}, "W has -0.25 at [1, 2], which is negative"),
    ([matrix(), matrix(float("nan"))], {}, "W of round 1 has nan at [1, 2], which is not a finite number"),
    (matrix(0.75), {}, "rows sum to [1, 1.5, 1, 1] and columns to [1, 1, 1.5, 1]"),
    (3, {}, "int is none of them"),
]


def test_every_rank_hears_what_is_wrong_with_a_topology(worlds):
    for topology, settings, says in INVALID:
        alike = isinstance(settings, dict)
        of_ranks = ([topology] * 4, [settings] * 4) if alike else (topology, settings)
        heard = worlds(4).call(join_refused, *of_ranks)
        assert len({text.removeprefix("rank 0: ") for text in heard}) == 1 and says in heard[0], heard[0]


# -- at the wrong time, in the wrong place -----------------------------------------------------------------------------


def sum_of(peers: Peers) -> float:
    return float(peers.allreduce(ones(peers.rank), "sum")[0])


def test_a_group_works_on_when_another_one_of_the_same_process_closes():
    first, second = decentral.join(), decentral.join()
    first.close()
    first.close()
    assert sum_of(second) == 0
    with pytest.raises(RuntimeError, match=r"allreduce after the group was closed: call decentral\.join again"):
        sum_of(first)
    with decentral.join() as third:
        second.close()
        assert sum_of(third) == 0
    assert not torch.distributed.is_initialized()


def in_two_threads(world: World) -> list[str]:
    said: list[str] = []
    with decentral.join("ring") as peers:
        window = decentral.Window(ones(world.rank), peers)
        with window.mutex():
            for call in (lambda: sum_of(peers), peers.barrier, window.collect, lambda: list(peers.equally([1]))):
                thread = threading.Thread(target=lambda call=call: said.append(refusal(call)), name="T")
                thread.start()
                thread.join()
        assert sum_of(peers) == world.size - 1
        window.free()
    return said


def refusal(call) -> str:
    with pytest.raises(RuntimeError) as error:
        call()
    return str(error.value)


def test_verbs_of_two_threads_are_refused_before_they_meet_those_of_other_ranks(worlds):
    for allreduce, barrier, collect, equally in worlds(2).call(in_two_threads):
        assert allreduce.startswith("allreduce in thread 'T', but rank ") and "in one thread" in allreduce
        assert barrier.startswith("barrier in thread 'T'") and equally.startswith("equally in thread 'T'")
        assert collect == "collect while another thread uses this window: call its operations in one thread"


def in_a_fork(world: World) -> tuple[list[str], float]:
    """What a fork hears of a rank's group, window, handle and optimizer, and what the rank can still do afterwards."""
    with decentral.join("ring") as peers, decentral.Window(ones(world.rank), peers) as window:
        model = torch.nn.Linear(1, 1)
        optimizer = decentral.wrap(model, torch.optim.SGD(model.parameters(), lr=0.1), peers=peers)
        handle = peers.allreduce(ones(world.rank), "sum", async_op=True)
        ours, theirs = multiprocessing.Pipe()
        child = os.fork()
        if not child:
            calls = [lambda: sum_of(peers), peers.barrier, handle.wait, window.collect, window.fence, optimizer.step]
            theirs.send([refusal(call) for call in calls])
            window.free(), peers.close()
            os._exit(0)
        said = ours.recv()
        os.waitpid(child, 0)
        model(torch.ones(1)).sum().backward()
        optimizer.step()
        optimizer.close()
        window.collect()
        return said, float(handle.wait()[0]) + sum_of(peers)


def test_a_fork_is_refused_and_does_its_rank_no_harm(worlds):
    for said, total in worlds(2).call(in_a_fork):
        assert total == 2
        for name, text in zip(("allreduce", "barrier", "wait() for allreduce", "collect", "fence"), said, strict=False):
            assert text.startswith(f"{name} in process ") and "which was forked from process " in text
        assert "which was forked from process " in said[-1]


# -- what each rank alone has done before ------------------------------------------------------------------------------

VERBS = {
    "neighbor_allreduce": lambda peers, x: peers.neighbor_allreduce(x),
    "machines": lambda peers, x: peers.hierarchical_neighbor_allreduce(x, 1),
    "pair_gossip": lambda peers, x: peers.pair_gossip(x, 1 - peers.rank),
    "weighted": lambda peers, x: peers.neighbor_allreduce(
        x, self_weight=0.5, src_weights=[1 - peers.rank], dst_weights=[1 - peers.rank], check=False
    ),
    "allreduce": lambda peers, x: peers.allreduce(x),
    "sum": lambda peers, x: peers.allreduce(x, "sum"),
    "broadcast": lambda peers, x: peers.broadcast(x),
    "broadcast_parameters": lambda peers, x: peers.broadcast_parameters(holding(x)),
    "allreduce_parameters": lambda peers, x: peers.allreduce_parameters(holding(x)),
    "barrier": lambda peers, x: peers.barrier(),
    "equally": lambda peers, x: list(peers.equally([1])),
}


def holding(x: torch.Tensor) -> torch.nn.Module:
    module = torch.nn.Module()
    module.x = torch.nn.Parameter(x)
    return module


def differ(rank: int, calls: list[tuple[str, torch.Tensor]], known: int) -> None:
    """Both ranks carry out the first `known` of the calls, and then each its own."""
    with decentral.join("ring", timeout_s=4) as peers:
        for verb, x in calls[:known]:
            VERBS[verb](peers, x.clone())
        verb, x = calls[rank]
        try:
            VERBS[verb](peers, x.clone())
        except Exception as error:
            print(f"{type(error).__name__}: {error}", file=sys.stderr, flush=True)
            time.sleep(0.5)  # the other one has to find out by itself
        else:
            print("nothing has happened", file=sys.stderr)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("first", "second"),
    [
        (("neighbor_allreduce", torch.ones(4)), ("neighbor_allreduce", torch.ones(2, dtype=torch.float64))),
        (("pair_gossip", torch.ones(3)), ("pair_gossip", torch.ones(4))),
        (("weighted", torch.ones(4)), ("weighted", torch.ones(2, dtype=torch.complex64))),
        (("allreduce", torch.ones(3)), ("allreduce", torch.ones(4))),
        (("allreduce", torch.ones(4)), ("sum", torch.ones(4))),
        (("broadcast", torch.ones(4)), ("allreduce", torch.ones(4))),
        (("barrier", torch.ones(1)), ("equally", torch.ones(1))),
        (("broadcast_parameters", torch.ones(3)), ("broadcast_parameters", torch.ones(4))),
        (("allreduce_parameters", torch.ones(2)), ("allreduce_parameters", torch.ones(2).bfloat16())),
    ],
    ids=lambda call: f"{call[0]} {str(call[1].dtype)[6:]}{list(call[1].shape)}",
)
def test_ranks_that_differ_end_in_a_sentence_although_each_did_the_same_before(ranks, tmp_path, first, second):
    told = ranks.call(differ, 2, tmp_path, [first, second], 2)
    assert all(text and "nothing has happened" not in text for text in told), told
    if first[0] not in ("pair_gossip", "weighted"):  # whose messages do not match, and are not received
        assert any(str(list(first[1].shape)) in text or "barrier" in text for text in told), told
