"""What benchmarks have found, as files: `<folder>/<name>.json`, one for each."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from decentral.benchmarks.harness.benchmark import Benchmark, Effort, Findings, Table, Target
from decentral.store.files import read_json, write_json

_PRIVATE = ("directory", "host", "command_line")


@dataclass(frozen=True)
class Stored:
    """The findings of one benchmark, and where they come from."""

    name: str
    title: str
    findings: Findings
    provenance: dict[str, Any]


def measured(benchmark: Benchmark, effort: Effort, wall_s: float, findings: Findings) -> Stored:
    """Findings that were made just now, by this code on this machine."""
    from decentral.host.devices import num_gpus
    from decentral.store.provenance import collect

    devices = [f"cuda:{number}" for number in range(num_gpus())] or ["cpu"]
    facts = {key: value for key, value in collect(devices, 1).items() if key not in _PRIVATE}
    facts |= {"wall_s": round(wall_s, 1), "rounds": effort.rounds, "quick": effort.quick}
    return Stored(benchmark.name, benchmark.title, findings, facts)


def save(found: Stored, folder: Path) -> Path:
    """Write `<folder>/<name>.json`, atomically; returns its path."""
    folder.mkdir(parents=True, exist_ok=True)
    targets = [asdict(target) | {"met": bool(target.met)} for target in found.findings.targets]
    record = {"name": found.name, "title": found.title, "targets": targets}
    record |= {"tables": [asdict(table) for table in found.findings.tables], "notes": found.findings.notes}
    path = folder / f"{found.name}.json"
    write_json(path, record | {"provenance": found.provenance})
    return path


def load(path: Path) -> Stored | None:
    """What `save` has written; None if that is not what is in the file."""
    record = read_json(path)
    try:
        assert record is not None
        targets = [Target(**{k: v for k, v in target.items() if k != "met"}) for target in record["targets"]]
        findings = Findings([Table(**table) for table in record["tables"]], targets, list(record["notes"]))
        return Stored(record["name"], record["title"], findings, dict(record["provenance"]))
    except (AssertionError, KeyError, TypeError):
        return None


def load_all(folder: Path) -> list[Stored]:
    """Everything that is stored in a folder, by name."""
    found = (load(path) for path in sorted(folder.glob("*.json")))
    return [one for one in found if one is not None]
