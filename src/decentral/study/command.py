"""The console command `decentral-study`."""

from __future__ import annotations

import argparse
import fnmatch
import hashlib
import sys
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from decentral.composition import compose
from decentral.console import FAILED, INTERRUPTED, REFUSED, complain, say
from decentral.errors import ConfigError, suggest
from decentral.study import catalogue
from decentral.study.progress import Unfinished, plan_table
from decentral.study.study import Cell, Study
from decentral.sweep import exit_status

if TYPE_CHECKING:
    from decentral.launch.scheduler import Tally

_HERE_ONLY = ["results_dir", "device", "processes", "progress", "checkpoint_every_s", "restarts", "launcher", "logger"]
_HELP = """\
decentral-study NAME ... [scale=smoke|small|paper] [key=value ...]  carry out studies, or what is left, and report
decentral-study NAME ... --plan [...]                               only say how much there is to do
decentral-study NAME ... --report [...]                             only make tables and figures from what is stored
decentral-study                                                     list the studies ('relaysum_*' names several)

scale=smoke   a few seconds: does it work?
scale=small   (default) the whole study, tuning and seeds included, on bundled data; on two cores, minutes
scale=paper   the paper's data and model

Everything else is passed on to every run, as for decentral-run: results_dir=PATH, device=cuda, data.path=FOLDER,
launcher=slurm launcher.partition=gpu ... A key of the study itself has study. in front: 'study.seeds=[1,2]'.
Options: --config-dir FOLDER for studies of your own in FOLDER/study/.
"""


class Asked(NamedTuple):
    """What the command line says."""

    name: str
    scale: str
    study: Study
    overrides: list[str]
    """For every run."""
    directory: Path
    config_dir: str | None


