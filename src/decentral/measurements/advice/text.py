"""Advice as a person reads it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from decentral.measurements.advice.advise import CAUTION, Advice, mean_gradient_s
from decentral.terminal.text import aligned, in_bytes

if TYPE_CHECKING:
    from decentral.measurements.advice.advise import Row

_UNITS = ((1.0, "s"), (1e-3, "ms"), (0.0, "us"))


def text(advice: Advice) -> str:
    """What it is about, the ranked table, what is impossible, the verdict and the caution."""
    header = ["", "method", "time per step", "encoding in it", "sent per worker and step", "error of the prediction"]
    table = aligned([header, *(_cells(place, row) for place, row in enumerate(advice.rows, start=1))], left=2)
    impossible = [f"not possible: {title}: {why}" for title, why in advice.impossible.items()]
    parts = [
        *_about(advice),
        "",
        table,
        "",
        *impossible,
        advice.verdict,
        *([advice.doubt] if advice.doubt else []),
        CAUTION,
    ]
    return "\n".join(parts)


def _about(advice: Advice) -> list[str]:
    config, machine = advice.config, advice.machine
    facts = advice.facts()
    gradient = f"A gradient takes {_seconds(mean_gradient_s(config))}, {100 * advice.backward:.0f} % of it backwards"
    lines = [f"{facts['model']}: {facts['num_parameters']:,} parameters, {config.num_workers} workers"]
    if machine is None:
        lines.append(f"{gradient} (as cluster={advice.cluster} says; the share is assumed).")
        lines.append("Links as the cluster says; encoding and decoding measured on this machine.")
        return lines
    links = machine.links
    lines.append(f"{gradient} (measured, {machine.num_processes} processes).")
    lines.append(
        f"Links measured between {machine.num_processes} processes: latency {_seconds(links.latency_s)}, "
        f"{links.bandwidth_gbps:.3g} Gbit/s; their all-reduce is most like '{links.collective}'."
    )
    return lines


def _cells(place: int, row: Row) -> list[str]:
    found = row.prediction
    coding = _seconds(found.coding_s) if found.coding_s else "-"
    error = "not checked" if row.error is None else f"{100 * row.error:+.0f} %"
    return [str(place), row.method.title, _seconds(found.step_s), coding, in_bytes(found.bytes_per_step), error]


def _seconds(value: float) -> str:
    unit, name = next(one for one in _UNITS if value >= one[0])
    return f"{value / (unit or 1e-6):.3g} {name}"
