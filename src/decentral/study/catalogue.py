"""The studies in conf/study/: one YAML each."""

from __future__ import annotations

import json
from collections.abc import Sequence
from copy import deepcopy
from functools import cache
from pathlib import Path
from typing import Any

from decentral.config.composition import folders_of
from decentral.config.own_files import read_yaml
from decentral.config.parsing import build
from decentral.errors import ConfigError, suggest
from decentral.measurements.measurement import Measurement
from decentral.registry import components
from decentral.study import SCALES
from decentral.study.measured import study_class
from decentral.study.study import Study


def names(config_dir: str | None = None) -> list[str]:
    """The names of all studies, ours and those in the user's folder."""
    return sorted({file.stem for folder in folders_of(config_dir) for file in (folder / "study").glob("*.yaml")})


def scales(name: str, config_dir: str | None = None) -> list[str]:
    """The scales at which a study is defined."""
    return [scale for scale in SCALES if scale in _read(name, config_dir).get("scales", {})]


def load(name: str, scale: str, config_dir: str | None = None, overrides: Sequence[str] = ()) -> Study:
    """A study at a scale: the keys of its YAML, replaced by those below `scales: {<scale>: ...}`, then by overrides.

    There, `base` is appended to what is at the top instead of replacing it. `like: <other study>` begins with all keys
    of another study, scale by scale; what is said here replaces them. An override is `key=<YAML>`, for example
    `seeds=[1,2]`. Raises ConfigError, with one sentence that names the file and the key, if a name is unknown or the
    file is not right.
    """
    values = _read(name, config_dir)
    known = values.pop("scales", None) or {}
    if scale not in SCALES:
        raise ConfigError(f"scale={scale} does not exist.{suggest(scale, SCALES)}")
    if scale not in known:
        raise ConfigError(f"scale={scale} is not defined for {name}: use scale={' or scale='.join(known)}.")
    changes = known[scale] or {}
    base = [*(values.get("base") or []), *(changes.get("base") or [])]
    given = {key: _value(key, text) for key, _, text in (override.partition("=") for override in overrides)}
    return study_from(name, {**values, **changes, "base": base, **given})


def settings(name: str, scale: str, config_dir: str | None = None) -> list[str]:
    """What a scale says beyond the study's own settings, in words such as 'epochs=50' and 'seeds: 1'."""
    changes = dict((_read(name, config_dir).get("scales") or {}).get(scale) or {})
    words = [str(word) for word in changes.pop("base", None) or []]
    plain = {key: value for key, value in changes.items() if key not in ("needs", "rows", "report", "departures")}
    return words + [f"{key}: {json.dumps(value)}" for key, value in plain.items()]


def _value(key: str, text: str) -> Any:
    import yaml

    try:
        return yaml.safe_load(text)
    except yaml.YAMLError:
        raise ConfigError(f"study.{key}={text} cannot be read: write it as in YAML, for example [1,2].") from None


def study_from(what: str, values: dict[str, Any]) -> Study:
    """A study from plain values; `kind` chooses its class."""
    values = dict(values)
    kind, kinds = values.pop("kind", None), components("study.kinds") | components("measurements")
    if not isinstance(kind, str) or kind not in kinds:
        raise ConfigError(f"study {what}: kind={kind} does not exist.{suggest(str(kind), kinds)}")
    chosen = kinds[kind]
    return build(study_class(chosen) if issubclass(chosen, Measurement) else chosen, values, f"study {what}")


def _read(name: str, config_dir: str | None) -> dict[str, Any]:
    found = [folder / "study" / f"{name}.yaml" for folder in reversed(folders_of(config_dir))]
    file = next((path for path in found if path.is_file()), None)
    if file is None:
        raise ConfigError(f"there is no study {name}.{suggest(name, names(config_dir))}")
    values = read_mapping(file)
    model = values.pop("like", None)
    return _merged(_read(str(model), config_dir), values) if model else values


def read_mapping(file: Path) -> dict[str, Any]:
    """The keys and values in a YAML file, which is parsed once as long as it stays as it is. Raises ConfigError."""
    return deepcopy(_parsed(file, file.stat().st_mtime_ns, file.stat().st_size))


@cache
def _parsed(file: Path, changed_ns: int, size: int) -> dict[str, Any]:
    values = read_yaml(file)
    if not isinstance(values, dict):
        raise ConfigError(f"{file} has to hold keys and values.")
    return values


def _merged(model: dict[str, Any], own: dict[str, Any]) -> dict[str, Any]:
    """A study like another one: only the scales that it names itself, if it names any."""
    scales, theirs = own.get("scales"), model.get("scales") or {}
    known = (
        theirs
        if scales is None
        else {scale: {**(theirs.get(scale) or {}), **(scales[scale] or {})} for scale in scales}
    )
    return {**model, **own, "scales": known}


def reserved(overrides: Sequence[str], key: str) -> tuple[str | None, list[str]]:
    """The last value given for `key`, and the overrides without it."""

    def sets(override: str) -> bool:
        return override.lstrip("+").startswith(f"{key}=")

    given = [override.partition("=")[2].strip("'\"") for override in overrides if sets(override)]
    return (given[-1] if given else None), [override for override in overrides if not sets(override)]
