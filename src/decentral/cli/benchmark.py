"""The console command `decentral-benchmark`."""

from __future__ import annotations

import argparse
import re
import shlex
import textwrap
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from decentral.cli import study as studies
from decentral.cli.command import Options, guarded
from decentral.cli.study import PUBLISHED_RESULTS, ChosenStudy, chosen_studies
from decentral.errors import ConfigError, suggest
from decentral.measurements.values import Labels
from decentral.report.listings import Ranks
from decentral.report.make import Made
from decentral.report.spec import parse
from decentral.study import catalogue, entries
from decentral.study.collect import StoredCell, read_facts, stored
from decentral.study.kinds.benchmark import Benchmark, BenchmarkCell, problems, rules
from decentral.study.study import Cell, Unfinished, plan
from decentral.terminal.console import aligned, say

STUDY = "benchmark_methods"
_WIDTH = 100

_HELP = """\
decentral-benchmark [scale=smoke|small|laptop] [key=value ...]
                                     carry the benchmark out, or what is left of it, and report
decentral-benchmark methods=[relaysgd,dpsgd] scenarios=[digits_delayed] [...]
                                     only these; the report has everything that is known beside them
decentral-benchmark --plan [...]     only say what is to do, and what it takes
decentral-benchmark --report [...]   only make tables, figures and the page from what is stored
decentral-benchmark --list           the methods and the scenarios

Which method reaches the target first, in simulated time, bytes and steps? Every method gets the same budget in every
scenario: so many steps, so many learning rates on one seed, then several seeds with the best of them.

scale=smoke   under a minute: does it work?
scale=small   (default) digits and quadratics, all methods; on two cores, minutes
scale=laptop  also CIFAR-10, speakers, a language and a translation; on two cores, a night

A method of your own enters with one file, and only its runs are carried out:

  decentral-benchmark methods=[mine] --config-dir FOLDER

where FOLDER/algorithms/mine.py has the algorithm (see examples/own_algorithm), or FOLDER/benchmark/methods.yaml a line
with its settings, or FOLDER/benchmark/scenario/NAME.yaml a scenario. docs/benchmark.md has the rules.

Runs and reports go to results_dir=results/own, which git ignores; results/ has the published ones. A method that is not
among methods=[...] and was not run there is shown as published, if it is the same computation.
Everything else is passed on to every run, as for decentral-run: launcher=slurm ...; for one scenario with its name in
front: cifar10.data.path=FOLDER. What is finished is never run again.
"""


def main(arguments: Sequence[str] | None = None) -> None:
    """Entry point of `decentral-benchmark`. Exit status: 0 done, 1 some run failed, 2 refused, 130 interrupted."""
    guarded("decentral-benchmark", _carry_out_command, arguments)


def _carry_out_command(arguments: list[str]) -> int:
    options = Options("decentral-benchmark", "--list", "--plan", "--report").begin(arguments, _HELP)
    if options is None:
        return 0
    if options.list:
        say(_listing(options.config_dir))
        return 0
    chosen, cells, selected = _composed(options)
    parse(chosen.study.report, chosen.name)  # what is wrong with it should not come out in the end
    if options.plan:
        say(plan("decentral-benchmark", chosen.scale, selected))
        return 0
    everything = _with_known(chosen, cells, [] if options.report else selected)
    if options.report:
        return _report_again(chosen, everything)
    return studies.carry_out(chosen, Unfinished(selected), everything, _summary, in_parts=True)


def _composed(options: argparse.Namespace) -> tuple[ChosenStudy, list[Cell], list[BenchmarkCell]]:
    """The study, all its cells, and those that are asked for."""
    bare = next((word for word in options.words if "=" not in word), None)
    if bare is not None:
        raise ConfigError(f"{bare} is no setting: write methods=[{bare}] or scenarios=[{bare}], or see --list.")
    given, rest = catalogue.reserved(options.words, "scale")
    scale, words = given or "small", rest
    methods, rest = _names("methods", rest)
    wanted, rest = _names("scenarios", rest)
    if scale not in (scales := catalogue.scales(STUDY)):
        raise ConfigError(f"scale={scale} does not exist here.{suggest(scale, scales)}")
    known = {one.name for one in _study(scale, options.config_dir).scenarios}
    (chosen,) = chosen_studies([STUDY, f"scale={scale}", *rest], options.config_dir)
    study = chosen.study
    assert isinstance(study, Benchmark)
    mine = {one.name for one in study.methods}
    study.methods += entries.methods([name for name in methods or [] if name not in mine], mine=False)
    for name in wanted or []:
        if name not in known:
            raise ConfigError(f"scenarios=[{name}] is none of scale={scale}.{suggest(name, known)}")
    folder = ["--config-dir", options.config_dir] if options.config_dir else []
    command = shlex.join(["decentral-benchmark", f"scale={scale}", *words, *folder]).replace("'", "")
    chosen = chosen._replace(command=command)
    scenarios = study.scenarios
    if wanted is not None:  # scenarios that need data are left out unless named
        named = {*wanted, *(word.partition(".")[0] for word in rest)}
        study.scenarios = [one for one in scenarios if not one.needs or one.name in named]
    cells = studies.checked_cells(chosen)
    study.scenarios = scenarios
    selected = [
        cell
        for cell in cells
        if isinstance(cell, BenchmarkCell)
        and (methods is None or cell.entry.method.name in methods)
        and (wanted is None or cell.entry.scenario.name in wanted)
    ]
    return chosen, cells, selected


