"""The end of a run, as text."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import sys
from pathlib import Path
from typing import Any

from decentral.report.series import Curves, Worker, describe, read_config, read_curves, show
from decentral.store import RunStore

_MISSING = "-"


def summary(run_dir: Path) -> str:
    """The final metrics as a table, what it cost, where everything is, and what to do next."""
    curves = read_curves(run_dir)
    facts = RunStore.peek(run_dir) or {}
    blocks = [describe(run_dir)]
    if facts.get("reason"):
        blocks[0] += f" ({facts['reason']})"
    blocks.append(_table(curves) if curves.series else "No metrics were recorded.")
    notes = [f"Note:     {note}" for note in facts.get("notes", [])]
    blocks.append("\n".join([*notes, *_costs(curves), *_how(run_dir), *_places(run_dir), _next(run_dir, facts)]))
    return "\n\n".join(blocks)


def _table(curves: Curves) -> str:
    rows = [["metric", "worst", "mean", "averaged model", "best worker"]]
    for (split, metric), lines in curves.series.items():
        cells = [show(metric, lines[worker].last) if worker in lines else _MISSING for worker in _columns()]
        best = _best(curves, split, metric)
        rows.append([f"{split} {metric.replace('_', ' ')}", *cells, _MISSING if best is None else show(metric, best)])
    return aligned(rows)


def overview(run_dir: Path) -> list[str]:
    """Status, first metric, its final value for the worst worker, their mean and the averaged model, and the
    directory."""
    curves = read_curves(run_dir)
    status = str((RunStore.peek(run_dir) or {}).get("status", "unknown"))
    if not curves.series:
        return [status, *[_MISSING] * 4, str(run_dir)]
    (split, metric), lines = next(iter(curves.series.items()))
    cells = [show(metric, lines[worker].last) if worker in lines else _MISSING for worker in _columns()]
    return [status, f"{split} {metric.replace('_', ' ')}", *cells, str(run_dir)]


def aligned(rows: list[list[str]], left: int = 1) -> str:
    """A table as plain text: a header, a rule, and rows; the first `left` columns to the left, the others to the
    right."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = []
    for row in rows:
        places = enumerate(zip(row, widths, strict=True))
        cells = [cell.ljust(width) if place < left else cell.rjust(width) for place, (cell, width) in places]
        lines.append("  ".join(cells).rstrip())
    lines.insert(1, "  ".join("-" * width for width in widths))
    return "\n".join(lines)


def _columns() -> tuple[Worker, ...]:
    return "worst", "mean", "averaged"


def _best(curves: Curves, split: str, metric: str) -> float | None:
    """The final value of the best worker: the far end from the worst."""
    lines = curves.series[split, metric]
    values = [lines[worker].last for worker in curves.workers(split, metric)]
    if not values or "worst" not in lines:
        return None
    worst = lines["worst"].last
    return max(values) if worst <= min(values) else min(values)


def _costs(curves: Curves) -> list[str]:
    if not curves.rows:
        return []
    workers = {row["worker"] for row in curves.rows if isinstance(row["worker"], int)}
    last = max(curves.rows, key=lambda row: row["step"])
    time = duration(max(row["wall_s"] for row in curves.rows))
    return [
        f"Steps:    {last['step']} ({last['epoch']:.4g} epochs) in {time}",
        f"Sent:     {_bytes(last['bytes_sent'] / max(1, len(workers)))} by a worker, on average",
    ]


def _places(run_dir: Path) -> list[str]:
    lines = [f"Results:  {run_dir}"]
    if (run_dir / "learning_curves.png").exists():
        lines.append(f"Curves:   {run_dir / 'learning_curves.png'}")
    return lines


def _how(run_dir: Path) -> list[str]:
    """In how many processes the run was carried out, what carried its rows, and how gradients were computed."""
    facts = _provenance(run_dir)
    if "processes" not in facts:
        return []
    number = facts["processes"]
    words = [f"{number} process{'es' if number != 1 else ''}"]
    words += [f"{key}={facts[key]}" for key in ("transport", "execution") if key in facts]
    usual = "makes no difference to the result but rounding"
    matters = "the result depends on their pace" if facts.get("asynchronous") else usual
    return [f"How:      {', '.join(words)} ({matters})"]


def _provenance(run_dir: Path) -> dict[str, Any]:
    try:
        return dict(json.loads((run_dir / "provenance.json").read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return {}


def _next(run_dir: Path, facts: dict[str, Any]) -> str:
    """The command that resumes the run if it is not finished, else the one that repeats it with another seed."""
    arguments = list(_provenance(run_dir).get("command_line") or [])[1:]
    if facts.get("status") in ("done", "diverged"):
        seed = read_config(run_dir).get("seed")
        kept = [word for word in arguments if not word.startswith(("seed=", "run_dir=", "progress="))]
        if facts.get("status") == "diverged":
            lr = read_config(run_dir).get("lr", 0.1)
            kept = [word for word in kept if not word.startswith("lr=")]
            return f"Next:     {_command([*kept, f'lr={lr / 4:g}'])}  (a smaller learning rate)"
        return f"Next:     {_command([*kept, f'seed={seed + 1 if isinstance(seed, int) else 1}'])}  (another seed)"
    return f"Next:     {_command(arguments)}  (goes on from the newest checkpoint)"


def _command(arguments: list[str]) -> str:
    beside = Path(sys.executable).with_name("decentral-run")
    name = "decentral-run" if shutil.which("decentral-run") or not beside.exists() else str(beside)
    if name.startswith(f"{os.getcwd()}/"):
        name = os.path.relpath(name)
    return shlex.join([name, *arguments])


def duration(seconds: float) -> str:
    """A time as a person reads it: '9.7 s', '3 min 20 s', '1 h 5 min'."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s"


def _bytes(count: float) -> str:
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.4g} {unit}"
        count /= 1000
    return f"{count:.4g} TB"
