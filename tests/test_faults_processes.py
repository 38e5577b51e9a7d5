"""Runs survive the death of their processes.

Of the twenty faults that a run has to survive, and where it is shown:

     1  kill -9 of a worker                  here (restarted, bit for bit; noticed at once)
     3  hung worker                          here
     4  kill -9 of the launcher              test_faults_launcher
     5  kill -9 of a whole study             test_study_survives
     6  one bad run among many               test_study_survives, test_cli
     7  full disk                            test_faults_store, test_store
     8  damaged checkpoints                  test_faults_store, test_store, test_resume
     9  malicious pickle                     test_store (restricted unpickler everywhere)
    10  divergence                           test_faults_store
    11  half-written last line               test_faults_store, test_store
    12  two launchers, same results          test_store (the second one is refused), test_study_survives
    13  bad configuration                    test_errors
    14  missing or corrupt data              test_faults_launcher, test_errors, test_data_folders
    15  out of memory                        here
    16  taken ports, odd host names          here (loopback only, ports that were free)
    17  SIGTERM, Ctrl-C                      test_faults_launcher, test_distributed
    18  wandb without key or network         test_loggers
    19  YAML edited during a sweep           test_cli
    20  clock jumps, stale locks             test_faults_store, test_store

(2, going on with fewer workers, is not offered: a run is what its configuration says.)
"""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import signal
import socket
import time
from itertools import pairwise
from multiprocessing import forkserver
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import pytest

from decentral.config.composition import compose
from decentral.errors import ConfigError
from decentral.runtime import supervise as supervision
from decentral.runtime.supervise import supervise
from decentral.store.failures import Failure, classify
from decentral.training.faults import injector
from decentral.training.votes import Votes
from punisher import Meanwhile, Punisher, be_killed_when_done, children, command, same, status

pytestmark = pytest.mark.timeout(120)

QUADRATICS = [
    "task=quadratics", "task.noise=0.1", "algo=relaysgd", "topology=dbt", "num_workers=5", "optim=momentum",
    "steps=120", "evaluation.every_epochs=20",
]  # fmt: skip
DIGITS = [
    "data=digits", "model=mlp", "algo=dpsgd", "topology=ring", "num_workers=3", "batch_size=16", "alpha=1", "steps=60",
    "evaluation.every_epochs=0.2",
]  # fmt: skip
COMPRESSED = [
    "task=quadratics", "task.noise=0.1", "num_workers=5", "steps=120", "evaluation.every_epochs=20", "compress=topk",
    "compress.keep=0.3",
]  # fmt: skip
RESIDUALS = [*COMPRESSED, "algo=allreduce", "compress.warmup_epochs=30"]
DIFFERENCES = [*COMPRESSED, "algo=choco", "topology=ring"]
BOTH = ["processes=2", "trace=true", "checkpoint_every_s=0", "progress=false", "device=cpu", "network.timeout_s=30"]
LONG = [*QUADRATICS[:-2], "steps=600", "evaluation.every_epochs=10", *BOTH]


@pytest.fixture(scope="module", autouse=True)
def no_pictures():
    with mock.patch("decentral.report.run_figures.draw"):
        yield


@pytest.fixture
def faults(monkeypatch):
    """Ask for faults: (rank, step, kind), ..."""

    def ask(*wanted: tuple[int, int, str]) -> None:
        listed = [{"rank": rank, "step": step, "kind": kind} for rank, step, kind in wanted]
        monkeypatch.setenv("DECENTRAL_FAULTS", json.dumps(listed))

    return ask


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """Runs as they are when nothing happens, each carried out once."""
    done: dict[tuple[str, ...], Path] = {}

    def run(*overrides: str) -> Path:
        if overrides not in done:
            done[overrides] = tmp_path_factory.mktemp("undisturbed") / "run"
            assert command(*overrides, f"run_dir={done[overrides]}") == 0
        return done[overrides]

    return run


@pytest.mark.parametrize("victim", [0, 1])
@pytest.mark.parametrize(
    "task",
    [
        pytest.param(QUADRATICS, id="quadratics"),
        pytest.param(RESIDUALS, id="residuals"),
        pytest.param(DIFFERENCES, id="differences", marks=pytest.mark.slow),
        pytest.param(DIGITS, id="digits", marks=pytest.mark.slow),
    ],
)
def test_1_a_run_goes_on_bit_for_bit_when_a_process_is_killed(undisturbed, faults, tmp_path, capfd, victim, task):
    straight = undisturbed(*task, *BOTH)
    faults((victim, 47, "kill"))
    assert command(*task, *BOTH, f"run_dir={tmp_path / 'run'}") == 0
    same(tmp_path / "run", straight)
    assert status(tmp_path / "run")["restarts"] == 1 and status(straight)["restarts"] == 0
    assert json.loads((tmp_path / "run" / "provenance.json").read_text())["restarts"] == 1
    told = [line for line in capfd.readouterr().err.splitlines() if line.startswith("decentral-run: ")]
    assert len(told) == 1
    assert f"process {victim} of 2 (pid " in told[0] and "was killed by SIGKILL; restarting from step " in told[0]
    assert told[0].endswith("attempt 2 of 4.") and "from step 0" not in told[0]


