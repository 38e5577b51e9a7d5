"""Facts on a run, for its status and its metrics."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from decentral.algorithms.features import Feature
from decentral.gradients.precision import Precision
from decentral.lr_schedules.schedule import Constant
from decentral.store import Status, read_metrics
from decentral.store.files import csv_text, write_text
from decentral.topology.rounds import Need

if TYPE_CHECKING:
    from decentral.cluster.timeline import Lateness
    from decentral.training.assemble import Run


def notes_of(r: Run) -> list[str]:
    """Return notes for readers of the metrics."""
    notes, counts = [*r.problem.notes, *r.heard], r.num_examples
    if attackers := r.attackers:
        numbers = ", ".join(map(str, attackers))
        notes.append(f"attackers (attack={r.config.attack.name}): workers {numbers}")
    if (precision := r.config.evaluation.precision) is not Precision.fp32:
        notes.append(f"tests are in {precision.name} (evaluation.precision)")
    if (part := r.config.evaluation.part) != "all" and counts is not None:
        notes.append(f"tests are on the {part} half of the test examples, {counts[1]} of them (evaluation.part)")
    if (
        counts is not None
        and r.config.steps is None
        and r.total_steps < 200
        and (per_epoch := r.problem.steps_per_epoch) <= 2
    ):
        notes.append(
            f"an epoch has {per_epoch:.3g} step{'s' * (per_epoch != 1)}, because a step takes batch_size="
            f"{r.config.batch_size} examples of each worker: train longer by steps=200, or use a smaller batch_size"
        )
    warmup = getattr(r.config.schedule, "warmup_epochs", 0)
    if warmup > r.total_steps / r.problem.steps_per_epoch:
        notes.append(f"the warm-up of {warmup:g} epochs (schedule.warmup_epochs) is longer than the run")
    notes += r.config.availability.notes(r.config.num_workers)
    attendance = r.stepper.attendance
    if attendance is not None and Need.tree in r.algorithm.needs:
        notes.append("trees that messages are relayed over are not rerouted: edges with an absent end rest")
    if r.examples_on_the_way is not None and counts is not None:
        notes.append(f"evaluations before the last one are on {r.examples_on_the_way} of the {counts[1]} test examples")
    return notes


def final_facts(r: Run, status: Status, step: int, notes: Sequence[str]) -> dict[str, Any]:
    """Return the entries of the final status after `step` steps; with what time, bytes and waits it took, and `notes`
    besides those of the run."""
    stepper, config, stop_s = r.stepper, r.config, r.config.stop_after_simulated_s
    facts: dict[str, Any] = {
        "wall_s": r.times["steps"],
        "bytes_sent": stepper.traffic.bytes_sent,
        "messages_sent": stepper.traffic.messages_sent,
        "times_s": r.spent_s,
    }
    if (tokens := config.tokens_of(step)) is not None:
        facts["tokens"] = tokens
    if config.schedule != Constant() and Feature.training in r.algorithm.supports:
        rate = config.schedule.rates(r.problem.steps_per_epoch, r.total_steps)
        facts["lr_factor"] = rate(max(0, step - 1))
    if stepper.simulated_s is not None:
        facts |= {"simulated_s": stepper.simulated_s} | time_facts(stepper.accounts(), stepper.lateness())
    else:
        facts |= _late_facts(stepper.lateness())
    notes = [*notes_of(r), *notes]
    if status is Status.done and stop_s is not None and step < r.total_steps and not r.ended_early:
        notes.insert(0, f"stop_after_simulated_s={stop_s:g} ended the run after {step} of {r.total_steps} steps")
    if r.ended_early and r.patience is not None:
        notes.insert(0, r.patience.note(step, r.total_steps))
    notes += config.topology.on(config).notes() if Feature.topology in r.algorithm.supports else ()
    facts |= stepper.facts() | ({"notes": notes} if notes else {})
    if status is Status.diverged and (suspects := r.problem.suspects()):
        facts["suspects"] = list(suspects)
    return facts


def time_facts(accounts: Mapping[str, np.ndarray], lateness: Lateness | None) -> dict[str, Any]:
    """Return the status entries on simulated time, from the seconds of each worker [n].

    simulated_shares   for computing, waiting and exchange: the mean, minimum and maximum over workers, seconds
    waits_least        the worker that waited least, if they differ
    """
    shares = {part: [round(float(each), 6) for each in (s.mean(), s.min(), s.max())] for part, s in accounts.items()}
    facts: dict[str, Any] = {"simulated_shares": shares}
    _, least, most = shares["wait"]
    if least < most:
        facts["waits_least"] = int(accounts["wait"].argmin())
    return facts | _late_facts(lateness)


def chosen_rows(choices: dict[str, Any], place: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the decisions so far (`Stepper.facts`) as metrics of an evaluation: the count of each collective, their
    total seconds (between processes: predicted), the fraction of gathered top-k among gathered and summed, and the
    share of coordinates sent from now on."""
    carried = choices.get("collectives", {})
    found = {("collective", name): float(times) for name, (times, *_) in carried.items()}
    if carried:
        gathered, told = (carried.get(name, [0])[0] for name in ("allgather", "broadcast"))
        found["collective", "seconds"] = sum(seconds for _, seconds, *_ in carried.values())
        found["collective", "gathered"] = gathered / max(1, gathered + told)
    if choices.get("ratios"):
        found["message", "keep"] = choices["ratios"][-1][1]
    return [
        place | {"worker": "mean", "split": split, "metric": name, "value": float(value)}
        for (split, name), value in found.items()
    ]


def _late_facts(lateness: Lateness | None) -> dict[str, Any]:
    """Return the status entries on late contributions.

    staleness    age in versions -> number of contributions of this age; if there are any
    critical     [the worker most often waited for, how often, of how many times]; if there are any
    """
    facts: dict[str, Any] = {}
    if lateness is not None and lateness.ages:
        facts["staleness"] = {str(age): times for age, times in lateness.ages.items()}
    if lateness is not None and any(lateness.critical):
        most_often = max(lateness.critical)
        facts["critical"] = [lateness.critical.index(most_often), most_often, sum(lateness.critical)]
    return facts


def add_metrics(table: Path) -> None:
    """Add each worker's last metrics on its own test set to a table of the run with a row per worker."""
    rows = (row for row in read_metrics(table.parent) if row["split"] == "local")
    last = {(row["metric"], str(row["worker"])): row["value"] for row in sorted(rows, key=lambda row: row["step"])}
    names = dict.fromkeys(metric for metric, worker in last if worker.isdigit())
    head, *known = csv.reader(table.read_text().splitlines())
    found = ([*own, *(last.get((name, own[0])) for name in names)] for own in known)
    write_text(table, csv_text([*head, *names], found))
