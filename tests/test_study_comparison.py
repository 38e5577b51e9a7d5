"""Comparisons: learning rates are searched, seeds follow, runs are judged as the study says. Nothing is trained."""

from __future__ import annotations

import math
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from PIL import Image

from decentral.errors import ConfigError
from decentral.report.published import numbers
from decentral.report.spec import parse
from decentral.store import RunStore, Status
from decentral.study import catalogue
from decentral.study.measure import Measure
from decentral.study.tuning.rule import Choice, Fixed, Grid, PowersOfTwo

COMPARISONS = [
    name for name in catalogue.names() if catalogue._read(name, None)["kind"] in ("comparison", "chosen_rates")
]
ROW = {"method": "D-PSGD", "topology": "ring", "base": ["algo=dpsgd", "topology=ring"], "lr": 0.1}


def search(rule, score: Callable[[float], float], start: float = 0.1):
    """Carry a search out with a known score for each rate."""
    tried: dict[float, float] = {}
    while rates := rule.wanted(tried, start):
        tried |= {lr: score(lr) for lr in rates}
    return tried, rule.chosen(tried)


def cells_of(tmp_path, **values):
    """A comparison of one method (or `rows`), small enough to be composed at once."""
    known = {"kind": "comparison", "rows": [ROW], "seeds": [1, 2], "base": ["model=mlp", "num_workers=2", "steps=4"]}
    study = catalogue.study_from("study test", known | values)
    return study.cells([f"results_dir={tmp_path}"])


def finish(job, *accuracies: float, diverged: bool = False, epoch: float = 1.0):
    """Record a run as if it had been carried out: the workers' test accuracies."""
    with RunStore.open(job.directory, job.id, "") as store:
        place = {
            "step": int(epoch),
            "epoch": epoch,
            "split": "test",
            "metric": "accuracy",
            "wall_s": 0.0,
            "bytes_sent": 0,
        }
        known = {**dict(enumerate(accuracies)), "averaged": 0.99, "worst": 0.0, "mean": 0.0}
        store.append([place | {"worker": worker, "value": value} for worker, value in known.items()])
        store.set_status(Status.diverged if diverged else Status.done, wall_s=1.0)


def finish_all(
    cell, score: Callable[[float, int], float], diverges: Callable[[float, int], bool] = lambda lr, seed: False
):
    """Finish whatever the cell asks for until it asks for nothing; returns the rates and seeds in turn."""
    asked = []
    while left := [job for job in cell.jobs() if job.finished() is None]:
        for job in left:
            lr, seed = job.config.lr, job.config.seed
            finish(job, score(lr, seed), score(lr, seed), diverged=diverges(lr, seed))
            asked.append((lr, seed))
    return asked


def test_powers_of_two_go_on_until_the_best_rate_lies_between_two_worse_ones():
    tried, choice = search(PowersOfTwo(), lambda lr: -abs(math.log2(lr / 0.8)))
    assert sorted(tried) == pytest.approx([0.05, 0.1, 0.2, 0.4, 0.8, 1.6])
    assert choice == Choice(0.8, False)


def test_powers_of_two_go_down_as_well_and_take_the_smaller_of_equals():
    _, choice = search(PowersOfTwo(), lambda lr: -lr if lr >= 0.025 else -1.0)
    assert choice == Choice(0.025, False)
    _, choice = search(PowersOfTwo(), lambda lr: 1.0 if lr in (0.1, 0.2) else 0.0)
    assert choice == Choice(0.1, False)


def test_a_rate_that_diverges_is_a_worse_neighbour():
    _, choice = search(PowersOfTwo(), lambda lr: lr if lr < 0.15 else math.nan)
    assert choice == Choice(0.1, False)


def test_where_all_rates_diverge_smaller_ones_are_tried():
    _, choice = search(PowersOfTwo(at_most=6), lambda lr: math.nan if lr > 0.02 else lr)
    assert choice is not None and choice.lr == 0.0125
    assert search(PowersOfTwo(at_most=5), lambda lr: math.nan)[1] is None