def _study(scale: str, config_dir: str | None) -> Benchmark:
    study = catalogue.load(STUDY, scale, config_dir)
    assert isinstance(study, Benchmark)
    return study


def _with_known(chosen: ChosenStudy, cells: list[Cell], selected: Sequence[Cell]) -> list[Cell]:
    """These cells, where what is neither asked for nor has runs here has the numbers that were collected here before,
    or else the published ones; and what earlier commands have left of others: of scenarios whose data this one was not
    given, and of methods that it does not know. All of them only where the rules of the scenario are those of today."""
    here, published = chosen.directory, Path(PUBLISHED_RESULTS) / chosen.directory.relative_to(chosen.results_dir)
    wanted = {id(cell) for cell in selected}
    absent = [c for c in cells if id(c) not in wanted and not c.values()]
    own, _ = stored(absent, here, _same_rules(chosen, here))
    theirs: dict[int, StoredCell] = {}
    if published.resolve() != here.resolve():
        theirs, _ = stored(absent, published, _same_rules(chosen, published))
    if new := theirs.keys() - own.keys():
        say(f"Note:     {len(new)} of {len(cells)} cells are shown as published in {published}.")
    instead = {id(absent[number]): cell for number, cell in {**theirs, **own}.items()}
    _, beside = stored(cells, here, _same_rules(chosen, here))
    return [*(instead.get(id(cell), cell) for cell in cells), *beside]


def _same_rules(chosen: ChosenStudy, directory: Path) -> Callable[[Labels], bool]:
    """Whether a cell's scenario has today's rules (target, steps, rates, seeds) in what `directory` has collected."""
    study = chosen.study
    assert isinstance(study, Benchmark)
    now = {told["scenario"]: rules(told) for scenario in study.scenarios for told in problems(scenario)}
    then = {one.get("scenario"): rules(one) for one in read_facts(directory).get("scenarios") or []}
    return lambda labels: (name := labels["scenario"]) in now and then.get(name) == now[name]


def _report_again(chosen: ChosenStudy, cells: Sequence[Cell]) -> int:
    """From the runs that are here, and else from what was collected before, or is published."""
    source = Unfinished(cells)
    source.pending()
    if any(cell.values() for cell in cells):
        studies.collect_results(chosen, cells, source, time.monotonic(), None, in_parts=True)
    say(_summary(studies.reported(chosen)))
    return 0


def _summary(made: Made) -> str:
    """The ranks, and where everything is."""
    results = made.results
    title = str(results.facts.get("title") or "")
    blocks = [f"decentral-benchmark scale={results.scale}: {title[:1].lower()}{title[1:]}"]
    for listing in results.spec.listings:
        if isinstance(listing, Ranks) and len(rows := listing.lines(results)) > 1:
            blocks += [aligned(rows, left=listing.left), textwrap.fill(listing.sentences(results)[0], _WIDTH)]
    lines = [f"Note:     {remark}" for remark in made.remarks]
    lines += [f"Page:     {results.directory.parents[1] / 'README.md'}", f"Results:  {results.directory}"]
    return "\n\n".join([*blocks, "\n".join([*lines, *(f"Figure:   {path}" for path in made.figures)])])


def _listing(config_dir: str | None) -> str:
    """Methods and scenarios, as --list says them."""
    rows = [["method", "title", "what decentral-run is told", "what is searched beside the learning rate"]]
    rows += [[one.name, one.title, " ".join(one.base), one.searched or "nothing (fixed)"] for one in entries.methods()]
    at: dict[str, list[str]] = {}
    found: dict[str, entries.Scenario] = {}
    for scale in catalogue.scales(STUDY, config_dir):
        for one in _study(scale, config_dir).scenarios:
            at.setdefault(one.name, []).append(scale)
            found[one.name] = one
    lines = [["scenario", "scales", "title"]]
    lines += [[name, " ".join(scales), found[name].title] for name, scales in at.items()]
    return f"{aligned(rows, left=4)}\n\n{aligned(lines, left=3)}\n\ndecentral-benchmark --help says more."


def _names(key: str, words: Sequence[str]) -> tuple[list[str] | None, list[str]]:
    """The names in '[a,b]' or 'a,b' that are given for the key, if it is among the words; and the others of these."""
    text, rest = catalogue.reserved(words, key)
    if text is None:
        return None, rest
    names = [name.strip(" '\"") for name in text.strip("[] ").split(",")]
    if not all(re.fullmatch(r"[\w-]+", name) for name in names):
        raise ConfigError(
            f"{key}={text} is no list of names: write {key}=[{'relaysgd,dpsgd' if key == 'methods' else 'quadratic'}]."
        )
    return list(dict.fromkeys(names)), rest


if __name__ == "__main__":
    main()
