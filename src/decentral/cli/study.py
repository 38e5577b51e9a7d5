"""The console command `decentral-study`."""

from __future__ import annotations

import argparse
import dataclasses
import fnmatch
import hashlib
import json
import re
import shlex
import textwrap
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from decentral.cli.command import Options, check_writable, guarded
from decentral.config.schema import GROUPS, Config
from decentral.errors import ConfigError, suggest
from decentral.measurements.training_run import TrainingRun
from decentral.network.settings import NetworkSettings
from decentral.registry import components
from decentral.report.published import paper as paper_of
from decentral.report.published import papers
from decentral.report.spec import parse
from decentral.runtime.devices import slow_precision
from decentral.scheduling.board import board
from decentral.scheduling.scheduler import schedule
from decentral.store.files import at_home, stored_table, write_json
from decentral.study import SCALES, catalogue, collect
from decentral.study.study import SWEEPS, Cell, Study, Unfinished, plan
from decentral.terminal.console import FAILED, INTERRUPTED, say, warn

if TYPE_CHECKING:
    from decentral.report.make import Made
    from decentral.scheduling.scheduler import Tally


HERE_ONLY = [
    *("results_dir", "device", "processes", "progress", "checkpoint_every_s", "restarts", "max_combinations"),
    *("launcher", "logger", "rerun"),
]
"""Keys that say where and how something is computed, not what."""

OWN_RESULTS = "results/own"
"""Default folder of studies and their reports, which git ignores."""
PUBLISHED_RESULTS = "results"
"""Folder of the committed results, and of those of versions without another folder."""

_FOLDERS = (OWN_RESULTS, PUBLISHED_RESULTS)
_LEGEND = f"Studies by paper, with their scales; * has results in {OWN_RESULTS}/ or {PUBLISHED_RESULTS}/."
_THEN = """\
decentral-study NAME scale=smoke      run a study in seconds, to see it work
decentral-study NAME --plan           what it shows, its runs and their cost
decentral-study NAME                  run it at scale=small and make its table and figures
decentral-study --help                scales and options"""


class ChosenStudy(NamedTuple):
    """One study of the command line."""

    name: str
    scale: str
    study: Study
    overrides: list[str]
    """The overrides of every run."""
    changed: list[str]
    """The overrides and changes of the study that make it another study than the one in conf/."""
    results_dir: Path
    directory: Path
    """Folder of its values, tables and figures."""
    command: str
    """The command that starts it again."""
    config_dir: str | None = None

    @property
    def earlier(self) -> str:
        """A line on results in the folder of the published ones, where its own has none yet; else ''."""
        there = Path(PUBLISHED_RESULTS) / self.directory.relative_to(self.results_dir)
        if self.results_dir != Path(OWN_RESULTS) or self.directory.exists() or not stored_table(there / "values.csv"):
            return ""
        return f"{there} has results of this study; this run repeats it in {self.results_dir}."

    @property
    def definition(self) -> dict[str, Any]:
        """The study as plain values."""
        return dataclasses.asdict(self.study)


def chosen_studies(words: Sequence[str], config_dir: str | None = None) -> list[ChosenStudy]:
    """The studies that the names among the words mean, with the `key=value` overrides there; without a folder, in conf,
    where a sweep saves them. Raises ConfigError."""
    if config_dir is None and any((Path("conf/study") / f"{word}.yaml").is_file() for word in words):
        config_dir = "conf"
    overrides = [word for word in words if "=" in word]
    given, rest = catalogue.reserved(overrides, "scale")
    scale = "small" if given is None else given
    named = [word for word in words if "=" not in word]
    return [_chosen(name, scale, rest, config_dir) for name in _matching(named, scale, config_dir)]


def _matching(words: Sequence[str], scale: str, config_dir: str | None) -> list[str]:
    """The studies that are meant, each once; of a pattern those that have the scale."""
    known = catalogue.names(config_dir)
    found: dict[str, None] = {}
    for word in words:
        fitting = fnmatch.filter(known, word)
        if not fitting:
            raise ConfigError(f"there is no study {word}.{suggest(word, known)}")
        for name in fitting:
            scales = catalogue.scales(name, config_dir)
            if name == word or scale not in SCALES or scale in scales:
                found[name] = None
            else:
                say(f"{name} is skipped: it has no scale={scale}, only {', '.join(scales)}.")
    return list(found)


