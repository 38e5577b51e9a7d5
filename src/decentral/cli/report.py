"""The console command `decentral-report`: tables, figures and pages from what studies have written."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from decentral.cli.command import Options, check_writable, guarded, table_options
from decentral.cli.study import OWN_RESULTS, PUBLISHED_RESULTS, chosen_studies, refresh
from decentral.errors import ConfigError, suggest
from decentral.report.figures.figure import KEYS as FIGURES
from decentral.report.figures.figure import output
from decentral.store.files import at_home, stored_table, write_json
from decentral.study import SCALES, catalogue
from decentral.study.collect import read_facts
from decentral.terminal.console import say

_HELP = """\
decentral-report [NAME ... | FOLDER ...] [scale=smoke|small|laptop|paper] [results_dir=PATH] [figures.KEY=VALUE ...]
                 [--html] [--config-dir FOLDER]
decentral-report runs --rows KEY,... [--columns KEY] [--best KEY] [--over KEY] [--metric NAME] [--worker WHO]
                 [--where KEY=VALUE ...] [--name NAME] [--html] [results_dir=PATH] [figures.KEY=VALUE ...]

The first form makes the tables, figures and verdicts of all studies with results (or of those named), and the pages:
results_dir/README.md, the scoreboard, and a README.md for each paper. It starts no runs; use decentral-study. As there,
results_dir defaults to results/own, which git ignores; results has the published results. A FOLDER, such as
results/tables/NAME, is that of one table: its tables and figures are made again and printed, also with --x and --log.

Figures for a paper: decentral-report relaysum_fig2 figures.title=false figures.width=column figures.format=pdf

figures.title=true|false     add a title and a line on what is drawn; false: the legend explains lines and bands
figures.width=screen|column|page|INCHES
                             column is 3.25 inches, page 6.75, with fonts of print size; screen: as wide as needed
figures.format=[png,svg,pdf] one or several (default: png); PDF embeds fonts (Type 42)

--html also writes report.html beside each table: one file, without a server, with a sortable table, the curves over any
axis, and the topologies.

Reports are deterministic: the same results give the same files. Files in other formats are kept.
--config-dir FOLDER adds your own claims and figures, from FOLDER/claims/ and FOLDER/figures/.

The second form makes a table and figures of any runs in results_dir (default: results), from any command, in
results_dir/tables/NAME: mean ± standard deviation over seeds, as Markdown, CSV and LaTeX. Settings are named as on the
command line. results_dir may also be a study's results, results/PAPER/STUDY/SCALE, or the final table of a sweep,
results/tables/NAME; the table then covers only the runs of that study or sweep.

