"""The console command `decentral-benchmark`."""

from __future__ import annotations

import argparse
import os
import re
import shlex
import textwrap
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from decentral import __version__
from decentral.cli import study as studies
from decentral.cli.command import Options, check_writable, guarded
from decentral.cli.study import PUBLISHED_RESULTS, ChosenStudy, chosen_studies
from decentral.config.parsing import conf_directory, folders_of
from decentral.errors import ConfigError, suggest
from decentral.measurements.values import Labels
from decentral.plugins.benchmark import entries, submission
from decentral.plugins.benchmark.kinds.benchmark import VERSION, Benchmark, BenchmarkCell, problems, rules
from decentral.plugins.benchmark.listings.ranking import Ranks
from decentral.plugins.benchmark.stored import StoredCell, stored
from decentral.report.make import Made
from decentral.report.spec import parse
from decentral.scheduling.board import board
from decentral.scheduling.scheduler import schedule
from decentral.store.files import write_json
from decentral.study import catalogue, collect
from decentral.study.collect import read_facts
from decentral.study.study import Cell, Unfinished, plan
from decentral.terminal.console import FAILED, INTERRUPTED, aligned, duration, say
from decentral.terminal.display import unless_quick

STUDY = "benchmark_methods"
_WIDTH = 100
_MOST_SAID = 20  # differences of a submission

_HELP = """\
decentral-benchmark [scale=smoke|small|laptop] [key=value ...]
                                     run the benchmark, or its unfinished part, and report
decentral-benchmark methods=[relaysgd,dpsgd] scenarios=[digits_delayed] [...]
                                     run only these; the report adds all known results
decentral-benchmark --plan [...]     show what would run, and its cost
decentral-benchmark --report [...]   make tables, figures and the page from stored results
decentral-benchmark --list           list methods and scenarios
decentral-benchmark --submit FOLDER methods=[mine] [...]
                                     write these methods' results as a folder that others can verify
decentral-benchmark --verify FOLDER [repeat=3] [...]
                                     check hashes and numbers of a submission, and repeat its cheapest runs

Which method reaches the target first, in simulated time, bytes and steps? Every method gets the same budget in every
scenario: the same number of steps, and of learning rates on one seed; the best of them then runs on several seeds.

scale=smoke   under a minute: does it work?
scale=small   (default) digits and quadratics, all methods; minutes on two cores
scale=laptop  also AG News, a language model of plays and CIFAR-10; hours on two cores (--plan)

Add your own method with one file; only its runs are started:

  decentral-benchmark methods=[mine] --config-dir FOLDER

FOLDER/algorithms/mine.py defines the algorithm (see examples/own_algorithm), FOLDER/benchmark/methods.yaml a method
with its settings, FOLDER/benchmark/scenario/NAME.yaml a scenario. docs/benchmark.md has the rules.

Runs and reports go to results_dir=results/own, which git ignores. A method outside methods=[...] without runs there is
shown as published if its computation is the same: from results/ of a checkout, or from the package.

--verify executes the code of the submission: read it first. It needs the data of the scenarios, as above, and exits
with status 0 if everything agrees, 1 otherwise. It writes its findings to FOLDER/verification.json, which does not
belong to the submission.

All other settings apply to every run, as for decentral-run: launcher=slurm ...; prefix the name of a scenario to set
one for it alone: cifar10.data.path=FOLDER. Finished runs are never repeated.
"""


def main(arguments: Sequence[str] | None = None) -> None:
    """Run `decentral-benchmark`. Exit status: 0 done, 1 some run failed, 2 refused, 130 interrupted."""
    guarded("decentral-benchmark", _carry_out_command, arguments)


def _carry_out_command(arguments: list[str]) -> int:
    parser = Options("decentral-benchmark", "--list", "--plan", "--report")
    for name in ("--submit", "--verify"):
        parser.add_argument(name, metavar="FOLDER", type=Path)
    options = parser.begin(arguments, _HELP)
    if options is None:
        return 0
    if options.verify is not None:
        return _verify(options)
    if options.list:
        say(_listing(options.config_dir))
        return 0
    chosen, cells, selected = _composed(options)
    parse(chosen.study.report, chosen.name)  # what is wrong with it should not come out in the end
    if options.plan:
        say(plan("decentral-benchmark", chosen.scale, selected))
        return 0
    if options.submit is not None:
        return _submit(chosen, selected, options)
    everything = _with_known(chosen, cells, [] if options.report else selected)
    if options.report:
        return _report_again(chosen, everything)
    return studies.carry_out(chosen, Unfinished(selected), everything, _summary, in_parts=True)


