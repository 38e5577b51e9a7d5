"""Run directories: written by one process, readable at any moment, resumable after any death.

A directory holds

    config.yaml         frozen before the start; its first line names the run
    status.json         replaced atomically
    provenance.json     commit, versions, devices
    metrics.jsonl       append-only, one write per line
    metrics.json        what the numbers in it are: units, directions; replaced atomically
    logged.json         loggers that have had all of them
    checkpoints/<step>/ one file per part, and a manifest that is written last
    run.lock            held by the writer, released by the operating system when it dies
"""

from decentral.store.checkpoints import Checkpoint
from decentral.store.metrics import AXES, COLUMNS, Metric, read_metadata, read_metrics
from decentral.store.run_store import DirectoryTaken, FoundRun, RunStore, Status, find_runs

__all__ = [
    "AXES",
    "COLUMNS",
    "Checkpoint",
    "DirectoryTaken",
    "FoundRun",
    "Metric",
    "RunStore",
    "Status",
    "find_runs",
    "read_metadata",
    "read_metrics",
]
