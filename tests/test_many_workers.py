"""A thousand workers and more; the memory that a run takes."""

from __future__ import annotations

import contextlib
import json
import os
import platform
import subprocess
import sys
import tracemalloc
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
import torch

import page_faults
from decentral.errors import ConfigError
from decentral.host.torch_state import keep_freed_memory
from decentral.network.local import LocalNetwork
from decentral.registry import components
from decentral.topology.communication import Communication
from decentral.topology.delivery import Losses
from decentral.topology.requirements import check
from decentral.topology.rounds import Need
from table import TOPOLOGIES

# -- A thousand workers on every topology, four thousand on some: nothing that a run does needs an n x n  --------------

MANY, MOST = 1024, 4096
FOUR = ("ring", "dbt", "exponential", "one_peer_exponential")
EVERY = ["base_graph", "complete", "dbt", "epidemic", "equidyn", "exponential", "file", "one_peer", "random_regular"]
QUICK = ("dbt", "one_peer")
DENSE_BYTES = {n: 8 * n * n for n in (MANY, MOST)}


def place(name: str, n: int, folder: Path) -> list[str]:
    """The topology with what it needs to have n workers."""
    grid = "topology.graph=grid"
    more = {"one_peer": [grid, "topology.weights=metropolis"], "spanning_tree": [grid]}
    more |= {"epidemic": ["topology.drawn_rounds=2"], "equidyn": ["topology.drawn_rounds=4"]}  # each round is kept
    if name == "file":
        path = folder / "graph.csv"
        path.write_text("".join(f"{i},{(i + 1) % n}\n" for i in range(n)))
        more["file"] = [f"topology.path={path}"]
    return [f"topology={name}", f"num_workers={n}", *more.get(name, [])]


def fields(name: str, n: int, folder: Path) -> dict[str, str | int]:
    settings = [setting.removeprefix("topology.").split("=") for setting in place(name, n, folder)[2:]]
    return {key: int(value) if value.isdigit() else value for key, value in settings if key != "weights"}


def peak_of_validation(name: str, n: int, folder: Path, needs: set[Need], communication: Communication) -> int:
    """The most memory that is held while all is made and looked at; arrays of numpy are counted."""
    import scipy.sparse.linalg  # noqa: F401  # its code is not counted

    topology = components("topology")[name](**fields(name, n, folder))
    tracemalloc.start()
    try:
        for need in needs:
            rounds = communication.schedule(topology, n)
            with contextlib.suppress(ConfigError):
                check(rounds, {need}, "algo", name)
            if need is Need.tree and TOPOLOGIES[name].tree:
                rounds.edges()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("name", sorted(set(EVERY) - {"complete"}))
def test_a_thousand_workers_are_validated_without_a_dense_matrix(tmp_path, name):
    eigenvalues = {Need.d2_spectrum}  # are those of a dense matrix up to so many workers
    peak = peak_of_validation(name, MANY, tmp_path, set(Need) - eigenvalues, Communication())
    assert peak < DENSE_BYTES[MANY] / 2


@pytest.mark.slow
@pytest.mark.parametrize("name", FOUR)
def test_four_thousand_workers_are_validated_with_the_memory_of_their_edges(tmp_path, name):
    assert peak_of_validation(name, MOST, tmp_path, set(Need), Communication()) < DENSE_BYTES[MOST] / 8


@pytest.mark.parametrize(
    "communication",
    [Communication(global_every=3), Communication(every=2, global_every=1), Communication(workers_per_machine=8)],
)
def test_the_mean_of_all_workers_and_machines_take_no_dense_matrix(tmp_path, communication):
    needs = {Need.doubly_stochastic, Need.symmetric, Need.connected}
    assert peak_of_validation("ring", MOST, tmp_path, needs, communication) < DENSE_BYTES[MOST] / 8


def test_four_thousand_workers_mix_and_agree_in_machines_without_a_dense_matrix():

    communication = Communication(global_every=3, workers_per_machine=8)
    rounds = communication.schedule(components("topology")["ring"](), MOST)
    x = torch.arange(MOST * 16, dtype=torch.float64).view(MOST, 16).sin()
    mean = x.mean(0)
    tracemalloc.start()
    net = LocalNetwork(rounds, Losses(0.0, 0))
    w = net.known_ones()
    for round in range(3):
        x, w = net.mix(x, round), net.mix_known(w, round)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < DENSE_BYTES[MOST] / 4
    torch.testing.assert_close(x, mean.expand(MOST, 16), rtol=0, atol=1e-12)
    torch.testing.assert_close(w, torch.ones_like(w), rtol=0, atol=1e-12)


def algorithm(name: str) -> str:
    if TOPOLOGIES[name].tree:
        return "relaysgd"
    return "epidemic_learning" if name == "epidemic" else "dpsgd"


QUADRATICS = ("task=quadratics", "task.dimension=4")
NETWORKS = ("task=images", "data=digits", "model=mlp", "model.hidden=[8]", "batch_size=1", "alpha=1")


LARGE = [
    *((name, MANY, QUADRATICS) for name in ("complete", "epidemic", "file", "random_regular")),
    *((name, MOST, QUADRATICS) for name in ("dbt", "exponential")),
    ("one_peer_exponential", MANY, NETWORKS),
]


