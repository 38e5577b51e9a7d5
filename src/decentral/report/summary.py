"""The end of a run, and what a simulated timeline has found, as text."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from decentral.algorithms.features import USUAL, Feature
from decentral.config.schema import GROUPS, Config
from decentral.errors import ConfigError
from decentral.registry import component, plugins
from decentral.registry.signature import functions
from decentral.report.series import Curves, Worker, describe, read_config, read_curves
from decentral.store import RunStore
from decentral.store.files import read_json
from decentral.store.metrics import read_lines
from decentral.terminal.console import aligned, duration, in_bytes
from decentral.training.loggers.stored import FILE as LOGGED

_MISSING = "-"
_RATIOS_TOLD = 5
_TABLES = (
    ("privacy.csv", "Privacy: ", "epsilon of each pair of workers"),
    ("local_tests.csv", "Tests:   ", "each worker's test set, and its final metrics on it"),
)
_FIRST_STEPS = (
    ("decentral-run", "algo=dpsgd", "topology=ring", "another method and topology on the same data"),
    ("decentral-run", "-m", "algo=relaysgd,dpsgd", "seed=0,1", "a sweep; it ends with a table"),
    ("decentral-study", "relaysum_fig5", "scale=smoke", "a figure of a paper, in seconds"),
)
"""After a run without arguments: commands, each with the reason."""


def summary(run_dir: Path, curves: Curves | None = None, drawn: bool = False) -> str:
    """The final metrics as a table, what it cost, where everything is, and what to do next.

    `curves` are those of the run, if they have been read; `drawn` says that its figures are about to be drawn.
    """
    curves = curves or read_curves(run_dir)
    facts = RunStore.peek(run_dir) or {}
    blocks = [describe(run_dir)]
    if facts.get("reason") not in (None, "", facts.get("status")):
        blocks[0] += f" ({facts['reason']})"
    rows = [["metric", "worst", "mean", "averaged model", "best worker"]]
    for metric in curves.series:
        best = _best(curves, metric)
        head, *cells = _cells(curves, metric)
        rows.append([head, *cells, _MISSING if best is None else curves.metrics[metric].format(best, 4)])
        for group in sorted({str(who).rpartition(" ")[0] for who in curves.series[metric]} - {""}):
            rows.append([f"  {group} workers", *_cells(curves, metric, f"{group} ")[1:], _MISSING])
    blocks.append(aligned(rows) if curves.series else "No metrics were recorded.")
    lines = [f"Note:     {note}" for note in [*facts.get("notes", []), *facts.get("suspects", [])]]
    lines += _costs(curves, facts) if curves.rows else []
    blocks.append(
        "\n".join(
            [
                *lines,
                *_long_evaluation(run_dir, facts),
                *_rate(run_dir, facts),
                *_how(run_dir),
                *_places(run_dir, facts, drawn),
                f"Next:     {_next(run_dir, facts)}",
            ]
        )
    )
    return "\n\n".join(blocks)


def overview(run_dir: Path) -> list[str]:
    """Topology ('none' where the algorithm uses none), status, first metric, its final value for the worst worker,
    their mean and the averaged model, and the directory."""
    config = read_config(run_dir)
    algo, topology = ((config.get(key) or {}).get("name", "") for key in ("algo", "topology"))
    used = Feature.topology in getattr(component("algorithms", str(algo), trust=False), "supports", USUAL)
    head = [str(topology) if used else "none", str((RunStore.peek(run_dir) or {}).get("status", "not started"))]
    try:
        curves = read_curves(run_dir)
    except ConfigError:
        return [*head, "metrics are damaged", *[_MISSING] * 3, str(run_dir)]
    cells = _cells(curves, next(iter(curves.series))) if curves.series else [_MISSING] * 4
    return [*head, *cells, str(run_dir)]


def _cells(curves: Curves, key: tuple[str, str], group: str = "") -> list[str]:
    """A metric's name, and its final values: of the worst worker, their mean, and the averaged model; of a group
    ('honest ') alone."""
    lines, metric = curves.series[key], curves.metrics[key]
    workers: list[Worker] = [f"{group}{who}" for who in ("worst", "mean", "averaged")]
    values = [metric.format(curves.last(key, worker), 4) if worker in lines else _MISSING for worker in workers]
    return [metric.words, *values]


def _best(curves: Curves, metric: tuple[str, str]) -> float | None:
    """The final value of the best worker; None where no worst one is recorded."""
    values = [curves.last(metric, worker) for worker in curves.workers(*metric)]
    if not values or "worst" not in curves.series[metric]:
        return None
    return max(values) if curves.metrics[metric].larger_is_better else min(values)


def _costs(curves: Curves, facts: dict[str, Any]) -> list[str]:
    """Steps, time (with the share of each kind of work) and bytes: of the last evaluation, or of the checkpoint after
    which an interrupted run goes on."""
    workers = {row["worker"] for row in curves.rows if isinstance(row["worker"], int)}
    last = max(curves.rows, key=lambda row: row["step"])
    step, wall_s, sent = last["step"], max(row["wall_s"] for row in curves.rows), last["bytes_sent"]
    how_far = f"{step} ({last['epoch']:.4g} epochs)"
    if facts.get("status") == "interrupted" and facts.get("step", 0) > step:
        how_far = f"{facts['step']} (evaluated after {step})"
        wall_s, sent = facts.get("wall_s", wall_s), facts.get("bytes_sent", sent)  # unknown if it was killed meanwhile
    lines = [f"Steps:    {how_far} in {duration(wall_s)}"]
    if tokens := facts.get("tokens"):
        lines.append(f"Tokens:   {tokens:,}, {tokens / wall_s if wall_s else 0:,.0f} per second")
    parts = {name: float(value) for name, value in (facts.get("times_s") or {}).items()}
    total = sum(parts.values())
    if total > 0:
        words = ", ".join(f"{name} {100 * value / total:.0f} %" for name, value in parts.items())
        lines.append(f"Time:     {duration(total)} in all: {words}")
    each = in_bytes(sent / max(1, len(workers)))
    sums = [*simulated(facts, step), *_chosen(facts), f"Sent:     {each} by a worker, on average"]
    return [*lines, *_present(facts, sent), *sums]


def _present(facts: dict[str, Any], sent: int) -> list[str]:
    """Format the workers' attendance (`availability=`) and the cost of joining."""
    if (told := facts.get("availability")) is None:
        return []
    shares = told["attendance"]
    least, mean, most = (f"{100 * each:.0f}" for each in (min(shares), sum(shares) / len(shares), max(shares)))
    took_part = f"Absent:   workers took part in {mean} % of the {{}} ({least} to {most} %)"
    if "returns" in told:
        joined = f"{told['returns']} returns, which took {in_bytes(told['join_bytes'])}"
        joined += f" ({100 * told['join_bytes'] / sent:.1f} % of what was sent)" if sent else ""
        apart = f"those present were not connected in {100 * told['in_pieces']:.1f} % of the steps"
        return [f"{took_part.format('steps')}; {joined}; {apart}"]
    return [took_part.format("time")]