def test_a_grid_tries_all_of_its_values_and_marks_a_best_one_at_its_end():
    rule = Grid(values=[0.1, 0.01, 0.05])
    tried, choice = search(rule, lambda lr: lr)
    assert (sorted(tried), choice) == ([0.01, 0.05, 0.1], Choice(0.1, True))
    assert search(rule, lambda lr: -abs(lr - 0.05))[1] == Choice(0.05, False)
    with pytest.raises(ConfigError, match="above 0"):
        Grid(values=[])


def test_a_fixed_rate_is_not_searched_for():
    assert search(Fixed(), lambda lr: 0.0) == ({0.1: 0.0}, Choice(0.1, False))


def test_the_search_runs_on_its_own_seeds_and_the_best_rate_on_all(tmp_path):
    (cell,) = cells_of(tmp_path, tune={"rule": "grid", "values": [0.1, 0.2, 0.4]}, tune_seeds=[1])
    asked = finish_all(cell, lambda lr, seed: 0.9 - abs(lr - 0.2))
    assert asked == [(0.1, 1), (0.2, 1), (0.4, 1), (0.2, 2)]
    chosen = [value for value in cell.values() if value.chosen]
    assert [(value.lr, value.seed, value.value) for value in chosen] == [(0.2, 1, 90.0), (0.2, 2, 90.0)]
    assert [value.chosen for value in cell.values()].count(False) == 2


def test_a_rate_with_which_a_seed_diverges_does_not_count_and_neither_does_the_next_one(tmp_path):
    (cell,) = cells_of(tmp_path, tune={"rule": "grid", "values": [0.1, 0.2, 0.4]})
    asked = finish_all(cell, lambda lr, seed: lr, lambda lr, seed: lr >= 0.2 and seed == 2)
    assert asked[3:] == [(0.4, 2), (0.2, 2), (0.1, 2)]
    assert {value.lr for value in cell.values() if value.chosen} == {0.1}


def test_a_damaged_run_that_counts_has_no_number_and_a_remark(tmp_path):
    (cell,) = cells_of(tmp_path)
    first, second = cell.jobs()
    finish(first, 0.5)
    finish(second, 0.7)
    (first.directory / "metrics.jsonl").write_text("nothing\n")
    damaged, whole = cell.values()
    assert (damaged.status, damaged.chosen, math.isnan(damaged.value)) == ("damaged", True, True)
    assert (whole.status, whole.value) == ("done", 70.0)
    (remark,) = cell.remarks()
    assert f"delete the folder {first.directory}" in remark
    assert all(job.finished() for job in cell.jobs())


def test_a_search_waits_for_a_damaged_run_to_be_computed_anew(tmp_path):
    values = {"tune": {"rule": "grid", "values": [0.1, 0.2]}, "seeds": [1]}
    (cell,) = cells_of(tmp_path, **values)
    first, second = cell.jobs()
    finish(first, 0.5)
    with RunStore.open(second.directory, second.id, "") as store:
        store.set_status(Status.done)
    assert all(job.finished() for job in cell.jobs())
    assert [(value.lr, value.status, value.chosen) for value in cell.values()] == [
        (0.1, "done", False),
        (0.2, "damaged", False),
    ]
    assert "has no test accuracy" in cell.remarks()[0]
    shutil.rmtree(second.directory)
    (again,) = cells_of(tmp_path, **values)
    finish_all(again, lambda lr, seed: 0.9)
    assert [value.lr for value in again.values() if value.chosen] == [0.2] and not again.remarks()


