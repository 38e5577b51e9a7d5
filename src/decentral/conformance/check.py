"""All properties of one algorithm, one after the other."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from enum import StrEnum
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import numpy as np
import torch

from decentral.algorithms.asynchronous import in_rounds
from decentral.algorithms.features import Feature
from decentral.config.composition import compose
from decentral.config.schema import Config
from decentral.conformance import properties
from decentral.conformance.properties import Violation, Walk, saved_and_loaded, walk
from decentral.errors import ConfigError
from decentral.registry import component, find
from decentral.store.failures import describe

_NETS = (
    *(("ring", 5), ("dbt", 5), ("one_peer_exponential", 5), ("exponential", 5), ("star", 5), ("complete", 5)),
    ("chain", 5),
)
_IRREGULAR = (("star", 5), ("grid", 6), ("dbt", 6), ("chain", 5))
_SMALL = ("task=quadratics", "task.dimension=6", "task.initial_distance=1", "lr=0.1")
_SAMPLES = ("task=mean_estimation", "task.dimension=6")
_QUIETLY = ("device=cpu", "progress=false")
_STEPS = (12, 48, 192, 768)  # the first number of steps in which something is sent
_PLAIN_SGD = (*_SMALL, "optim=sgd", "schedule=constant", "steps=30", "seed=0")
_LONG = 700
_MEAN, _MEAN_ELSEWHERE = "the mean is kept", "the mean is kept on an irregular graph"
_CONSENSUS = "the workers reach consensus"
_LOSSY = "the same messages are lost with 1 and 2 processes"
_SGD, _ALONE = "where every worker hears all others, it is plain SGD", "one worker alone does plain SGD"
_OPTIMUM = "it finds the optimum where all workers share it"
_ASKED_OF = {
    **dict.fromkeys((_MEAN, _MEAN_ELSEWHERE, _CONSENSUS, _OPTIMUM), Feature.equal_updates),
    **dict.fromkeys((_SGD, _ALONE), Feature.plain_sgd),
    _LOSSY: Feature.message_loss,
}
"""Property -> the feature that an algorithm needs to be asked for it."""
BREAKS_OFF = "it raises an exception"


class Verdict(StrEnum):
    """The outcome of a check, in the words of the table."""

    passed = "passed"
    failed = "FAILED"
    not_asked = "-"
    not_tested = "not tested"


class Found(NamedTuple):
    """The outcome for a property."""

    name: str
    verdict: Verdict
    words: str = ""


class NotAsked(Exception):
    """An exception for a property that is not asked of this algorithm; the message gives the reason."""


class NotTested(Exception):
    """An exception for a property that could not be tested with these settings; the message gives the reason."""


@dataclass(frozen=True)
class Checks:
    """The properties of the algorithm selected by the overrides, each checked when it is requested. Further overrides
    are settings of all checks. `made` has existing components by group, which replace the choices.

    Raises ConfigError for overrides that do not compose (with any of some topologies if none is chosen), and for an
    algorithm without steps.
    """

    overrides: Sequence[str]
    config_dir: str | None = None
    made: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        cls = self._algorithm
        if cls is None:
            cls = type(self.base.algo)  # composes it now, which says what there is
        if not in_rounds(cls):
            raise ConfigError(
                f"algo={find.name_of(cls)} is asynchronous, and only synchronous methods are checked here: try it in a "
                "virtual cluster, with decentral-run and cluster=even."
            )

    def carry_out(self, name: str) -> Found:
        """Return whether the algorithm has a property; an exception is a failure, in the words of its message."""
        supports, needed = self.base.algo.supports, _ASKED_OF.get(name)
        if needed not in (None, Feature.message_loss) and Feature.training not in supports:
            return Found(name, Verdict.not_asked, "it estimates a mean and does not train")
        if needed is not None and needed not in supports:
            return Found(name, Verdict.not_asked, f"supports is without Feature.{needed.name}")
        try:
            return Found(name, Verdict.passed, self.all[name]() or "")
        except NotAsked as reason:
            return Found(name, Verdict.not_asked, str(reason))
        except NotTested as reason:
            return Found(name, Verdict.not_tested, str(reason))
        except Violation as seen:
            return Found(name, Verdict.failed, str(seen))
        except Exception as error:
            return Found(name, Verdict.failed, f"{BREAKS_OFF}: {describe(error)}")

    @property
    def all(self) -> dict[str, Callable[[], str | None]]:
        """Return the properties and their checks, in this order."""
        n = self.base.num_workers
        return {
            "models are finite and start at the initial models": self._numbers,
            "runs are reproducible": self._deterministic,
            "1 = 2 processes": lambda: self._same(2),
            f"1 = {n} processes": lambda: self._same(n or 1),
            "bytes counted = bytes sent": self._bytes,
            "rows given to the network are not read again": self._given_away,
            _LOSSY: self._lossy,
            "a resumed run continues bit for bit": self._resumed,
            _MEAN: lambda: self._mean(self.base),
            _MEAN_ELSEWHERE: self._mean_elsewhere,
            _CONSENSUS: self._consensus,
            _SGD: self._sgd,
            _ALONE: self._alone,
            _OPTIMUM: self._optimum,
        }

    # -- configurations ------------------------------------------------------------------------------------------------

    @cached_property
    def base(self) -> Config:
        """Return the usual configuration: on the user's topology, or the first suitable one of several."""
        if self._chosen("topology"):
            return self._compose()
        refusals = []
        for topology, n in _NETS:
            workers = [] if self._chosen("num_workers") else [f"num_workers={n}"]
            try:
                return self._compose(f"topology={topology}", *workers)
            except ConfigError as error:
                refusals.append(error)
        raise refusals[0]

    def _compose(self, *settings: str) -> Config:
        """Compose a small problem with the user's settings, which take precedence."""
        return self._made([*self._problem(), *settings, *_QUIETLY, *self.overrides])

    def _elsewhere(self, *settings: str) -> Config:
        """Compose a configuration with settings that take precedence over the user's."""
        return self._made([*self._problem(), *_QUIETLY, *self.overrides, *settings])

    def _made(self, words: Sequence[str]) -> Config:
        """Compose words, of which the last one of each key counts; also where the component is an object."""
        words, made = _last_wins(words), dict(self.made)
        made = {
            group: value for group, value in made.items() if not any(word.startswith(f"{group}=") for word in words)
        }
        if "algo" in made:
            given = dict(word.removeprefix("algo.").split("=") for word in words if word.startswith("algo."))
            made["algo"] = replace(made["algo"], **{key: json.loads(value) for key, value in given.items()})
            words = [word for word in words if not word.startswith("algo.")]
        return compose(words, self.config_dir, made)

    def _as_rows(self, *settings: str) -> Config:
        """Compose the configuration without the user's compression: the method on rows is compared with SGD."""
        overrides = [word for word in self.overrides if not word.lstrip("+").startswith(("compress=", "compress."))]
        made = {group: value for group, value in self.made.items() if group != "compress"}
        return replace(self, overrides=overrides, made=made)._elsewhere(*settings)

    def _problem(self) -> list[str]:
        """Return the small problem for the algorithm, unless the user has chosen another task."""
        if self._chosen("task"):
            return []
        return list(
            _SAMPLES if self._algorithm is not None and Feature.training not in self._algorithm.supports else _SMALL
        )

    @property
    def _algorithm(self) -> Any:
        """Return the class of `algo=`; None if there is none."""
        if "algo" in self.made:
            return type(self.made["algo"])
        names = [word.partition("=")[2] for word in self.overrides if word.startswith("algo=")]
        return component("algorithms", names[-1])

    def _chosen(self, key: str) -> bool:
        return key in self.made or any(override.startswith(f"{key}=") for override in self.overrides)

    @cached_property
    def config(self) -> Config:
        """Return the base configuration, with as many steps as needed until something is sent."""
        return replace(self.base, steps=len(self.straight.iterates) - 1)

    @cached_property
    def straight(self) -> Walk:
        """Return the usual run, in one process."""
        for steps in _STEPS if self.base.steps is None else [self.base.steps]:
            usual = walk(replace(self.base, steps=steps), 1)
            if usual.messages_sent:
                break
        return usual

    @property
    def _slower(self) -> int:
        """Return the factor by which messages are rarer than one in each of the first steps; 1 without messages."""
        return max(1, (self.config.steps or 0) // _STEPS[0]) if self.straight.messages_sent else 1

    def _needs_messages(self) -> None:
        if not self.straight.messages_sent:
            raise NotTested(f"nothing is sent in {self.config.steps} steps")

    # -- checks --------------------------------------------------------------------------------------------------------

    def _numbers(self) -> None:
        _finite(self.straight)
        first = self.straight.iterates[0]
        if not (first == first[:1]).all():
            raise Violation("before the first step, the models are not the initial model: init should not change it.")

    def _deterministic(self) -> None:
        one, again = self.straight.iterates, walk(self.config, 1).iterates
        if not np.array_equal(one, again):
            raise Violation(
                f"two runs with the same seed differ by {np.abs(one - again).max():.2g}: randomness does not derive "
                "from the seed (decentral.randomness), or state persists between runs."
            )

    def _same(self, processes: int) -> None:
        properties.same(self.straight, self._with(processes), processes)

    def _with(self, processes: int) -> Walk:
        assert self.base.num_workers is not None
        if processes > self.base.num_workers:
            raise NotAsked(f"there are {self.base.num_workers} workers")
        self._needs_messages()
        return self._walk(self.config, processes)

    def _walk(self, config: Config, processes: int) -> Walk:
        inner = [type(value).__name__ for value in self.made.values() if type(value).__module__ == "__main__"]
        if inner:
            raise NotTested(f"other processes cannot import {inner[0]}: move it from the script to a module")
        return walk(config, processes)

    def _bytes(self) -> str:
        assert self.base.num_workers is not None
        if uncounted := {"gather", "average"} & self.straight.called:
            raise Violation(
                f"step calls net.{min(uncounted)}, which is for evaluation and not counted: use net.allgather for a "
                "few numbers, net.mix for rows or net.mean for their average (in init, net.gather may be used)."
            )
        several = self._with(self.base.num_workers)
        if "all_reduce" in several.called:
            raise NotAsked("it averages all workers at once, which counts as a ring all-reduce")
        if several.wire_bytes != several.bytes_sent:
            raise Violation(f"{several.bytes_sent} bytes were counted, and the processes sent {several.wire_bytes}.")
        return f"{several.bytes_sent / len(several.iterates[1:]) / self.base.num_workers:g} bytes per worker and step"

    def _given_away(self) -> None:
        self._needs_messages()
        properties.rows_are_given_away(self.config, self.config.steps or 0)

    def _lossy(self) -> None:
        self._needs_messages()
        losing = lambda share: replace(self.config, network=replace(self.config.network, drop_probability=share))  # noqa: E731
        one = walk(losing(0.3), 1)
        if np.array_equal(one.iterates, walk(losing(0.0), 1).iterates):
            raise NotTested("no message is ever lost: remove Feature.message_loss from supports")
        two = self._walk(losing(0.3), 2)
        _finite(one)
        properties.same(one, two, 2)

    def _resumed(self) -> None:
        with TemporaryDirectory(prefix="decentral-check-") as folder:
            straight, loaded = saved_and_loaded(self.config, (self.config.steps or 2) // 2, Path(folder))
        if not np.array_equal(straight, loaded):
            raise Violation(
                f"a resumed run ends {np.abs(straight - loaded).max():.2g} away from an uninterrupted one: some state "
                "between steps is not in State."
            )

    def _mean(self, config: Config) -> str:
        properties.mean_kept(config, self._slower)
        return f"topology={config.topology.name}"

    def _mean_elsewhere(self) -> str:
        for topology, n in _IRREGULAR:
            try:
                config = self._elsewhere(f"topology={topology}", f"num_workers={n}")
            except ConfigError:
                continue
            return self._mean(config)
        raise NotAsked("none of the topologies tried satisfies the algorithm's requirements")

    def _consensus(self) -> None:
        self._needs_messages()
        properties.consensus(self.base, self._slower)

    def _sgd(self) -> str:
        settings = as_sgd(type(self.base.algo))
        for topology, n in (("complete", 5), ("chain", 2)):  # on a tree, all are neighbors only if they are two
            try:
                config = self._as_rows(*settings, *_PLAIN_SGD, f"topology={topology}", f"num_workers={n}")
            except ConfigError:
                continue
            self._compare(config, f"on topology={topology}")
            return " ".join([f"topology={topology}", *settings])
        raise NotAsked("no such topology satisfies the algorithm's requirements")

    def _alone(self) -> str:
        settings = as_sgd(type(self.base.algo))
        alone = ("topology=chain", "num_workers=1", "task.zeta2=0")
        self._compare(self._as_rows(*settings, *_PLAIN_SGD, *alone), "with one worker")
        return " ".join(settings)

    def _compare(self, config: Config, where: str) -> None:
        assert config.num_workers is not None
        zeta2 = 0.0 if config.num_workers == 1 else 1.0
        rule = lambda parameters: torch.optim.SGD(parameters, lr=0.1)  # noqa: E731
        reference = properties.plain_sgd(config.num_workers, zeta2, config.steps or 0, rule)
        properties.as_sgd(walk(config, 1), reference, where)

    def _optimum(self) -> str:
        long = _LONG * self._slower
        base = replace(self.base, steps=long)
        same, different = (walk(replace(base, task=replace(base.task, zeta2=z, noise=0.0)), 1) for z in (0.0, 1.0))
        _finite(same)
        n, d = same.iterates.shape[1:]
        sgd = lambda parameters: torch.optim.SGD(parameters, lr=0.1)  # noqa: E731
        ends = [properties.plain_sgd(n, z, 4 * long, sgd, d)[-1] for z in (0.0, 1.0)]
        apart = [
            float(np.linalg.norm(w.iterates[-1] - e, axis=1).max())
            for w, e in zip((same, different), ends, strict=True)
        ]
        if not apart[0] <= 1e-3:
            raise Violation(
                f"where all workers have the same optimum, the worst is still {apart[0]:.2g} away from it after "
                f"{long} steps (at first 1)."
            )
        where = "at the optimum: exact" if apart[1] < 1e-6 else f"{apart[1]:.2g} away from it: biased"
        return f"where they differ, the worst worker ends {where}"


def _finite(walk: Walk) -> None:
    """Check that the models are finite."""
    wrong = ~np.isfinite(walk.iterates).all(axis=(1, 2))
    if wrong.any():
        raise Violation(f"after step {int(np.argmax(wrong))} a model is not finite.")


def _last_wins(words: Sequence[str]) -> list[str]:
    """Return each key once, with its last value."""
    known = {word.partition("=")[0]: word for word in words}
    return list(known.values())


def as_sgd(algorithm: Any) -> list[str]:
    """Return the settings with which the algorithm is plain SGD, the metadata `as_sgd` of its fields."""
    known = {field.name: field.metadata.get("as_sgd") for field in fields(algorithm)}
    return [f"algo.{key}={value:g}" for key, value in known.items() if value is not None]
