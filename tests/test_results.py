"""What is committed in results/ is read by today's code, gives the same reports, and is what the pages say."""

from __future__ import annotations

import csv
import importlib.util
import json
import math
import shutil
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import matplotlib
import PIL
import pytest

from decentral.config.identity import run_id
from decentral.config.parsing import build, load
from decentral.errors import ConfigError
from decentral.measurements.values import NOT_REACHED, Meaning
from decentral.report.make import make
from decentral.report.pages import report_pages
from decentral.report.results import find, read
from decentral.report.series import read_curves
from decentral.report.summary import overview, summary
from decentral.report.verdicts import judge
from decentral.store import Metric, RunStore, Status, read_metadata
from decentral.store.files import PACKED_FROM_BYTES, read_table, stored_table
from decentral.store.metrics import AXES
from decentral.study import catalogue
from decentral.study.measure import Measure
from handmade import value, write

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "results"
STUDIES = find(RESULTS)
IGNORED = {line.strip("/").partition("/")[2] for line in (ROOT / ".gitignore").read_text().splitlines()}
RUNS = sorted(path for path in (RESULTS / "readme").iterdir())
DRAWN_WITH = "3.11.2", "13.0.0"
"""The matplotlib and Pillow of the committed figures; other versions may draw other bytes."""
MOST_BYTES = 15_000_000
"""Of what is committed in results/."""


def between(page: str, mark: str) -> str:
    """What a page says between <!-- mark --> and <!-- /mark -->."""
    return (ROOT / page).read_text().partition(f"<!-- {mark} -->\n")[2].partition(f"\n<!-- /{mark} -->")[0]


def name(directory: Path) -> str:
    return f"{directory.parent.name}-{directory.name}"


def test_results_stay_small() -> None:
    """A figure is there once, and tables of runs are packed where they are long, as collecting them packs them."""
    kept = [path for folder in RESULTS.iterdir() if folder.name not in IGNORED for path in folder.rglob("*.*")]
    assert sum(path.stat().st_size for path in kept) < MOST_BYTES
    assert not [path for path in kept if path.suffix in (".svg", ".pdf")]
    for directory in STUDIES:
        for table in ("values.csv", "curves.csv"):
            file = stored_table(directory / table)
            if file is not None:
                long = len(read_table(directory / table).encode()) >= PACKED_FROM_BYTES
                assert file.name == table + ".gz" * long, directory


@cache
def most_telling() -> list[Path]:
    """Of each study the results at the largest scale that was run."""
    scales = ("small", "laptop", "paper")
    known = [path for path in STUDIES if path.name in scales]
    return [
        max((path for path in known if path.parent == study), key=lambda path: scales.index(path.name))
        for study in sorted({path.parent for path in known})
    ]


