"""`decentral-run -m target='test accuracy:90' tune=lr`: which method reaches a target first on a cluster.

Every combination is a row of a study: all get the same budget of simulated time, a search for the tuned setting, and
the same seeds.
"""

from __future__ import annotations

import hashlib
import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import chain, product
from typing import TYPE_CHECKING, Any

from decentral.algorithms.features import Feature
from decentral.cli import study as studies
from decentral.cli.command import as_options
from decentral.cli.sweep import axes_of, exit_status, names_in, report_refusals
from decentral.cluster.cluster import VirtualCluster
from decentral.cluster.links import CollectiveName
from decentral.config.checks import has_clock
from decentral.config.composition import compose_each, fitting
from decentral.config.overrides import checked, in_its_unit
from decentral.config.parsing import convert, folders_of
from decentral.config.prepared import prepare
from decentral.config.schema import Config
from decentral.errors import ConfigError, suggest
from decentral.host.torchrun import under_torchrun
from decentral.report.runs_table import Layout
from decentral.store.files import at_home, make_folder
from decentral.study import catalogue
from decentral.study.kinds.comparison import is_number, value_of
from decentral.study.study import SWEEPS, Unfinished
from decentral.terminal.console import REFUSED, say

if TYPE_CHECKING:
    from decentral.training.timing import Timed

KEYS = ("target", "tune", "budget")
_SEEDS = [1, 2, 3]
_MEASURED_STEPS, _EVALUATIONS = 256, 40
_FEW_PERIODS = 5
_MOST_PARAMETERS = 10**8
_NOT_TUNED = ("seed", "steps", "epochs", "num_workers")


Target = tuple[str, str, float]
"""Split and name of a metric, and its value in the displayed unit."""


def compare(
    overrides: Sequence[str],
    config_dir: str | None,
    save_study: str | None = None,
    table: Mapping[str, Any] | None = None,
) -> int:
    """Carry out the comparison, or what is left of it, and print its table; return the exit status."""
    if under_torchrun():
        raise ConfigError("target= starts many runs by a launcher: leave out torchrun.")
    words, given = list(overrides), {}
    for key in KEYS:
        given[key], words = catalogue.reserved(words, key)
    target, tune, seconds = _asked(given)
    shown = {"x": "seconds", **(table or {})}
    if other := next((name for name in shown if name not in ("x", "log", "name")), ""):
        raise ConfigError(
            f"--{other} does not apply to target=, whose table has a row per method: use --x, --log or --name."
        )
    Layout(rows=[], **shown)  # refuses wrong values
    words = checked(words, folders_of(config_dir), several=True)
    axes = axes_of(words, config_dir)
    seeds = [
        convert(int, one[0].partition("=")[2], "seed")
        for axis in axes
        if axis[0][0].startswith("seed=")
        for one in axis
    ]
    axes = [axis for axis in axes if not axis[0][0].startswith("seed=")]
    varied = {word.partition("=")[0] for axis in axes if len(axis) > 1 for word in axis[0]}
    varying = [axis for axis in axes if len(axis) > 1 or axis[0][0].partition("=")[0].partition(".")[0] in varied]
    fixed = list(chain.from_iterable(axis[0] for axis in axes if axis not in varying))
    here = [word for word in fixed if word.partition("=")[0].partition(".")[0] in studies.HERE_ONLY]
    common = [word for word in fixed if word not in here]
    combinations = fitting([list(chain.from_iterable(combination)) for combination in product(*varying)], config_dir)
    configs = compose_each([[*fixed, *own] for own in combinations], config_dir)
    if tune and any(word.startswith(f"{tune}=") for word in chain.from_iterable(combinations)):
        raise ConfigError(f"tune={tune} searches its value: leave out the list of {tune}=.")
    rows, budget, notes = _rows(combinations, configs, common, seconds)
    refused = [REFUSED] * (len(configs) - len(rows))
    if not rows:
        return exit_status(refused)
    known = [config for config in configs if isinstance(config, Config)]
    unit = _unit(known[0], target)
    if tune and (tune in _NOT_TUNED or not any(is_number(value_of(one, tune)) for one in known)):
        raise ConfigError(
            f"tune={tune} is not a number that these methods have: use one setting, lr or such as algo.gamma, "
            "and list values of others, as in algo.period_steps=4,16."
        )
    origin = "" if seconds else f", the time of {rows[0]['method']}; budget= sets another"
    say(f"Budget:   {budget:.4g} simulated seconds for each method{origin}")
    definition = _definition(target, tune, unit, rows, common, seeds or _SEEDS, budget)
    definition["report"]["figures"][0] |= {"x": shown["x"], "logy": shown.get("log")}
    definition["report"] |= {"notes": notes} if notes else {}
    if save_study:
        catalogue.save_study(save_study, config_dir, definition)
    options = {"config-dir": config_dir, **(table or {}), "save-study": save_study}
    again = shlex.join(["decentral-run", "-m", *overrides, *as_options(options)])
    return max(_carry_out(definition, here, again, config_dir, shown.get("name", "")), exit_status(refused))