def _composed(options: argparse.Namespace) -> tuple[ChosenStudy, list[Cell], list[BenchmarkCell]]:
    """Return the study, all its cells, and the selected cells."""
    bare = next((word for word in options.words if "=" not in word), None)
    if bare is not None:
        raise ConfigError(f"{bare} is not a setting: write methods=[{bare}] or scenarios=[{bare}], or see --list.")
    given, rest = catalogue.reserved(options.words, "scale")
    scale, words = given or "small", rest
    methods, rest = _names("methods", rest)
    wanted, rest = _names("scenarios", rest)
    if scale not in (scales := catalogue.scales(STUDY)):
        raise ConfigError(f"scale={scale} is not a scale of the benchmark.{suggest(scale, scales)}")
    known = {one.name for one in _study(scale, options.config_dir).scenarios}
    (chosen,) = chosen_studies([STUDY, f"scale={scale}", *rest], options.config_dir)
    study = chosen.study
    assert isinstance(study, Benchmark)
    mine = {one.name for one in study.methods}
    study.methods += entries.methods([name for name in methods or [] if name not in mine], mine=False)
    for name in wanted or []:
        if name not in known:
            raise ConfigError(f"scenarios=[{name}] is not part of scale={scale}.{suggest(name, known)}")
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
    """Return these cells, with stored numbers for those that are neither selected nor have runs here.

    The numbers are those collected here before, or else the published ones (from results/ here, or of the checkout or
    wheel). Cells left by earlier commands are added: scenarios whose data this command was not given, and methods that
    it does not know. All of them count only if the rules of their scenario have not changed."""
    here, place = chosen.directory, chosen.directory.relative_to(chosen.results_dir)
    wanted = {id(cell) for cell in selected}
    others, absent = [cell for cell in cells if id(cell) not in wanted], list[Cell]()
    with unless_quick(f"Reading the runs of {len(others)} cells", len(others)) as advance:
        for cell in others:
            absent += [] if cell.values() else [cell]
            advance(1)
    collected, _ = stored(absent, here, _same_rules(chosen, here))
    theirs: dict[int, StoredCell] = {}
    roots = (conf_directory().parent, Path())  # of the checkout or package; what is here stands in its place
    for published in dict.fromkeys((root / PUBLISHED_RESULTS / place).resolve() for root in roots):
        if published != here.resolve():
            theirs |= stored(absent, published, _same_rules(chosen, published))[0]
    if new := theirs.keys() - collected.keys():
        say(f"Note:     {len(new)} of {len(cells)} cells are shown as published.")
    if left := len(absent) - len(theirs.keys() | collected.keys()):
        say(
            f"Note:     {left} of {len(cells)} cells have no results, neither run here nor published for "
            f"scale={chosen.scale} with these settings; methods without results are not ranked."
        )
    instead = {id(absent[number]): cell for number, cell in {**theirs, **collected}.items()}
    _, beside = stored(cells, here, _same_rules(chosen, here))
    return [*(instead.get(id(cell), cell) for cell in cells), *beside]


def _same_rules(chosen: ChosenStudy, directory: Path) -> Callable[[Labels], bool]:
    """Return a test whether a cell's scenario has the current rules (target, steps, rates, seeds) in the results
    collected in `directory`."""
    study = chosen.study
    assert isinstance(study, Benchmark)
    now = {told["scenario"]: rules(told) for scenario in study.scenarios for told in problems(scenario)}
    then = {one.get("scenario"): rules(one) for one in read_facts(directory).get("scenarios") or []}
    return lambda labels: (name := labels["scenario"]) in now and then.get(name) == now[name]


def _report_again(chosen: ChosenStudy, cells: Sequence[Cell]) -> int:
    """Write the report from the runs that are here, and otherwise from collected or published numbers."""
    source = Unfinished(cells)
    source.pending()
    if any(cell.values() for cell in cells):
        studies.collect_results(chosen, cells, source, time.monotonic(), None, in_parts=True)
    say(_summary(studies.reported(chosen)))
    return 0