# -- studies -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "directory",
    [pytest.param(path, marks=[] if path in most_telling() else pytest.mark.slow) for path in STUDIES],
    ids=name,
)
def test_the_results_of_a_study_are_read_and_say_why_a_claim_is_not_met(directory: Path) -> None:
    results = read(directory)
    assert results.study in catalogue.names() and results.original
    assert results.facts["complete"] or results.facts["kind"] == "benchmark"  # its ranks leave out what was not run
    assert len(results.values) and results.metric and results.entries()
    assert results.values["status"].isin(["done", "diverged", "not reached"]).all()
    has_curves = any(directory.glob("curves.csv*"))
    assert has_curves == bool(len(results.curves))
    if has_curves:
        assert results.curves[list(AXES)].notna().any(axis=1).all()
    with open(directory / "verdicts.csv", newline="") as file:
        verdicts = list(csv.DictReader(file))
    assert {one["verdict"] for one in verdicts} <= {"met", "not met", "not run", "not compared"}
    if directory in most_telling():
        missed = {one["what"]: one["why"] for one in verdicts if one["verdict"] == "not met"}
        claims = {claim.says: missed[claim.says] for claim in results.spec.claims if claim.says in missed}
        assert all(why.endswith(results.reasons.get(says, "no reason")) for says, why in claims.items()), claims
        assert set(results.reasons) <= set(claims)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("place", "directory"), [pytest.param(*each, id=name(each[1])) for each in enumerate(most_telling())]
)
def test_the_report_of_a_study_is_made_again_byte_for_byte(
    place: int, directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Figures are drawn for one study of four: they take long."""
    copy = tmp_path / directory.relative_to(RESULTS)
    copy.mkdir(parents=True)
    given = ("study.", "values.", "curves.csv", "reasons.")
    collected = [path for path in directory.iterdir() if path.name.startswith(given)]
    for path in collected:
        shutil.copy(path, copy)
    reported = {path.name for path in directory.iterdir()} - {path.name for path in collected}
    if place % 4:
        monkeypatch.setattr("decentral.report.figures.canvas.save", lambda figure, *_: copied(figure.file))

    def copied(name: str) -> list[Path]:
        return [Path(shutil.copy(path, copy)) for path in directory.glob(f"{name}.png")]

    made = {path.name for path in make(copy).files}
    assert made == {file for file in reported if Path(file).suffix in (".csv", ".md", ".tex", ".png")}
    for file in made:
        if Path(file).suffix != ".png" or (matplotlib.__version__, PIL.__version__) == DRAWN_WITH:
            assert (copy / file).read_bytes() == (directory / file).read_bytes(), file


@pytest.mark.slow
def test_the_pages_are_made_again_byte_for_byte(tmp_path: Path) -> None:
    copy = tmp_path / "results"
    for directory in STUDIES:
        shutil.copytree(directory, copy / directory.relative_to(RESULTS))
    for written_by_hand in RESULTS.glob("*/summary.md"):
        shutil.copy(written_by_hand, copy / written_by_hand.relative_to(RESULTS))
    report_pages(copy)
    written = {path.relative_to(copy) for path in copy.rglob("README.md")}
    papers = ("benchmark", "bluefog", "certificates", "churn", "flex", "gpt", "relaysum", "thesis", "time", "wagma")
    assert written == {Path("README.md"), *(Path(paper) / "README.md" for paper in papers)}
    for page in written:
        assert (copy / page).read_text() == (RESULTS / page).read_text()


# -- the runs of the README --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("directory", RUNS, ids=lambda directory: directory.name)
def test_a_kept_run_has_the_id_that_its_configuration_has_today(directory: Path) -> None:
    text = (directory / "config.yaml").read_text()
    status = json.loads((directory / "status.json").read_text())
    assert status["status"] == "done"
    assert text.splitlines()[0] == f"# run {status['run_id']}"
    assert run_id(load(text)) == status["run_id"]


# -- README.md and docs/ agree -----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def script() -> ModuleType:
    """scripts/readme.py, which fills in the numbers of the README and of docs/."""
    spec = importlib.util.spec_from_file_location("readme", ROOT / "scripts" / "readme.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("mark", ["results_table", "laptop", "score", "table1", "churn"])
def test_the_pages_have_the_numbers_of_the_stored_results(script: ModuleType, mark: str) -> None:
    name = mark.removesuffix("_table")
    assert between(script.PLACES[name], name) == getattr(script, mark)()


def test_the_readme_shows_the_summary_of_a_kept_run(tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(RESULTS / "readme" / "relaysgd-dbt", run)
    (run / "final_metrics.jsonl").rename(run / "metrics.jsonl")
    shown = between("README.md", "summary").removeprefix("```\n").removesuffix("\n```")
    assert [line.rstrip() for line in summary(run).splitlines()][: len(shown.splitlines())] == shown.splitlines()


# -- What a run says of its metrics, and that whoever reports them reads it there and guesses nothing ------------------

REWARD = Metric("test", "success_rate", larger_is_better=True, unit="%", chance=0.25)
PERPLEXITY = Metric("test", "perplexity", unit="")


def make_run(path: Path, values: dict[tuple[str, str], dict[Any, float]], metrics: list[Metric] | None) -> Path:
    with RunStore.open(path, "aaa", "seed: 1\n") as store:
        if metrics is not None:
            store.describe(metrics)
        store.append(
            {"step": 10, "epoch": 1.0, "worker": worker, "split": split, "metric": name, "value": value}
            | {"wall_s": 1.0, "bytes_sent": 100}
            for (split, name), each in values.items()
            for worker, value in each.items()
        )
        store.set_status(Status.done, step=10, wall_s=1.0)
    return path


VALUES = {
    ("test", "perplexity"): {0: 30.0, 1: 20.0, "worst": 30.0, "mean": 25.0, "averaged": 22.0},
    ("test", "success_rate"): {0: 0.5, 1: 0.75, "worst": 0.5, "mean": 0.625, "averaged": 0.7},
}


def test_a_run_stores_split_unit_direction_and_chance_level_of_each_metric(start):
    run = start("data=digits", "model=mlp", "model.hidden=[4]", "partition=iid", "num_workers=2", "steps=1")
    assert json.loads((run.directory / "metrics.json").read_text())["metrics"][0] == {
        "split": "test", "name": "accuracy", "larger_is_better": True, "unit": "%", "chance": 0.1,
    }  # fmt: skip
    known = read_metadata(run.directory)
    assert list(known) == [("test", "accuracy"), ("test", "loss"), ("train", "loss"), ("model", "consensus_distance")]
    assert known["test", "loss"].unit == known["train", "loss"].unit == "nats"
    assert known["test", "loss"].larger_is_better is False
    assert known["model", "consensus_distance"].larger_is_better is None
    assert {(row["split"], row["metric"]) for row in run.rows} <= known.keys()


def test_what_the_run_says_decides_order_unit_and_best_worker(tmp_path):
    run = make_run(tmp_path / "run", VALUES, [REWARD, PERPLEXITY])
    assert list(read_curves(run).series) == [("test", "success_rate"), ("test", "perplexity")]
    lines = [line.split() for line in summary(run).splitlines()]
    assert ["test", "success", "rate", "50.00", "%", "62.50", "%", "70.00", "%", "75.00", "%"] in lines
    assert ["test", "perplexity", "30", "25", "22", "20"] in lines
    assert overview(run)[1:4] == ["done", "test success rate", "50.00 %"]


@pytest.mark.parametrize(
    "content",
    [
        "",
        "{",
        "[]",
        '{"metrics": 3}',
        '{"metrics": [{"name": "accuracy"}]}',
        '{"metrics": [{"split": ["a"], "name": {}}]}',
    ],
)
def test_a_file_that_cannot_be_read_is_as_good_as_none(tmp_path, content):
    (tmp_path / "metrics.json").write_text(content)
    assert read_metadata(tmp_path, [("test", "accuracy")])["test", "accuracy"].larger_is_better is None


# What a study measures


ACCURACIES = {0: (0.1, 0.5, 0.8, 0.95), 1: (0.1, 0.7, 0.9, 0.91)}
"""Of two workers after 0, 10, 20 and 30 steps."""


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """An epoch is 10 steps of 2 s, in which 1 kB is sent."""
    with RunStore.open(tmp_path / "run", "aaa", "seed: 1\n") as store:
        store.describe([Metric("test", "accuracy", larger_is_better=True, unit="%")])
        for number in range(4):
            both = [ACCURACIES[worker][number] for worker in (0, 1)]
            aggregates = {"worst": min(both), "mean": sum(both) / 2, "averaged": max(both)}
            place = {"step": 10 * number, "epoch": float(number), "wall_s": 2.0 * number, "bytes_sent": 1000 * number}
            store.append(
                place | {"worker": worker, "split": "test", "metric": "accuracy", "value": value}
                for worker, value in {0: both[0], 1: both[1], **aggregates}.items()
            )
        store.set_status(Status.done, step=30, wall_s=6.0)
    return tmp_path / "run"


# What a run is judged by


@pytest.mark.parametrize(("measure", "label", "value"), [
    ({"last_epochs": 2, "worker": "0"}, "test accuracy (%)", 87.5),
    ({"to_reach": 70, "axis": "step"}, "step to test accuracy 70 %", 20),
    ({"to_reach": 80, "axis": "wall_s"}, "wall_s to test accuracy 80 %", 4),
    ({"to_reach": 0.6, "worker": "1", "percent": False, "larger_is_better": False}, "step to test accuracy 0.6", 0),
    ({"to_reach": 94, "axis": "bytes_sent"}, "bytes_sent to test accuracy 94 %", math.nan),
])  # fmt: skip
def test_the_place_of_a_value(run, measure, label, value):
    """Of the first value that is good enough."""
    found = Measure(**measure).of(run)
    assert found.value == pytest.approx(value, nan_ok=True)
    assert found.metric == label and found.status == (NOT_REACHED if math.isnan(value) else "done")


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"to_reach": 90, "axis": "second"}, "measure.axis=second is not an axis"),
        ({"last_epochs": -1}, "measure.last_epochs=-1 is negative; use a finite number >= 0"),
    ],
)
def test_what_makes_no_sense_is_refused(values, message):
    with pytest.raises(ConfigError, match=message):
        build(Measure, values, "measure")


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({"split": "train", "metric": "loss"}, (1.5, 1.5, 0.75, math.nan)),
        ({"split": "train", "metric": "loss", "worker": "mean", "last_epochs": 2}, (1.0, 2.0, 1.0, math.nan)),
        ({"split": "model", "metric": "consensus_distance", "worker": "mean"}, (0.125, math.nan, 0.125, math.nan)),
        ({"split": "train", "metric": "loss", "to_reach": 1, "worker": "mean", "axis": "bytes_sent"},
         (3000, math.nan, 3000, math.nan)),
    ],
)  # fmt: skip
def test_a_metric_that_is_not_taken_worker_by_worker_has_the_aggregates_that_are_recorded(run, values, expected):
    with RunStore.open(run, "aaa", "seed: 1\n") as store:
        for epoch, worst, mean, distance in ((2.0, 2.5, 1.25, 0.5), (3.0, 1.5, 0.75, 0.125)):
            place = {"step": int(10 * epoch), "epoch": epoch, "wall_s": 2 * epoch, "bytes_sent": 1000 * epoch}
            loss, consensus = {"split": "train", "metric": "loss"}, {"split": "model", "metric": "consensus_distance"}
            store.append([place | loss | {"worker": "mean", "value": mean}])
            store.append([place | loss | {"worker": "worst", "value": worst}])
            store.append([place | consensus | {"worker": "mean", "value": distance}])
        store.set_status(Status.done, step=30, wall_s=6.0)
    found = Measure(**values).of(run)
    views = (found.value, found.worst, found.mean, found.averaged)
    assert views == pytest.approx(expected, nan_ok=True) and found.status == "done"
    with pytest.raises(ConfigError, match="it has only the mean of this metric"):
        Measure(split="model", metric="consensus_distance", worker="worst").of(run)


# What reports take from the metrics that a study had


def test_a_run_counts_as_lost_near_the_chance_level_that_the_runs_say(tmp_path):
    published = {"item": "table5-dropped-messages", "tolerance": {"absolute": 0.5}, "because": "seeds differ"}
    key = "d2+momentum|ring|drop=0.1"  # which diverges, the paper says
    said = {"metrics": {"test accuracy (%)": Meaning(True, "%", 1.0)._asdict()}}
    found = {}
    for name, facts in (("unsaid", {}), ("hundred", said)):
        values = [value("D2", "ring", 0.01, 15.0, seed, published=key) for seed in (1, 2, 3)]
        directory = write(tmp_path / "relaysum" / name / "paper", values, {"published": published}, **facts)
        (found[name],) = [one for one in judge(read(directory)) if one.what == key]
    assert found["unsaid"].verdict == "met" and "or end below 20 %" in found["unsaid"].tolerance
    assert found["hundred"].verdict == "not met" and "or end below 2 %" in found["hundred"].tolerance