def _asked(given: dict[str, str | None]) -> tuple[Target, str, float | None]:
    """Return the target, the setting to tune ('' for none) and the simulated seconds of each run (None: what the first
    combination takes). Raises ConfigError."""
    target, budget = given["target"], given["budget"]
    if target is None:
        raise ConfigError("tune= and budget= need target=, such as target='test accuracy:90'.")
    name, _, value = target.rpartition(":")
    try:
        split, *words = name.split() if " " in name.strip() else ("test", name)
        wanted = split, "_".join(words), float(value.strip().removesuffix("%"))
        if not name.strip():
            raise ValueError
    except ValueError:
        raise ConfigError(f"target={target} is not a metric and a value: write target='test accuracy:90'.") from None
    try:
        seconds = None if budget is None else float(in_its_unit(f"budget_s={budget}").partition("=")[2])
    except ValueError:
        seconds = 0.0
    if seconds is not None and not seconds > 0:
        raise ConfigError(
            f"budget={budget} is not a time: give simulated seconds > 0, such as budget=60 or budget=2min."
        )
    return wanted, given["tune"] or "", seconds


def _rows(
    combinations: Sequence[list[str]], configs: Sequence[Config | ConfigError], common: list[str], budget: float | None
) -> tuple[list[dict[str, Any]], float, list[str]]:
    """Return a row for each combination that is possible, with as many steps as fit into the budget; the budget; and
    notes on settings that decide the comparison."""
    rows: list[dict[str, Any]] = []
    notes: list[str] = []
    refusals: dict[str, list[list[str]]] = {}
    names = names_in(config for config in configs if isinstance(config, Config))
    for own, config in zip(combinations, configs, strict=True):
        try:
            if isinstance(config, ConfigError):
                raise config
            _check(config)
            if budget is None:
                budget = _seconds(config, config.steps or max(1, round(config.epochs * _steps_per_epoch(config))))
            steps = max(1, int(budget / _seconds(config, _MEASURED_STEPS) * _MEASURED_STEPS))
            notes += _notes(config, steps)
        except ConfigError as error:
            refusals.setdefault(str(error), []).append(own)
            continue
        base = [*own, f"steps={steps}"]
        if not any(word.startswith("evaluation.every_epochs=") for word in [*common, *own]):
            base.append(f"evaluation.every_epochs={steps / _EVALUATIONS / _steps_per_epoch(config):.4g}")
        rows.append({**_named(own, config, names), "base": base})
    report_refusals(refusals, len(configs))
    return rows, budget or 0.0, list(dict.fromkeys(notes))