def _long_evaluation(run_dir: Path, facts: dict[str, Any]) -> list[str]:
    """Name the settings that shorten evaluations on test examples where these took most of a run's time."""
    times, config = facts.get("times_s") or {}, read_config(run_dir)
    took, total = times.get("evaluation", 0.0), sum(times.values())
    task = component("tasks", str((config.get("task") or {}).get("name")), trust=False)
    return [
        f"Note:     evaluations took {100 * took / (total or 1):.0f} % of the time: use evaluation.examples=200 for "
        "all but the last one, a larger evaluation.every_epochs, or a smaller test set (evaluation.part=test, "
        "data.test_tokens)"
    ] * (took >= max(10, total / 2) and "data" in getattr(task, "uses", ()))


def _rate(run_dir: Path, facts: dict[str, Any]) -> list[str]:
    """The learning rate of the last step, where a schedule decides it."""
    config = read_config(run_dir)
    if (factor := facts.get("lr_factor")) is None or not config:
        return []
    what = f"by schedule={config['schedule']['name']}"
    if config.get("lr_per_worker"):
        return [f"Rate:     that of each worker times {factor:.4g} in the last step ({what})"]
    return [f"Rate:     {config['lr'] * factor:.4g} in the last step (lr={config['lr']:g} times {factor:.4g}, {what})"]


