"""Work through a list of runs on a GPU that is lent for a while: `python scripts/gpu_queue.py LIST [key=value ...]`.

    --limit SECONDS     stop in time: the queue ends this long after its start (default: when all is done)
    --reserve SECONDS   stop the runs this long before the limit, to write checkpoints and tables (default: 60)
    --plan              show what is left to do; starts nothing

The list is YAML, in order of priority (scripts/gpu_queue.yaml). An entry is a command; `only` selects cells of a study
by their labels, with shell patterns (`decentral-study NAME --plan` shows the labels):

    - command: >-
        decentral-study relaysum_table1 scale=paper 'study.tune={rule: fixed}' 'study.seeds=[1]'
      only: {alpha: [0.01], method: ["*momentum"]}
    - command: decentral-run algo=dpsgd topology=ring alpha=0.01

Settings, such as device=cuda, data.path=FOLDER and launcher.runs_per_gpu=1, are those of decentral-run, and go to every
command; results_dir is common to all. As many runs share a GPU as fit into its memory, judging by the runs so far. The
same command resumes, also on another machine with a copy of results_dir. Exit status: 0 done, or stopped at the limit;
1 some run failed; 2 refused; 130 interrupted. docs/gpus.md has a checklist.
"""

from __future__ import annotations

import shlex
import threading
import time
from collections.abc import Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, NamedTuple

from decentral.cli import study as studies
from decentral.cli.command import Options, check_writable, guarded
from decentral.config.composition import compose
from decentral.config.parsing import read_yaml
from decentral.errors import ConfigError, suggest
from decentral.host.interrupt import ask_to_stop
from decentral.measurements.training_run import TrainingRun, run_command
from decentral.report.run_figures import draw
from decentral.scheduling.board import board, failure_line
from decentral.scheduling.job import Job, seen_in_directory
from decentral.scheduling.scheduler import Pending, schedule
from decentral.store.checkpoints import newest_step
from decentral.store.files import at_home
from decentral.study.catalogue import reserved
from decentral.study.study import Cell, Unfinished
from decentral.terminal.console import FAILED, INTERRUPTED, aligned, report_error, say

_LEAST_S = 1.0
RESERVE_S = 60.0
"""For checkpoints, for which all runs together have 30 s, and for reports."""


class Entry(NamedTuple):
    """One entry of the list: where its jobs come from, and the study that they are of."""

    command: str
    pending: Pending
    study: studies.ChosenStudy | None = None
    cells: Sequence[Cell] = ()
    """All cells of the study, those that are left out by `only` as well."""


class Queue:
    """The unfinished jobs of all entries, those of the first entry first."""

    def __init__(self, entries: Sequence[Entry]) -> None:
        self._entries = entries

    def pending(self) -> list[Job]:
        """Each job once, in the order of the list."""
        known: dict[str, Job] = {}
        for entry in self._entries:
            for job in entry.pending():
                known.setdefault(job.id, job)
        return list(known.values())


def read_entry(values: Any, words: Sequence[str], config_dir: str | None) -> Entry:
    """An entry of the list, with further words for its command. Raises ConfigError."""
    if not isinstance(values, dict) or not values.get("command"):
        raise ConfigError("it has no command: write '- command: decentral-run key=value ...'.")
    if unknown := values.keys() - {"command", "only"}:
        raise ConfigError(f"there is no key '{min(map(str, unknown))}': use command and only.")
    try:
        program, *own = shlex.split(str(values["command"])) or [""]
    except ValueError as error:
        raise ConfigError(f"its command cannot be read ({error}): see the example in --help.") from None
    only = values.get("only") or {}
    if not isinstance(only, dict) or any(patterns is None for patterns in only.values()):
        raise ConfigError(f"only: {only} has no patterns: write label: [pattern, ...].")
    for word in own:
        if word.partition("=")[0] in ("run_dir", "results_dir"):
            raise ConfigError(f"'{word}' is for all entries at once: give results_dir=FOLDER after the list.")
    if program == "decentral-run" and not only and not any(word.startswith("-") for word in own):
        config = compose([*own, *words], config_dir)
        title = " ".join(own)
        run = TrainingRun(config, title, afterwards=draw, command=run_command([*own, *words], config_dir))
        return Entry(values["command"], lambda: [run] if run.finished() is None else [])
    if program != "decentral-study" or any(word.startswith("-") for word in own):
        raise ConfigError(
            f"'{values['command']}' cannot be queued: write decentral-study NAME key=value ..., or decentral-run "
            "key=value ... without options and without `only`."
        )
    chosen = studies.chosen_studies([*own, *words], config_dir)
    if len(chosen) != 1:
        raise ConfigError(f"'{values['command']}' means {len(chosen)} studies: name one.")
    cells = studies.checked_cells(chosen[0])
    return Entry(values["command"], Unfinished(selected(cells, only)).pending, chosen[0], cells)


