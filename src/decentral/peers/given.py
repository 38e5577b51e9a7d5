"""The topology that a caller gives: a name with settings, an object, or matrices."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from enum import Enum
from typing import Any, get_args, get_type_hints

import numpy as np

from decentral.errors import ConfigError, suggest
from decentral.registry import components
from decentral.topology.schedule import Schedule
from decentral.topology.topology import Topology
from decentral.typed import convert

_TOLERANCE = 1e-6  # matrices may come as float32
_KINDS = (
    "topology has to be the name of a topology, a Topology, a matrix W [n, n], or a list of such matrices, one for "
    "each round"
)


def topology_from(given: object, settings: dict[str, Any]) -> Topology:
    """`given` is the name of a topology, with its settings; or a Topology; or W [n, n], or one for each round.

    Raises:
        ConfigError: a name, a setting or a value that does not exist, settings for what has none, no numbers.
    """
    if isinstance(given, str):
        return _by_name(given, settings)
    if settings:
        raise ConfigError(
            f"'{next(iter(settings))}' is neither an argument of join nor a setting of the topology, which is given "
            "as an object."
        )
    return given if isinstance(given, Topology) else Matrices(_numbers(given))


def has_setting(given: object, key: str) -> bool:
    """Whether the topology of this name has such a setting of its own."""
    known = components("topology")
    return isinstance(given, str) and given in known and key in _settings(known[given])


def _by_name(name: str, settings: dict[str, Any]) -> Topology:
    known = components("topology")
    if name not in known:
        raise ConfigError(f"topology='{name}' does not exist.{suggest(name, known)}")
    cls = known[name]
    hints = {key: hint for key, hint in get_type_hints(cls).items() if key in _settings(cls)}
    for key in settings:
        if key not in hints:
            known_keys = (*hints, "every", "global_every", "workers_per_machine")
            raise ConfigError(f"topology={name} has no setting '{key}'.{suggest(key, known_keys)}")
    values = {key: _value(hints[key], value, f"topology.{key}") for key, value in settings.items()}
    built = cls(**values)
    assert isinstance(built, Topology)
    return built


def _settings(cls: type) -> list[str]:
    return [field.name for field in dataclasses.fields(cls) if field.name != "name" and field.init]


def _value(hint: Any, value: Any, key: str) -> Any:
    choices = next(
        (part for part in (hint, *get_args(hint)) if isinstance(part, type) and issubclass(part, Enum)), None
    )
    if choices is None or isinstance(value, choices):
        return convert(hint, value, key)
    if str(value) not in choices.__members__:
        raise ConfigError(f"{key}='{value}' does not exist.{suggest(str(value), choices.__members__)}")
    return choices[str(value)]


def _numbers(given: Any) -> list[np.ndarray]:
    """The matrices of a period, float64."""
    try:
        array = np.array([np.asarray(part, dtype=np.float64) for part in given])
    except (TypeError, ValueError, RuntimeError) as error:
        raise ConfigError(f"{_KINDS}; {type(given).__name__} is none of them ({error}).") from None
    if array.ndim not in (2, 3):
        raise ConfigError(f"{_KINDS}; numbers of shape {list(array.shape)} are none of them.")
    return [array] if array.ndim == 2 else list(array)


@dataclasses.dataclass(eq=False)
class Matrices(Topology):
    """W [n, n] of each round of a period; W[i, j] is the weight of what rank i takes from rank j.

    Weights are at least 0, and all rows sum to 1 (pull) or all columns do (push), in every round.
    """

    rounds: list[np.ndarray]
    name = "matrices"

    def implied_num_workers(self) -> int | None:
        """n."""
        return len(self.rounds[0]) if self.rounds and self.rounds[0].ndim == 2 else None

    def schedule(self, num_workers: int) -> Schedule:
        """The matrices, checked."""
        if not self.rounds:
            raise ConfigError("topology is a list without matrices: give at least one, W [n, n].")
        for round, W in enumerate(self.rounds):
            where = "W" if len(self.rounds) == 1 else f"W of round {round}"
            if W.shape != (num_workers, num_workers):
                raise ConfigError(
                    f"{where} has the shape {list(W.shape)}, but there are {num_workers} workers: it has to be "
                    f"[{num_workers}, {num_workers}]."
                )
            _check_entries(W, where)
        _check_sums(self.rounds)
        return Schedule(num_workers, lambda round: (self.rounds[round],), period=len(self.rounds))


def _check_entries(W: np.ndarray, where: str) -> None:
    for wrong, words in ((~np.isfinite(W), "not a finite number"), (W < 0, "negative")):
        if wrong.any():
            i, j = np.argwhere(wrong)[0]
            raise ConfigError(
                f"{where} has {W[i, j]:g} at [{i}, {j}], which is {words}: weights are finite and at least 0."
            )


def _check_sums(rounds: Sequence[np.ndarray]) -> None:
    """Rows that sum to one keep agreement, columns that do keep the sum; what does neither is a mistake."""
    off = [max(abs(W.sum(axis) - 1).max() for W in rounds) for axis in (1, 0)]
    if min(off) > _TOLERANCE:
        rows, columns = (f"[{', '.join(f'{value:.4g}' for value in rounds[0].sum(axis))}]" for axis in (1, 0))
        raise ConfigError(
            "the matrices have to be row-stochastic (pull) or column-stochastic (push) in all rounds, but neither "
            f"holds: in round 0 rows sum to {rows} and columns to {columns}. W[i, j] is the weight of what i takes "
            "from j."
        )