_PARTS = {"compute": "computing", "wait": "waiting", "exchange": "exchange", "away": "away"}


def simulated(facts: dict[str, Any], steps: int) -> list[str]:
    """Format the simulated time of `steps` steps, what workers spent it on, and the age of what they had of each other,
    if these are known: in a virtual cluster and between processes.

    A step is a gradient of each worker, or where workers go on by themselves as many gradients as there are workers.
    """
    lines = []
    shares = facts.get("simulated_shares") or {}
    total = sum(float(mean) for mean, _, _ in shares.values())
    if steps and total > 0:
        words = []
        for part, (mean, least, most) in shares.items():
            told = f"{_PARTS.get(part, part)} {100 * mean / total:.0f} %"
            if part == "wait" and facts.get("waits_least") is not None:
                between = " to ".join(f"{100 * value / total:.0f}" for value in (least, most))
                told += f" ({between} %, worker {facts['waits_least']} the least)"
            words.append(told)
        seconds = float(facts["simulated_s"])
        lines.append(f"Simulated: {duration(seconds)}; per step {short(seconds / steps)}: {', '.join(words)}")
    if ages := staleness(facts):
        critical = _critical(facts)
        lines.append(f"Staleness: {staleness_words(ages)}{critical and f'; {critical}'}")
    return lines


def _chosen(facts: dict[str, Any]) -> list[str]:
    """Return the decisions during the run, with times: collectives, probed links, shares sent."""
    lines = []
    words = []
    for name, (times, seconds, *measured) in (facts.get("collectives") or {}).items():
        took = f"{short(measured[0])}, predicted {short(seconds)}" if measured else short(seconds)
        words.append(f"{name.replace('_', ' ')} {times} time{'s' * (times != 1)} ({took})")
    if words:
        lines.append(f"Chosen:   {', '.join(words)}")
    if found := facts.get("measured"):
        words = [
            f"{latency_ms:.3g} ms and {'any number of' if gbps is None else f'{gbps:.3g}'} Gbit/s from step {step}"
            for step, latency_ms, gbps in found
        ]
        lines.append(f"Measured: {_last(words)} (by {facts['probes']} probes)")
    if found := facts.get("ratios"):
        words = [f"{keep:.3g} from step {step}" for step, keep in found]
        lines.append(f"Sending:  {_last(words)} (explored {facts.get('explored')} times)")
    return lines


def _last(words: list[str]) -> str:
    """The last few of them; how many others there were is said."""
    others = len(words) - _RATIOS_TOLD
    return f"{others} others, " * (others > 0) + ", ".join(words[-_RATIOS_TOLD:])


def _critical(facts: dict[str, Any]) -> str:
    if not facts.get("critical"):
        return ""
    worker, times, of = facts["critical"]
    return f"worker {worker} was the last one most often, {times} of {of} times"


def staleness(facts: dict[str, Any]) -> dict[int, int]:
    """Age in versions -> how many contributions; {} where there are none."""
    return {int(age): times for age, times in (facts.get("staleness") or {}).items()}


