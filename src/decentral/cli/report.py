"""The console command `decentral-report`: tables, figures and pages from what studies have written."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from decentral.cli.command import Options, check_writable, guarded
from decentral.cli.study import OWN_RESULTS, PUBLISHED_RESULTS
from decentral.errors import ConfigError, suggest
from decentral.report.figures.figure import KEYS as FIGURES
from decentral.report.figures.figure import output
from decentral.store.files import at_home, check_name
from decentral.study import SCALES, catalogue
from decentral.terminal.console import say

_HELP = """\
decentral-report [NAME ...] [scale=smoke|small|laptop|paper] [results_dir=PATH] [figures.KEY=VALUE ...]
                 [--html] [--config-dir FOLDER]
decentral-report runs --rows KEY,... [--columns KEY] [--best KEY] [--over KEY] [--metric NAME] [--worker WHO]
                 [--where KEY=VALUE ...] [--name NAME] [--html] [results_dir=PATH] [figures.KEY=VALUE ...]

The first form makes the tables, figures and verdicts of all studies that have results (or of those named), and the
pages: results_dir/README.md, the scoreboard, and a README.md for each paper. It runs nothing: decentral-study does.
As for that command, the usual results_dir is results/own, which git ignores; results has the published ones.

Figures for a paper: decentral-report relaysum_fig2 figures.title=false figures.width=column figures.format=pdf

figures.title=true|false     a title, and a line on what is drawn; false: what lines and bands are is in the legend
figures.width=screen|column|page|INCHES
                             column is 3.25 inches, page 6.75, with letters as in print; screen: as wide as it takes
figures.format=[png,svg,pdf] one or several (the usual ones: [png,svg]); fonts are embedded in PDF (Type 42)

--html also writes report.html beside each table: one file, without a server, with the table to sort, the curves over
any axis, and the topologies.

The same results give the same files. Formats that are not named keep the files that they have.
--config-dir FOLDER is for claims and figures of your own, in FOLDER/claims/ and FOLDER/figures/.

The second form makes a table and figures of any runs in results_dir (here: results), whatever started them, in
results_dir/tables/NAME: mean ± standard deviation over seeds, as Markdown, CSV and LaTeX. Settings are named as on the
command line. results_dir may also be the folder of a study's results, results/PAPER/STUDY/SCALE, or of the table with
which a sweep ended, results/tables/NAME, for the runs of that sweep alone.

--rows KEY,...     settings that tell the rows apart: algo,topology
--columns KEY      a column for each value of this setting: alpha
--best KEY         take its best value in each cell, by the mean: lr. * marks a best value at the edge of those tried.
--over KEY         what repeats a run: seed (the usual one)
--metric NAME      accuracy, or 'train loss' (the usual one: what the runs are judged by)
--worker WHO       worst (the usual one), mean, averaged, or a number
--where KEY=VALUE  only runs with this setting; may be given several times
--name NAME        of the table (the usual one: algo_by_alpha)

