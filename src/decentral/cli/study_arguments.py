"""What the command line of `decentral-study` asks for."""

from __future__ import annotations

import dataclasses
import fnmatch
import hashlib
import json
import re
import shlex
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from decentral.config.schema import GROUPS
from decentral.errors import ConfigError, suggest
from decentral.network.settings import NetworkSettings
from decentral.registry import components
from decentral.store.files import at_home
from decentral.study import SCALES, catalogue
from decentral.study.study import Study
from decentral.terminal.console import say

_HERE_ONLY = [
    *("results_dir", "device", "processes", "progress", "checkpoint_every_s", "restarts", "max_combinations"),
    *("launcher", "logger", "rerun"),
]
"""Keys that say where and how something is computed, not what."""
_CHANGES = ("seeds=[1,2]", "num_workers=[8,16]", "columns={...}")
"""Of studies that have such a key: what a refusal suggests."""

OWN_RESULTS = "results/own"
"""Where studies and their reports go if nothing else is said: git ignores it."""
PUBLISHED_RESULTS = "results"
"""Where the results that are committed are, and those of versions that had no other folder."""


class ChosenStudy(NamedTuple):
    """One study of the command line."""

    name: str
    scale: str
    study: Study
    overrides: list[str]
    """For every run."""
    changed: list[str]
    """Those, and changes of the study itself, that make it another study than the one in conf/."""
    results_dir: Path
    directory: Path
    """Where its values, tables and figures are kept."""
    command: str
    """What starts it again."""
    config_dir: str | None = None

    @property
    def earlier(self) -> str:
        """A line on results in the folder of the published ones, where its own has none yet; else ''."""
        folder = Path(PUBLISHED_RESULTS)
        there = folder / self.directory.relative_to(self.results_dir)
        if self.results_dir != Path(OWN_RESULTS) or self.directory.exists() or not (there / "values.csv").exists():
            return ""
        if not (folder / "runs").is_dir():
            return (
                f"{there} has the published results of this study; this carries it out anew, into {self.results_dir}."
            )
        return f"{there} has results of this study; results_dir={folder} goes on from them and from the runs there."

    @property
    def definition(self) -> dict[str, Any]:
        """The study as plain values."""
        return dataclasses.asdict(self.study)


def chosen_studies(words: Sequence[str], config_dir: str | None = None) -> list[ChosenStudy]:
    """The studies that the names among the words mean, with the `key=value` overrides there. Raises ConfigError."""
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
                say(f"{name} is left out: it has no scale={scale}, only {', '.join(scales)}.")
    return list(found)


def _chosen(name: str, scale: str, rest: list[str], config_dir: str | None) -> ChosenStudy:
    own = [word.removeprefix("study.") for word in rest if word.startswith("study.")]
    study = catalogue.load(name, scale, config_dir, own)
    overrides = [word for word in rest if not word.startswith("study.")]
    paper = [word for word in overrides if word.startswith("figures.")]
    if paper:
        raise ConfigError(
            f"{paper[0]} is a setting of decentral-report, which draws what is stored: "
            f"decentral-report {name} {paper[0]}."
        )
    _refuse_decided(name, study, overrides)
    if not re.fullmatch(r"[\w-]+", study.paper):
        raise ConfigError(f"study {name}: paper={study.paper!r} has to be a word, the name of a folder in results/.")
    results_dir, _ = catalogue.reserved(overrides, "results_dir")
    mattering = [override for override in overrides if _matters(study.for_runs(override), study.timed)]
    changed = sorted({*_changes(study, catalogue.load(name, scale, config_dir)), *mattering})
    suffix = f"-{hashlib.sha256(' '.join(changed).encode()).hexdigest()[:6]}" if changed else ""
    path = at_home(results_dir or OWN_RESULTS)
    return ChosenStudy(
        name,
        scale,
        study,
        overrides if results_dir is not None else [*overrides, f"results_dir={OWN_RESULTS}"],
        changed,
        path,
        path / study.paper / name / f"{scale}{suffix}",
        _command(name, scale, rest, config_dir),
        config_dir,
    )


def _refuse_decided(name: str, study: Study, overrides: Iterable[str]) -> None:
    decided = study.decided_keys()
    for override in overrides:
        key = study.for_runs(override).lstrip("+").partition("=")[0]
        if key in decided:
            known = {field.name for field in dataclasses.fields(study)}
            possible = [f"'study.{change}'" for change in _CHANGES if change.partition("=")[0] in known]
            change = f", or change the study, for example with {' or '.join(possible)}" if possible else ""
            raise ConfigError(
                f"{override} cannot be set, because {name} itself sets {key} for each of its runs: "
                f"leave it out{change}."
            )


def _changes(study: Study, original: Study) -> list[str]:
    """The keys of the study that are not what they are in its file, with their values."""
    fields = [field.name for field in dataclasses.fields(study)]
    values = dataclasses.asdict(study)
    return [
        f"study.{name}={json.dumps(values[name], sort_keys=True)}"
        for name in fields
        if getattr(study, name) != getattr(original, name)
    ]


def _matters(override: str, timed: Collection[str]) -> bool:
    """Whether the override changes what is computed: paths of data, devices, loggers and the like do not, unless they
    are among the keys whose times a study takes."""
    key = override.lstrip("+").partition("=")[0]
    if key in timed:
        return True
    group, _, field = key.partition(".")
    if group in _HERE_ONLY:
        return False
    classes = components(GROUPS[group]).values() if group in GROUPS else [NetworkSettings] if group == "network" else []
    known = [f.metadata for cls in classes for f in dataclasses.fields(cls) if f.name == field]
    return not any(one.get("volatile") or (group == "data" and one.get("content")) for one in known)


def _command(name: str, scale: str, rest: Sequence[str], config_dir: str | None) -> str:
    folder = ["--config-dir", config_dir] if config_dir else []
    return shlex.join(["decentral-study", name, f"scale={scale}", *rest, *folder])
