"""Components that a script chooses by name or as Python objects, as the command line chooses `module:Name`."""

from __future__ import annotations

import dataclasses
import hashlib
import math
import re
import sys
from collections.abc import Iterable, Sequence
from copy import deepcopy
from numbers import Real
from typing import Any, NamedTuple, cast

import numpy as np

from decentral.algorithms.algorithm import Algorithm
from decentral.algorithms.asynchronous import in_rounds
from decentral.algorithms.features import Feature
from decentral.compression.compressor import Compressor
from decentral.compression.dense import NoCompression
from decentral.config.checks import check_communication, check_compressed_rounds, check_compressor
from decentral.config.parsing import build, convert
from decentral.config.schema import GROUPS
from decentral.errors import ConfigError, suggest
from decentral.optim.optimizer import Optimizer
from decentral.partition.plain import as_arrays
from decentral.registry import component, components, find
from decentral.registry.signature import wrapped
from decentral.store.files import natural_order
from decentral.topology.communication import Communication
from decentral.topology.matrices import Matrices
from decentral.topology.plain import as_matrix
from decentral.topology.requirements import check as check_needs
from decentral.topology.rounds import Rounds
from decentral.topology.topology import Topology

_KEYS = {package: group for group, package in GROUPS.items()}
JOINED = "every", "global_every", "workers_per_machine", "mode", "algo", "compress", "overlap"
"""Arguments of `join` and `wrap`, to suggest for an unknown setting of the topology."""
_TOPOLOGIES = "a graph of networkx, a matrix [n, n], or a list of them, one per round"


def has_setting(topology: object, key: str) -> bool:
    """Return whether the topology of this name has such a setting."""
    known = components("topology")
    return isinstance(topology, str) and topology in known and key in settings_of(known[topology])


def algorithm_from(algo: object, settings: dict[str, Any] | None) -> Algorithm:
    """Return the chosen algorithm: see `chosen`.

    Raises:
        ConfigError: as `chosen`; for an algorithm that does not train or has no synchronous steps.
    """
    algorithm = cast(Algorithm, chosen("algorithms", algo, _as_dict("algo", settings)))
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
    """Return the compression by the chosen compressor: see `chosen`; None compresses nothing.

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
    compressor = cast(Compressor, chosen("compression", given, own, ("seed", "steps_per_epoch")))
    if getattr(compressor, "warmup_epochs", 0.0) and math.isnan(steps_per_epoch):
        raise ConfigError(
            "warmup_epochs needs the number of steps per epoch in a script: give it, as in "
            "compress_settings={'warmup_epochs': 5, 'steps_per_epoch': 391}."
        )
    return Compression(compressor, seed, 1.0 if math.isnan(steps_per_epoch) else steps_per_epoch)


def _as_dict(key: str, settings: object) -> dict[str, Any]:
    if settings is not None and not isinstance(settings, dict):
        raise ConfigError(f"{key}_settings is {settings!r}: give a dict, such as {{'setting': 1}}.")
    return dict(settings or {})


def chosen(package: str, value: object, settings: dict[str, Any], others: Sequence[str] = ()) -> Any:
    """Return the component that a script chooses, as the command line makes it of its name or of `module:Name`.

    Args:
        package: The package of the component, such as "topology".
        value: Its name; a class or function with `settings`; an object of a component's class, which is copied; for a
            topology also a graph or a matrix, or a list with one for each round; for a partition also a list with the
            indices of each worker.
        settings: Values of the component's fields.
        others: Further names to suggest for an unknown setting.

    Raises:
        ConfigError: an unknown name, setting or value; settings of an object; a value of another type.
    """
    key = _KEYS[package]
    if isinstance(value, find.contract_of(package)) and not isinstance(value, Matrices):
        if settings:
            raise ConfigError(
                f"'{next(iter(settings))}' is neither an argument nor a setting of {key}, which is given as an object."
            )
        _check(package, type(value))
        return deepcopy(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {f.name: getattr(value, f.name) for f in dataclasses.fields(value) if f.init}
        if all(isinstance(each, str | Real | None) for each in fields.values()):
            value, settings = type(value), fields | settings  # its fields are the settings
    cls = _class(package, value)
    name, known = value if isinstance(value, str) else find.name_of(cls), settings_of(cls)
    for setting in settings:
        if setting not in known:
            raise ConfigError(f"{key}={name} has no setting '{setting}'.{suggest(setting, (*known, *others))}")
    return build(cls, settings, key)


def _class(package: str, value: Any) -> type:
    """Return the dataclass whose object is the chosen component."""
    cls: Any
    key, is_plain = _KEYS[package], package in find.PLAIN
    if isinstance(value, str):
        if (cls := component(package, value)) is None:
            raise ConfigError(f"{key}='{value}' does not exist.{suggest(value, components(package))}")
        return cls  # type: ignore[no-any-return]
    if isinstance(value, type) and (not is_plain or issubclass(value, find.contract_of(package))):
        _check(package, value)
        return value
    if is_plain and callable(value):
        code = getattr(value, "func", value)  # of functools.partial
        code = code if hasattr(code, "__qualname__") else type(code)
        cls = wrapped(package, f"{code.__module__}:{code.__qualname__}", deepcopy(value))
    elif package == "topology":
        graphs = _graphs(value)
        arrays = [as_matrix(one, natural_order(one) if _is_graph(one) else None) for one in graphs]
        cls = _constant(package, "graph" if any(map(_is_graph, graphs)) else "matrices", graphs, arrays)
    elif package == "partition" and isinstance(value, Iterable):
        parts = as_arrays(value)
        cls = _constant(package, "indices", parts, parts)
    else:
        works = " a class or function," if is_plain else ""
        raise ConfigError(
            f"{key} is a {type(value).__name__}: give a name (decentral-run --help {key}),{works} or a "
            f"decentral.{find.CONTRACTS[package]}."
        )
    cls.plain_object = True
    return cls  # type: ignore[no-any-return]


def _constant(package: str, name: str, items: list[Any], arrays: list[np.ndarray]) -> Any:
    """Return the component of a function that returns these items; the arrays are its content in a run's identity."""
    copies, digest = deepcopy(items), hashlib.sha256()
    for array in arrays:
        digest.update(f"{array.dtype} {array.shape}".encode() + array.tobytes())
    cls: Any = wrapped(package, name, copies.copy)
    cls.plain_verbs, cls.files_digest = ("has", "give"), lambda self: digest.hexdigest()[:16]
    return cls


