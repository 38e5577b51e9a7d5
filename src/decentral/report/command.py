"""The console command `decentral-report`: tables, figures and pages from what studies have written."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from decentral.console import REFUSED, complain, say
from decentral.errors import ConfigError, suggest

_HELP = """\
decentral-report [NAME ...] [results_dir=PATH] [scale=smoke|small|paper]

Makes the tables, figures and verdicts of all studies that have results (or of those named), and the pages:
results_dir/README.md, the scoreboard, and a README.md for each paper. It runs nothing: decentral-study does.
"""
_KEYS = ("results_dir", "scale")


def main(arguments: Sequence[str] | None = None) -> None:
    """Entry point of `decentral-report`. Exit status: 0 done, 2 refused."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    if {"-h", "--help"} & set(arguments):
        say(_HELP.rstrip())
        return
    try:
        _carry_out(arguments)
    except ConfigError as error:
        complain(str(error), "decentral-report")
        sys.exit(REFUSED)


def _carry_out(arguments: list[str]) -> None:
    from decentral.study import catalogue

    names = [argument for argument in arguments if "=" not in argument]
    given = dict(argument.split("=", 1) for argument in arguments if "=" in argument)
    for key in given:
        if key not in _KEYS:
            raise ConfigError(f"decentral-report has no setting '{key}'.{suggest(key, _KEYS)}")
    scale = given.get("scale", "")
    if scale and scale not in catalogue.SCALES:
        raise ConfigError(f"scale={scale} does not exist.{suggest(scale, catalogue.SCALES)}")
    results_dir = Path(given.get("results_dir", "results"))
    _check_names(names, results_dir)

    from decentral.report.items import gather
    from decentral.report.make import report_all
    from decentral.report.scoreboard import totals

    made, skipped = report_all(results_dir, names, scale)
    items, unreadable = gather(results_dir)
    for one in made if names else ():
        say(one.summary() + "\n")
    for one in made:
        for remark in one.remarks:
            say(f"Note:     {one.results.study}, scale={one.results.scale}: {remark}")
    for remark in dict.fromkeys([*skipped, *unreadable]):
        say(f"Note:     {remark}")
    say(f"Made:     {len(made)} report{'s' * (len(made) != 1)}, {sum(len(one.figures) for one in made)} figures")
    say(f"Totals:   {totals(items)}")
    say(f"Pages:    {results_dir}/README.md and a README.md for each paper")


def _check_names(names: list[str], results_dir: Path) -> None:
    """Refuse names that are neither studies nor have results. Raises ConfigError."""
    from decentral.study import catalogue

    known = {*catalogue.names(), *(path.parents[1].name for path in results_dir.glob("*/*/*/study.json"))}
    for name in names:
        if name not in known:
            raise ConfigError(f"there is no study {name}.{suggest(name, known)}")


if __name__ == "__main__":
    main()
