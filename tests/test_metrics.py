"""`metrics=`: what is recorded beside the task's own, against scikit-learn, whatever the processes and batches are."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sklearn.metrics
import torch
from matplotlib.figure import Figure
from sklearn.metrics import cohen_kappa_score, f1_score, roc_auc_score
from torch import Tensor

from configure import configure
from conftest import exit_status
from decentral.cli.run import main
from decentral.config.composition import compose
from decentral.config.identity import run_id
from decentral.config.prepared import prepare
from decentral.errors import ConfigError
from decentral.network.world import World
from decentral.registry import components
from decentral.registry.signature import function
from decentral.report.run_figures import draw_learning_curves, save_learning_curves
from decentral.report.runs_table import metric_named, table
from decentral.report.series import Curves, read_curves
from decentral.report.summary import summary
from decentral.store.metrics import Metric, read_metadata, read_metrics
from decentral.tasks.counted import COUNTED, metric_names
from decentral.tasks.supervised import RECORDED
from decentral.training.assemble import Run, assemble
from decentral.training.evaluation import Evaluation, evaluate, recorded, scores_of
from decentral.training.oracle import TrainLosses
from table import METRICS

pytestmark = pytest.mark.usefixtures("undrawn")

HERE = World(0, 1, torch.device("cpu"))
SMALL = ("algo=dpsgd", "topology=ring", "data=digits", "model=mlp", "model.hidden=[8]", "num_workers=3", "steps=6",
         "batch_size=16", "lr=0.2", "processes=1", "device=cpu", "progress=false")  # fmt: skip
SEQUENCES = {
    "language": (
        *("task=language", "data=textfile", "data.longest=16", "evaluation.examples=40", "batch_size=4", "steps=3"),
        *("model.dim=8", "model.heads=2", "model.hidden=8", "model.layers=1", "num_workers=2", "device=cpu"),
    ),
    "translation": (
        *("task=translation", "data.num_train=120", "data.num_test=6", "data.longest=8", "num_workers=2", "steps=3"),
        *("model.dim=16", "model.heads=2", "model.hidden=16", "batch_size=4", "device=cpu"),
    ),
}
SEQUENCES = {name: words for name, words in SEQUENCES.items() if name in components("tasks")}


def kappa(outputs: Tensor, targets: Tensor) -> float:
    return float(cohen_kappa_score(targets, outputs.argmax(1)))


kappa.larger_is_better = True  # type: ignore[attr-defined]
kappa.unit = "points"  # type: ignore[attr-defined]


def auc(outputs: Tensor, targets: Tensor) -> Tensor:
    """One that needs all outputs at once, and all classes."""
    return torch.tensor(roc_auc_score(targets, outputs.double().softmax(1), multi_class="ovr"))


def nan(outputs: Tensor, targets: Tensor) -> float:
    return 1.0


def nothing(outputs: Tensor, targets: Tensor) -> float:
    return np.nan


def infinite(outputs: Tensor, targets: Tensor) -> float:
    return np.inf


def true(outputs: Tensor, targets: Tensor) -> bool:
    return bool(outputs.isfinite().all())


def true_tensor(outputs: Tensor, targets: Tensor) -> Tensor:
    return outputs.isfinite().all()


def true_of_numpy(outputs: Tensor, targets: Tensor) -> Any:
    return np.isfinite(outputs.numpy()).all()


def two(outputs: Tensor, targets: Tensor) -> Tensor:
    return outputs.mean(0)[:2]


def single(outputs: Tensor, targets: Tensor) -> Any:
    """A number of numpy; fails on what is not finite, as functions of scikit-learn do."""
    assert outputs.isfinite().all()
    return np.float32(outputs.mean())


def broken(outputs: Tensor, targets: Tensor) -> Tensor:
    return outputs.nothing


def trained(*overrides: str) -> Run:
    run = assemble(prepare(configure(*SMALL, *overrides)), HERE)
    with torch.no_grad():
        for _ in range(run.total_steps):
            run.stepper.step()
    return run


def evaluated(run: Run) -> dict[tuple[str, str, Any], float]:
    """(split, metric, worker) -> value."""
    losses = TrainLosses(torch.ones(run.net.n, dtype=torch.float64), torch.ones(run.net.n, dtype=torch.bool))
    with torch.no_grad():
        found = evaluate(run.problem, run.stepper.models, run.net, losses, 0, 1)
    assert not found.diverged
    return {(row["split"], row["metric"], row["worker"]): row["value"] for row in found.rows()}


def outputs_of(run: Run, worker: int) -> tuple[Tensor, Tensor]:
    run.problem.models.bind(run.stepper.models)
    ((inputs, targets),) = run.problem.data.test_batches(10_000)
    with torch.no_grad():
        return run.problem.models.for_tests(worker).eval()(inputs), targets


@pytest.mark.parametrize("settings", [(), ("evaluation.batch_size=37",)])
def test_metrics_are_those_of_scikit_learn(settings: tuple[str, ...]) -> None:
    assert METRICS.keys() == COUNTED.keys(), "add a row to METRICS in tests/table.py (or remove it)"
    run = trained(f"metrics=[{','.join(METRICS)},{__name__}:kappa,+{__name__}:auc]", *settings)
    found, names = evaluated(run), [metric.name for metric in scores_of(run.problem)]
    for worker in range(3):
        outputs, targets = outputs_of(run, worker)
        expected = {}
        for name, (reference, words) in METRICS.items():
            values = getattr(sklearn.metrics, reference)(targets, outputs.argmax(1), **words)
            expected |= dict(zip(metric_names(name, 10), np.atleast_1d(values), strict=True))
        expected |= {"kappa": kappa(outputs, targets), "auc": auc(outputs, targets).item()}
        assert names == [*expected, "loss"]
        assert {name: found["test", name, worker] for name in expected} == pytest.approx(expected, rel=1e-6)
    assert found["test", "auc", "worst"] == min(found["test", "auc", w] for w in range(3))


def test_metrics_are_the_same_for_any_share_of_the_processes_and_on_workers_own_test_sets() -> None:
    run = trained(f"metrics=[accuracy,f1,+{__name__}:kappa]", "evaluation.split=both", "alpha=0.3")
    problem, mean = run.problem, run.stepper.models.mean(0)
    with torch.no_grad():
        whole = problem.finish(problem.average_statistics(mean, 0, 1))
        parts = problem.finish(sum(problem.average_statistics(mean, part, 3) for part in range(3)))
        problem.models.bind(run.stepper.models)
    torch.testing.assert_close(parts, whole)
    found = evaluated(run)
    ((inputs, labels),) = problem.data.test_batches(10_000)
    for worker in range(3):
        outputs, targets = outputs_of(run, worker)
        some = problem.local_tests[worker]
        assert found["local", "kappa", worker] == pytest.approx(kappa(outputs[some], targets[some]))
        expected = f1_score(targets[some], outputs[some].argmax(1), average="macro", zero_division=0)
        assert found["local", "f1", worker] == pytest.approx(expected)
    averaged = run.config.model.build(run.config.data.inspect())
    torch.nn.utils.vector_to_parameters(mean, averaged.parameters())
    union = torch.cat(problem.local_tests)
    assert found["local", "kappa", "averaged"] == pytest.approx(kappa(averaged(inputs)[union], labels[union]))


@pytest.mark.parametrize("task", SEQUENCES)
def test_tasks_with_tokens_count_them(task: str) -> None:
    found = {}
    for metrics in ("[accuracy,f1]", "[]"):
        run = assemble(prepare(compose([*SEQUENCES[task], f"metrics={metrics}"])), HERE)
        found[metrics] = evaluated(run)
    plain = {key: value for key, value in found["[accuracy,f1]"].items() if key[1] not in ("accuracy", "f1")}
    assert plain == pytest.approx(found["[]"], nan_ok=True)
    assert 0 <= found["[accuracy,f1]"]["test", "f1", 0] <= 1
    with pytest.raises(ConfigError, match=r"kappa needs one class per example, but task="):
        compose([*SEQUENCES[task], f"metrics=[accuracy,{__name__}:kappa]"])


def test_language_models_are_right_about_so_many_tokens() -> None:
    run = assemble(prepare(compose([*SEQUENCES["language"], "metrics=[accuracy]", "evaluation.examples=all"])), HERE)
    found = evaluated(run)["test", "accuracy", 0]
    right = count = 0
    run.problem.models.bind(run.stepper.models)
    for inputs, targets in run.problem.data.test_batches(100):
        guesses = run.problem.models.for_tests(0).eval()(inputs).argmax(-1)
        right, count = right + ((guesses == targets) & (targets >= 0)).sum(), count + (targets >= 0).sum()
    assert found == pytest.approx((right / count).item())


@pytest.mark.parametrize(("name", "shown"), [("nothing", "nan"), ("infinite", "inf")])
def test_a_metric_without_a_finite_number_is_seen(tmp_path: Path, capsys: Any, name: str, shown: str) -> None:
    words = [*SMALL, f"metrics=[+{__name__}:{name}]", "save=best", f"run_dir={tmp_path / 'results' / 'runs' / 'one'}"]
    ended = exit_status(main, *words)
    told = capsys.readouterr().out
    assert ended == 0 and ": done\n" in told
    assert re.search(f"test {name} +{shown} +{shown} +{shown}", told)
    assert f"{name} judges the run but is not finite" in told
    values = [row["value"] for row in read_metrics(tmp_path / "results" / "runs" / "one") if row["metric"] == name]
    assert len(values) == 42 and set(map(str, values)) == {shown}
    assert table(tmp_path / "results", rows="algo")["mean"].isna().tolist() == [True]


def test_what_is_undefined_is_not_recorded_and_no_divergence() -> None:
    metrics = (Metric("test", "loss"), Metric("test", "accuracy_of_class_3", larger_is_better=True, may_lack=True))
    nan, losses = torch.nan, TrainLosses(torch.ones(3).double(), torch.ones(3, dtype=torch.bool))
    workers = torch.tensor([[1.0, nan], [2.0, 0.25], [3.0, 0.75]]).double()
    found = Evaluation(metrics, workers, torch.tensor([1.0, nan]), losses, 0.0)
    rows = {row["worker"]: row["value"] for row in found.rows() if row["metric"] == "accuracy_of_class_3"}
    assert not found.diverged and rows == {1: 0.25, 2: 0.75, "worst": 0.25, "mean": 0.5}
    assert Evaluation(metrics, workers[:, [1, 0]], torch.tensor([1.0, nan]), losses, 0.0).diverged
    run = trained(f"metrics=[accuracy,{__name__}:single]", "lr=1e30", "optim=sgd")
    with torch.no_grad():
        assert evaluate(run.problem, run.stepper.models, run.net, losses, 0, 1).diverged
    assert ("test", "single", 0) in evaluated(trained(f"metrics=[accuracy,{__name__}:single]"))
    assert ("test", "nothing", 0) in evaluated(trained(f"metrics=[accuracy,{__name__}:nothing]"))


STAND_IN = """
def multiclass_f1_score(preds, target, num_classes, average="macro", validate_args=True):
    from sklearn.metrics import f1_score
    return preds.new_tensor(f1_score(target, preds.argmax(1), average=average, labels=range(num_classes)))