def _chosen(name: str, scale: str, rest: list[str], config_dir: str | None) -> ChosenStudy:
    own = [word.removeprefix("study.") for word in rest if word.startswith("study.")]
    study = catalogue.load(name, scale, config_dir, own)
    overrides = [word for word in rest if not word.startswith("study.")]
    _refuse_decided(name, study, overrides)
    if not re.fullmatch(r"[\w-]+", study.paper):
        raise ConfigError(f"study {name}: paper={study.paper!r} must be one word, the name of a folder in results/.")
    results_dir, _ = catalogue.reserved(overrides, "results_dir")
    mattering = [override for override in overrides if _matters(study.for_runs(override), study.timed)]
    original, values = catalogue.load(name, scale, config_dir), dataclasses.asdict(study)
    different = [key for key in values if getattr(study, key) != getattr(original, key)]
    changed = sorted({*(f"study.{key}={json.dumps(values[key], sort_keys=True)}" for key in different), *mattering})
    suffix = f"-{hashlib.sha256(' '.join(changed).encode()).hexdigest()[:6]}" if changed else ""
    path, folder = at_home(results_dir or OWN_RESULTS), ["--config-dir", config_dir] if config_dir else []
    return ChosenStudy(
        name,
        scale,
        study,
        overrides if results_dir is not None else [*overrides, f"results_dir={OWN_RESULTS}"],
        changed,
        path,
        path / study.paper / name / f"{scale}{suffix}",
        shlex.join(["decentral-study", name, f"scale={scale}", *rest, *folder]),
        config_dir,
    )


def _refuse_decided(name: str, study: Study, overrides: Iterable[str]) -> None:
    decided = study.decided_keys()
    for override in overrides:
        key = study.for_runs(override).lstrip("+").partition("=")[0]
        if key in decided:
            raise ConfigError(
                f"{override} cannot be set, because {name} sets {key} for each of its runs: leave it out, or change "
                "the study, as in 'study.seeds=[1,2]'."
            )


def _matters(override: str, timed: Collection[str]) -> bool:
    """Return whether the override changes what is computed: paths of data, devices, loggers and the like do not, unless
    they are among the keys whose times a study takes."""
    key = override.lstrip("+").partition("=")[0]
    if key in timed:
        return True
    group, _, field = key.partition(".")
    if group in HERE_ONLY:
        return False
    classes = components(GROUPS[group]).values() if group in GROUPS else [NetworkSettings] if group == "network" else []
    known = [f.metadata for cls in classes for f in dataclasses.fields(cls) if f.name == field]
    return not any(one.get("volatile") or (group == "data" and one.get("content")) for one in known)


_HELP = """\
decentral-study NAME ... [scale=smoke|small|laptop|paper] [key=value ...]
                                             run studies, or their unfinished part, and report
decentral-study NAME ... --plan [...]        show what would run, and its cost
decentral-study NAME ... --report [...]      make tables and figures from stored results
decentral-study                              list the studies by paper ('relaysum_*' names several)

scale=smoke   a few seconds: does it work?
scale=small   (default) the whole study with tuning and seeds, on bundled data; minutes on two cores
scale=laptop  the paper's data (data.path=FOLDER), a small network, fewer epochs; an hour or two on two cores
scale=paper   the paper's data and model

Runs and reports go to results_dir=results/own, which git ignores; results/ has the published results.

All other settings apply to every run, as for decentral-run: device=cuda, data.path=FOLDER,
launcher=slurm launcher.partition=gpu ... Prefix keys of the study itself with study.: 'study.seeds=[1,2]'.
Settings that change the numbers make a separate study, in a folder beside the original.

--plan estimates the time from finished runs of the study: repeat it when a few are done.
Options: --config-dir FOLDER for your own studies in FOLDER/study/, and your own algorithms, models, ... there;
tab completion: decentral-run --help.
"""


def main(arguments: Sequence[str] | None = None) -> None:
    """Entry point of `decentral-study`. Exit status: 0 done, 1 some run failed, 2 refused, 130 interrupted."""
    guarded("decentral-study", _carry_out_command, arguments)


def _carry_out_command(arguments: list[str]) -> int:
    options = Options("decentral-study", "--plan", "--report").begin(arguments, _HELP)
    if options is None:
        return 0
    if not any("=" not in word for word in options.words):
        if options.words:
            raise ConfigError(f"{' '.join(options.words)} needs the name of a study first: decentral-study lists them.")
        say(_listing(options.config_dir))
        return 0
    statuses: list[int] = []
    for chosen in chosen_studies(options.words, options.config_dir):
        statuses.append(_one(chosen, options))
        if statuses[-1] == INTERRUPTED:
            return INTERRUPTED
    return FAILED if FAILED in statuses else max(statuses, default=0)


