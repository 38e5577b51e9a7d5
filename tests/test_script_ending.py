"""How a script ends when its ranks do different things: with one sentence, first, once, and within the timeout."""

from __future__ import annotations

import inspect
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

import decentral
from decentral.errors import ConfigError
from decentral.script import handle as ending
from decentral.script.handle import hinted
from decentral.script.optimizer import DecentralizedOptimizer
from decentral.script.peers import Peers

SCRIPT = """
import time
import torch
import decentral

model = torch.nn.Linear(3, 1)
sgd = torch.optim.SGD(model.parameters(), lr=0.05)
optimizer = decentral.wrap(model, sgd, "ring", mode="allreduce", timeout_s=6)
for batch in range(5 if optimizer.peers.rank == 0 else 3):
    optimizer.zero_grad()
    model(torch.randn(4, 3)).sum().backward()
    optimizer.step()
time.sleep(3600)
"""


@pytest.fixture
def ended_by(monkeypatch: pytest.MonkeyPatch):
    """A function that ends a script with an exception, as Python does."""
    monkeypatch.setattr(sys, "excepthook", sys.__excepthook__)
    monkeypatch.setattr(ending, "_is_first", lambda: True)
    ending.end_in_a_sentence()

    def end(error: BaseException, hint: bool = False) -> None:
        try:
            if not hint:
                raise error
            with hinted():
                raise error
        except BaseException as raised:
            sys.excepthook(type(raised), raised, raised.__traceback__)

    return end


def test_an_error_that_ranks_suffer_from_each_other_is_a_sentence_with_the_line_of_the_script(ended_by, capsys):
    ended_by(ConnectionError("connection closed by process 1 of this run"), hint=True)
    said = capsys.readouterr().err
    assert len(said.splitlines()) == 1 and "Traceback" not in said
    assert said.startswith("decentral: ") and f"{__file__}, line " in said
    assert "connection closed by process 1" in said and "peers.equally(batches)" in said


def test_a_refusal_is_a_sentence(ended_by, capsys):
    ended_by(ConfigError("mode='ac' does not exist. Did you mean 'atc'?"))
    said = capsys.readouterr().err
    assert len(said.splitlines()) == 1 and said.endswith("Did you mean 'atc'?\n")


def test_other_exceptions_and_those_that_are_asked_for_keep_their_tracebacks(ended_by, capsys, monkeypatch):
    ended_by(RuntimeError("of the script itself"))
    assert "Traceback" in capsys.readouterr().err
    monkeypatch.setenv("DECENTRAL_TRACEBACK", "1")
    ended_by(ConnectionError("gone"), hint=True)
    assert "Traceback" in capsys.readouterr().err


def test_the_second_rank_to_end_is_silent(monkeypatch):
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    where = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(store.port)}
    for name, value in where.items():
        monkeypatch.setenv(name, value)
    assert [ending._is_first() for _ in range(2)] == [True, False]


@pytest.mark.slow
def test_ranks_with_different_numbers_of_batches_end_in_one_sentence(tmp_path: Path):
    (tmp_path / "script.py").write_text(SCRIPT)
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=3", "script.py"]
    done = subprocess.run(torchrun, cwd=tmp_path, capture_output=True, text=True)
    said = done.stderr.splitlines()
    assert done.returncode != 0  # although the others sleep
    sentences = [line for line in said if line.startswith("decentral: ")]
    assert len(sentences) == 1 and "script.py, line " in sentences[0] and "after 6 s" in sentences[0], done.stderr
    before = said[: said.index(sentences[0])]
    assert not any("Traceback" in line or line.startswith("[rank") for line in before)
    assert "script.py, line" not in "".join(line for line in said if line not in sentences)


RANKS, TIMEOUT_S = 3, 60.0
Act = Callable[[], Any]


def tensor() -> torch.Tensor:
    return torch.ones(3)