def _notes(config: Config, steps: int) -> list[str]:
    """Return notes on a period that is long for the number of steps, and on a collective that is not the fastest."""
    found, algo, first = [], config.algo, _timed(config, min(steps, _MEASURED_STEPS))
    period = getattr(algo, "period_steps", 0)
    if period and steps // period < _FEW_PERIODS:
        shorter = ",".join(dict.fromkeys(str(max(1, period // part)) for part in (10, 5, 1)))
        number = steps // period
        found.append(
            f"{algo.name} communicates {number} time{'s' * (number != 1)} within the budget "
            f"(algo.period_steps={period}): try algo.period_steps={shorter}."
        )
    elif steps <= _MEASURED_STEPS and not first.bytes_sent:
        found.append(f"{algo.name} sends nothing in {steps} steps: raise budget=.")
    cluster: Any = config.cluster
    links = getattr(cluster, "links", None)
    if links is not None and links.collective.name in first.collectives:
        chosen = replace(links, collective=CollectiveName.auto)
        auto = _timed(replace(config, cluster=replace(cluster, links=chosen)), min(steps, _MEASURED_STEPS))
        if auto.simulated_s < first.simulated_s:
            known = [each.name for each in chosen.collective.candidates if each.name in auto.collectives]
            name = max(known, key=lambda each: auto.collectives[each][0])
            before, after = (
                spent / count for count, spent in (first.collectives[links.collective.name], auto.collectives[name])
            )
            found.append(
                f"an all-reduce takes {before:.3g} s by {links.collective.name}, but {after:.3g} s by {name}: try "
                "cluster.links.collective=auto."
            )
    return found


def _check(config: Config) -> None:
    """Raise ConfigError for a run without simulated time."""
    if not has_clock(config) or not isinstance(config.cluster, VirtualCluster):
        raise ConfigError(
            "target= compares methods by simulated time, which needs a cluster: choose one, such as "
            "cluster=slow_network, and set its cluster.links.latency_s, cluster.links.bandwidth_gbps and "
            "cluster.compute.mean_s."
        )


def _unit(config: Config, target: Target) -> str:
    """Return the unit of the metric. Raises ConfigError if a run does not measure it; runs with large models are not
    opened for that."""
    import torch

    from decentral.network.world import World
    from decentral.training.assemble import assemble

    assert config.num_workers is not None
    if config.num_workers * config.task.num_parameters(config) > _MOST_PARAMETERS:
        return ""
    split, metric, value = target
    with torch.no_grad():
        run = assemble(prepare(config), World(0, 1, torch.device("cpu")))
    metrics = {each.words: each for each in run.problem.metrics}
    run.close()
    words = f"{split} {metric.replace('_', ' ')}"
    if words not in metrics:
        raise ConfigError(f"target={words}:{value:g} is not measured.{suggest(words, metrics)}")
    if metrics[words].percent and not 0 < value <= 100:
        raise ConfigError(f"target={words}:{value:g} is out of range: give percent, such as target='{words}:90'.")
    return f" {metrics[words].unit}".rstrip()


def _steps_per_epoch(config: Config) -> float:
    assert config.num_workers is not None
    examples, _ = config.task.num_examples(config) or (0, 0)
    return examples / (config.num_workers * config.batch_size * config.accumulate) if examples else 1.0


def _seconds(config: Config, steps: int) -> float:
    """Return the simulated seconds of these steps, extrapolated from the first 256."""
    few = min(steps, _MEASURED_STEPS)
    return _timed(config, few).simulated_s * steps / few


def _timed(config: Config, steps: int) -> Timed:
    from decentral.training.timing import timed

    assert isinstance(config.cluster, VirtualCluster)
    return timed(prepare(config), steps, config.cluster.num_parameters or config.task.num_parameters(config))


def _named(own: Sequence[str], config: Config, names: Mapping[str, str]) -> dict[str, str]:
    """Return the labels of a row: its algorithm with the other settings that vary, and its topology. `names` replace
    names of components."""
    settings = dict(word.lstrip("+").split("=", 1) for word in own)
    further = [
        f"{key}={value}" for key, value in settings.items() if key not in ("algo", "topology") and value != "null"
    ]
    method, topology = (names.get(one.name, one.name) for one in (config.algo, config.topology))
    topology = topology if Feature.topology in config.algo.supports else ""
    return {"method": ", ".join([method, *further]), "topology": topology}


def _definition(
    target: Target, tune: str, unit: str, rows: list[Any], common: list[str], seeds: list[int], budget: float
) -> dict[str, Any]:
    """Return the comparison as the keys of a study."""
    split, metric, value = target
    measure = {"split": split, "metric": metric, "worker": "averaged"}
    reach = {**measure, "to_reach": value}
    figure = {
        "name": "curves",
        "kind": "curves",
        "worker": "averaged",
        "lines": ["method", "topology"],
        "target": value,
    }
    told = f"{split} {metric.replace('_', ' ')} {value:g}{unit}"
    listing = {"name": "to_target", "kind": "to_target", "budget_s": budget, "tuned": tune}
    return {
        "kind": "comparison",
        "title": f"Simulated time to {told}",
        "paper": SWEEPS,
        "item": f"{budget:.4g} simulated seconds for each method, averaged model",
        "base": common,
        "rows": rows,
        "tune": {"rule": "powers_of_two", "key": tune, "nearest": True} if tune else {"rule": "fixed"},
        "tune_seeds": seeds[:1],
        "seeds": seeds,
        "measure": {**reach, "axis": "simulated_s"},
        "also": [{**reach, "axis": "bytes_sent"}, {**reach, "axis": "step"}, measure],
        "curves": ["averaged"],
        "report": {
            "figures": [{**figure, "spread": "std"}],
            "listings": [{**listing, "title": f"Methods by their time to {told}"}],
        },
    }


def _carry_out(definition: dict[str, Any], here: Sequence[str], again: str, config_dir: str | None, name: str) -> int:
    study = catalogue.study_from("of target=", definition)
    results = at_home(next((word.partition("=")[2] for word in here if word.startswith("results_dir=")), "results"))
    name = name or "to_target_" + hashlib.sha256(json.dumps(definition, sort_keys=True).encode()).hexdigest()[:8]
    chosen = studies.ChosenStudy(name, "", study, list(here), [], results, results / "tables" / name, again, config_dir)
    cells = studies.checked_cells(chosen)
    make_folder(results / "tables", above=1)
    return studies.carry_out(chosen, Unfinished(cells), cells, lambda made: f"\n{made.summary()}")