def staleness_words(ages: dict[int, int]) -> str:
    """Format age in versions -> number of contributions: how many are fresh, and how old the others are."""
    number = sum(ages.values())
    mean = sum(age * times for age, times in ages.items()) / number
    fresh = f"{100 * ages.get(0, 0) / number:.0f} % of contributions fresh"
    return fresh if not mean else f"{fresh}, {mean:.2g} versions old on average, {max(ages)} at most"


def short(seconds: float) -> str:
    """A time of a step: '0.482 s', '3.1 ms', '25 us'."""
    for factor, unit in ((1, "s"), (1e3, "ms")):
        if seconds * factor >= 0.1 or not seconds:
            return f"{seconds * factor:.3g} {unit}"
    return f"{seconds * 1e6:.3g} us"


def _places(run_dir: Path, facts: dict[str, Any], drawn: bool) -> list[str]:
    lines = [f"Results:  {run_dir}"]
    opens = "; timeline.json beside it opens in ui.perfetto.dev"
    timed = (run_dir / "timeline.json").exists()
    for name, words, more, has_data in (
        ("learning_curves", "Curves:   ", "", True),
        ("timeline", "Timeline: ", opens, timed),
        ("staleness", "Ages:     ", "", bool(staleness(facts))),
    ):
        if (drawn and has_data) or (run_dir / f"{name}.png").exists():
            lines.append(f"{words}{run_dir / f'{name}.png'}{more}")
    lines += [f"{words} {run_dir / name}  ({what})" for name, words, what in _TABLES if (run_dir / name).exists()]
    places = (read_json(run_dir / LOGGED) or {}).get("places", {})
    lines += [f"Logged:   {place or f'logger={name}'}" for name, place in places.items()]
    if (run_dir / "models.safetensors").exists():
        call = load_call(run_dir, str(plugins.folder() or ""))
        lines.append(f"Models:   {run_dir / 'models.safetensors'}  (in Python: {call})")
    return lines


def load_call(run_dir: Path, config_dir: str | None, net: str = "net") -> str:
    """Return the call that loads a run in another process; `net` is the name of a model that a script has given."""
    config = read_config(run_dir)
    module, _, name = config["model"]["name"].partition(":")
    given = {"given": net, "__main__": name}.get(module, "")
    task = component("tasks", config["task"]["name"], trust=False)
    codes = functions(Config, config)
    for group in {"task", *getattr(task, "uses", ())} - {"partition", "model" if given else ""}:
        code = str(config[group].get("id", config[group]["name"]))  # gymnasium imports the module in an ID
        cls = None if ":" in code else component(GROUPS[group], config[group]["name"])
        codes += functions(cls, config[group]) if cls else [(group, code)]
    arguments = [json.dumps(str(run_dir), ensure_ascii=False)]
    arguments += [f"config_dir={json.dumps(config_dir, ensure_ascii=False)}"] if config_dir else []
    arguments += [f"model={given}"] if given else []
    arguments += ["trust=True"] if any(":" in code for _, code in codes) else []
    return f"decentral.load({', '.join(arguments)})"


def _how(run_dir: Path) -> list[str]:
    """Return the run's number of processes, transport, and execution of gradients."""
    facts = read_json(run_dir / "provenance.json") or {}
    if "processes" not in facts:
        return []
    number = facts["processes"]
    words = [f"{number} process{'es' if number != 1 else ''}"]
    words += [f"{key}={facts[key]}" for key in ("transport", "execution") if key in facts]
    usual = "results are the same up to rounding"
    matters = "the result depends on their pace" if facts.get("asynchronous") else usual
    lines = [f"How:      {', '.join(words)} ({matters})"]
    trained, total = facts.get("parameters", (0, 0))
    lines += [f"Model:    {trained:,} of {total:,} parameters are trained; only these are sent"] * (trained < total)
    if facts.get("asynchronous") and (read_config(run_dir).get("cluster") or {}).get("name", "none") != "none":
        lines.append("Cluster:  stragglers slept (counted as waiting); all other times are those of this machine")
    return lines


