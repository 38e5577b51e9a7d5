"""Methods in fixed scenarios: what each of them takes to the target."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from decentral.config.composition import compose_all
from decentral.config.schema import Config
from decentral.measurements.training_run import TrainingRun
from decentral.measurements.values import Meaning, Value
from decentral.study.benchmark import Method, Scenario, methods, scenarios
from decentral.study.kinds.comparison import Comparison, ComposedRun, TunedCell
from decentral.study.measure import Measured
from decentral.study.study import Cell, Study
from decentral.study.tuning.rule import Grid

METRICS = {
    "simulated_s": "simulated seconds to the target",
    "bytes_sent": "MB sent by a worker to the target",
    "step": "steps to the target",
}
"""Axis -> what is compared: where on it the target is reached."""


@dataclass
class BenchmarkCell(TunedCell):
    """The best rate is the one with which the target is reached first, in simulated time; of those with which it never
    is, the one with the best value at the end.

    All scenarios have the same metrics, whatever has to be reached in them.
    """

    method: str = ""
    """Its name in methods.yaml, or that of the algorithm."""

    def meanings(self) -> dict[str, Meaning]:
        """The earlier, the better."""
        return dict.fromkeys(METRICS.values(), Meaning(larger_is_better=False))

    def _good(self, result: Measured, job: TrainingRun) -> float:
        """From 0 to 2: above 1 if the target is reached, and the larger the earlier; below 1 if not, and the larger the
        better the last value is."""
        if math.isfinite(result.value):
            return 1 + 1 / (1 + result.value)
        last = replace(self.measure, to_reach=None, axis="step").of(job.directory).score
        return 0.5 + math.atan(last) / math.pi if math.isfinite(last) else 0.0

    def _value(self, job: TrainingRun, found: Measured, chosen: bool, at_edge: bool) -> Value:
        """With the name of the metric that all scenarios have; bytes in 10^6 of one worker, on average."""
        axis = found.label.partition(" ")[0]
        factor = 1e-6 / (job.config.num_workers or 1) if axis == "bytes_sent" else 1.0
        value = super()._value(job, found, chosen, at_edge)
        seen = {key: factor * getattr(value, key) for key in ("value", "worst", "mean", "averaged")}
        return value._replace(metric=METRICS[axis], **seen)


_MAIN = "simulated_s"
"""The axis by which rates are chosen, and what the study is about."""


@dataclass
class Benchmark(Study):
    """Every method in every scenario, with the same budget: so many rates on one seed, then several seeds.

    methods      names in conf/benchmark/methods.yaml, or of algorithms; null: all that have a line there
    scenarios    names in conf/benchmark/scenario/; those in one's own folder are added
    reduced      whether scenarios are cut to what they say under `smoke`

    The definition of a study holds the lines and files themselves, so that it is another one when they change.
    """

    name: str = "benchmark"
    methods: Any = None
    scenarios: list[Any] = field(default_factory=list)
    reduced: bool = False

    def __post_init__(self) -> None:
        self.methods = methods(self.methods)
        found = scenarios(self.scenarios)
        self.scenarios = [one.reduced for one in found] if self.reduced else found

    def decided_keys(self) -> set[str]:
        """Also the budget, and the learning rate, which is tuned."""
        return super().decided_keys() | {"steps", "lr"}

    def for_runs(self, override: str) -> str:
        """Without the name of the scenario that it is for."""
        first, _, rest = override.partition(".")
        return rest if first in {scenario.name for scenario in self.scenarios} else override

    def cells(self, overrides: Sequence[str], config_dir: str | None = None) -> list[Cell]:
        """Scenario by scenario. An override that begins with the name of a scenario is for that one only:
        cifar10.data.path=FOLDER."""
        pairs = [(scenario, method) for scenario in self.scenarios for method in self.methods]
        names = {scenario.name for scenario in self.scenarios}
        commands = [self._command(*pair, overrides, names) for pair in pairs]
        configs = compose_all(commands, config_dir)
        return [
            self._cell(*pair, ComposedRun(command, config, config_dir))
            for pair, command, config in zip(pairs, commands, configs, strict=True)
        ]

    def further_facts(self) -> dict[str, Any]:
        """What the scenarios are, for the page."""
        return {"scenarios": [told(one) for one in self.scenarios]}

    def _command(self, scenario: Scenario, method: Method, overrides: Sequence[str], names: set[str]) -> list[str]:
        base = [*self.base, *scenario.base]
        general = [word for word in overrides if word.partition(".")[0] not in names]
        local = [word.partition(".")[2] for word in overrides if word.partition(".")[0] == scenario.name]
        sgd = method.with_sgd if "optim=sgd" in base else []
        return ["save=none", *base, f"steps={scenario.steps}", *method.base, *sgd, *general, *local]

    def _cell(self, scenario: Scenario, method: Method, run: ComposedRun) -> BenchmarkCell:
        own = replace(scenario.target, axis=_MAIN)
        study = Comparison(
            tune_seeds=scenario.tune_seeds,
            seeds=scenario.seeds,
            retreat=False,
            measure=own,
            also=[replace(own, axis=axis) for axis in METRICS if axis != _MAIN],
        )
        return BenchmarkCell(
            labels={"scenario": scenario.name, "method": method.title, "topology": _topology(run.config)},
            final=run,
            tuning=run,
            rule=Grid(values=sorted(float(f"{rate * method.times:.6g}") for rate in scenario.rates)),
            study=study,
            measure=own,
            published="",
            method=method.name,
        )


def _topology(config: Config) -> str:
    return str(config.topology.name) if config.algo.uses_topology else ""


def told(scenario: Scenario) -> dict[str, Any]:
    """What a scenario is, as study.json has it."""
    percent = scenario.target.percent
    unit = " %" if percent or (percent is None and scenario.target.metric == "accuracy") else ""
    metric = f"{scenario.target.split} {scenario.target.metric.replace('_', ' ')}"
    return {
        "scenario": scenario.name,
        "title": scenario.title,
        "target": f"{metric} {scenario.target.to_reach:g}{unit}, {scenario.target.worker} of the workers",
        "because": scenario.because,
        "steps": scenario.steps,
        "rates": scenario.rates,
        "tune_seeds": scenario.tune_seeds,
        "seeds": scenario.seeds,
        "needs": scenario.needs,
    }


def rules(scenario: dict[str, Any]) -> dict[str, Any]:
    """What of it decides the numbers: all but its words."""
    return {key: value for key, value in scenario.items() if key not in ("title", "because", "needs")}