def test_1_a_run_that_is_killed_before_its_first_checkpoint_starts_from_the_beginning(undisturbed, faults, tmp_path):
    faults((0, 3, "kill"), (1, 5, "kill"))
    assert command(*QUADRATICS, *BOTH, f"run_dir={tmp_path / 'run'}") == 0
    same(tmp_path / "run", undisturbed(*QUADRATICS, *BOTH))
    assert status(tmp_path / "run")["restarts"] == 2


def test_1_a_death_is_noticed_without_waiting_for_a_message_and_the_server_with_torch_in_memory_stays(faults, tmp_path):
    patient = [*QUADRATICS, *BOTH, "network.timeout_s=3600"]  # far longer than these tests may take
    assert command(*patient, f"run_dir={tmp_path / 'warm'}") == 0
    servers = children(os.getpid())
    faults((1, 41, "kill"), (1, 42, "kill"), (0, 50, "terminate"))
    assert command(*patient, f"run_dir={tmp_path / 'run'}") == 130
    assert status(tmp_path / "run")["restarts"] == 2
    assert children(os.getpid()) == servers


def test_1_after_the_last_attempt_the_run_has_failed_and_the_same_command_goes_on(undisturbed, faults, tmp_path, capfd):
    faults((1, 47, "kill"), (1, 47, "kill"))
    assert command(*QUADRATICS, *BOTH, "restarts=1", f"run_dir={tmp_path / 'run'}") == 1
    facts = status(tmp_path / "run")
    assert (facts["status"], facts["failure"], facts["restarts"]) == ("failed", "killed", 1)
    assert "process 1 of 2" in facts["reason"] and "SIGKILL" in facts["reason"]
    complaint = capfd.readouterr().err.splitlines()[-1]
    assert complaint.startswith("decentral-run: the run failed: process 1 of 2") and "same command" in complaint
    assert command(*QUADRATICS, *BOTH, f"run_dir={tmp_path / 'run'}") == 0
    same(tmp_path / "run", undisturbed(*QUADRATICS, *BOTH))
    assert status(tmp_path / "run")["restarts"] == 1  # in all the life of the run


def test_1_a_run_that_is_done_stays_done_when_its_processes_die_on_their_way_out(tmp_path):
    config = compose([*QUADRATICS, *BOTH])
    assert supervise(config, tmp_path / "run", 2, be_killed_when_done) == "done"
    assert status(tmp_path / "run")["restarts"] == 0


def test_3_a_run_goes_on_bit_for_bit_when_a_process_hangs(undisturbed, faults, tmp_path, capfd):
    straight = undisturbed(*QUADRATICS, *BOTH)
    faults((1, 47, "stop"))
    assert command(*QUADRATICS, *BOTH, "network.timeout_s=2", f"run_dir={tmp_path / 'run'}") == 0
    same(tmp_path / "run", straight)
    assert "process 1 of 2 (pid " in (told := capfd.readouterr().err) and "did not answer any more" in told


AGAIN = [
    ("raise", "error", "DECENTRAL_TRACEBACK"),
    ("oom", "out_of_memory", "batch_size"),
    ("disk_full", "disk_full", "space"),
]


@pytest.mark.parametrize(
    ("processes", "kind", "failure", "advice"),
    [*[(1, *case) for case in AGAIN], *[(2, *case) for case in AGAIN], (2, "exit", "error", "goes on")],
)
def test_15_what_would_happen_again_is_not_tried_again_and_says_what_to_do(
    faults, tmp_path, capfd, processes, kind, failure, advice
):
    faults((processes - 1, 47, kind))
    assert command(*QUADRATICS, *BOTH, f"processes={processes}", f"run_dir={tmp_path / 'run'}") == 1
    facts = status(tmp_path / "run")
    assert (facts["status"], facts["failure"], facts["restarts"]) == ("failed", failure, 0)
    complaint = capfd.readouterr().err
    assert complaint.count("decentral-run: ") == 1 and advice in complaint and str(tmp_path / "run") in complaint
    assert kind == "exit" or "in step 47" in facts["reason"]


