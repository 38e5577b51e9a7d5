"""Measure this program itself: `make bench ARGS='[NAME ...] [--rounds N] [--quick] [--output FOLDER]'`.

The results go to FOLDER/NAME.json (results/bench/) and, all together, to FOLDER/README.md. Each benchmark has a process
of its own, where no other one has left threads, caches and memory behind.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from pathlib import Path

from bench import exchanges, gpu, memory, processes, runs, steps  # noqa: F401
from bench.harness import BENCHMARKS, RESULTS, Effort, environment, save
from bench.page import load_all, write_page
from decentral.host.processes import follow_parent


def main(arguments: list[str] | None = None) -> int:
    """Exit status: 0 done, 1 some benchmark failed, 2 refused."""
    parser = argparse.ArgumentParser("make bench", description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help="all, unless some are named")
    parser.add_argument("--list", action="store_true", help="list the benchmarks")
    parser.add_argument("--report", action="store_true", help="only write the page again, from what is stored")
    parser.add_argument("--quick", action="store_true", help="smallest sizes, to see whether it works: FOLDER/quick")
    parser.add_argument("--rounds", type=int, help="how often each thing is measured (7)")
    parser.add_argument("--output", type=Path, default=RESULTS, metavar="FOLDER")
    parser.add_argument("--here", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    unknown = [name for name in options.names if name not in BENCHMARKS]
    if unknown:
        parser.error(f"there is no benchmark {unknown[0]}: --list shows all")
    if options.list:
        print("\n".join(f"{name:14} {BENCHMARKS[name].title}" for name in sorted(BENCHMARKS)))
        return 0
    effort = Effort(options.rounds or (1 if options.quick else 7), options.quick)
    if options.here:
        return measure_here(options.names[0], effort, options.output)
    folder = options.output / "quick" if options.quick else options.output
    folder.mkdir(parents=True, exist_ok=True)  # first: what cannot be written is not measured
    failed = [] if options.report else measure(options.names or sorted(BENCHMARKS), effort, folder)
    print(f"Results: {write_page(load_all(folder), folder)}")
    return 1 if failed else 0


def measure_here(name: str, effort: Effort, folder: Path) -> int:
    """In this process, which ends with the one that has started it."""
    follow_parent()
    began = time.monotonic()
    findings = BENCHMARKS[name].measure(effort)
    save(name, findings, effort, time.monotonic() - began, folder)
    return 0


def measure(names: list[str], effort: Effort, folder: Path) -> list[str]:
    """One after the other, each stored as soon as it is done; those that failed."""
    failed = []
    for name in names:
        missing = BENCHMARKS[name].missing()
        if missing:
            print(f"{name:14} not run: {missing}")
            continue
        print(f"{name:14} {BENCHMARKS[name].title} ...", end="", flush=True)
        began = time.monotonic()
        command = [sys.executable, "-m", "bench", name, "--here", "--output", str(folder)]
        command += ["--rounds", str(effort.rounds), *(["--quick"] if effort.quick else [])]
        ended = subprocess.run(command, env=environment(), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
        failed += [name] if ended.returncode else []
        print(" failed" if ended.returncode else f" {time.monotonic() - began:.0f} s")
    return failed


if __name__ == "__main__":
    sys.exit(main())
