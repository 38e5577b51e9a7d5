"""Runs survive the death of their processes.

Of the twenty faults that a run has to survive, and where it is shown:

     1  kill -9 of a worker                  here (restarted, bit for bit; noticed at once)
     3  hung worker                          here
     4  kill -9 of the launcher              test_interruptions
     5  kill -9 of a whole study             test_sweep
     6  one bad run among many               test_study_command, test_sweep
     7  full disk                            test_resume, test_store
     8  damaged checkpoints                  test_resume, test_store
     9  malicious pickle                     test_store (restricted unpickler everywhere)
    10  divergence                           test_resume
    11  half-written last line               test_resume, test_store
    12  two launchers, same results          test_store (the second one is refused), test_sweep
    13  bad configuration                    test_cli
    14  missing or corrupt data              test_interruptions, test_cli, test_data_folders
    15  out of memory                        here
    16  taken ports, odd host names          here (loopback only, ports that were free)
    17  SIGTERM, Ctrl-C                      test_interruptions, here
    18  wandb without key or network         test_loggers
    19  YAML edited during a sweep           test_cli
    20  clock jumps, stale locks             test_resume, test_store

(2, going on with fewer workers, is not offered: a run is what its configuration says.)
"""

from __future__ import annotations

import json
import os
import signal
import socket
from ipaddress import ip_address
from multiprocessing import forkserver
from pathlib import Path
from unittest import mock

import numpy as np
import pytest

from decentral.config.composition import compose
from decentral.config.prepared import prepare
from decentral.errors import ConfigError
from decentral.runtime import supervise as supervision
from decentral.runtime.supervise import supervise
from decentral.store import read_metrics
from decentral.store.failures import Failure, classify
from punisher import (
    Meanwhile,
    Punisher,
    be_killed_when_done,
    command,
    same,
    status,
    workers_of,
)
from test_exposure import listening
from waiting import alive

# -- Runs survive the death of their processes -------------------------------------------------------------------------

QUADRATICS = [
    "task=quadratics", "task.noise=0.1", "algo=relaysgd", "topology=dbt", "num_workers=5", "optim=momentum",
    "steps=120", "evaluation.every_epochs=20",
]  # fmt: skip
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


@pytest.mark.slow
def test_1_a_run_goes_on_bit_for_bit_when_processes_are_killed(undisturbed, faults, tmp_path, capfd):
    """Before its first checkpoint and after it. A death is noticed at once, not when a message is late, and the server
    with torch in memory stays."""
    straight = undisturbed(*QUADRATICS, *BOTH)
    server = forkserver._forkserver._forkserver_pid
    faults((0, 3, "kill"), (1, 47, "kill"))
    assert command(*QUADRATICS, *BOTH, "network.timeout_s=3600", f"run_dir={tmp_path / 'run'}") == 0
    same(tmp_path / "run", straight)
    assert status(tmp_path / "run")["restarts"] == 2 and status(straight)["restarts"] == 0
    assert json.loads((tmp_path / "run" / "provenance.json").read_text())["restarts"] == 2
    told = [line for line in capfd.readouterr().err.splitlines() if line.startswith("decentral-run: ")]
    assert len(told) == 2
    assert "process 1 of 2 (pid " in told[1] and "was killed by SIGKILL; restarting from step " in told[1]
    assert told[1].endswith("attempt 3 of 4.") and "from step 0" not in told[1]
    assert forkserver._forkserver._forkserver_pid == server and alive(server)


@pytest.mark.slow
def test_1_after_the_last_attempt_the_run_has_failed_and_the_same_command_goes_on(undisturbed, faults, tmp_path, capfd):
    others = workers_of(os.getpid())
    faults((1, 47, "kill"), (1, 47, "kill"))
    assert command(*QUADRATICS, *BOTH, "restarts=1", f"run_dir={tmp_path / 'run'}") == 1
    assert set(workers_of(os.getpid())) <= set(others)
    facts = status(tmp_path / "run")
    assert (facts["status"], facts["failure"], facts["restarts"]) == ("failed", "killed", 1)
    assert "process 1 of 2" in facts["reason"] and "SIGKILL" in facts["reason"]
    complaint = capfd.readouterr().err.splitlines()[-1]
    assert complaint.startswith("decentral-run: the run failed: process 1 of 2") and "same command" in complaint
    assert command(*QUADRATICS, *BOTH, f"run_dir={tmp_path / 'run'}") == 0
    same(tmp_path / "run", undisturbed(*QUADRATICS, *BOTH))
    assert status(tmp_path / "run")["restarts"] == 1  # in all the life of the run


@pytest.mark.slow
def test_1_a_completed_run_stays_done_when_its_processes_die_at_exit(tmp_path):
    config = compose([*QUADRATICS, *BOTH])
    assert supervise(prepare(config, tmp_path / "run"), 2, be_killed_when_done) == "done"
    assert status(tmp_path / "run")["restarts"] == 0