@pytest.mark.parametrize(
    ("name", "n", "task"),
    [*((name, MANY, QUADRATICS) for name in QUICK), *(pytest.param(*each, marks=pytest.mark.slow) for each in LARGE)],
)
def test_thousands_of_workers_train_and_resume(start, tmp_path, name, n, task):
    settings = [*task, f"algo={algorithm(name)}", *place(name, n, tmp_path)]
    settings += ["steps=4", "checkpoint_every_s=0", "evaluation.every_epochs=1"]
    settings += ["evaluation.every_epochs=4", "evaluation.initial=false"] if task is NETWORKS else []
    straight = start(*settings, directory="straight")
    broken = start(*settings, directory="broken", interrupt_at=1)
    assert (straight.status, broken.status) == ("done", "interrupted")
    continued = start(*settings, directory="broken")
    assert continued.rows == straight.rows
    assert continued.facts["bytes_sent"] == straight.facts["bytes_sent"] > 0


@pytest.mark.parametrize("name", ["dbt", "one_peer", "star", "base_graph", "random_regular"])
def test_the_sum_over_a_thousand_workers_is_kept(tmp_path, name):
    topology = components("topology")[name](**fields(name, MANY, tmp_path))
    net = LocalNetwork(topology.schedule(MANY), Losses(0.0, 0))
    for width in (6, 500):
        x = torch.from_numpy(np.random.default_rng(0).normal(size=(MANY, width)))
        total = x.sum(0)
        for round in range(3):
            x = net.mix(x, round)
        torch.testing.assert_close(x.sum(0), total, rtol=0, atol=1e-9)


@pytest.mark.parametrize("width", [4, 300])
@pytest.mark.parametrize("name", ["dbt", "star"])
def test_messages_of_a_thousand_workers_hold_each_model_once(tmp_path, name, width):
    """What one worker sends out in round 0 comes to everybody exactly once, and the counts say so."""
    net = LocalNetwork(components("topology")[name](**fields(name, MANY, tmp_path)).schedule(MANY), Losses(0.0, 0))
    ones = torch.ones(MANY, width, dtype=torch.float64)
    m, c = net.no_messages(ones), net.no_counts()
    for round in range(4):
        m, c = net.relay(ones, m, round), net.relay_counts(c, round)
    counted = net.collect_counts(c)
    found = net.collect(m, torch.zeros_like(ones))
    for h, piece in enumerate(net.rounds.slices(width)):
        assert torch.equal(found[:, piece], counted[:, h : h + 1].expand(MANY, width)[:, piece])
    if name == "star":
        assert (1 + counted == MANY).all()


# -- In one process, a run takes the memory of the algorithm's own rows and little more --------------------------------

CODE = 5e7
"""Bytes of libraries that are read from their files on the way, more or fewer from machine to machine."""

MEASURE = """
import json, resource, sys
from decentral.config.composition import compose
config, small = compose(sys.argv[1:]), compose([*sys.argv[1:], "num_workers=2", "model.hidden=[4]"])
config.task.prepare(config)
import torch
from pathlib import Path
from decentral.config.prepared import prepare
from decentral.training.run import carry_out
from decentral.network.world import World
import decentral.training.run, decentral.training.checkpoint
torch.set_num_threads(1)
carry_out(prepare(small, Path(config.run_dir + "-small")), World(0, 1, torch.device("cpu")))  # also imports
peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
assemble, rows = decentral.training.run.assemble, []
def measured(config, world):
    r = assemble(config, world)
    rows.append(r.stepper.models.numel() * 4)  # the gradients
    for _, _, value in decentral.training.checkpoint.state_fields(r.stepper.state):
        rows.extend(t.numel() * t.element_size() for t in (value if isinstance(value, tuple) else (value,)))
    return r
decentral.training.run.assemble = measured
before = peak()
carry_out(prepare(config), World(0, 1, torch.device("cpu")))
print(json.dumps([peak() - before, sum(rows)]))
"""


@pytest.mark.slow
def test_the_peak_is_within_a_quarter_of_the_rows(tmp_path: Path) -> None:
    settings = ["algo=relaysgd", "topology=dbt", "num_workers=16", "model=mlp"]
    settings += ["model.hidden=[1500,1500]", "optim=nesterov", "steps=3", "batch_size=8", "progress=false"]
    command = [sys.executable, "-c", MEASURE, *settings, f"run_dir={tmp_path / 'run'}"]
    printed = subprocess.run(command, check=True, capture_output=True, text=True, timeout=240).stdout
    taken, rows = json.loads(printed.splitlines()[-1])
    assert rows > 4e8, "too small to say anything"
    assert taken < 1.25 * rows + CODE


# -- Memory that a step frees stays with the process, alone or one of several: counted in page faults ------------------

GLIBC = pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc can be told to keep memory")

A_FEW = 20  # a block of 100 MB has 25,000 pages, or 48 huge ones


def faults_per_block(folder: Path, processes: int) -> list[float]:
    """In each of the processes of a run."""
    ours = {key: value for key, value in os.environ.items() if not key.startswith(("MALLOC_", "GLIBC_TUNABLES"))}
    subprocess.run([sys.executable, page_faults.__file__, str(folder), str(processes)], check=True, env=ours)
    return [float((folder / str(rank)).read_text()) for rank in range(processes)]


@pytest.mark.slow
@GLIBC
@pytest.mark.parametrize("processes", [1, 2])
def test_a_block_that_was_freed_costs_nothing_the_next_time(processes: int, tmp_path: Path) -> None:
    assert max(faults_per_block(tmp_path, processes)) < A_FEW


@pytest.mark.parametrize("told", [("MALLOC_MMAP_THRESHOLD_", "65536"), ("GLIBC_TUNABLES", "glibc.malloc.arena_max=1")])
def test_malloc_settings_of_the_user_are_kept(told: tuple[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("MALLOC_")]:
        monkeypatch.delenv(name)
    with mock.patch("ctypes.CDLL") as libc:
        keep_freed_memory()
        assert libc.called
        libc.reset_mock()
        monkeypatch.setenv(*told)
        keep_freed_memory()
        assert not libc.called
