"""Studies and jobs that commit 0ffd394 stored count as done; a job that had broken off goes on after its lines."""

from __future__ import annotations

import csv
import io
import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from decentral.cli.study import main
from decentral.cli.study_arguments import ChosenStudy, chosen_studies
from decentral.scheduling.job import Job
from decentral.store import Status
from decentral.study.study import Cell

STORED = Path(__file__).parent / "stored" / "studies"
STUDIES = sorted(path.name for path in STORED.iterdir())
KINDS = {"searches", "simulations", "facts", "consensus", "races", "schools", "exchange_times", "throughput", "runs"}
COMPUTED = ("searches", "simulations", "facts", "consensus", "schools")
"""Kinds of jobs whose numbers are not times: what they compute again is what they had."""
JOBS = sorted(
    f"{path.parents[1].name}/{path.parent.name}/{path.name}" for kind in KINDS for path in STORED.glob(f"*/{kind}/*")
)
BROKEN_OFF = [next(job for job in JOBS if job.split("/")[1] == kind) for kind in COMPUTED]


@pytest.fixture
def copy(tmp_path: Path) -> Callable[[str], Path]:
    """study -> a copy of its results directory."""

    def _copy(study: str) -> Path:
        return Path(shutil.copytree(STORED / study, tmp_path / study))

    return _copy


def asked(study: str, results_dir: Path) -> ChosenStudy:
    (one,) = chosen_studies([study, "scale=smoke", f"results_dir={results_dir}", *here(study)])
    return one


def here(study: str) -> list[str]:
    """What was typed besides."""
    (facts,) = STORED.glob(f"{study}/*/{study}/smoke/study.json")
    words = json.loads(facts.read_text())["command"].split()
    return [word for word in words if word.startswith(("device=", "progress=", "launcher."))]


def jobs(study: str, results_dir: Path) -> Iterator[tuple[Cell, Job]]:
    known = asked(study, results_dir)
    for cell in known.study.cells(known.overrides):
        for job in cell.jobs():
            yield cell, job


def contents(directory: Path) -> dict[str, bytes]:
    """Every file but locks and figures."""
    files = (path for path in directory.rglob("*") if path.is_file())
    files = (path for path in files if not path.name.endswith(".lock") and path.suffix not in (".png", ".svg"))
    return {str(path.relative_to(directory)): path.read_bytes() for path in files}


def values(file: bytes) -> list[dict[str, str]]:
    """The rows of values.csv, less how long each took: what several values share was counted for each of them."""
    rows = csv.DictReader(io.StringIO(file.decode()))
    return [{column: value for column, value in row.items() if column != "wall_s"} for row in rows]


def test_each_kind_of_job_is_there() -> None:
    assert {job.split("/")[1] for job in JOBS} == KINDS


@pytest.mark.parametrize("study", STUDIES)
def test_the_jobs_of_a_study_are_those_that_are_stored_and_stay_as_they_are(
    copy: Callable[[str], Path], study: str
) -> None:
    results_dir = copy(study)
    before = contents(results_dir)
    found = {job.id: job for _, job in jobs(study, results_dir)}
    for job in found.values():
        assert job.directory.is_dir() and job.directory.is_relative_to(results_dir)
        assert job.finished() in (Status.done, Status.diverged)
        assert job.carry_out() is job.finished()
    assert set(found) == {path.name for kind in KINDS for path in results_dir.glob(f"{kind}/*")}
    assert contents(results_dir) == before


@pytest.mark.parametrize("study", [STUDIES[0], *(pytest.param(study, marks=pytest.mark.slow) for study in STUDIES[1:])])
def test_a_finished_study_computes_nothing(
    copy: Callable[[str], Path], study: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Where what is collected of a study has changed, the first start collects; no start runs a job."""
    results_dir = copy(study)
    stored = contents(results_dir)
    for _ in range(2):
        before = contents(results_dir)
        with pytest.raises(SystemExit) as ended:
            main([study, "scale=smoke", f"results_dir={results_dir}", *here(study)])
        shown = capsys.readouterr()
        assert ended.value.code == 0, shown.err
        assert "nothing was computed" in shown.out
    after = contents(results_dir)
    assert after == before, "the second start changes nothing"
    kept = [name for name in stored if name.split("/")[0] in KINDS]
    assert {name: after[name] for name in kept} == {name: stored[name] for name in kept}
    (collected,) = (name for name in stored if name.endswith("/values.csv"))
    assert sorted(map(str, values(after[collected]))) == sorted(map(str, values(stored[collected])))


@pytest.mark.parametrize("name", BROKEN_OFF)
def test_a_job_that_broke_off_goes_on(copy: Callable[[str], Path], name: str) -> None:
    study, kind, id = name.split("/")
    results_dir = copy(study)
    directory = results_dir / kind / id
    lines, kept = break_off(directory)
    job = next(job for _, job in jobs(study, results_dir) if job.id == id)
    assert job.finished() is None and job.carry_out() is Status.done
    again = read(lines)
    assert again[: len(kept)] == kept
    original = STORED / study / kind / id
    assert by_value(again) == approximately(by_value(read(original / lines.name)))


def break_off(directory: Path) -> tuple[Path, list[dict[str, Any]]]:
    """Leave what a kill in the middle leaves: the first half of the lines, and a job that says that it runs."""
    (lines,) = (path for path in directory.glob("*.jsonl") if path.name != "metrics.jsonl")
    kept = lines.read_text().splitlines(keepends=True)
    lines.write_text("".join(kept[: len(kept) // 2]))
    status = json.loads((directory / "status.json").read_text())
    status.pop("wall_s")
    (directory / "status.json").write_text(json.dumps(status | {"status": "running"}))
    return lines, read(lines)


def read(lines: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in lines.read_text().splitlines()]


def by_value(lines: list[dict[str, Any]]) -> list[list[tuple[str, Any]]]:
    """In an order that does not depend on who was tried first."""
    return sorted((sorted(flat(line)) for line in lines), key=str)


def flat(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """The numbers and words in nested lists and dictionaries, each with its place."""
    if isinstance(value, dict | list):
        for key, one in value.items() if isinstance(value, dict) else enumerate(value):
            yield from flat(one, f"{path}/{key:>6}")
    else:
        yield path, value


def approximately(lines: list[list[tuple[str, Any]]]) -> Any:
    """Equal but for the last digits of numbers."""
    close = lambda one: pytest.approx(one, rel=1e-9, abs=1e-12) if isinstance(one, float) else one  # noqa: E731
    return [[(path, close(value)) for path, value in line] for line in lines]