def trained(peers: Peers, **how: Any) -> tuple[DecentralizedOptimizer, Act]:
    """A wrapped optimizer, and a step of it."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.BatchNorm1d(3))
    optimizer = decentral.wrap(model, torch.optim.SGD(model.parameters(), lr=0.1), peers=peers, **how)

    def step() -> None:
        optimizer.zero_grad()
        model(torch.randn(4, 3)).sum().backward()
        optimizer.step()

    return optimizer, step


def entered(manager: Any) -> None:
    with manager:
        pass


PEERS: dict[str, Callable[[Peers], Any]] = {
    "allreduce": lambda p: p.allreduce(tensor()),
    "allgather": lambda p: p.allgather(tensor()),
    "broadcast": lambda p: p.broadcast(tensor()),
    "barrier": lambda p: p.barrier(),
    "broadcast_parameters": lambda p: p.broadcast_parameters(torch.nn.Linear(2, 2)),
    "broadcast_optimizer_state": lambda p: p.broadcast_optimizer_state(
        torch.optim.Adam(torch.nn.Linear(2, 2).parameters())
    ),
    "allreduce_parameters": lambda p: p.allreduce_parameters(torch.nn.Linear(2, 2)),
    "equally": lambda p: list(p.equally([1, 2])),
    "close": lambda p: p.close(),
    "neighbor_allreduce": lambda p: p.neighbor_allreduce(tensor()),
    "hierarchical_neighbor_allreduce": lambda p: p.hierarchical_neighbor_allreduce(tensor(), 1),
    "pair_gossip": lambda p: p.pair_gossip(tensor(), 2),
    "neighbor_allgather": lambda p: p.neighbor_allgather(tensor()),
    "infer_ranks": lambda p: p.infer_ranks([2]),
}  # fmt: skip
MORE = {
    "neighbor_allreduce with weights": lambda p: p.neighbor_allreduce(tensor(), self_weight=0.5, dst_weights=[2]),
    "allreduce of machines": lambda p: p.allreduce(tensor(), workers_per_machine=3),
    "allreduce begun before": lambda p: p.allreduce(tensor(), async_op=True).wait(),
    "equally of generators": lambda p: list(p.equally(iter([1, 2]))),
    "join": lambda p: decentral.join("ring", timeout_s=TIMEOUT_S),
    "wrap": lambda p: trained(p),
    "Window": lambda p: decentral.Window(tensor(), p),
    "Window of messages": lambda p: decentral.Window(tensor(), p, transport="torch"),
}
WINDOW = {
    name: lambda w, name=name: (getattr(w, name)(), w.fence())
    for name in ("put", "accumulate", "push", "get", "update", "collect", "fence", "drain", "free")
} | {"mutex": lambda w: (entered(w.mutex(2, 1) if w._rank == 1 else w.mutex()), w.fence())}
OPTIMIZER: dict[str, tuple[dict[str, Any], Callable[[DecentralizedOptimizer, Act], Any]]] = {
    "step": ({}, lambda o, step: step()),
    "averaged": ({}, lambda o, step: entered(o.averaged())),
    "state_dict": ({"algo": "async_push_sum"}, lambda o, step: o.state_dict()),
}  # fmt: skip
STEPS = {
    "awc": {"mode": "awc"},
    "overlap": {"overlap": True},
    "push_sum": {"mode": "push_sum"},
    "allreduce": {"mode": "allreduce"},
    "d2": {"algo": "d2"},
    "compressed": {"algo": "choco", "compress": "topk"},
}
QUIET = {
    Peers: {"in_neighbors", "out_neighbors"},
    decentral.Window: set(),
    DecentralizedOptimizer: {
        "accumulate", "no_sync", "zero_grad", "load_state_dict", "add_param_group", "close",
        "register_step_pre_hook", "register_step_post_hook",
    },
}  # fmt: skip
"""What talks to nobody."""


@pytest.mark.parametrize(
    ("kind", "table"), [(Peers, PEERS), (decentral.Window, WINDOW), (DecentralizedOptimizer, OPTIMIZER)]
)
def test_every_public_verb_has_a_line_here(kind: type, table: dict[str, object]):
    own = [base for base in kind.__mro__ if base.__module__.startswith("decentral.")]
    public = {n for base in own for n, f in vars(base).items() if inspect.isfunction(f) and not n.startswith("_")}
    assert public == set(table) | QUIET[kind]


def prepared(case: str, peers: Peers) -> Act:
    """What the survivors do, once everything that all ranks do before has been done."""
    kind, _, name = case.partition(": ")
    if kind == "peers":
        verb = (PEERS | MORE)[name]
        return lambda: verb(peers)
    if kind in ("shared_memory", "torch"):
        window = decentral.Window(tensor(), peers, transport=kind)
        return lambda: WINDOW[name](window)
    how, act = OPTIMIZER.get(name) or (STEPS[name], lambda o, step: step())
    optimizer, step = trained(peers, **how)
    step()
    return lambda: act(optimizer, step)


def live(rank: int, case: str, victim: int) -> None:
    if case == "no join" and rank == victim:
        return
    with decentral.join("complete", timeout_s=4 if case == "no join" else TIMEOUT_S) as peers:
        act = prepared(case, peers)
        peers.barrier()
        if rank == victim:
            os.kill(os.getpid(), signal.SIGKILL)
        for _ in range(100):
            act()
        raise AssertionError("nothing has happened")


QUICK = ["peers: neighbor_allreduce", "shared_memory: put", "optimizer: step"]
CASES = [
    *(f"peers: {name}" for name in [*PEERS, *MORE]),
    *(f"shared_memory: {name}" for name in WINDOW),
    *(f"torch: {name}" for name in ("put", "get", "collect", "fence", "mutex")),
    *(f"optimizer: {name}" for name in [*OPTIMIZER, *STEPS]),
    "no join",
]


@pytest.mark.parametrize(
    ("case", "victim"),
    [
        *(pytest.param(case, 2, marks=[] if case in QUICK else pytest.mark.slow) for case in CASES),
        pytest.param("peers: allreduce", 0, marks=pytest.mark.slow),  # who serves the store
        pytest.param("shared_memory: drain", 0, marks=pytest.mark.slow),
    ],
)
def test_the_death_of_a_rank_ends_every_verb_of_the_others_in_a_sentence(ranks, case: str, victim: int, tmp_path: Path):
    told = ranks.call(live, RANKS, tmp_path, case, victim)
    assert any(told), "nobody has said anything"
    if case == "no join":
        waiting = "warning: rank 0 waits for ranks [2] of 3 to join at 127.0.0.1:"
        assert [text.startswith(waiting) for text in told] == [True, False, False]
        told[0] = told[0].partition("\n")[2]
    for rank in set(range(RANKS)) - {victim}:
        assert ranks.codes[rank] == 1
        if case == "no join" and not told[rank]:  # of those that are late, one speaks
            continue
        assert told[rank].startswith(f"decentral: rank {rank}, ") and told[rank].count("\n") == 1, told[rank]
        assert (f"closed by rank {victim}" if case != "no join" else "timed out") in told[rank], told[rank]
        assert "test_script_ending.py, line " in told[rank]


def slowly(act: Act, times: int) -> None:
    for _ in range(times):
        act()
        time.sleep(0.02)


FREE: dict[str, Callable[[Peers], Act]] = {
    "async_push_sum": lambda p: trained(p, algo="async_push_sum")[1],
    "messages": lambda p: decentral.Window(tensor(), p, transport="torch").push,
    "nothing": lambda p: lambda: time.sleep(0.01),
} | {
    name: lambda p, name=name: getattr(decentral.Window(tensor(), p, zero_init=True), name)
    for name in ("put", "accumulate", "push", "get", "update", "collect")
}
"""What never waits for another rank."""

ENDS: dict[str, Callable[[], Any]] = {
    "kill": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "os._exit": lambda: os._exit(0),
    "error": lambda: int("mine"),
    "status 3": lambda: sys.exit(3),
}


def live_alone(rank: int, case: str, end: str, victims: tuple[int, ...]) -> None:
    peers = decentral.join("complete", timeout_s=TIMEOUT_S)
    act = FREE[case](peers)
    act()
    peers.barrier()
    if rank not in victims:
        slowly(act, 50 if case == "nothing" or end == "well" else 3000)
    elif end in ENDS:
        ENDS[end]()


@pytest.mark.parametrize(
    ("case", "end", "victims", "size"),
    [
        ("async_push_sum", "kill", (2,), 3),
        *(pytest.param("async_push_sum", end, (0,), 2, marks=pytest.mark.slow) for end in ENDS),
        *(pytest.param(case, "kill", (1,), 3, marks=pytest.mark.slow) for case in ("messages", "nothing", "push")),
        pytest.param("async_push_sum", "kill", (0, 3), 8, marks=pytest.mark.slow),
        pytest.param("nothing", "error", (0, 1), 3, marks=pytest.mark.slow),
    ],
)
def test_ranks_that_wait_for_nobody_end_when_one_dies(
    ranks, case: str, end: str, victims: tuple[int, ...], size: int, tmp_path: Path
):
    told = ranks.call(live_alone, size, tmp_path, case, end, victims)
    for rank in set(range(size)) - set(victims):
        assert ranks.codes[rank] == 1
        where = "at the end of" if case == "nothing" else f"{__file__}, line "
        said = f"decentral: rank {rank}, {where}.*: connection closed by ranks? ({'|'.join(map(str, victims))})"
        assert re.match(said, told[rank]) and told[rank].count("\n") == 1, told[rank]


@pytest.mark.parametrize("case", ["async_push_sum", pytest.param("nothing", marks=pytest.mark.slow)])
def test_a_rank_that_has_ended_well_is_not_missed(ranks, case: str, tmp_path: Path):
    assert ranks.call(live_alone, 3, tmp_path, case, "well", (2,)) == [""] * 3
    assert ranks.codes == [0] * 3