def main(arguments: Sequence[str] | None = None) -> None:
    """Entry point of `decentral-study`. Exit status: 0 done, 1 some run failed, 2 refused, 130 interrupted."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    try:
        sys.exit(_carry_out_command(arguments))
    except ConfigError as error:
        complain(str(error), "decentral-study")
        sys.exit(REFUSED)
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)


def _carry_out_command(arguments: list[str]) -> int:
    options = _parse(arguments)
    if options.help:
        say(_HELP)
        return 0
    words = [word for word in options.words if "=" not in word]
    if not words:
        say(_listing(options.config_dir))
        return 0
    overrides = [word for word in options.words if "=" in word]
    statuses: list[int] = []
    for asked in [ask(name, overrides, options.config_dir) for name in _matching(words, options.config_dir)]:
        statuses.append(_one(asked, options))
        if statuses[-1] == INTERRUPTED:
            break
    return exit_status(statuses)


def _one(asked: Asked, options: argparse.Namespace) -> int:
    if options.report:
        return _report(asked)
    began = time.monotonic()
    config = compose([*_for_this_machine(asked.overrides), f"results_dir={_results_dir(asked)}"], options.config_dir)
    cells = asked.study.cells(asked.overrides, _results_dir(asked))
    if options.plan:
        say(plan_table(asked.name, asked.scale, cells))
        return 0
    return carry_out(asked, cells, config, began)


def _matching(words: Sequence[str], config_dir: str | None) -> list[str]:
    """The studies that are meant, each once. Raises ConfigError for a word that fits none."""
    known = catalogue.names(config_dir)
    found: dict[str, None] = {}
    for word in words:
        fitting = fnmatch.filter(known, word)
        if not fitting:
            raise ConfigError(f"there is no study {word}.{suggest(word, known)}")
        found |= dict.fromkeys(fitting)
    return list(found)


def ask(name: str, overrides: Sequence[str], config_dir: str | None = None) -> Asked:
    """The study, its scale and what goes to its runs. Raises ConfigError."""
    scale, rest = catalogue.reserved(overrides, "scale")
    scale = scale or "small"
    own = [o.removeprefix("study.") for o in rest if o.startswith("study.")]
    study = catalogue.load(name, scale, config_dir, own)
    overrides = [o for o in rest if not o.startswith("study.")]
    results_dir, _ = catalogue.reserved(overrides, "results_dir")
    if results_dir is None:
        overrides.append("results_dir=results")
    changed = sorted([*own, *(o for o in overrides if o.partition("=")[0].partition(".")[0] not in _HERE_ONLY)])
    suffix = f"-{hashlib.sha256(' '.join(changed).encode()).hexdigest()[:6]}" if changed else ""
    directory = Path(results_dir or "results").expanduser() / study.paper / name / f"{scale}{suffix}"
    return Asked(name, scale, study, overrides, directory, config_dir)


def carry_out(asked: Asked, cells: Sequence[Cell], config: Any, began: float) -> int:
    """Run what is left, collect, report; returns the exit status."""
    from decentral.study.collect import collect

    source = Unfinished(cells)
    left = source.pending()
    complete = (asked.directory / "study.json").exists()
    if not left and complete:
        known = len(source.jobs)
        say(f"{asked.name} at scale={asked.scale} is done: all {known} jobs had been finished; nothing was computed.")
        say(f"Results:  {asked.directory}\nNext:     {_command(asked)} --report  (make the report again)")
        return 0
    tally = _schedule(source, config, asked) if left else None
    facts = _facts(asked, began, tally)
    collect(asked.study, cells, asked.directory, facts)
    status = _report(asked)
    if tally is not None and tally.interrupted:
        say(f"Interrupted; what is done is kept.\nNext:     {_command(asked)}  (goes on)")
        return INTERRUPTED
    if tally is not None and tally.failed:
        say(f"{len(tally.failed)} jobs failed (see above).\nNext:     {_command(asked)}  (tries them again)")
        return FAILED
    return status


def _schedule(source: Unfinished, config: Any, asked: Asked) -> Tally:
    from decentral.launch.board import board
    from decentral.launch.scheduler import schedule

    config.launcher.check()
    with board(f"{asked.name} scale={asked.scale}", config.progress) as shown:
        return schedule(source, config.launcher, _results_dir(asked), shown)


def _facts(asked: Asked, began: float, tally: Tally | None) -> dict[str, Any]:
    """Provenance of the report."""
    from decentral.provenance import collect
    from decentral.study.collect import earlier_wall_s

    here = collect([], 1)
    ended = datetime.now(UTC)
    return {
        "study": asked.name,
        "scale": asked.scale,
        "command": _command(asked),
        "overrides": [o for o in asked.overrides if o.partition("=")[0].partition(".")[0] not in _HERE_ONLY],
        **{key: here[key] for key in ("git_commit", "git_dirty", "version", "python", "packages")},
        "host_cores": here["cores"],
        "ended": ended.isoformat(timespec="seconds"),
        "wall_s": round(earlier_wall_s(asked.directory) + time.monotonic() - began, 1),
        "failed": len(tally.failed) if tally is not None else 0,
    }


def _report(asked: Asked) -> int:
    from decentral.report.make import make, report_pages

    if not (asked.directory / "values.csv").exists():
        raise ConfigError(f"{asked.directory} has no results yet: run {_command(asked)} first.")
    made = make(asked.directory)
    report_pages(_results_dir(asked))
    say(made.summary())
    return 0


def _listing(config_dir: str | None) -> str:
    from decentral.report.summary import aligned

    rows = [["study", "item", "scales", "title"]]
    for name in catalogue.names(config_dir):
        scales = catalogue.scales(name, config_dir)
        study = catalogue.load(name, scales[-1], config_dir)
        rows.append([name, f"{study.paper}, {study.item}", " ".join(scales), study.title])
    return f"{aligned(rows, left=4)}\n\ndecentral-study NAME carries one out; decentral-study --help says more."


def _for_this_machine(overrides: Sequence[str]) -> list[str]:
    return [o for o in overrides if o.partition("=")[0].partition(".")[0] in ("launcher", "progress")]


def _results_dir(asked: Asked) -> Path:
    given, _ = catalogue.reserved(asked.overrides, "results_dir")
    return Path(given or "results").expanduser()


def _command(asked: Asked) -> str:
    """What starts this study again."""
    shown = [o for o in asked.overrides if o != "results_dir=results"]
    return " ".join(["decentral-study", asked.name, f"scale={asked.scale}", *shown])


def _parse(arguments: list[str]) -> argparse.Namespace:
    parser = _Options(add_help=False, allow_abbrev=False)
    parser.add_argument("words", nargs="*")
    parser.add_argument("-h", "--help", action="store_true")
    parser.add_argument("--plan", action="store_true")
    parser.add_argument("--report", action="store_true")
    parser.add_argument("-cd", "--config-dir")
    return parser.parse_intermixed_args(arguments)


class _Options(argparse.ArgumentParser):
    def error(self, message: str) -> Any:
        raise ConfigError(f"{message}: see decentral-study --help.")


if __name__ == "__main__":
    main()
