"""Fill in the README's numbers from runs: `python scripts/readme.py` (a few minutes; finished runs are not repeated).

The runs' configurations, final metrics and provenance are kept in results/readme/, of the first seed the curves, too;
the table of `make bench` comes from results/bench/, that of the studies' times from their study.json, the figure on
CIFAR-10 from its study.
`python scripts/readme.py bench`, `times`, `laptop` and `scoreboard` fill in those only, and run nothing; `churn` fills
in the table of docs/churn.md.
"""

from __future__ import annotations

import csv
import json
import re
import shutil
import subprocess
import sys
from collections import defaultdict
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from bench.page import load_all, markdown, number
from decentral.terminal.console import duration

ROOT = Path(__file__).resolve().parents[1]
KEPT = ROOT / "results" / "readme"
RUNS = {
    "relaysgd-dbt": "algo=relaysgd topology=dbt alpha=0.01",
    "dpsgd-ring": "algo=dpsgd topology=ring alpha=0.01",
    "relaysgd-dbt-nesterov": "algo=relaysgd topology=dbt alpha=0.01 optim=nesterov lr=0.05",
    "dpsgd-ring-nesterov": "algo=dpsgd topology=ring alpha=0.01 optim=nesterov lr=0.025",
    "allreduce-nesterov": "algo=allreduce alpha=0.01 optim=nesterov lr=0.05",
}
SEEDS = (0, 1, 2)
HEADLINES = (
    "DistributedDataParallel's step / D-PSGD's, narrow VGG-11, batch 32",
    "RelaySGD dbt throughput / all-reduce over gloo",
    "D-PSGD ring step / passes alone, narrow VGG-11, batch 32",
    "plain loop / execution=auto, cnn",
    "timeline of 400 steps of 1,024 workers",
    "RelaySum's Figure 2, paper scale",
)


def main() -> None:
    """Run, keep, fill in."""
    stored = {"bench": bench, "times": times, "laptop": laptop, "scoreboard": scoreboard}
    if sys.argv[1:] == ["churn"]:
        page = ROOT / "docs" / "churn.md"
        page.write_text(fill(page.read_text(), "churn", churn()))
        return
    if len(sys.argv) == 2 and sys.argv[1] in stored:
        name = sys.argv[1]
        (ROOT / "README.md").write_text(fill((ROOT / "README.md").read_text(), name, stored[name]()))
        return
    summaries = {name: carry_out(name, settings) for name, settings in RUNS.items()}
    for name, settings in RUNS.items():
        for seed in SEEDS[1:]:
            carry_out(f"{name}-seed{seed}", f"{settings} seed={seed}")
    readme = (ROOT / "README.md").read_text()
    readme = fill(
        readme, "summary", "```\n" + re.sub(r"\n+Results:.*", "", summaries["relaysgd-dbt"], flags=re.S) + "\n```"
    )
    readme = fill(readme, "results", results_table())
    for name, content in stored.items():
        readme = fill(readme, name, content())
    (ROOT / "README.md").write_text(readme)


def bench() -> str:
    """Some of the figures that are stored in results/bench/; the page there has all."""
    targets = [target for one in load_all(ROOT / "results" / "bench") for target in one["targets"]]
    shown = [next(one for one in targets if one["measure"].startswith(measure)) for measure in HEADLINES]
    return markdown([["measure", "found"], *([one["measure"], number(one["found"])] for one in shown)], right=1)


def times() -> str:
    """How long every study took that has results, by its study.json; a column for each scale."""
    scales, taken = ("small", "laptop", "paper"), defaultdict[str, dict[str, str]](dict)
    for file in sorted((ROOT / "results").glob("*/*/*/study.json")):
        facts = json.loads(file.read_text())
        if facts["scale"] in scales:
            told = f"{duration(facts['wall_s'])}, {facts['jobs']} job{'s' * (facts['jobs'] != 1)}"
            taken[facts["study"]][facts["scale"]] = told
    lines = [f"| study | {' | '.join(f'scale={scale}' for scale in scales)} |", "|---" * (1 + len(scales)) + "|"]
    rows = (f"| `{study}` | {' | '.join(told.get(scale, '') for scale in scales)} |" for study, told in taken.items())
    return "\n".join([*lines, *rows])


def laptop() -> str:
    """RelaySum's Figure 4 as it comes out on CIFAR-10: the figure, and the table of where the curves end."""
    directory = ROOT / "results" / "relaysum" / "relaysum_fig4" / "laptop"
    place = directory.relative_to(ROOT)
    rows = [line for line in (directory / "table.md").read_text().splitlines() if line.startswith("|")]
    notes = json.loads((directory / "study.json").read_text()).get("run_notes") or []
    picture = f"![Test accuracy of the worst worker over epochs]({place}/worst.png)"
    figure = f"[{picture}](results/relaysum/README.md#relaysum_fig4)"
    data = [f"{note[:1].upper()}{note[1:]}." for note in notes if note.startswith("the data are")]
    if any("*" in row.replace("**", "") for row in rows):
        data.append("\\*: the best rate lies at the edge of those that were tried.")
    return "\n\n".join([figure, "\n".join(rows), " ".join(data)])