def selected(cells: Sequence[Cell], only: dict[str, Any]) -> list[Cell]:
    """The cells whose labels match one of the patterns that `only` has for them. Raises ConfigError if none does."""
    for label in only:
        if label not in cells[0].labels:
            raise ConfigError(f"only: {label} is no label of the study's cells.{suggest(label, cells[0].labels)}")
    found = list(cells)
    for label, given in only.items():
        patterns = given if isinstance(given, list) else [given]
        found = [one for one in found if any(fnmatchcase(str(one.labels[label]), str(each)) for each in patterns)]
    if not found:
        raise ConfigError(f"only: {only} leaves none of the study's {len(cells)} cells.")
    return found


def plan(jobs: Sequence[Job]) -> str:
    """Return a line for each job that is left: the share that is done, and the size of its checkpoints."""
    rows = [["left to do", "done", "checkpoints"]]
    for job in jobs:
        size = checkpoint_bytes(job)
        done = seen_in_directory(job, "").fraction or 0.0
        rows.append([job.title, f"{done:.0%}", f"{size / 1e6:,.1f} MB" if size else ""])
    return aligned(rows, left=1)


def checkpoint_bytes(job: Job) -> int:
    """What the newest two checkpoints of a job take; the first of them is enough to go on from."""
    return sum(file.stat().st_size for file in (job.directory / "checkpoints").glob("*/*"))


def luggage(jobs: Sequence[Job], results_dir: Path) -> str:
    """What has to be brought back, and how large it is."""
    begun = [job for job in jobs if newest_step(job.directory / "checkpoints")]
    checkpoints = sum(map(checkpoint_bytes, begun))
    everything = sum(file.stat().st_size for file in results_dir.rglob("*") if file.is_file())
    return (
        f"Left to do: {len(jobs)}, of which {len(begun)} have checkpoints of {checkpoints / 1e6:,.1f} MB (the newest "
        f"two of each). Bring back {results_dir}, {everything / 1e6:,.1f} MB; the same command goes on from there."
    )


def carry_out(arguments: list[str]) -> int:
    """Exit status: 0 done, or stopped in time; 1 some run failed; 2 refused; 130 interrupted."""
    began = time.monotonic()
    parser = Options("gpu_queue.py", "--plan")
    parser.add_argument("--limit", type=float)
    parser.add_argument("--reserve", type=float, default=RESERVE_S)
    options = parser.begin(arguments, __doc__ or "")
    if options is None:
        return 0
    lists = [word for word in options.words if "=" not in word]
    if len(lists) != 1:
        raise ConfigError(f"{len(lists)} lists are named: name one, such as scripts/gpu_queue.yaml.")
    if not options.reserve >= 0:
        raise ConfigError(f"--reserve {options.reserve:g} is out of range; use a number of seconds >= 0.")
    if options.limit is not None and not options.reserve < options.limit:
        raise ConfigError(f"--limit {options.limit:g} leaves nothing but --reserve {options.reserve:g}: use more.")
    given, words = reserved([word for word in options.words if "=" in word], "results_dir")
    results_dir = at_home(given or studies.OWN_RESULTS)
    words.append(f"results_dir={results_dir}")
    here = [word for word in words if word.partition("=")[0].partition(".")[0] in ("launcher", "progress")]
    config = compose([*here, words[-1]], options.config_dir)
    listed = read_yaml(Path(lists[0]))
    if not isinstance(listed, list) or not listed:
        raise ConfigError(f"{lists[0]} has to hold a list of entries, each with a command.")
    entries = []
    for number, values in enumerate(listed, start=1):
        try:
            entries.append(read_entry(values, words, options.config_dir))
        except ConfigError as error:
            raise ConfigError(f"{lists[0]}, entry {number}: {error}") from error
    queue = Queue(entries)
    jobs = queue.pending()
    say(plan(jobs) if jobs else "Nothing is left to do.")
    if options.plan or not jobs:
        return 0
    check_writable("results_dir", str(results_dir), results_dir / "runs")
    config.launcher.check()
    out_of_time = threading.Event()

    def stop() -> None:
        out_of_time.set()
        ask_to_stop()

    timer = threading.Timer(0, stop)
    if options.limit is not None:
        timer.interval = options.limit - options.reserve - (time.monotonic() - began)
        if timer.interval <= _LEAST_S:
            raise ConfigError(f"--limit {options.limit:g} was over before a run began: use more.")
        timer.start()
    with board("queue", config.progress) as shown:
        tally = schedule(queue.pending, config.launcher, results_dir, shown)
    timer.cancel()
    for ended in tally.failed:
        report_error(failure_line(ended))
    for study in {entry.study.directory: entry for entry in entries if entry.study is not None}.values():
        assert study.study is not None
        if any(cell.values() for cell in study.cells):
            studies.collect_results(study.study, study.cells, Unfinished(study.cells), began, tally, in_parts=True)
            say(studies.reported(study.study).summary())
    left = queue.pending()
    say(luggage(left, results_dir) if left else "All of the list is done.")
    if tally.failed:
        return FAILED
    return INTERRUPTED if tally.interrupted and not out_of_time.is_set() else 0


if __name__ == "__main__":
    guarded("gpu_queue.py", carry_out, None, "interrupted; stored results are kept, and the same command resumes.")