def _submit(chosen: ChosenStudy, cells: Sequence[BenchmarkCell], options: argparse.Namespace) -> int:
    """Write the folder of a submission."""
    folder, study = options.submit, chosen.study
    assert isinstance(study, Benchmark)
    if not any(word.startswith("methods=") for word in options.words):
        raise ConfigError("--submit needs a method: add methods=[mine], with your method's name.")
    if chosen.changed:
        raise ConfigError(f"{' '.join(chosen.changed)} changes the benchmark: leave it out of a submission.")
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ConfigError(f"--submit {folder} exists already: choose a new folder.")
    check_writable("--submit", str(folder), folder)
    whole = [cell for cell in cells if submission.is_whole(cell)]
    if not whole:
        raise ConfigError(f"{chosen.results_dir} has no finished cell of these methods: first run {chosen.command}.")
    runs = {value.run for cell in whole for value in cell.values()}
    names = ",".join(dict.fromkeys(cell.entry.method.name for cell in whole))
    own = f" --config-dir {submission.OWN}" if options.config_dir else ""
    facts = {
        **{"study": chosen.name, "scale": chosen.scale, "changed": [], "failed": 0, "complete": True},
        "command": f"decentral-benchmark scale={chosen.scale} methods=[{names}]{own}",
        **collect.provenance(chosen.results_dir / "runs" / run for run in sorted(runs)),
    }
    theirs = Path(options.config_dir) if options.config_dir else None
    digest = submission.write(folder, study, whole, facts, theirs)
    if len(whole) < len(cells):
        say(f"Note:     {len(cells) - len(whole)} of {len(cells)} cells are unfinished and not submitted.")
    say(f"Written:  {folder}, {len(whole)} cells\nHash:     {digest}\nNext:     decentral-benchmark --verify {folder}")
    return 0


def _verify(options: argparse.Namespace) -> int:
    """Check a submission, and return 0 if it agrees."""
    folder = options.verify
    if options.config_dir:
        raise ConfigError(f"--verify reads components from {folder / submission.OWN}: leave --config-dir out.")
    given, words = catalogue.reserved(options.words, "repeat")
    number = 3 if given is None else int(given) if given.isdecimal() else -1
    if number < 0:
        raise ConfigError(f"repeat={given} is not a number of runs: use a whole number >= 0, such as 3.")
    facts = submission.read(folder)
    wrong = submission.damage(folder, facts)
    if facts["rules"] != VERSION:
        wrong.append(f"it follows version {facts['rules']} of the rules, and this program has {VERSION}.")
    say(f"{folder}: scale={facts['scale']}, {len(facts['cells'])} cells, hash {facts['hash']}")
    if wrong:
        return _verdict(options, facts, wrong, "")
    own = folder / submission.OWN
    options.config_dir = str(own) if own.is_dir() else None
    folders_of(options.config_dir)  # registers the components in it
    families = {str(labels["scenario"]).partition(".")[0] for labels in facts["cells"]}
    known = {one.name: one for one in _study(facts["scale"], options.config_dir).scenarios}
    possible = [
        name
        for name, one in known.items()
        if name in families and (not one.needs or any(word.startswith(f"{name}.") for word in words))
    ]
    wrong += [f"{name} is not a scenario of scale={facts['scale']}." for name in sorted(families - known.keys())]
    wrong += [] if facts["cells"] else ["it has no cells."]
    names = [str(one.get("name")) for one in facts["methods"]]
    for told, one in zip(facts["methods"], entries.methods(names, mine=False), strict=False):
        wrong += [f"{one.name} is another method here: {one}."] if told != asdict(one) else []
    if wrong:
        return _verdict(options, facts, wrong, "")
    if missing := sorted(families - {*possible}):
        say(f"Note:     {', '.join(missing)} are not repeated: their data are missing.")
    if not possible:
        return _verdict(options, facts, [], "hashes only")
    with TemporaryDirectory(prefix="decentral-verify-") as scratch:
        options.words = [*words, f"scale={facts['scale']}", f"methods=[{','.join(names)}]", f"results_dir={scratch}"]
        options.words.append(f"scenarios=[{','.join(possible)}]")
        chosen, _, cells = _composed(options)
        cells = [cell for cell in cells if cell.labels in facts["cells"]]
        return _computed_again(chosen, cells, number, options, facts)