def scoreboard() -> str:
    """The totals of results/README.md, and RelaySum's Table 1 as it comes out on digits."""
    totals = next(
        line for line in (ROOT / "results" / "README.md").read_text().splitlines() if " items were run" in line
    )
    table1 = (ROOT / "results" / "relaysum" / "relaysum_table1" / "small" / "table.md").read_text()
    rows = [line for line in table1.partition("<details>")[0].splitlines() if line.startswith("|")]
    caption = table1.splitlines()[0]
    return "\n".join([totals, "", f"`decentral-study relaysum_table1`, on digits: {caption}", "", *rows])


def churn() -> str:
    """What absent workers do to each method, from the studies churn_exactness and churn_digits."""

    def cells(study: str, form: str) -> dict[tuple[str, ...], str]:
        with (ROOT / "results" / "churn" / study / "small" / "table.csv").open(newline="") as file:
            rows = [row for row in csv.DictReader(file) if row["of"] == "value"]
        labels = ("method", "topology", "churn", "absent", "return")
        return {tuple(row[label] for label in labels): form.format(float(row["mean"])) for row in rows}

    exact, digits = cells("churn_exactness", "{:.0e}"), cells("churn_digits", "{:.1f}")
    rules = [("half", "rerouted", "average"), ("half", "induced", "stale"), ("half", "induced", "average")]
    lines = [
        "| method | topology | distance to the optimum: rerouted, average | induced, stale | induced, average "
        "| digits: all present | rerouted, average | induced, stale | induced, average |",
        "|---|---|" + "---:|" * 7,
    ]
    for method, topology in dict.fromkeys(key[:2] for key in [*digits, *exact]):
        found = [exact.get((method, topology, *rule), "") for rule in rules]
        found += [digits.get((method, topology, *rule), "") for rule in [("none", "", ""), *rules]]
        lines.append(f"| {method} | {topology} | " + " | ".join(found) + " |")
    return "\n".join(lines)


def carry_out(name: str, settings: str) -> str:
    """One run as a user would start it; returns the summary that it printed."""
    command = [sys.executable, "-m", "decentral", *settings.split(), "progress=false"]
    printed = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    directory = ROOT / re.search(r"^Results:\s+(\S+)$", printed, re.M)[1]  # type: ignore[index]
    kept = KEPT / name
    kept.mkdir(parents=True, exist_ok=True)
    for file in ("config.yaml", *(("learning_curves.png", "partition.csv") if name in RUNS else ())):
        shutil.copy(directory / file, kept / file)
    provenance = json.loads((directory / "provenance.json").read_text())
    write_json(kept / "provenance.json", {"command": f"decentral-run {settings}"} | public(provenance))
    status = json.loads((directory / "status.json").read_text())
    write_json(kept / "status.json", public(status))
    rows = [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()]
    last = [row for row in rows if row["step"] == status["step"]]
    (kept / "final_metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in last))
    return re.sub(r"^This run was done before.*\n", "", printed).strip()


def public(facts: dict[str, Any]) -> dict[str, Any]:
    """Without what is of no use elsewhere."""
    return {key: value for key, value in facts.items() if key not in ("directory", "host", "pid", "command_line")}


def write_json(path: Path, facts: dict[str, Any]) -> None:
    """Readable JSON."""
    path.write_text(json.dumps(facts, indent=1) + "\n")


def results_table() -> str:
    """Final test accuracy of the kept runs, mean and standard deviation over seeds: worst worker, mean of workers,
    averaged model."""
    lines = ["| `decentral-run` ... | worst worker | mean of workers | averaged model |", "|---|---|---|---|"]
    for name, settings in RUNS.items():
        runs = [last_accuracies(name if seed == SEEDS[0] else f"{name}-seed{seed}") for seed in SEEDS]
        cells = []
        for worker in ("worst", "mean", "averaged"):
            values = [100 * run[worker] for run in runs]
            cells.append(f"{mean(values):.1f} ± {stdev(values):.1f} %")
        lines.append(f"| `{settings}` | {' | '.join(cells)} |")
    return "\n".join(lines)


def last_accuracies(name: str) -> dict[Any, float]:
    """Test accuracy at the end of a kept run, by worker."""
    rows = [json.loads(line) for line in (KEPT / name / "final_metrics.jsonl").read_text().splitlines()]
    return {row["worker"]: row["value"] for row in rows if (row["split"], row["metric"]) == ("test", "accuracy")}


def fill(text: str, mark: str, content: str) -> str:
    """The text with what stands between <!-- mark --> and <!-- /mark --> replaced."""
    pattern = rf"(<!-- {mark} -->\n).*?(<!-- /{mark} -->)"
    assert re.search(pattern, text, re.S), f"README.md has no place for {mark}"
    return re.sub(pattern, lambda found: f"{found[1]}{content}\n{found[2]}", text, flags=re.S)


if __name__ == "__main__":
    main()