def f1_score(preds, target, task, threshold=0.5, num_classes=None):
    assert task == "multiclass"
    return multiclass_f1_score(preds, target, num_classes)

class MulticlassF1Score:
    higher_is_better = True

    def __init__(self, num_classes, average="macro", **kwargs):
        self.num_classes, self.calls = num_classes, 0

    def __call__(self, preds, target):
        self.calls += 1
        assert self.calls == 1
        return multiclass_f1_score(preds, target, self.num_classes)
"""


def test_metrics_of_torchmetrics_by_their_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "standin_metrics/functional").mkdir(parents=True)
    (tmp_path / "standin_metrics/__init__.py").write_text("")
    (tmp_path / "standin_metrics/functional/__init__.py").write_text("")
    (tmp_path / "standin_metrics/functional/classification.py").write_text(STAND_IN)
    monkeypatch.syspath_prepend(str(tmp_path))
    module = "standin_metrics.functional.classification"
    names = [f"+{module}:multiclass_f1_score", f"-{module}:f1_score", f"{module}:MulticlassF1Score"]
    run = trained(f"metrics=[f1,{','.join(names)}]")
    found = evaluated(run)
    for name in ("multiclass_f1_score", "f1_score", "MulticlassF1Score"):
        assert found["test", name, 1] == pytest.approx(found["test", "f1", 1], rel=1e-6)
    directions = {metric.name: metric.larger_is_better for metric in scores_of(run.problem)}
    assert (directions["multiclass_f1_score"], directions["f1_score"], directions["MulticlassF1Score"]) == (1, 0, 1)


@pytest.mark.slow
def test_torchmetrics_itself() -> None:
    pytest.importorskip("torchmetrics")
    names = "torchmetrics.functional.classification:multiclass_cohen_kappa"
    found = evaluated(trained(f"metrics=[+{names},{__name__}:kappa]"))
    assert found["test", "multiclass_cohen_kappa", 0] == pytest.approx(found["test", "kappa", 0], abs=1e-5)


REFUSED = {
    "metrics=[acc]": "metrics=acc does not exist: use accuracy, f1, .*, or module:function",
    "metrics=f1": r"metrics='f1' has the wrong type: use a list, each item text, such as metrics=\[f1\]",
    "metrics=[f2]": r"metrics=f2 does not exist: .* Did you mean 'f1'\?",
    "metrics=[F1]": r"metrics=F1 does not exist: .* Did you mean 'f1'\?",
    f"metrics=[+{__name__}:nan]": "looks like a number: rename the function",
    "metrics=[f1,f1]": "has f1 more than once",
    "metrics=[torchmetrics_:f1]": "there is no module torchmetrics_",
    "metrics=[per_class_accuracy] data=synthetic": "would record 1000 metrics, more than 200: use f1",
    f"metrics=[{__name__}:auc]": r"has no direction, and the first metric judges the run: write \+",
    f"metrics=[f1,{__name__}:two]": r"returns \[2\]: return one number for all test examples",
    f"metrics=[f1,{__name__}:true]": r"returns a bool: return one number for all test examples",
    f"metrics=[f1,{__name__}:true_tensor]": r"returns a bool: return one number",
    f"metrics=[f1,{__name__}:true_of_numpy]": r"returns a bool_?: return one number",
    f"metrics=[f1,{__name__}:broken]": "broken fails .*AttributeError",
    f"metrics=[f1,{__name__}:kappa] num_workers=100000 partition=iid batch_size=1": "numbers, more than 2e\\+08",
    "metrics=[accuracy] task=quadratics": "needs a task that trains a network on examples",
}


@pytest.mark.parametrize("settings", REFUSED)
def test_what_cannot_be_right_is_refused_before_a_run_begins(settings: str) -> None:
    function.cache_clear()
    with pytest.raises(ConfigError, match=REFUSED[settings]):
        configure(*SMALL, *settings.split())


def test_a_metric_with_the_name_of_another_one_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = trained("metrics=[f1]", "algo=choco", "compress=topk", "topology=ring")
    assert {metric.name for metric in recorded(run.problem, compressed=True)} <= {*RECORDED, "f1"}
    monkeypatch.chdir(tmp_path)
    names = [*RECORDED, "f1", "accuracy_of_class_3", "kappa"]
    (tmp_path / "named_alike.py").write_text("".join(f"def {name}(o, t): return 0.125\n" for name in names))
    for beside in [*RECORDED, "f1", "per_class_accuracy", f"{__name__}:kappa"]:
        short = {"per_class_accuracy": "accuracy_of_class_3"}.get(beside, beside.rpartition(":")[2])
        listed = [f"+named_alike:{short}", *([] if beside in RECORDED else [beside])]
        for metrics in (listed, listed[::-1]):
            with pytest.raises(ConfigError, match=rf"would be recorded as {short}, .*: rename the function"):
                configure(*SMALL, f"metrics=[{','.join(metrics)}]")
    configure(*SMALL, "metrics=[accuracy,named_alike:f1,named_alike:accuracy_of_class_3]")


def test_units_directions_and_names_are_in_rows_tables_and_figures(tmp_path: Path, capsys: Any) -> None:
    own = f"metrics=[f1,per_class_accuracy,{__name__}:kappa]"
    assert run_id(configure(*SMALL, own)) != run_id(configure(*SMALL)) == run_id(configure(*SMALL, "metrics=[]"))
    asked = ("[]", "[f1]", "[f1,accuracy]", f"[+{__name__}:auc]", f"[-{__name__}:auc]")
    assert len({run_id(configure(*SMALL, f"metrics={names}")) for names in asked}) == len(asked)
    directory = tmp_path / "results" / "runs" / "one"
    assert exit_status(main, *SMALL, own, f"run_dir={directory}", "evaluation.every_epochs=0.1") == 0
    told = capsys.readouterr().out
    assert "test f1" in told and "test accuracy of class 9" in told and "test kappa" in told
    known = read_metadata(directory)
    assert next(iter(known)) == ("test", "f1") and known["test", "f1"].percent
    (directory / "names.json").write_text(json.dumps({"class": ["cat", "hot_dog"]}))
    key, named = ("test", "accuracy_of_class_1"), read_metadata(directory)
    for words in ("accuracy of class 1", "accuracy_of_class_hot_dog", "test accuracy of class hot dog (%)"):
        assert metric_named(words, [named]) == key
    assert "test accuracy of class hot_dog " in summary(directory)
    figure = Figure()
    draw_learning_curves(figure, directory, read_curves(directory))
    titles = {one.get_title(loc="left") for one in figure.axes}
    assert {"test accuracy of class cat", "test accuracy of class hot_dog", "test accuracy of class 9"} <= titles
    assert (known["test", "kappa"].unit, known["test", "kappa"].larger_is_better) == ("points", True)
    assert {row["metric"] for row in read_metrics(directory)} == {name for _, name in known}
    frame = table(tmp_path / "results", rows=["algo"], metric="kappa")
    assert frame["metric"][0] == "test kappa"


def test_the_figure_has_a_panel_for_each_of_many_metrics(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("decentral.report.style.png", lambda *_, **__: b"")

    def panels(number: int) -> tuple[int, float]:
        sizes = []
        monkeypatch.setattr("decentral.report.style.plain", lambda figure: sizes.append(figure) or figure)
        rows = [
            {"step": t, "epoch": t, "bytes_sent": 0, "wall_s": t, "worker": "mean", "split": "test", "metric": f"m{m}",
             "value": t / (m + 1)}
            for t in range(3)
            for m in range(number)
        ]  # fmt: skip
        series: dict[Any, Any] = {}
        for row in rows:
            series.setdefault(("test", row["metric"]), {}).setdefault("mean", []).append(row)
        metrics = {key: Metric(*key, larger_is_better=True, unit="%") for key in series}
        save_learning_curves(tmp_path, Curves(series, metrics, rows))
        (figure,) = sizes
        return len([panel for panel in figure.axes if panel.get_title(loc="left")]), figure.get_figheight()

    assert panels(6) == (6, pytest.approx(7.8)) and panels(15)[0] == 15
    assert panels(40)[0] == 16
    assert read_curves(tmp_path).rows == []