def _one(chosen: ChosenStudy, options: argparse.Namespace) -> int:
    if chosen.earlier:
        say(f"Note:     {chosen.earlier}")
    if options.report:
        if options.plan:
            raise ConfigError("--report and --plan conflict: give one of them.")
        check_writable("results_dir", str(chosen.results_dir), chosen.directory)
        return _report_again(chosen)
    parse(chosen.study.report, chosen.name)  # what is wrong with it should not come out in the end
    cells = checked_cells(chosen)
    source = Unfinished(cells)
    pending = source.pending()
    if not pending and not options.plan:
        say(
            f"{chosen.name} at scale={chosen.scale} is finished: all {len(source.jobs)} jobs were done before; nothing "
            "was computed."
        )
        facts = collect.read_facts(chosen.directory)
        if facts | collect.report_digest(chosen.directory, chosen.definition, source.finished) == facts:
            for path in sorted(chosen.directory.glob("*.md")):
                say(f"\n{path.read_text(encoding='utf-8').partition('<details>')[0].strip()}\n")
            say(f"Results:  {chosen.directory}\nNext:     {chosen.command} --report  (make the report again)")
            return 0
        say("Its results are collected from them.")
    for word in dict.fromkeys(slow_precision(job.config) for job in pending if isinstance(job, TrainingRun)):
        if word:
            warn(word)
    if options.plan:
        say(f"{plan(chosen.name, chosen.scale, cells)}\nShows:    {chosen.study.title}.")
        if chosen.study.needs:
            say(f"Needs:    {chosen.study.needs}.")
        return 0
    return carry_out(chosen, source, cells, lambda made: made.summary())


def checked_cells(chosen: ChosenStudy) -> list[Cell]:
    """The study's cells. Raises ConfigError if there is nothing to do, or something twice."""
    rerun, _ = catalogue.reserved(chosen.overrides, "rerun")
    if rerun is not None and rerun.lower() != "false":
        raise ConfigError(
            f"rerun={rerun} applies to decentral-run, not to a study: delete the runs of {chosen.name} to repeat, or "
            "use another results_dir."
        )
    cells = chosen.study.cells(chosen.overrides, chosen.config_dir)
    labels = [json.dumps(cell.labels, sort_keys=True) for cell in cells]
    twice = next((one for one in labels if labels.count(one) > 1), None)
    if twice is not None:
        raise ConfigError(f"study {chosen.name} has two cells with the labels {twice}: give them different ones.")
    for key in ("seeds", "tune_seeds"):
        seeds = getattr(chosen.study, key, None)
        if seeds == []:
            raise ConfigError(f"study {chosen.name}: {key}=[] leaves nothing to run: give at least one value.")
        if seeds and len(set(seeds)) < len(seeds):
            raise ConfigError(f"study {chosen.name}: {key}={seeds} repeats a seed: give each seed once.")
    if not any(cell.jobs() for cell in cells):
        raise ConfigError(f"study {chosen.name} has nothing to run: it needs rows, values in its columns, and seeds.")
    return cells


def _report_again(chosen: ChosenStudy) -> int:
    """Report from the runs, if all of them are here, else from what was collected before."""
    try:
        cells = checked_cells(chosen)
        source = Unfinished(cells)
        complete = not source.pending()
    except ConfigError:  # the data are not on this machine, say
        if not stored_table(chosen.directory / "values.csv"):
            raise
    else:
        if complete:
            return carry_out(chosen, source, cells, lambda made: made.summary())
    say(reported(chosen).summary())
    return 0


def carry_out(
    chosen: ChosenStudy,
    source: Unfinished,
    cells: Sequence[Cell],
    summary: Callable[[Made], str],
    in_parts: bool = False,
) -> int:
    """Carry out what is left of the source, and report on the cells; returns the exit status. See `collect_results`."""
    began, config, tally = time.monotonic(), for_this_machine(chosen), None
    if source.pending():
        config.launcher.check()
        title = f"{chosen.name} scale={chosen.scale}" if chosen.scale else "sweep"
        with board(title, config.progress) as shown:
            tally = schedule(source.pending, config.launcher, chosen.results_dir, shown)
    elif in_parts:
        say("All jobs were finished before; nothing was computed.")
    collect_results(chosen, cells, Unfinished(cells) if in_parts else source, began, tally, in_parts)
    made = reported(chosen)
    digest = collect.report_digest(chosen.directory, chosen.definition, source.finished)
    write_json(chosen.directory / "study.json", collect.read_facts(chosen.directory) | digest)
    say(summary(made))
    if tally is None or not (tally.interrupted or tally.failed):
        return 0
    number = len(tally.failed)
    failed = f"{number} job{'s' if number > 1 else ''} failed (see above)."
    say("Interrupted; finished runs are kept." if tally.interrupted else failed)
    say(f"Next:     {chosen.command}  (resumes)")
    return INTERRUPTED if tally.interrupted else FAILED