def _check(package: str, cls: type) -> None:
    """Raise ConfigError for a user's class that the command line refuses, too."""
    if cls.__module__.partition(".")[0] == "decentral":
        return
    file = getattr(sys.modules.get(cls.__module__), "__file__", None) or cls.__module__
    find.check_component(package, cls, file)
    if (name := find.name_of(cls)) in find.ours(package):
        raise ConfigError(
            f"{cls.__name__}: the name '{name}' is already used by decentral: choose another one, as in name: str = "
            f"'my_{name}'."
        )


def _is_graph(value: object) -> bool:
    return hasattr(value, "adjacency")


def _graphs(value: Any) -> list[Any]:
    """Return the graphs, or the matrices of bools, integers or float64, of a period."""
    wanted = f"topology must be a name, a class or function, a Topology, {_TOPOLOGIES}"
    value = [value] if _is_graph(value) else value.rounds if isinstance(value, Matrices) else value
    try:
        parts = list(value if isinstance(value, list | tuple) else np.asarray(value))
        if any(map(_is_graph, parts)):
            return parts
        array = np.array([np.asarray(part) for part in parts])
        array = array if array.dtype.kind in "biu" else array.astype(np.float64)
    except (TypeError, ValueError, RuntimeError) as error:
        raise ConfigError(f"{wanted}; {type(value).__name__} is none of them ({error}).") from None
    if array.ndim not in (2, 3) or array.shape[-1] != array.shape[-2]:
        raise ConfigError(f"{wanted}; numbers of shape {list(array.shape)} are none of them.")
    return [array] if array.ndim == 2 else list(array)


def settings_of(cls: type) -> list[str]:
    """Return the settings of a component."""
    fields = dataclasses.fields(cls) if dataclasses.is_dataclass(cls) else ()
    return [field.name for field in fields if field.name != "name" and field.init]


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
