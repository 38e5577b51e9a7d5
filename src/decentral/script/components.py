"""Topologies, algorithms and compressors of a script: by name with settings, as objects, or as matrices."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Sequence
from typing import Any, NamedTuple, cast, get_type_hints

import numpy as np

from decentral.algorithms.algorithm import Algorithm
from decentral.algorithms.asynchronous import in_rounds
from decentral.algorithms.features import Feature
from decentral.compression.compressor import Compressor
from decentral.compression.dense import NoCompression
from decentral.config.checks import check_communication, check_compressed_rounds, check_compressor
from decentral.config.parsing import convert
from decentral.errors import ConfigError, suggest
from decentral.optim.optimizer import Optimizer
from decentral.registry import component, components
from decentral.topology.communication import Communication
from decentral.topology.matrices import Matrices
from decentral.topology.requirements import check as check_needs
from decentral.topology.rounds import Rounds
from decentral.topology.topology import Topology

_KINDS = "topology must be the name of a topology, a Topology, a matrix W [n, n], or a list of matrices, one per round"


def topology_from(topology: object, settings: dict[str, Any]) -> Topology:
    """Create a topology from its name with settings; from a Topology; or from W [n, n], or one per round.

    Raises:
        ConfigError: an unknown name, setting or value; settings for an object; matrices that are not numeric.
    """
    if isinstance(topology, str):
        others = "every", "global_every", "workers_per_machine", "mode", "algo", "compress", "overlap"
        return cast(Topology, _by_name("topology", topology, settings, others))
    if settings:
        raise ConfigError(
            f"'{next(iter(settings))}' is neither an argument of join nor a setting of the topology, which is given "
            "as an object."
        )
    return topology if isinstance(topology, Topology) else Matrices(_numbers(topology))


def has_setting(topology: object, key: str) -> bool:
    """Return whether the topology of this name has such a setting."""
    known = components("topology")
    return isinstance(topology, str) and topology in known and key in settings_of(known[topology])


def algorithm_from(algo: object, settings: dict[str, Any] | None) -> Algorithm:
    """Create an algorithm from its name with settings, or return a given `Algorithm`.

    Raises:
        ConfigError: an unknown name, setting or value; settings for an object; an algorithm that does not train or has
            no synchronous steps.
    """
    algorithm = cast(Algorithm, chosen("algorithms", algo, Algorithm, _as_dict("algo", settings), ()))
    if Feature.training not in algorithm.supports:
        raise ConfigError(
            f"algo='{algorithm.name}' estimates a mean and has no optimizer to wrap: average tensors with "
            "decentral.join(...).neighbor_allreduce."
        )
    if not in_rounds(type(algorithm)):
        raise ConfigError(
            f"algo='{algorithm.name}' is asynchronous, without common steps: run it in a virtual cluster, as in "
            f"decentral-run algo={algorithm.name} cluster=even."
        )
    return algorithm


def check_setup(
    algorithm: Algorithm,
    compressor: Compressor,
    rounds: Rounds,
    communication: Communication,
    topology: Topology,
    optimizer: Optimizer | None = None,
) -> None:
    """Raise ConfigError if these cannot be used together; `optimizer` is None for one of torch."""
    algorithm.check(rounds.num_workers, optimizer)
    check_communication(algorithm, communication)
    if Feature.topology in algorithm.supports:
        check_needs(rounds, algorithm.needs, algorithm.name, topology.name, topology.weights_given())
    if not isinstance(compressor, NoCompression):
        check_compressor(algorithm, compressor)
        check_compressed_rounds(algorithm, compressor, communication, lambda: rounds, topology.name)


class Compression(NamedTuple):
    """A compressor before the model's layout is known."""

    compressor: Compressor
    seed: int
    steps_per_epoch: float