def collect_results(
    chosen: ChosenStudy,
    cells: Sequence[Cell],
    source: Unfinished,
    began: float,
    tally: Tally | None,
    in_parts: bool = False,
) -> None:
    """Write what is known, with the provenance of the runs, whenever they were carried out.

    Its time is that of all commands. `in_parts`: the study is carried out
    cell by cell, as somebody asks for them: it is not kept as it was complete, and its time is that of all its runs,
    one after the other.
    """
    left = source.pending()  # look again what is finished
    took = {value.run: value.wall_s for cell in cells for value in cell.values()} if in_parts else {}  # each once
    earlier = collect.read_facts(chosen.directory)
    if left and not in_parts and earlier.get("complete"):
        say(f"{chosen.directory} keeps its complete results, of commit {str(earlier.get('git_commit'))[:12]}.")
        return
    facts = {
        "study": chosen.name,
        "scale": chosen.scale,
        "command": chosen.command,
        "changed": chosen.changed,
        "wall_s": round(sum(took.values()) if in_parts else earlier.get("wall_s", 0.0) + time.monotonic() - began, 1),
        "failed": len(tally.failed) if tally is not None else earlier.get("failed", 0) if left else 0,
        "complete": not left,
    }
    if tally is None and not in_parts:  # nothing was computed: these are of the command that did it
        facts |= {key: earlier[key] for key in ("command", "wall_s") if key in earlier}
    directories = [source.jobs[id].directory for id in source.finished]
    kept = earlier if in_parts and not all(cell.jobs() for cell in cells) else None  # of cells without runs here
    facts |= collect.provenance(directories, kept) | {"setup": collect.setup(chosen.definition)}
    collect.collect(chosen.study, cells, chosen.directory, facts)


def reported(chosen: ChosenStudy) -> Made:
    """Make the report and the pages from what was collected. Raises ConfigError if nothing was."""
    from decentral.report.make import make, report_pages

    if not stored_table(chosen.directory / "values.csv"):
        raise ConfigError(f"{chosen.directory} has no results yet: run {chosen.command} first.")
    if chosen.scale:  # otherwise a sweep, which has no file
        refresh(chosen)
    made = make(chosen.directory)
    if chosen.study.paper != SWEEPS:
        report_pages(chosen.results_dir)
    return made


def refresh(chosen: ChosenStudy) -> None:
    """Update the texts and the report section of collected results from the study's file, where these belong to it."""
    at_this_scale = catalogue.settings(chosen.name, chosen.scale, chosen.config_dir)
    if not collect.refresh(chosen.study, chosen.directory, at_this_scale, chosen.definition):
        say(
            f"Note:     the results in {chosen.directory} belong to an earlier definition of {chosen.name} and keep "
            f"its text; {chosen.command} updates them."
        )


def _listing(config_dir: str | None) -> str:
    """A heading for each paper and a line for each study, in at most 100 columns."""
    found: dict[str, list[tuple[str, str, str]]] = {paper: [] for paper in papers()}
    width = max(map(len, catalogue.names(config_dir)))
    for name in catalogue.names(config_dir):
        scales = catalogue.scales(name, config_dir)
        study = catalogue.load(name, scales[-1], config_dir)
        folders = [at_home(folder) / study.paper / name for folder in _FOLDERS]
        known = {scale for scale in scales if any((path / scale / "study.json").is_file() for path in folders)}
        marked = " ".join(scale + "*" * (scale in known) for scale in scales)
        found.setdefault(study.paper, []).append((name, study.item or study.title, marked))
    blocks = []
    for paper, studies in found.items():
        short, title = paper_of(paper)
        head = title if title.startswith(short) else f"{short}: {title}"
        lines = [textwrap.fill(head, 100, subsequent_indent=" " * 4)]
        for name, item, marked in studies:
            lines.append(f"  {name:{width}}  {textwrap.shorten(item, 30, placeholder='...'):30}  {marked}")
        blocks += ["\n".join(lines)] * bool(studies)
    return "\n\n".join([_LEGEND, *blocks, _THEN])


def for_this_machine(chosen: ChosenStudy) -> Config:
    """Return how jobs are started and where results go. Raises ConfigError for what cannot work."""
    from decentral.config.composition import compose

    kept = ("launcher", "progress", "results_dir")
    words = [word for word in chosen.overrides if word.partition("=")[0].partition(".")[0] in kept]
    config = compose(words, chosen.config_dir)
    for folder in (chosen.results_dir / "runs", chosen.directory):
        check_writable("results_dir", config.results_dir, folder)
    return config


if __name__ == "__main__":
    main()
