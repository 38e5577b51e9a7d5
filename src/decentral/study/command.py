"""The console command `decentral-study`."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from decentral.cli import check_writable
from decentral.composition import compose
from decentral.config import Config
from decentral.console import FAILED, INTERRUPTED, REFUSED, complain, say
from decentral.errors import ConfigError
from decentral.report.spec import parse
from decentral.study import catalogue, collect
from decentral.study.asking import Asked, ask
from decentral.study.progress import Unfinished, plan_table
from decentral.study.study import Cell

if TYPE_CHECKING:
    from decentral.launch.scheduler import Tally

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
What changes the numbers makes a study of its own, in a folder beside the original.
Options: --config-dir FOLDER for studies of your own in FOLDER/study/.
"""


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
    except OSError as error:
        from decentral.launch.failures import advice, classify, describe

        complain(f"{describe(error)}. {advice(classify(error))}.", "decentral-study")
        sys.exit(FAILED)


def _carry_out_command(arguments: list[str]) -> int:
    options = _parse(arguments)
    if options.help:
        say(_HELP)
        return 0
    if not any("=" not in word for word in options.words):
        if options.words:
            raise ConfigError(
                f"{' '.join(options.words)} needs the name of a study in front: decentral-study lists them."
            )
        say(_listing(options.config_dir))
        return 0
    statuses: list[int] = []
    for asked in ask(options.words, options.config_dir):
        statuses.append(_one(asked, options))
        if statuses[-1] == INTERRUPTED:
            return INTERRUPTED
    return FAILED if FAILED in statuses else max(statuses, default=0)


def _one(asked: Asked, options: argparse.Namespace) -> int:
    if options.report:
        return _report_again(asked)
    parse(asked.study.report, asked.name)  # what is wrong with it should not come out in the end
    began = time.monotonic()
    config = compose(_for_this_machine(asked.overrides), asked.config_dir)
    check_writable("results_dir", config.results_dir, asked.results_dir)
    cells = _cells(asked)
    if options.plan:
        say(plan_table(asked.name, asked.scale, cells))
        return 0
    source = Unfinished(cells)
    if not source.pending() and collect.is_current(asked.directory, asked.definition, source.finished):
        known = len(source.jobs)
        say(f"{asked.name} at scale={asked.scale} is done: all {known} jobs had been finished; nothing was computed.")
        say(f"Results:  {asked.directory}\nNext:     {asked.command} --report  (make the report again)")
        return 0
    return carry_out(asked, cells, source, config, began)


def _cells(asked: Asked) -> list[Cell]:
    """The study's cells. Raises ConfigError if there is nothing to do, or something twice."""
    cells = asked.study.cells(asked.overrides, asked.results_dir, asked.config_dir)
    labels = [json.dumps(cell.labels, sort_keys=True) for cell in cells]
    twice = next((one for one in labels if labels.count(one) > 1), None)
    if twice is not None:
        raise ConfigError(f"study {asked.name} has two cells with the labels {twice}: give them different ones.")
    seeds = list(getattr(asked.study, "seeds", []))
    if len(set(seeds)) < len(seeds):
        raise ConfigError(f"study {asked.name}: seeds={seeds} has a seed twice, which would count as two runs.")
    if not any(cell.jobs() for cell in cells):
        raise ConfigError(f"study {asked.name} has nothing to run: it needs rows, values in its columns, and seeds.")
    return cells


def _report_again(asked: Asked) -> int:
    """From the runs, if all of them are here, else from what was collected before."""
    try:
        cells = _cells(asked)
        source = Unfinished(cells)
        complete = not source.pending()
    except ConfigError:  # the data are not on this machine, say
        if not (asked.directory / "values.csv").exists():
            raise
    else:
        if complete:
            _collect(asked, cells, source, time.monotonic(), None)
    return _report(asked)


def carry_out(asked: Asked, cells: Sequence[Cell], source: Unfinished, config: Config, began: float) -> int:
    """Run what is left, collect, report; returns the exit status."""
    tally = _schedule(source, config, asked) if source.pending() else None
    _collect(asked, cells, source, began, tally)
    status = _report(asked)
    if tally is not None and tally.interrupted:
        say(f"Interrupted; what is done is kept.\nNext:     {asked.command}  (goes on)")
        return INTERRUPTED
    if tally is not None and tally.failed:
        number = len(tally.failed)
        say(f"{number} job{'s' if number > 1 else ''} failed (see above).\nNext:     {asked.command}  (tries again)")
        return FAILED
    return status


def _schedule(source: Unfinished, config: Config, asked: Asked) -> Tally:
    from decentral.launch.board import board
    from decentral.launch.scheduler import schedule

    config.launcher.check()
    with board(f"{asked.name} scale={asked.scale}", config.progress) as shown:
        return schedule(source, config.launcher, asked.results_dir, shown)


def _collect(asked: Asked, cells: Sequence[Cell], source: Unfinished, began: float, tally: Tally | None) -> None:
    """Write what is known, with its provenance."""
    from decentral.provenance import collect as provenance

    left = source.pending()  # look again what is finished
    earlier = collect.read_facts(asked.directory)
    here = provenance([], 1)
    computed = tally is not None or not earlier
    before = {} if earlier.get("complete") else earlier  # of the same computation, interrupted
    facts = {
        "study": asked.name,
        "scale": asked.scale,
        "command": asked.command,
        "changed": asked.changed,
        **{key: here[key] for key in ("git_commit", "git_dirty", "version", "python", "packages")},
        "host_cores": here["cores"],
        "started": before.get("started") or here["started"],
        "ended": datetime.now(UTC).isoformat(timespec="seconds"),
        "wall_s": round(before.get("wall_s", 0.0) + time.monotonic() - began, 1),
        "failed": len(tally.failed) if tally is not None else 0,
    }
    facts = facts if computed else {**facts, **earlier}
    facts["complete"] = not left
    if left and earlier.get("complete"):
        say(f"{asked.directory} keeps its complete results, of commit {str(earlier.get('git_commit'))[:12]}.")
        return
    facts["digest"] = collect.digest(asked.definition, source.finished)
    collect.collect(asked.study, cells, asked.directory, facts)
    for remark in dict.fromkeys(remark for cell in cells for remark in cell.remarks()):
        say(f"Note:     {remark}")


def _report(asked: Asked) -> int:
    from decentral.report.make import make, report_pages

    if not (asked.directory / "values.csv").exists():
        raise ConfigError(f"{asked.directory} has no results yet: run {asked.command} first.")
    at_this_scale = catalogue.settings(asked.name, asked.scale, asked.config_dir)
    collect.refresh(asked.study, asked.directory, at_this_scale)
    made = make(asked.directory)
    report_pages(asked.results_dir)
    say(made.summary())
    return 0


def _listing(config_dir: str | None) -> str:
    from decentral.report.summary import aligned

    rows = [["study", "item", "scales", "title"]]
    for name in catalogue.names(config_dir):
        scales = catalogue.scales(name, config_dir)
        study = catalogue.load(name, scales[-1], config_dir)
        item = ", ".join(word for word in (study.paper, study.item) if word)
        rows.append([name, item, " ".join(scales), study.title])
    return f"{aligned(rows, left=4)}\n\ndecentral-study NAME carries one out; decentral-study --help says more."


def _for_this_machine(overrides: Sequence[str]) -> list[str]:
    return [o for o in overrides if o.partition("=")[0].partition(".")[0] in ("launcher", "progress", "results_dir")]


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
