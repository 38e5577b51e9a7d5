"""`decentral-run -m sweeper=optuna`: values that are searched for instead of listed.

Optuna is asked for values and told what came of them; the runs, their launcher and the table are those of any sweep.
"""

from __future__ import annotations

import hashlib
import importlib
import math
import re
from collections.abc import Callable, Mapping
from typing import Any

from decentral.config.composition import compose, compose_each
from decentral.config.schema import Config, Simulate
from decentral.errors import ConfigError
from decentral.host import machine
from decentral.host.torchrun import under_torchrun
from decentral.measurements.training_run import TrainingRun
from decentral.report.runs_table import FREE
from decentral.report.series import read_curves
from decentral.store import RunStore, Status
from decentral.store.files import at_home, make_folder


class Trials:
    """The runs of a search, as a source of jobs: it asks for the next values when there is room for a run.

    `axes` are the settings in order: 'lr' -> the interval, or 'algo,topology' -> 'algo=dpsgd topology=ring' -> those
    overrides. `make` makes a run of overrides. Optuna's study lies in results_dir/sweeps/<id>, so that an interrupted
    search goes on, and two commands share one; more `trials` go on from what there is.
    """

    def __init__(
        self,
        axes: Mapping[str, re.Match[str] | dict[str, list[str]]],
        make: Callable[[list[str], Config], TrainingRun],
        config_dir: str | None,
    ) -> None:
        machine.require("optuna", "sweeper=optuna", "pip install '.[optuna]', or list the values")
        self._optuna = importlib.import_module("optuna")
        self._axes, self._make, self._config_dir = axes, make, config_dir
        some = {name: axis[3] if isinstance(axis, re.Match) else next(iter(axis)) for name, axis in axes.items()}
        self.config = compose(self._words(some), config_dir)
        if under_torchrun() or self.config.simulate is not Simulate.training:
            raise ConfigError("sweeper=optuna needs a launcher and training: leave out torchrun and simulate=timeline.")
        self.runs: dict[int, TrainingRun] = {}
        """The runs by the numbers of their trials."""
        self.refused: list[str] = []
        searched = {name: axis for name, axis in axes.items() if isinstance(axis, re.Match) or len(axis) > 1}
        self._distributions = {name: self._distribution(axis) for name, axis in searched.items()}
        self._study = self._opened()
        self._open = [
            trial.number
            for trial in self._study.trials
            if trial.state.name in ("COMPLETE", "RUNNING") and self._begin(trial) and trial.state.name == "RUNNING"
        ]

    def pending(self) -> list[TrainingRun]:
        """Return the unfinished runs."""
        for number in list(self._open):
            if (status := self.runs[number].finished()) is not None:
                self._open.remove(number)
                self._study.tell(number, _cost(self.runs[number], status), skip_if_finished=True)
        slots = str(getattr(self.config.launcher, "slots", "auto"))
        room = int(slots) if slots.isdigit() else machine.num_cores()
        while len(self._study.trials) < self.config.trials and len(list(filter(_may_run, self._open_runs()))) < room:
            trial = self._study.ask(self._distributions)
            if self._begin(trial):
                self._open.append(trial.number)
        return self._open_runs()

    def left(self) -> int:
        """Return the number of trials that were not asked for."""
        return max(0, self.config.trials - len(self._study.trials))

    def best(self) -> str:
        """The best run, in words."""
        done = [trial for trial in self._study.trials if trial.number in self.runs and trial.value is not None]
        if not done:
            return "Best:     no trial has finished"
        run = self.runs[min(done, key=lambda trial: trial.value).number]
        return f"Best:     {run.title}  (of {len(done)} trials)  {run.directory}"

    def _open_runs(self) -> list[TrainingRun]:
        return [self.runs[number] for number in self._open]

    def _begin(self, trial: Any) -> bool:
        """Make the run of a trial; False if it is refused."""
        words = [word for word in self._words(trial.params) if not word.startswith(("sweeper=", "trials="))]
        (config,) = compose_each([words], self._config_dir)
        if isinstance(config, ConfigError):
            self.refused.append(f"{' '.join(words)}: {config}")
            self._study.tell(trial.number, state=self._optuna.trial.TrialState.FAIL, skip_if_finished=True)
            return False
        self.runs[trial.number] = self._make(words, config)
        return True

    def _words(self, values: Mapping[str, Any]) -> list[str]:
        """The overrides for the value of each axis; one that has a single value needs none."""
        words: list[str] = []
        for name, axis in self._axes.items():
            if isinstance(axis, re.Match):
                value = values[name]
                words.append(f"{name}={value:.6g}" if isinstance(value, float) else f"{name}={value}")
            else:
                words += axis[values.get(name, next(iter(axis)))]
        return words

    def _distribution(self, axis: re.Match[str] | dict[str, list[str]]) -> Any:
        known = self._optuna.distributions
        if isinstance(axis, dict):
            return known.CategoricalDistribution(list(axis))
        _, kind, low, high = axis.groups()
        try:
            ends = (int(low), int(high)) if kind == "int" else (float(low), float(high))
            made = known.IntDistribution(*ends) if kind == "int" else known.FloatDistribution(*ends, log=kind == "log")
        except ValueError as error:
            raise ConfigError(f"{axis[0]} is not an interval ({error}): write {axis[1]}={kind}(LOW,HIGH).") from None
        return made

    def _opened(self) -> Any:
        """The study, anew or as it was left."""
        names = (" ".join([axis[0]] if isinstance(axis, re.Match) else axis) for axis in self._axes.values())
        kept = sorted(name for name in names if re.split("[.=]", name)[0] not in FREE)
        name = hashlib.sha256("\n".join(kept).encode()).hexdigest()[:12]
        folder = at_home(self.config.results_dir) / "sweeps" / name
        make_folder(folder, above=2)
        self.file = folder / "optuna.journal"
        self._optuna.logging.set_verbosity(self._optuna.logging.WARNING)
        backend = importlib.import_module("optuna.storages.journal").JournalFileBackend(str(self.file))
        storage = self._optuna.storages.JournalStorage(backend)
        study = self._optuna.create_study(storage=storage, study_name=name, load_if_exists=True)
        seed = self.config.seed + len(study.trials)  # the same seed would draw the same values again
        study.sampler = self._optuna.samplers.TPESampler(seed=seed, constant_liar=True)
        return study


def _may_run(run: TrainingRun) -> bool:
    return (RunStore.peek(run.directory) or {}).get("status") != Status.failed


def _cost(run: TrainingRun, status: Status) -> float:
    """Return the value that the search minimizes: the worst worker's final value of the first metric, negated where
    larger is better."""
    curves = read_curves(run.directory)
    metric = next(iter(curves.series))
    value = curves.last(metric, "worst") * (-1 if curves.metrics[metric].larger_is_better else 1)
    return math.inf if status is Status.diverged or math.isnan(value) else value
