"""The console command `decentral-bench`. Imports neither torch nor Hydra: a benchmark runs in a process of its own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from decentral.benchmarks.harness.benchmark import Benchmark, Effort
from decentral.cli.guarded import guarded
from decentral.cli.options import Options
from decentral.errors import ConfigError, suggest
from decentral.registry import components
from decentral.terminal.console import FAILED, INTERRUPTED, say

_HELP = """\
decentral-bench [NAME ...] [--rounds N] [--quick] [--output FOLDER]   measure (all benchmarks, or those named)
decentral-bench --list                                                list them
decentral-bench --report [--output FOLDER]                            only write the page again, from what is stored

Every figure is a ratio of two things measured in turn, in one run. The results go to FOLDER/NAME.json and, all
together, to FOLDER/README.md (FOLDER is results/bench by default).

--rounds N    how often each thing is measured (default 7)
--quick       smallest sizes, to see whether it works; the results go to FOLDER/quick
"""
_GRACE_S = 20.0  # for a benchmark to end its processes after Ctrl-C


class _Options(Options):
    def __init__(self) -> None:
        super().__init__("decentral-bench", "names")
        self.add_argument("--list", action="store_true")
        self.add_argument("--report", action="store_true")
        self.add_argument("--quick", action="store_true")
        self.add_argument("--rounds", type=int)
        self.add_argument("--output", type=Path, default=Path("results/bench"))


def main(arguments: Sequence[str] | None = None) -> None:
    """Entry point of `decentral-bench`. Exit status: 0 done, 1 some benchmark failed, 2 refused, 130 interrupted."""
    guarded("decentral-bench", _carry_out, arguments)


def _carry_out(arguments: list[str]) -> int:
    options = _Options().parse_intermixed_args(arguments)
    if options.help:
        say(_HELP.rstrip())
        return 0
    known = {name: cls() for name, cls in components("benchmarks.cases").items()}
    for name in options.names:
        if name not in known:
            raise ConfigError(f"there is no benchmark {name}.{suggest(name, known)}")
    if options.list:
        say("\n".join(f"{name:14} {benchmark.title}" for name, benchmark in known.items()))
        return 0
    rounds = options.rounds if options.rounds is not None else (1 if options.quick else Effort().rounds)
    if rounds < 1:
        raise ConfigError(f"--rounds {rounds} makes no sense: it has to be at least 1.")
    folder = options.output / "quick" if options.quick else options.output
    _check_folder(folder)
    status = 0
    if not options.report:
        chosen = [known[name] for name in dict.fromkeys(options.names or known)]
        status = _measure(chosen, Effort(rounds, options.quick), folder)
    _show(folder)
    return status


def _check_folder(folder: Path) -> None:
    from decentral.cli.folders import check_writable

    check_writable("--output", str(folder), folder)


def _measure(benchmarks: Sequence[Benchmark], effort: Effort, folder: Path) -> int:
    """One after the other, each stored as soon as it is done; returns the exit status."""
    status = 0
    for benchmark in benchmarks:
        refusal = benchmark.refusal()
        if refusal:
            say(f"{benchmark.name:14} not run: {refusal}")
            continue
        print(f"{benchmark.name:14} {benchmark.title} ...", end="", flush=True)
        began = time.monotonic()
        try:
            trouble = in_own_process(benchmark.name, effort, folder)
        except KeyboardInterrupt:
            say(" interrupted")
            return INTERRUPTED
        say(f" failed: {trouble}" if trouble else f" {time.monotonic() - began:.0f} s")
        status = FAILED if trouble else status
    return status


def in_own_process(name: str, effort: Effort, folder: Path) -> str:
    """Measure where no other benchmark has left threads, caches and memory behind; returns what went wrong, or ''.

    The process has a session of its own: Ctrl-C reaches it from here, once.
    """
    environment = {"OMP_NUM_THREADS": "1"} | os.environ
    command = [sys.executable, "-m", "decentral.benchmarks.harness.measure_one", name, str(folder), str(effort.rounds)]
    with tempfile.TemporaryFile("w+") as errors:
        process = subprocess.Popen(
            [*command, str(effort.quick)],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=errors,
            start_new_session=True,
        )
        try:
            process.wait()
        except BaseException:
            _end(process)
            raise
        errors.seek(0)
        told = errors.read().strip().splitlines()
    if process.returncode and os.environ.get("DECENTRAL_TRACEBACK"):
        print("\n".join(["", *told]), file=sys.stderr)
    last = told[-1].removeprefix(f"decentral-bench: {name}: ") if told else f"exit status {process.returncode}"
    return last if process.returncode else ""


def _end(process: subprocess.Popen[bytes]) -> None:
    """Let a benchmark clean up after itself, and if it does not, end it with all that it has started."""
    process.send_signal(signal.SIGINT)
    try:
        process.wait(_GRACE_S)
    except BaseException:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _show(folder: Path) -> None:
    """Write the page of all that is stored, and print the targets."""
    from decentral.benchmarks.harness.findings_file import load_all
    from decentral.benchmarks.page import targets_text, write_page

    stored = load_all(folder)
    if not stored:
        say(f"Nothing is stored in {folder}.")
        return
    page = write_page(stored, folder)
    say(f"\n{targets_text(stored)}\n")
    say(f"Results: {page} and {folder}/*.json")


if __name__ == "__main__":
    main()