def _computed_again(
    chosen: ChosenStudy, cells: Sequence[BenchmarkCell], number: int, options: argparse.Namespace, facts: dict[str, Any]
) -> int:
    same = _same_rules(chosen, options.verify)
    wrong = [
        f"{one} has other rules here." for one in {str(c.labels["scenario"]): c for c in cells if not same(c.labels)}
    ]
    found, there = stored(cells, options.verify, lambda _: True)
    checks, others = submission.checks(cells, [*found.values(), *there])
    told, mine = [cell.labels for cell in (*found.values(), *there)], [cell.labels for cell in cells]
    strange = [one for one in told if one not in facts["cells"]]
    strange += [one for one in facts["cells"] if one not in mine and one["scenario"] in {c["scenario"] for c in mine}]
    wrong += [f"{', '.join(map(str, one.values()))} is not a cell of it." for one in strange]
    again = submission.choose(checks, number)
    runs = len({check.run.jobs[0].id for check in checks})
    more = f", and {again.baseline} of the baseline, which set the targets" if again.baseline else ""
    say(
        f"Repeating {again.runs} of {runs} runs{more}: about {duration(again.about_s)} by their recorded times, plus "
        "a few seconds of startup each. Times and bytes of all synchronous runs are computed from their steps."
    )
    config, source = studies.for_this_machine(chosen), Unfinished(checks)
    with board(f"{options.verify}", config.progress) as shown:
        tally = schedule(source.pending, config.launcher, chosen.results_dir, shown)
    if tally.interrupted:
        return INTERRUPTED
    wrong += [*others, *(f"{ended.job.title} failed: {ended.reason}" for ended in tally.failed)]
    rows = [["scenario", "method", "runs", "repeated", "agrees"]]
    by_cell: dict[int, list[submission.Check]] = {}
    for check in checks:
        by_cell.setdefault(id(check.cell), []).append(check)
    for those in [] if tally.failed else by_cell.values():
        different = [words for check in those for words in check.differences()]
        counts = [str(len(those)), str(sum(check.repeated for check in those))]
        rows.append([*map(str, those[0].labels.values()), *counts, "no" if different else "yes"])
        wrong += different
    say(aligned(rows, left=2))
    return _verdict(options, facts, wrong, f"{again.runs} run{'s' * (again.runs != 1)} repeated")


def _verdict(options: argparse.Namespace, facts: dict[str, Any], wrong: Sequence[str], done: str) -> int:
    """Print the verdict and store it."""
    if wrong:
        say(
            "\n".join(
                [*wrong[:_MOST_SAID], *([f"and {len(wrong) - _MOST_SAID} more"] if len(wrong) > _MOST_SAID else [])]
            )
        )
    say(f"Verdict:  {'it does not agree' if wrong else f'it agrees ({done})'}")
    if os.access(options.verify, os.W_OK):
        result = {
            "hash": facts["hash"],
            "agrees": not wrong,
            "done": done,
            "differences": list(wrong),
            "version": __version__,
            "reported": datetime.now(UTC).isoformat(timespec="seconds"),
        }
        write_json(options.verify / submission.VERIFIED, result)
    return FAILED if wrong else 0


def _summary(made: Made) -> str:
    """Return the ranks and the locations of all results, as text."""
    results = made.results
    title = str(results.facts.get("title") or "")
    blocks = [f"decentral-benchmark scale={results.scale}: {title[:1].lower()}{title[1:]}"]
    for listing in results.spec.listings:
        if isinstance(listing, Ranks) and len(rows := listing.lines(results)) > 1:
            texts = [textwrap.fill(text, _WIDTH) for text in listing.sentences(results)]
            blocks += [f"{listing.title}:", aligned(rows, left=listing.left), *texts]
    lines = [f"Note:     {remark}" for remark in made.remarks]
    lines += [f"Page:     {results.directory.parents[1] / 'README.md'}", f"Results:  {results.directory}"]
    return "\n\n".join([*blocks, "\n".join([*lines, *(f"Figure:   {path}" for path in made.figures)])])


def _listing(config_dir: str | None) -> str:
    """Return the methods and scenarios, as --list prints them."""
    told = ["Methods: title, what decentral-run is told, and what is searched beside the learning rate", ""]
    for one in entries.methods():
        told.append(f"{one.name:<21} {one.title}: {' '.join(one.base)}".removesuffix(": "))
        told += textwrap.wrap(
            one.searched or "nothing (fixed)", 98, initial_indent=" " * 22, subsequent_indent=" " * 22
        )
    at: dict[str, list[str]] = {}
    known: dict[str, entries.Scenario] = {}
    for scale in catalogue.scales(STUDY, config_dir):
        for one in _study(scale, config_dir).scenarios:
            at.setdefault(one.name, []).append(scale)
            known[one.name] = one
    lines = [["scenario", "scales", "title"]]
    lines += [[name, " ".join(scales), known[name].title] for name, scales in at.items()]
    return "\n".join([*told, "", aligned(lines, left=3), "", "decentral-benchmark --help says more."])


def _names(key: str, words: Sequence[str]) -> tuple[list[str] | None, list[str]]:
    """Return the names in '[a,b]' or 'a,b' given for the key (None if the words do not have it), and the other
    words."""
    text, rest = catalogue.reserved(words, key)
    if text is None:
        return None, rest
    names = [name.strip(" '\"") for name in text.strip("[] ").split(",")]
    if not all(re.fullmatch(r"[\w-]+", name) for name in names):
        raise ConfigError(
            f"{key}={text} is not a list of names: write "
            f"{key}=[{'relaysgd,dpsgd' if key == 'methods' else 'quadratic'}]."
        )
    return list(dict.fromkeys(names)), rest


if __name__ == "__main__":
    main()