decentral-report runs --rows algo --columns alpha --best lr
Exit status: 0 done, 1 failed (a full disk, say), 2 refused, 130 interrupted.
"""
_KEYS = ("results_dir", "scale", *FIGURES)


def main(arguments: Sequence[str] | None = None) -> None:
    """Entry point of `decentral-report`. Exit status: 0 done, 1 failed, 2 refused, 130 interrupted."""
    guarded(
        "decentral-report",
        _carry_out_command,
        arguments,
        "interrupted; every report is whole, made anew or as it was: the same command makes all of them.",
    )


def _carry_out_command(arguments: list[str]) -> int:
    parser = Options("decentral-report", "--html", settings=_KEYS)
    table = {"rows": "", "columns": "", "best": "", "over": "seed", "metric": "", "worker": "worst", "name": ""}
    for name, usual in table.items():
        parser.add_argument(f"--{name}", default=usual)
    parser.add_argument("--where", action="append", default=[])
    options = parser.begin(arguments, _HELP)
    if options is None:
        return 0
    names = [word for word in options.words if "=" not in word]
    settings = _settings([word for word in options.words if "=" in word])
    given = [name for name, usual in table.items() if getattr(options, name) != usual] + ["where"] * bool(options.where)
    if names == ["runs"]:
        _tabulate(options, settings)
    elif given:
        raise ConfigError(f"--{given[0]} is for tables of runs: decentral-report runs --rows KEY.")
    else:
        _carry_out(names, settings, options.html)
    return 0


def _settings(words: Sequence[str]) -> dict[str, str]:
    pairs = (word.split("=", 1) for word in words)
    settings = {key: value.strip("'\"") for key, value in pairs}  # quoted, as Hydra wants it of the other commands
    for key in settings:
        if key not in _KEYS:
            raise ConfigError(f"decentral-report has no setting '{key}'.{suggest(key, _KEYS)}")
    return settings


def _tabulate(options: argparse.Namespace, settings: dict[str, str]) -> None:
    """The table of stored runs."""
    from decentral.report.html import write_page
    from decentral.report.make import make
    from decentral.report.runs_table import Layout, collect_runs, folder_of, runs_of

    rows = [key for key in options.rows.split(",") if key]
    if not rows:
        raise ConfigError("--rows is missing: name the settings that tell rows apart, for example --rows algo.")
    layout = Layout(rows, *(getattr(options, key) for key in ("columns", "best", "over", "metric", "worker", "where")))
    source = at_home(settings.get("results_dir", "results"))
    check_name(options.name or layout.name, "--name")
    runs = runs_of(source)
    results = Path("results") if (source / "values.csv").is_file() else source
    tables = results / "tables" if isinstance(runs, Path) else source.parent
    directory = tables / options.name if options.name else folder_of(tables, layout, runs)
    check_writable("results_dir", str(directory), directory)
    collect_runs(runs, layout, directory)
    made = make(directory, output(settings))
    say(made.summary())
    if options.html:
        say(f"Page:     {write_page(made.results)}")


def _carry_out(names: list[str], settings: dict[str, str], html: bool) -> None:
    """The reports of studies."""
    scale = settings.get("scale", "")
    if scale and scale not in SCALES:
        raise ConfigError(f"scale={scale} does not exist.{suggest(scale, SCALES)}")
    figures = output(settings)
    results_dir = at_home(settings.get("results_dir", OWN_RESULTS))
    known = {*catalogue.names(), *(path.parents[1].name for path in results_dir.glob("*/*/*/study.json"))}
    for name in names:
        if name not in known:
            raise ConfigError(f"there is no study {name}.{suggest(name, known)}")
    check_writable("results_dir", str(results_dir), results_dir)
    absent = [name for name in names or ["*"] if not any(results_dir.glob(f"*/{name}/{scale}*/study.json"))]
    if "results_dir" not in settings and len(absent) == max(1, len(names)):
        of = (f" of {absent[0]}" if names else "") + (f" at scale={scale}" if scale else "")
        raise ConfigError(
            f"results_dir={results_dir} holds no results{of} yet: run decentral-study first, or give results_dir="
            f"{PUBLISHED_RESULTS} for the reports of what is there."
        )

    from decentral.report.html import write_page
    from decentral.report.make import report_all
    from decentral.report.pages import totals

    made, skipped, items = report_all(results_dir, names, scale, figures)
    for one in made if names else ():
        say(one.summary() + "\n")
    for one in made:
        for remark in one.remarks:
            say(f"Note:     {one.results.study}, scale={one.results.scale}: {remark}")
    for name in absent if names else ():
        skipped.append(f"{name} has no results{f' at scale={scale}' if scale else ''} in {results_dir}")
    for remark in skipped:
        say(f"Note:     {remark}")
    for one in made if html else ():
        say(f"Page:     {write_page(one.results)}")
    say(f"Made:     {len(made)} report{'s' * (len(made) != 1)}, {sum(len(one.figures) for one in made)} figures")
    say(f"Totals:   {totals(items)}")
    say(f"Pages:    {results_dir}/README.md and a README.md for each paper")


if __name__ == "__main__":
    main()