def test_choices_from_the_users_folder_reach_the_runs_and_their_commands(tmp_path):
    (tmp_path / "conf" / "optim").mkdir(parents=True)
    (tmp_path / "conf" / "optim" / "mine.yaml").write_text("defaults: [schema/sgd@_here_, _self_]\nweight_decay: 0.5\n")
    base = ["model=mlp", "num_workers=2", "steps=4", "optim=mine"]
    study = catalogue.study_from("test", {"kind": "comparison", "rows": [ROW], "base": base, "tune_base": ["steps=2"]})
    (cell,) = study.cells([f"results_dir={tmp_path}"], str(tmp_path / "conf"))
    job = cell.jobs()[0]
    assert job.config.optim.weight_decay == 0.5
    assert job.command.endswith(f"--config-dir {tmp_path / 'conf'}")


def test_without_retreat_a_diverged_seed_counts(tmp_path):
    tune = {"rule": "grid", "values": [0.1, 0.2, 0.4]}
    (cell,) = cells_of(tmp_path, tune=tune, retreat=False, measure={"when_diverged": 10.0})
    finish_all(cell, lambda lr, seed: lr, lambda lr, seed: lr == 0.4 and seed == 2)
    chosen = [value for value in cell.values() if value.chosen]
    assert [(value.lr, value.status, value.value) for value in chosen] == [(0.4, "done", 40.0), (0.4, "diverged", 10.0)]


def test_runs_for_tuning_can_differ_from_those_that_count(tmp_path):
    (cell,) = cells_of(tmp_path, tune={"rule": "grid", "values": [0.1, 0.2, 0.4]}, tune_base=["steps=2"], seeds=[1])
    assert {job.config.steps for job in cell.jobs()} == {2}
    finish_all(cell, lambda lr, seed: 0.9 - abs(lr - 0.2))
    assert [job.config.steps for job in cell.jobs()] == [2, 2, 2, 4]
    assert [value.lr for value in cell.values() if value.chosen] == [0.2]


def test_rows_that_look_at_the_same_runs_share_them(tmp_path):
    rows = [ROW | {"method": "own", "worker": "0"}, ROW | {"method": "average", "worker": "averaged"}]
    own, average = cells_of(tmp_path, rows=rows)
    assert [job.id for job in own.jobs()] == [job.id for job in average.jobs()]
    for job in own.jobs():
        finish(job, 0.5, 0.7)
    assert [value.value for value in own.values()] == [50.0, 50.0]
    assert [value.value for value in average.values()] == [99.0, 99.0]


def test_the_worst_worker_is_the_worst_of_their_means_over_the_last_epochs(tmp_path):
    cell, *_ = cells_of(tmp_path)
    job = cell.jobs()[0]
    finish(job, 0.0, 0.0, epoch=190)
    finish(job, 0.5, 0.9, epoch=196)
    finish(job, 0.9, 0.6, epoch=200)
    found = Measure(last_epochs=5).of(job.directory)  # (50 + 90) / 2 and (90 + 60) / 2
    assert (found.value, found.worst, found.mean) == pytest.approx((70.0, 70.0, 72.5))
    assert Measure(last_epochs=0).of(job.directory).value == pytest.approx(60.0)
    missing = Measure(worker="7").of(job.directory)
    assert missing.status == "damaged" and "2 workers" in missing.remark


def test_the_chosen_rate_is_the_value_of_a_study_of_rates_and_comes_with_the_effective_one(tmp_path):
    row = {"method": "RelaySGD", "topology": "chain", "base": ["algo=relaysgd", "topology=chain"], "lr": 0.2}
    base = ["model=mlp", "num_workers=4", "steps=4"]
    values = {"rows": [row], "base": base, "tune": {"rule": "powers_of_two"}}
    (rates,) = cells_of(tmp_path, kind="chosen_rates", **values)
    (accuracies,) = cells_of(tmp_path, kind="comparison", **values)
    assert rates.values() == []
    finish_all(accuracies, lambda lr, seed: 1 - lr if lr >= 0.1 else 0.0)
    found = [(value.metric, value.value, value.seed) for value in rates.values()]
    assert found == [("learning rate", 0.1, 1), ("effective learning rate", pytest.approx(0.1 / 1.5), 1)]


