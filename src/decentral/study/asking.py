"""What the command line of `decentral-study` asks for."""

from __future__ import annotations

import dataclasses
import fnmatch
import hashlib
import json
import re
import shlex
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from decentral.config import GROUPS
from decentral.console import say
from decentral.errors import ConfigError, suggest
from decentral.network.settings import NetworkSettings
from decentral.registry import components
from decentral.study import catalogue
from decentral.study.study import Study

_HERE_ONLY = ["results_dir", "device", "processes", "progress", "checkpoint_every_s", "restarts", "launcher", "logger"]
"""Keys that say where and how something is computed, not what."""


class Asked(NamedTuple):
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
    def definition(self) -> dict[str, Any]:
        """The study as plain values."""
        return dataclasses.asdict(self.study)


def ask(words: Sequence[str], config_dir: str | None = None) -> list[Asked]:
    """The studies that the names among the words mean, with the `key=value` overrides there. Raises ConfigError."""
    overrides = [word for word in words if "=" in word]
    scale, rest = catalogue.reserved(overrides, "scale")
    scale = scale or "small"
    named = [word for word in words if "=" not in word]
    return [_asked(name, scale, rest, config_dir) for name in _matching(named, scale, config_dir)]


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
            if name == word or scale not in catalogue.SCALES or scale in scales:
                found[name] = None
            else:
                say(f"{name} is left out: it has no scale={scale}, only {', '.join(scales)}.")
    return list(found)


def _asked(name: str, scale: str, rest: list[str], config_dir: str | None) -> Asked:
    own = [word.removeprefix("study.") for word in rest if word.startswith("study.")]
    study = catalogue.load(name, scale, config_dir, own)
    overrides = [word for word in rest if not word.startswith("study.")]
    _refuse_decided(name, study, overrides)
    if not re.fullmatch(r"[\w-]+", study.paper):
        raise ConfigError(f"study {name}: paper={study.paper!r} has to be a word, the name of a folder in results/.")
    results_dir, _ = catalogue.reserved(overrides, "results_dir")
    changed = sorted({*_changes(study, catalogue.load(name, scale, config_dir)), *filter(_matters, overrides)})
    suffix = f"-{hashlib.sha256(' '.join(changed).encode()).hexdigest()[:6]}" if changed else ""
    path = Path(results_dir or "results").expanduser()
    return Asked(
        name,
        scale,
        study,
        overrides if results_dir is not None else [*overrides, "results_dir=results"],
        changed,
        path,
        path / study.paper / name / f"{scale}{suffix}",
        _command(name, scale, rest, config_dir),
        config_dir,
    )


def _refuse_decided(name: str, study: Study, overrides: Iterable[str]) -> None:
    decided = study.decided_keys()
    for override in overrides:
        key = override.lstrip("+").partition("=")[0]
        if key in decided:
            raise ConfigError(
                f"{override} cannot be set, because {name} itself sets {key} for each of its runs: leave it out, or "
                "change the study, for example with 'study.seeds=[1,2]' or 'study.columns={...}'."
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


def _matters(override: str) -> bool:
    """Whether the override changes what is computed: paths of data, devices, loggers and the like do not."""
    key = override.lstrip("+").partition("=")[0]
    group, _, field = key.partition(".")
    if group in _HERE_ONLY:
        return False
    classes = components(GROUPS[group]).values() if group in GROUPS else [NetworkSettings] if group == "network" else []
    known = [f.metadata for cls in classes for f in dataclasses.fields(cls) if f.name == field]
    return not any(one.get("volatile") or (group == "data" and one.get("content")) for one in known)


def _command(name: str, scale: str, rest: Sequence[str], config_dir: str | None) -> str:
    folder = ["--config-dir", config_dir] if config_dir else []
    return shlex.join(["decentral-study", name, f"scale={scale}", *rest, *folder])
