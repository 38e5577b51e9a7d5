"""One benchmark, in a process of its own: `python -m decentral.benchmarks.one NAME FOLDER ROUNDS QUICK`."""

from __future__ import annotations

import sys
import time
from pathlib import Path

from decentral.benchmarks.benchmark import Effort
from decentral.benchmarks.stored import measured, save
from decentral.console import FAILED, INTERRUPTED, complain
from decentral.orphans import follow_parent
from decentral.registry import components


def main(name: str, folder: str, rounds: str, quick: str) -> None:
    """Measure and store. Exit status: 0 done, 1 failed, 130 interrupted."""
    follow_parent()
    benchmark = components("benchmarks")[name]()
    effort, began = Effort(int(rounds), quick == "True"), time.monotonic()
    try:
        findings = benchmark.measure(effort)
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    except Exception as error:
        import traceback

        traceback.print_exc()
        complain(f"{name}: {type(error).__name__}: {error}", "decentral-bench")
        sys.exit(FAILED)
    save(measured(benchmark, effort, time.monotonic() - began, findings), Path(folder))


if __name__ == "__main__":
    main(*sys.argv[1:])