def test_the_thesis_studies_run_what_its_experiment_says(tmp_path):
    from decentral.config.composition import compose
    from decentral.config.identity import run_id

    study = catalogue.load("thesis_fig5_2", "paper")
    job = study.cells([f"results_dir={tmp_path}"])[-1].final
    same = compose(["experiment=thesis_cifar10", "algo=model_averaging", "alpha=0.01", "lr=0.1"])
    assert run_id(job.config) == run_id(same)


FILES = {f"data={name}" for name in ("agnews", "imagefolder", "imagenet", "multi30k", "parallel", "shakespeare")}
SPEAKERS = [
    f"{kind} {name}"
    for kind in ("FIRST", "SECOND")
    for name in ("LORD", "LADY", "CLOWN", "KING", "PAGE", "DUKE", "HEIR", "MAID")
]


@pytest.fixture(scope="module")
def imagenet(tmp_path_factory) -> Path:
    """What looks like ImageNet with as many pictures as 64 workers need for a batch of 128, and a few sentences."""
    path = tmp_path_factory.mktemp("imagenet")
    for split in ("train", "val", "test"):
        folder = path / split / "cat"
        folder.mkdir(parents=True)
        for number in range(64 * 128 if split == "train" else 1):
            (folder / f"{number}.jpeg").touch()
    Image.new("RGB", (32, 32)).save(path / "train" / "cat" / "0.jpeg")
    for split in ("train", "newstest2014", "test_2016_flickr"):
        for language in ("en", "de"):
            (path / f"{split}.{language}").write_text(16 * "A .\n")
    for split in ("train", "test"):
        (path / f"{split}.csv").write_text('"1","a title","some news"\n' * 8000)
    (path / "play_gut.txt").write_text("".join(f"\n\n{name}.\n" + "What light?\n" * 300 for name in SPEAKERS))
    return path


@pytest.mark.parametrize("name", COMPARISONS)
def test_every_comparison_composes_at_every_scale_and_has_a_cell_for_every_published_number(name, tmp_path, imagenet):
    for scale in catalogue.scales(name):
        study = catalogue.load(name, scale)
        if "env=habitat" in study.base:  # which refuses where it is not installed
            continue
        needs_files = FILES & set(study.base)
        data = [f"data.path={imagenet}"] if needs_files else []
        cells = study.cells([f"results_dir={tmp_path}", *data])
        spec = parse(study.report, name)
        assert all(cell.jobs() for cell in cells) and spec.caption and study.departures
        if scale == "paper" and "task=regression" not in study.base:  # which a laptop does in full
            assert study.needs
        if scale == "paper" and spec.published is not None:
            keys = sorted(cell.published for cell in cells if cell.published)
            theirs = numbers(study.paper, spec.published.item, spec.published.keys)
            undefined = ("network C2",)  # of flexible communication, which nowhere says what it is
            assert keys == sorted(number.key for number in theirs if not number.key.endswith(undefined))


def test_planning_a_study_does_not_import_torch():
    lines = (
        "import sys; from decentral.study import catalogue",
        "study = catalogue.load('relaysum_table1', 'paper')",
        "assert [c.jobs() for c in study.cells(['results_dir=nowhere'])]",
        "assert not {'torch', 'pandas', 'matplotlib'} & set(sys.modules)",
    )
    subprocess.run([sys.executable, "-c", "; ".join(lines)], check=True, timeout=60)


def test_the_command_of_a_job_is_that_run(tmp_path):
    from decentral.config.composition import compose
    from decentral.config.identity import run_id

    (cell,) = cells_of(tmp_path, rows=[ROW], columns={"alpha": [0.5]}, tune_base=["steps=2"])
    job = cell.jobs()[0]
    program, *overrides = job.command.split()
    assert program == "decentral-run" and run_id(compose(overrides)) == job.id
    assert Path(cell.jobs()[0].directory).parent == tmp_path / "runs"
