"""Ctrl-C ends every command at any moment: one sentence, status 130, nobody left, and the same command goes on."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from decentral.store import find_runs, read_metrics
from punisher import below
from waiting import alive, until

TINY = [
    "task=quadratics", "task.noise=0.1", "algo=relaysgd", "topology=dbt", "num_workers=5", "steps=200",
    "evaluation.every_epochs=10", "device=cpu", "network.timeout_s=20",
]  # fmt: skip
MOMENTS = 9


def run(
    *arguments: str, words: tuple[str, ...] = ("-m", "decentral"), deaf: bool = False, cwd: Path | None = None
) -> subprocess.Popen[str]:
    """The command in a process group of its own, as a terminal starts it."""

    def begin() -> None:
        os.setpgid(0, 0)
        signal.signal(signal.SIGINT, signal.SIG_IGN if deaf else signal.SIG_DFL)
        signal.signal(signal.SIGHUP, signal.SIG_DFL)  # which nohup would have it ignore

    return subprocess.Popen(
        [sys.executable, *words, *arguments],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, preexec_fn=begin, cwd=cwd,
    )  # fmt: skip


def ends(process: subprocess.Popen[str], family: list[int], *others: tuple[int, str]) -> None:
    """It ends with one sentence and status 130, or in another way, and so does everything that it has started."""
    out, err = process.communicate(timeout=60)
    ended = process.returncode, err if err.count("\n") != 1 else err.partition(";")[0].partition(".")[0]
    assert ended in [(130, "decentral-run: interrupted"), *others], (out, err)
    until(lambda: not any(map(alive, family)))


def numbers(results: Path) -> list[list[str]]:
    """What each run has measured."""
    runs = [read_metrics(found.path) for found in find_runs(results)]
    return [sorted(str(row | {"wall_s": 0}) for row in rows) for rows in runs]


@pytest.mark.parametrize("number", [
    signal.SIGINT,
    pytest.param(signal.SIGTERM, marks=pytest.mark.slow),
    pytest.param(signal.SIGHUP, marks=pytest.mark.slow),
])  # fmt: skip
def test_a_signal_while_processes_start_ends_the_run(tmp_path, number):
    process = run(*TINY, "steps=1000000", "processes=2", f"run_dir={tmp_path / 'run'}")
    until(lambda: len(below(process.pid)) >= 2)  # the server and multiprocessing's tracker
    family = below(process.pid)
    os.killpg(process.pid, number)
    ends(process, family)


def script(folder: Path, code: str) -> subprocess.Popen[str]:
    """A console command that does this."""
    before = """
import atexit, os, signal, sys, time
from decentral.cli.guarded import guarded
from decentral.host.interrupt import Interrupt
def ctrl_c(): os.kill(os.getpid(), signal.SIGINT); time.sleep(0.01)
def carry_out(_):
    """
    after = """
    return 0
if __name__ == "__main__": guarded("decentral-run", carry_out, None)
"""
    (folder / "command.py").write_text(before + code.replace("\n", "\n    ") + after)
    return run(words=("-m", "command"), cwd=folder)


@pytest.mark.parametrize("code", [
    "ctrl_c()",
    "for _ in range(3): ctrl_c()",
    "try: ctrl_c()\nfinally: ctrl_c()",
    "class Lost:\n    def __del__(self): ctrl_c()\nLost(); time.sleep(1)",  # Python reports it, and goes on
    "try: ctrl_c()\nexcept BaseException: pass\nwith Interrupt() as asked: return 130 * asked.requested",
    "try: ctrl_c()\nfinally: {}['of a library that cleans up']",
    "try: ctrl_c()\nexcept BaseException: time.sleep(1.1); ctrl_c()",
    "exec('ctrl_c()')",
    "with Interrupt() as asked: [ctrl_c() for _ in range(3)]; return 130 * asked.requested",
])  # fmt: skip
def test_ctrl_c_is_not_lost(tmp_path, code):
    ends(script(tmp_path, code), [])


@pytest.mark.parametrize("code", [
    "signal.signal(signal.SIGINT, signal.SIG_DFL); atexit.register(ctrl_c)",
    "signal.signal(signal.SIGINT, signal.SIG_IGN); ctrl_c()",
])  # fmt: skip
def test_what_is_done_stays_done(tmp_path, code):
    process = script(tmp_path, code)
    assert (process.communicate(timeout=60), process.returncode) == (("", ""), 0)


def test_ctrl_c_among_the_first_imports_is_a_sentence():
    ends(
        run(
            words=("-c", "import os, sys; sys.argv[0] = 'decentral-run'; import decentral.cli; os.kill(os.getpid(), 2)")
        ),
        [],
    )


@pytest.mark.parametrize("arguments", [
    ["processes=2"],
    pytest.param(["processes=1"], marks=pytest.mark.slow),
    pytest.param(["-m", "seed=1,2"], marks=pytest.mark.slow),
])  # fmt: skip
def test_what_ignores_ctrl_c_goes_on_with_all_its_processes(tmp_path, arguments):
    """As under nohup, and in the background of a script."""
    process = run(*TINY, *arguments, f"results_dir={tmp_path}", deaf=True)
    until(lambda: process.poll() is not None or not os.killpg(process.pid, signal.SIGINT))
    while process.poll() is None:
        os.killpg(process.pid, signal.SIGINT)
        time.sleep(0.05)
    out, err = process.communicate()
    assert (process.returncode, err) == (0, ""), out


@pytest.mark.slow
@pytest.mark.parametrize("alone", [False, True], ids=["group", "alone"])
@pytest.mark.parametrize("arguments", [["processes=1"], ["processes=2"], ["-m", "seed=1,2"]], ids=" ".join)
def test_at_any_moment(tmp_path, arguments, alone):
    """Ctrl-C reaches the whole group, `kill -INT` the command alone; the same command goes on to the same numbers."""
    began = time.monotonic()
    run(*TINY, *arguments, f"results_dir={tmp_path / 'straight'}").communicate()
    whole_s = time.monotonic() - began
    for moment in range(1, MOMENTS):
        here = f"results_dir={tmp_path / str(moment)}"
        process = run(*TINY, *arguments, here)
        time.sleep(whole_s * moment / MOMENTS)
        family = below(process.pid)
        (os.kill if alone else os.killpg)(process.pid, signal.SIGINT)
        ends(process, family, (0, ""))
        run(*TINY, *arguments, here).communicate()
        assert numbers(tmp_path / str(moment)) == numbers(tmp_path / "straight") != []