def compression_from(compress: object, settings: dict[str, Any] | None) -> Compression:
    """Create the compression from a compressor's name with settings, a `Compressor`, or None.

    Besides the compressor's own, the settings may include `seed` (0), for randomness in messages, and
    `steps_per_epoch`, which converts `warmup_epochs`.

    Raises:
        ConfigError: an unknown name, setting or value; settings for an object or for None; `warmup_epochs` without
            `steps_per_epoch`.
    """
    own = _as_dict("compress", settings)
    if compress is None and own:
        raise ConfigError("compress_settings need a compressor: also give compress=, such as compress='topk'.")
    seed = convert(int, own.pop("seed", 0), "compress.seed")
    steps_per_epoch = convert(float, own.pop("steps_per_epoch", math.nan), "compress.steps_per_epoch")
    if steps_per_epoch <= 0:
        raise ConfigError(f"compress.steps_per_epoch={steps_per_epoch:g} is out of range; use a number of steps > 0.")
    given = NoCompression() if compress is None else compress
    compressor = cast(Compressor, chosen("compression", given, Compressor, own, ("seed", "steps_per_epoch")))
    if getattr(compressor, "warmup_epochs", 0.0) and math.isnan(steps_per_epoch):
        raise ConfigError(
            "warmup_epochs needs the number of steps per epoch in a script: give it, as in "
            "compress_settings={'warmup_epochs': 5, 'steps_per_epoch': 391}."
        )
    return Compression(compressor, seed, 1.0 if math.isnan(steps_per_epoch) else steps_per_epoch)


_KEYS = {"topology": "topology", "algorithms": "algo", "compression": "compress", "optim": "optim"}


def _as_dict(key: str, settings: object) -> dict[str, Any]:
    if settings is not None and not isinstance(settings, dict):
        raise ConfigError(f"{key}_settings is {settings!r}: give a dict, such as {{'setting': 1}}.")
    return dict(settings or {})


def chosen(package: str, given: object, base: type, settings: dict[str, Any], others: Sequence[str]) -> object:
    """Return the component of this name with these settings, or the given one. Raises ConfigError if it is neither."""
    key = _KEYS[package]
    if isinstance(given, str):
        return _by_name(package, given, settings, others)
    if not isinstance(given, base):
        raise ConfigError(
            f"{key} is a {type(given).__name__}: give a name (decentral-run --help {key}) or a "
            f"{base.__module__}.{base.__name__}."
        )
    if settings:
        raise ConfigError(f"{key}_settings need {key} as a name; it is an object with its own settings.")
    return given


def _by_name(package: str, name: str, settings: dict[str, Any], others: Sequence[str]) -> object:
    """Return the component of a package with this name; `others` are settings of other components."""
    cls, key = component(package, name), _KEYS[package]
    if cls is None:
        raise ConfigError(f"{key}='{name}' does not exist.{suggest(name, components(package))}")
    hints = {setting: hint for setting, hint in get_type_hints(cls).items() if setting in settings_of(cls)}
    for setting in settings:
        if setting not in hints:
            raise ConfigError(f"{key}={name} has no setting '{setting}'.{suggest(setting, (*hints, *others))}")
    return cls(**{setting: convert(hints[setting], value, f"{key}.{setting}") for setting, value in settings.items()})


def settings_of(cls: type) -> list[str]:
    """Return the settings of a component."""
    fields = dataclasses.fields(cls) if dataclasses.is_dataclass(cls) else ()
    return [field.name for field in fields if field.name != "name" and field.init]


def _numbers(matrices: Any) -> list[np.ndarray]:
    """Return the matrices of a period, float64."""
    try:
        array = np.array([np.asarray(part, dtype=np.float64) for part in matrices])
    except (TypeError, ValueError, RuntimeError) as error:
        raise ConfigError(f"{_KINDS}; {type(matrices).__name__} is none of them ({error}).") from None
    if array.ndim not in (2, 3):
        raise ConfigError(f"{_KINDS}; numbers of shape {list(array.shape)} are none of them.")
    return [array] if array.ndim == 2 else list(array)


_SETTING = re.compile(r"\b(?:topology|communication|algo|compress)\.(\w+)=(\w[\w.]*)")


def in_a_script(sentence: str, algo: bool = False) -> str:
    """Rewrite settings in a message as Python arguments: `topology.weights=metropolis` as weights='metropolis', and
    `compress=topk` as compress='topk'.

    `algo=sgp` becomes mode='push_sum', or algo='sgp' if the call uses algorithms.
    """

    def argument(found: re.Match[str]) -> str:
        value = found[2].rstrip(".")
        number = value.replace(".", "", 1).isdigit() or value in ("None", "True", "False")
        return f"{found[1]}={value if number else repr(value)}" + found[2][len(value) :]

    sentence = _SETTING.sub(argument, sentence)
    sentence = (
        re.sub(r"\balgo=(\w+)", r"algo='\1'", sentence) if algo else sentence.replace("algo=sgp", "mode='push_sum'")
    )
    sentence = re.sub(r"\bcompress=(\w+)", r"compress='\1'", sentence)
    return re.sub(r"topology=matrices with num_workers=\d+", "the given matrices", sentence)
