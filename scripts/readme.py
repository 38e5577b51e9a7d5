"""Fill in the numbers of the README and of docs/: `python scripts/readme.py` (a few minutes; resumable).

results/readme/ keeps the runs' configurations, final metrics and provenance, and the curves of the first seed.
`python scripts/readme.py laptop`, `score`, `table1` and `churn` fill in those only, and run nothing.
"""

from __future__ import annotations

import csv
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from statistics import mean, stdev
from typing import Any

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
PLACES = {
    "summary": "README.md",
    "score": "README.md",
    "laptop": "README.md",
    "results": "docs/index.md",
    "table1": "docs/papers.md",
    "churn": "docs/churn.md",
}
"""Mark -> the page that has it."""


def main() -> None:
    """Run, keep, fill in."""
    stored = {"laptop": laptop, "score": score, "table1": table1, "churn": churn}
    if len(sys.argv) == 2 and sys.argv[1] in stored:
        fill(sys.argv[1], stored[sys.argv[1]]())
        return
    summaries = {name: carry_out(name, settings) for name, settings in RUNS.items()}
    for name, settings in RUNS.items():
        for seed in SEEDS[1:]:
            carry_out(f"{name}-seed{seed}", f"{settings} seed={seed}")
    shown = re.sub(r"\n+How:.*", "", summaries["relaysgd-dbt"], flags=re.S)
    fill("summary", f"```\n{shown}\n```")
    fill("results", results_table())
    for mark, content in stored.items():
        fill(mark, content())


def laptop() -> str:
    """RelaySum's Figure 4 on CIFAR-10: the table of where the curves end."""
    directory = ROOT / "results" / "relaysum" / "relaysum_fig4" / "laptop"
    rows = [line for line in (directory / "table.md").read_text().splitlines() if line.startswith("|")]
    notes = json.loads((directory / "study.json").read_text()).get("run_notes") or []
    data = [f"{note[:1].upper()}{note[1:]}." for note in notes if note.startswith("the data are")]
    if any("*" in row.replace("**", "") for row in rows):
        data.append("\\*: the best rate is at the edge of the grid.")
    return "\n\n".join(["\n".join(rows), " ".join(data)])


def score() -> str:
    """The scores of the five papers together, the last row but one of the table at the top of results/README.md."""
    lines = (ROOT / "results" / "README.md").read_text().partition("\n## ")[0].splitlines()
    rows = [line for line in lines if line.startswith("|")]
    return "\n".join([*rows[:2], rows[-2]])


def table1() -> str:
    """RelaySum's Table 1 as it comes out on digits."""
    page = (ROOT / "results" / "relaysum" / "relaysum_table1" / "small" / "table.md").read_text()
    rows = [line for line in page.partition("<details>")[0].splitlines() if line.startswith("|")]
    return "\n".join([f"`decentral-study relaysum_table1`, on digits: {page.splitlines()[0]}", "", *rows])


def churn() -> str:
    """What absent workers do to each method, from the studies churn_exactness and churn_digits."""

    def cells(study: str, form: str) -> dict[tuple[str, ...], str]:
        with (ROOT / "results" / "churn" / study / "small" / "table.csv").open(newline="") as file:
            rows = [row for row in csv.DictReader(file) if row["of"] == "value"]
        labels = ("method", "topology", "churn", "absent", "return")
        return {tuple(row[label] for label in labels): form.format(float(row["mean"])) for row in rows}

    exact, digits = cells("churn_exactness", "{:.0e}"), cells("churn_digits", "{:.1f}")
    rules = [("none", "", ""), ("half", "rerouted", "average"), ("half", "induced", "average")]
    head = [f"{what}: {rule}" for what in ("distance", "digits") for rule in ("all present", "rerouted", "induced")]
    lines = [f"| method | topology | {' | '.join(head)} |", "|---|---|" + "---:|" * len(head)]
    for method, topology in dict.fromkeys(key[:2] for key in [*exact, *digits]):
        found = [of.get((method, topology, *rule), "-") for of in (exact, digits) for rule in rules]
        lines.append(f"| {method} | {topology or '-'} | {' | '.join(found)} |")
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
    return re.sub(r"^This run was already finished.*\n", "", printed).strip()


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


def fill(mark: str, content: str) -> None:
    """Replace what stands between <!-- mark --> and <!-- /mark --> on its page."""
    page = ROOT / PLACES[mark]
    pattern = rf"(<!-- {mark} -->\n).*?(<!-- /{mark} -->)"
    text, found = re.subn(pattern, lambda old: f"{old[1]}{content}\n{old[2]}", page.read_text(), flags=re.S)
    assert found == 1, f"{PLACES[mark]} has no place for {mark}"
    page.write_text(text)


if __name__ == "__main__":
    main()