--rows KEY,...     settings that distinguish the rows: algo,topology
--columns KEY      one column per value of this setting: alpha
--best KEY         take its best value in each cell, by the mean: lr. * marks a best value at the edge of those tried.
--over KEY         setting that repeats a run (default: seed)
--metric NAME      accuracy, or 'train loss' (default: the metric that judges the runs)
--worker WHO       worst, mean, averaged, a number, or of a group that the runs have: 'present worst', 'honest mean'
                   (default: worst; for a study's results, the one that it measures)
--where KEY=VALUE  only runs with this setting; may be repeated
--x AXIS           x axis of the figure: epochs (default), steps, bytes, tokens, or seconds (simulated, if time is)
--log              a logarithmic y axis, which a metric that falls over two decades has anyway
--panels NAME,...  metrics of the figure, a panel each: accuracy,'train loss' (default: the metric, a panel per column)
--throughput       add a table of tokens or examples per second (steps, for tasks without examples)
--name NAME        name of the table (default: from rows and columns, as algo_by_alpha)

decentral-report runs --rows algo --columns alpha --best lr
Exit status: 0 done, 1 failed (such as a full disk), 2 refused, 130 interrupted.
"""
_KEYS = ("results_dir", "scale", *FIGURES)


def main(arguments: Sequence[str] | None = None) -> None:
    """Entry point of `decentral-report`. Exit status: 0 done, 1 failed, 2 refused, 130 interrupted."""
    guarded(
        "decentral-report",
        _carry_out_command,
        arguments,
        "interrupted; every report is complete, either new or unchanged. The same command makes the remaining ones.",
    )


def _carry_out_command(arguments: list[str]) -> int:
    parser = Options("decentral-report", "--html", settings=_KEYS)
    parser.add_table()
    parser.add_argument("--where", action="append", default=[])
    options = parser.begin(arguments, _HELP)
    if options is None:
        return 0
    names = [word for word in options.words if "=" not in word]
    settings = _settings([word for word in options.words if "=" in word])
    given = [*table_options(options), *["where"] * bool(options.where)]
    folders = [name for name in names if (at_home(name) / "study.json").is_file()]
    if names == ["runs"]:
        _tabulate(options, settings)
    elif folders == names and names and {*given} <= {"x", "log"}:
        for name in names:
            _draw_over(at_home(name), table_options(options))
            _finish(at_home(name), settings, options.html)
    elif given:
        wrong, source = min(given, key=("x", "log").__contains__), "".join(f"results_dir={one} " for one in folders[:1])
        raise ConfigError(f"--{wrong} needs a table of runs: decentral-report runs {source}--rows KEY.")
    else:
        _carry_out(names, settings, options.html, options.config_dir)
    return 0


def _draw_over(directory: Path, given: dict[str, Any]) -> None:
    """Store the axes that `--x` and `--log` give to the curves of a folder with study.json."""
    facts, axes = read_facts(directory), {{"log": "logy"}.get(key, key): value for key, value in given.items()}
    for figure in facts["report"].get("figures", []) if axes else ():
        if figure["kind"] == "curves":
            figure |= axes | {"name": f"curves_{axes['x']}" if "x" in axes else figure["name"]}
    if axes:
        write_json(directory / "study.json", facts)


def _finish(directory: Path, settings: dict[str, str], html: bool) -> None:
    """Make and print the report of a folder with study.json and values.csv."""
    from decentral.report.html import write_page
    from decentral.report.make import make

    check_writable("results_dir", str(directory), directory)
    made = make(directory, output(settings))
    say(made.summary())
    if html:
        say(f"Page:     {write_page(made.results)}")


def _settings(words: Sequence[str]) -> dict[str, str]:
    # quoted, as Hydra wants it of the other commands
    settings = {key: value.strip("'\"") for key, _, value in (word.partition("=") for word in words)}
    for key in settings:
        if key not in _KEYS:
            raise ConfigError(f"decentral-report has no setting '{key}'.{suggest(key, _KEYS)}")
    return settings


def _tabulate(options: argparse.Namespace, settings: dict[str, str]) -> None:
    """The table of stored runs."""
    from decentral.report.runs_table import Layout, collect_runs, folder_of, runs_of

    given = table_options(options)
    if not given.get("rows"):
        raise ConfigError("--rows is missing: name the settings that tell rows apart, for example --rows algo.")
    layout = Layout(**given, where=options.where)
    source = at_home(settings.get("results_dir", "results"))
    runs, chosen = runs_of(source)
    results = Path("results") if stored_table(source / "values.csv") else source
    tables = results / "tables" if isinstance(runs, Path) else source.parent
    directory = folder_of(tables, layout, runs)
    check_writable("results_dir", str(directory), directory)
    collect_runs(runs, layout, directory, chosen)
    _finish(directory, settings, options.html)


def _refresh(directory: Path, config_dir: str | None) -> None:
    """Take the report section of a study from its file, which the command that ran the study names; tell why not."""
    try:
        words = shlex.split(read_facts(directory).get("command", ""))[1:]
        given = Options("decentral-study").parse_intermixed_args(words)
        for chosen in chosen_studies(given.words, config_dir or given.config_dir):
            refresh(chosen._replace(directory=directory))
    except ConfigError as error:
        say(f"Note:     {directory} keeps its stored report section: {error}")


def _carry_out(names: list[str], settings: dict[str, str], html: bool, config_dir: str | None) -> None:
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
    absent = [name for name in names if not any(results_dir.glob(f"*/{name}/{scale}*/study.json"))]

    from decentral.report.html import write_page
    from decentral.report.make import report_all
    from decentral.report.pages import totals

    for name in names:
        for path in results_dir.glob(f"*/{name}/{scale}*/study.json"):
            _refresh(path.parent, config_dir)
    made, skipped, items = report_all(results_dir, names, scale, figures)
    for one in made if names else ():
        say(one.summary() + "\n")
    for one in made:
        for remark in one.remarks:
            say(f"Note:     {one.results.study}, scale={one.results.scale}: {remark}")
    for name in absent:
        skipped.append(f"{name} has no results{f' at scale={scale}' if scale else ''} in {results_dir}")
    for remark in skipped:
        say(f"Note:     {remark}")
    for one in made if html else ():
        say(f"Page:     {write_page(one.results)}")
    say(f"Made:     {len(made)} report{'s' * (len(made) != 1)}, {sum(len(one.figures) for one in made)} figures")
    if not names and results_dir.resolve() == at_home(PUBLISHED_RESULTS).resolve():
        say(f"Totals:   {totals(items)}")
    if not names:
        say(f"Pages:    {results_dir}/README.md and a README.md for each paper")


if __name__ == "__main__":
    main()