def _next(run_dir: Path, facts: dict[str, Any]) -> str:
    """The command that resumes the run if it is not finished, else the one that repeats it with another seed.

    A finished run without arguments has three others: they show what else there is.
    """
    arguments = list((read_json(run_dir / "provenance.json") or {}).get("command_line") or [])
    if len(arguments) == 1 and facts.get("status") == "done":
        return f"\n{' ' * 10}".join(f"{_command(*words)}  ({why})" for *words, why in _FIRST_STEPS)
    arguments = arguments[1:]
    why = "resumes from the newest checkpoint"
    if facts.get("status") in ("done", "diverged"):
        seed = read_config(run_dir).get("seed")
        arguments = [word for word in arguments if not word.startswith(("seed=", "run_dir=", "progress="))]
        if facts.get("suspects"):
            why = "with examples that are finite"
        elif facts.get("status") == "diverged":
            lr = min(read_config(run_dir).get("lr", Config.lr) / 4, Config.lr)  # a quarter of 1e6 is no better
            arguments = [*(word for word in arguments if not word.startswith("lr=")), f"lr={lr:g}"]
            why = "a smaller learning rate"
        else:
            arguments.append(f"seed={seed + 1 if isinstance(seed, int) else 1}")
            why = "another seed"
    return f"{_command('decentral-run', *arguments)}  ({why})"


def _command(name: str, *arguments: str) -> str:
    """Format a command as a shell finds it."""
    beside = Path(sys.executable).with_name(name)
    name = name if shutil.which(name) or not beside.exists() else str(beside)
    if name.startswith(f"{os.getcwd()}/"):
        name = os.path.relpath(name)
    return shlex.join([name, *arguments])


# -- simulate=timeline -------------------------------------------------------------------------------------------------


def timeline_table(timelines: Sequence[tuple[str, Path]]) -> str:
    """A line for each (title, directory): seconds, shares of the workers' time, and how much is fresh."""
    known = [(title, timeline_facts(directory)) for title, directory in timelines]
    parts = [part for part in _PARTS if any(part in facts["simulated_shares"] for _, facts in known)]
    words = (_PARTS[part] for part in parts)
    rows = [["run", "simulated", "per step", "steps per s", *words, "sent by a worker", "fresh"]]
    for title, facts in known:
        means = [facts["simulated_shares"].get(part, [0.0])[0] for part in parts]
        times = [duration(facts["simulated_s"]), short(facts["step_s"]), f"{1 / facts['step_s']:.3g}"]
        shares = [f"{100 * mean / sum(means):.1f} %" for mean in means]
        ages = staleness(facts)
        fresh = f"{100 * ages.get(0, 0) / sum(ages.values()):.0f} %" if ages else _MISSING
        rows.append([title, *times, *shares, in_bytes(facts["bytes_sent"] / facts["num_workers"]), fresh])
    return aligned(rows)


def timeline_text(directory: Path) -> str:
    """Format the results of a timeline, and where they are."""
    facts = timeline_facts(directory)
    head = f"{describe(directory)}\n{facts['steps']} steps, messages of {facts['num_parameters']:,} parameters"
    lines = [head, "", timeline_table([("", directory)]).replace("run", "   ", 1), ""]
    if ages := staleness(facts):
        lines.append(f"Staleness: {staleness_words(ages)}")
    if critical := _critical(facts):
        lines.append(f"Critical:  {critical}")
    lines.append(f"Results:   {directory}  (timeline.jsonl; of each worker: workers.csv)")
    lines.append(f"Timeline:  {directory / 'timeline.png'}; timeline.json beside it opens in ui.perfetto.dev")
    if (directory / "staleness.png").exists():
        lines.append(f"Ages:      {directory / 'staleness.png'}")
    return "\n".join(lines)


def timeline_facts(directory: Path) -> dict[str, Any]:
    """The line of a timeline that is done."""
    found: dict[str, Any] = read_lines(directory / "timeline.jsonl")[-1]
    return found
