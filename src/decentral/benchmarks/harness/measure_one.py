"""Measures one benchmark: `python -m decentral.benchmarks.harness.measure_one NAME FOLDER ROUNDS QUICK`.

`decentral-bench` starts this for each, so that none finds threads, caches or memory of another.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

from decentral.benchmarks.harness.benchmark import Effort
from decentral.benchmarks.harness.findings_file import measured, save
from decentral.host.orphans import follow_parent
from decentral.registry import components
from decentral.terminal.console import FAILED, INTERRUPTED, report_error


def main(name: str, folder: str, rounds: str, quick: str) -> None:
    """Measure and store. Exit status: 0 done, 1 failed, 130 interrupted."""
    follow_parent()
    benchmark = components("benchmarks.cases")[name]()
    effort, began = Effort(int(rounds), quick == "True"), time.monotonic()
    try:
        findings = benchmark.measure(effort)
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    except Exception as error:
        import traceback

        traceback.print_exc()
        report_error(f"{name}: {type(error).__name__}: {error}", "decentral-bench")
        sys.exit(FAILED)
    save(measured(benchmark, effort, time.monotonic() - began, findings), Path(folder))


if __name__ == "__main__":
    main(*sys.argv[1:])