@pytest.mark.parametrize(
    ("error", "failure"),
    [
        (RuntimeError("CUDA error: out of memory"), Failure.out_of_memory),
        (
            RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried ..."),
            Failure.out_of_memory,
        ),
        (MemoryError(), Failure.out_of_memory),
        (OSError(28, "No space left on device"), Failure.disk_full),
        (OSError(122, "Disk quota exceeded"), Failure.disk_full),
        (PermissionError(13, "Permission denied"), Failure.error),
        (ConnectionResetError(104, "Connection reset by peer"), Failure.lost),
        (RuntimeError("[../gloo/transport/tcp/pair.cc:534] Connection closed by peer"), Failure.lost),
        (ConfigError("seed=-1 makes no sense."), Failure.refused),
        (ValueError("connection"), Failure.error),
    ],
    ids=str,
)
def test_failures_are_told_apart(error, failure):
    assert classify(error) is failure
    outer = ValueError("outer")
    outer.__cause__ = error
    assert classify(outer) is failure


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_1_a_run_whose_processes_are_struck_at_random_ends_as_if_nothing_had_happened(undisturbed, tmp_path, seed):
    straight = undisturbed(*LONG)
    punisher = Punisher(tmp_path / "run", seed, strikes=6, longest_pause_s=0.5)
    assert command(*LONG, "restarts=20", "network.timeout_s=1", f"run_dir={tmp_path / 'run'}") == 0
    assert punisher.nobody_is_left()
    assert status(tmp_path / "run")["restarts"] >= 1
    same(tmp_path / "run", straight)


def listening(pid: int) -> set[str]:
    """The addresses on which a process waits for connections, in hexadecimal, as /proc has them."""
    sockets, found = set(), set()
    for link in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(OSError):  # checkpoints open and close files meanwhile
            sockets.add(os.readlink(link))
    for table in ("tcp", "tcp6"):
        lines = [line.split() for line in Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]]
        found |= {line[1].split(":")[0] for line in lines if line[3] == "0A" and f"socket:[{line[9]}]" in sockets}
    return found


def test_16_the_processes_of_a_machine_talk_over_the_loopback_and_nothing_else(tmp_path, monkeypatch):
    monkeypatch.delenv("GLOO_SOCKET_IFNAME", raising=False)
    found: set[str] = set()

    def look(pids: list[int]) -> None:
        for pid in pids:
            found.update(listening(pid))
        os.kill(os.getpid(), signal.SIGINT)

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 29500))
        meanwhile = Meanwhile(tmp_path / "run", look)
        assert command(*LONG, "steps=100000", f"run_dir={tmp_path / 'run'}") == 130
    assert meanwhile.nobody_is_left()
    assert found and found <= {"0100007F", "0000000000000000FFFF00000100007F", "00000000000000000000000001000000"}


def test_processes_vote_every_second_where_steps_are_long(monkeypatch):
    now = 0.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    votes = Votes(SimpleNamespace(distributed=True, largest=lambda *values: values), 0)
    voted = []
    for step, took in enumerate([0.001] * 41 + [0.4] * 40, start=1):
        now += took
        if votes.due(step):
            voted.append(step)
            votes.ask(step, False, False)
    assert voted[:3] == [1, 21, 41]
    assert max(later - earlier for earlier, later in pairwise(voted[4:])) <= 2


def test_an_injector_exists_only_where_it_was_asked_for(tmp_path, faults, monkeypatch):
    monkeypatch.delenv("DECENTRAL_FAULTS", raising=False)
    assert injector(0, tmp_path) is None
    faults((1, 3, "raise"))
    assert injector(0, tmp_path) is None and injector(1, tmp_path) is not None
    (tmp_path / ".fault0").touch()
    assert injector(1, tmp_path) is None  # it has happened
    for wrong in ("x", "[]", '[{"rank": 1}]', '[{"rank": 1, "step": 1, "kind": "meteor"}]'):
        monkeypatch.setenv("DECENTRAL_FAULTS", wrong)
        with pytest.raises(ConfigError, match="DECENTRAL_FAULTS"):
            injector(1, tmp_path)


def test_no_process_is_left():
    assert not [child for child in multiprocessing.active_children() if child.name.startswith("process ")]


def test_a_stopped_server_does_not_keep_the_launcher_for_ever(undisturbed, tmp_path, monkeypatch):
    straight = undisturbed(*QUADRATICS, *BOTH)  # so that there is a server
    os.kill(forkserver._forkserver._forkserver_pid, signal.SIGSTOP)
    patient, first = supervision._answering, iter([0.1])  # the new server gets its time
    monkeypatch.setattr(supervision, "_answering", lambda patience_s: patient(next(first, patience_s)))
    assert command(*QUADRATICS, *BOTH, f"run_dir={tmp_path / 'run'}") == 0
    same(tmp_path / "run", straight)
