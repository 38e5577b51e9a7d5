"""A study whose processes are killed at random moments ends as if nothing had happened.

A study of 12 runs, two at a time, some of them over two processes. A punisher kills -9 a worker process, a whole run,
or the launcher, ten times over, at moments that follow from a printed seed; who kills the launcher starts it again.
"""

from __future__ import annotations

import contextlib
import csv
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from punisher import below

KILLS = 10
STUDY = """
kind: comparison
title: Twelve small runs
paper: punished
item: all
base: [data=digits, model=mlp, num_workers=4, epochs=3, evaluation.every_epochs=1, batch_size=8, checkpoint_every_s=0.2]
rows:
  - {method: RelaySGD, topology: chain, base: [algo=relaysgd, topology=chain, processes=2], only: {alpha: [0.1]}}
  - {method: D-PSGD, topology: ring, base: [algo=dpsgd, topology=ring]}
  - {method: D2, topology: ring, base: [algo=d2, topology=ring], only: {alpha: [0.1]}}
columns: {alpha: [1, 0.1]}
tune: {rule: fixed}
seeds: [1, 2, 3]
scales: {small: {}}
report:
  table: {rows: [method, topology], columns: alpha, format: percent}
"""


def start(folder: Path, results: Path) -> subprocess.Popen:
    command = [sys.executable, "-m", "decentral.cli.study", "twelve", f"--config-dir={folder}"]
    arguments = [*command, f"results_dir={results}", "launcher.slots=2", "launcher.retries=30", "restarts=30"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    with open(results.with_suffix(".log"), "a") as log:
        return subprocess.Popen(arguments, stdout=log, stderr=subprocess.STDOUT, env=environment)


def values(results: Path) -> list[dict[str, str]]:
    with open(results / "punished" / "twelve" / "small" / "values.csv") as file:
        rows = list(csv.DictReader(file))
    return [{key: value for key, value in row.items() if key != "wall_s"} for row in rows]


def victims(launcher: int, kind: str) -> list[int]:
    """Processes of the kind to be killed that are alive now: the launcher itself, runs, or workers of runs."""
    if kind == "launcher":
        return [launcher]
    family = below(launcher)
    leaders = [pid for pid in family if _group(pid) == pid]  # every job is a process group of its own
    if kind == "run":
        return leaders
    return [pid for pid in family if _group(pid) in leaders and pid not in leaders]


def _group(pid: int) -> int:
    try:
        return os.getpgid(pid)
    except ProcessLookupError:
        return 0


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("conf")
    (folder / "study").mkdir()
    (folder / "study" / "twelve.yaml").write_text(STUDY)
    return folder


def punish(folder: Path, results: Path, moments: random.Random, kills: list[str]) -> None:
    """Carry the study out to its end while processes are killed, until there have been enough kills."""
    launcher = start(folder, results)
    while launcher.poll() != 0:
        if launcher.returncode is not None:
            launcher = start(folder, results)
        time.sleep(moments.uniform(0.3, 2.0))
        kind = ("worker", "run", "launcher")[len(kills) % 3]
        alive = victims(launcher.pid, kind) if launcher.poll() is None and len(kills) < KILLS else []
        if alive:
            with contextlib.suppress(ProcessLookupError):  # it has just ended by itself
                os.kill(moments.choice(alive), signal.SIGKILL)
                kills.append(kind)


@pytest.mark.timeout(280)
@pytest.mark.slow
def test_a_study_that_is_killed_ten_times_ends_with_the_results_of_an_undisturbed_one(folder: Path, tmp_path: Path):
    calm = tmp_path / "calm"
    assert start(folder, calm).wait(120) == 0, calm.with_suffix(".log").read_text()
    assert len(values(calm)) == 12
    seed = random.randrange(10**6)
    print(f"punisher's seed: {seed}")
    moments, kills, number = random.Random(seed), [], 0
    while len(kills) < KILLS:  # a fast machine is through before the tenth: then from the start
        number += 1
        punish(folder, tmp_path / f"punished{number}", moments, kills)
        assert values(tmp_path / f"punished{number}") == values(calm)