@pytest.mark.slow
def test_3_a_run_goes_on_bit_for_bit_when_a_process_hangs(undisturbed, faults, tmp_path, capfd):
    straight = undisturbed(*QUADRATICS, *BOTH)
    faults((1, 47, "stop"))
    assert command(*QUADRATICS, *BOTH, "network.timeout_s=5", f"run_dir={tmp_path / 'run'}") == 0
    same(tmp_path / "run", straight)
    assert "process 1 of 2 (pid " in (told := capfd.readouterr().err) and "stopped responding" in told


@pytest.mark.parametrize(
    ("processes", "kind", "failure", "advice"),
    [
        (1, "raise", "error", "DECENTRAL_TRACEBACK"),
        (1, "disk_full", "disk_full", "space"),
        (2, "oom", "out_of_memory", "batch_size"),
        (2, "exit", "error", "resumes"),
    ],
)
def test_15_a_fault_that_would_recur_is_not_retried_and_the_message_says_what_to_do(
    faults, tmp_path, capfd, processes, kind, failure, advice
):
    faults((processes - 1, 3, kind))
    assert command(*QUADRATICS, *BOTH, f"processes={processes}", f"run_dir={tmp_path / 'run'}") == 1
    facts = status(tmp_path / "run")
    assert (facts["status"], facts["failure"], facts["restarts"]) == ("failed", failure, 0)
    complaint = capfd.readouterr().err
    assert complaint.count("decentral-run: ") == 1 and advice in complaint and str(tmp_path / "run") in complaint
    assert kind == "exit" or "in step 3" in facts["reason"]


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
        (ConfigError("seed=-1 is negative."), Failure.refused),
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
def test_1_a_run_whose_processes_are_killed_or_stopped_at_random_ends_with_the_same_numbers(undisturbed, tmp_path):
    straight = undisturbed(*LONG)
    punisher = Punisher(tmp_path / "run", 1, strikes=6, longest_pause_s=0.5)
    assert command(*LONG, "restarts=20", "network.timeout_s=3", f"run_dir={tmp_path / 'run'}") == 0
    assert punisher.nobody_is_left()
    assert status(tmp_path / "run")["restarts"] >= 1
    same(tmp_path / "run", straight)


@pytest.mark.slow
def test_16_the_processes_of_a_machine_talk_over_the_loopback_and_nothing_else(tmp_path, monkeypatch):
    monkeypatch.delenv("GLOO_SOCKET_IFNAME", raising=False)
    found: set[tuple[str, int]] = set()

    def look(pids: list[int]) -> None:
        for pid in pids:
            found.update(listening(pid))
        os.kill(os.getpid(), signal.SIGINT)

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 29500))
        meanwhile = Meanwhile(tmp_path / "run", look)
        assert command(*LONG, "steps=100000", f"run_dir={tmp_path / 'run'}") == 130
    assert meanwhile.nobody_is_left()
    assert found and all(ip_address(address).is_loopback for address, _ in found)


@pytest.mark.slow
def test_a_stopped_fork_server_is_replaced(undisturbed, tmp_path, monkeypatch):
    straight = undisturbed(*QUADRATICS, *BOTH)  # so that there is a server
    os.kill(forkserver._forkserver._forkserver_pid, signal.SIGSTOP)
    patient, first = supervision._answering, iter([0.1])  # the new server gets its time
    monkeypatch.setattr(supervision, "_answering", lambda patience_s: patient(next(first, patience_s)))
    assert command(*QUADRATICS, *BOTH, f"run_dir={tmp_path / 'run'}") == 0
    same(tmp_path / "run", straight)


# -- Real processes, as users start them: by `processes=` (by torchrun: test_exposure) --------------------------------

DIGITS_OF_FOUR = [
    "algo=relaysgd", "topology=dbt", "num_workers=4", "model=mlp", "alpha=1", "batch_size=16", "steps=6",
    "evaluation.every_epochs=0.1", "progress=false", "device=cpu",
]  # fmt: skip


@pytest.mark.slow
def test_two_processes_of_our_own_report_what_one_does(undisturbed, tmp_path, capfd):
    alone = undisturbed(*DIGITS_OF_FOUR, "processes=1")
    capfd.readouterr()
    assert command(*DIGITS_OF_FOUR, "processes=2", f"run_dir={tmp_path / 'run'}") == 0
    assert status(tmp_path / "run")["status"] == "done"
    assert json.loads((tmp_path / "run" / "provenance.json").read_text())["processes"] == 2
    ours, theirs = read_metrics(tmp_path / "run"), read_metrics(alone)
    assert (
        [row | {"value": 0, "wall_s": 0} for row in ours] == [row | {"value": 0, "wall_s": 0} for row in theirs] != []
    )
    for a, b in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(a["value"], b["value"], rtol=0, atol=0 if a["metric"] == "accuracy" else 1e-4)
    told = capfd.readouterr()
    assert told.err == "" and told.out.count("Results:") == 1


def test_a_process_that_refuses_the_configuration_ends_the_run_with_its_sentence(tmp_path, capfd):
    too_long = ["task=mean_estimation", "task.dimension=1000", "trace=true", "num_workers=2", "steps=1000000"]
    others = workers_of(os.getpid())
    assert command(*too_long, "processes=2", f"run_dir={tmp_path / 'run'}", "progress=false") == 2
    assert "trace=true would keep" in capfd.readouterr().err
    assert set(workers_of(os.getpid())) <= set(others)
