"""What is reported of the models of all workers; the oracle, which draws the next sample of each worker."""

from __future__ import annotations

import copy
import itertools
import json
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas
import pytest
import torch
from PIL import Image
from torch import Tensor

import table
from configure import configure
from decentral.cli.single import carry_out as carry_out_command
from decentral.config.composition import compose, compose_all
from decentral.config.identity import identity, run_id
from decentral.config.prepared import prepare
from decentral.errors import ConfigError
from decentral.network import kernels
from decentral.network.local import LocalNetwork
from decentral.network.processes import join
from decentral.network.settings import NetworkSettings
from decentral.network.world import World
from decentral.partition.partition import own_test_set
from decentral.report.summary import summary
from decentral.store import RunStore
from decentral.store.metrics import Metric
from decentral.store.models import AVERAGED, load_models
from decentral.tasks.problems.supervised import Supervised
from decentral.tasks.task import WHOLE, EvaluationSettings, Problem, Scope
from decentral.topology.delivery import Losses
from decentral.topology.static import Ring
from decentral.training.assemble import Run, assemble
from decentral.training.checkpoint import from_parts, to_part
from decentral.training.evaluation import Evaluation, evaluate
from decentral.training.gradient_times import Sleep
from decentral.training.oracle import TrainLosses

# -- What is reported of the models of all workers, by hand-made numbers; and runs that diverge ------------------------

MODELS = torch.tensor([[1.0, 0.0], [3.0, 0.0], [2.0, 6.0]], dtype=torch.float64)  # their mean is (2, 2)
LOSSES = torch.tensor([0.5, 1.0, 3.0], dtype=torch.float64)


class Toy(Problem):
    """What every problem needs beside its statistics."""

    steps_per_epoch = 1.0

    def init(self) -> Tensor:
        return torch.zeros(2)

    def gradient(self, x: Tensor, *_: object) -> tuple[Tensor, Tensor]:
        return x[:, 0], x


class Coordinates(Toy):
    """Score: the first coordinate; cost: the square of the second. Process p of P does p + 1 shares of the work."""

    metrics = (Metric("test", "score", larger_is_better=True), Metric("test", "cost"))

    def __init__(self, buffers: Tensor | None = None) -> None:
        self.asked_for: list[int] = []
        self._states = [] if buffers is None else [{"tensors": {"mean": value}} for value in buffers]

    def model_states(self) -> list[dict[str, Any]]:
        return self._states

    def worker_statistics(self, x: Tensor, workers: Sequence[int] | None = None, scope: Scope = WHOLE) -> Tensor:
        x = x if workers is None else x[workers]
        self.asked_for.append(len(x))
        return torch.stack([x[:, 0], x[:, 1] ** 2], dim=1)

    def average_statistics(self, x: Tensor, part: int = 0, parts: int = 1, scope: Scope = WHOLE) -> Tensor:
        return self.worker_statistics(x[None])[0] * (part + 1) / (parts * (parts + 1) / 2)


class Text(Toy):
    """Five sentences of different lengths: perplexity is exp(sum of nats / tokens) of all of them together."""

    metrics = (Metric("test", "perplexity"),)
    LENGTHS = torch.tensor([1.0, 2.0, 3.0, 5.0, 8.0], dtype=torch.float64)

    def worker_statistics(self, x: Tensor, workers: Sequence[int] | None = None, scope: Scope = WHOLE) -> Tensor:
        return torch.stack([self._sums(row, 0, 1) for row in (x if workers is None else x[workers])])

    def average_statistics(self, x: Tensor, part: int, parts: int, scope: Scope = WHOLE) -> Tensor:
        return self._sums(x, part, parts)

    def finish(self, statistics: Tensor) -> Tensor:
        return (statistics[..., :1] / statistics[..., 1:]).exp()

    def _sums(self, x: Tensor, part: int, parts: int) -> Tensor:
        """Nats and tokens of every parts-th sentence; a token costs more in a longer sentence."""
        tokens = self.LENGTHS[part::parts]
        return torch.stack([(tokens * (x[0] + 0.1 * tokens)).sum(), tokens.sum()])


DRAWN = torch.ones(3, dtype=torch.bool)


def evaluated(
    models: Tensor = MODELS, losses: Tensor = LOSSES, drawn: Tensor = DRAWN, problem: Problem | None = None
) -> Evaluation:
    net = LocalNetwork(Ring().schedule(len(models)), Losses(0.0, 0))
    return evaluate(problem or Coordinates(), models, net, TrainLosses(losses, drawn), part=0, parts=1)


def value(found: Evaluation, metric: str, worker: int | str) -> float:
    (row,) = [row for row in found.rows() if (row["metric"], row["worker"]) == (metric, worker)]
    return row["value"]


def test_metrics_by_hand():
    """Each worker's, the least favorable, the mean over workers, and that of the averaged model."""
    found = evaluated()
    assert [value(found, "score", who) for who in (0, 1, 2, "worst", "mean", "averaged")] == [1, 3, 2, 1, 2, 2]
    assert [value(found, "cost", who) for who in (0, 1, 2, "worst", "mean", "averaged")] == [0, 0, 36, 36, 12, 4]
    assert value(found, "consensus_distance", "mean") == pytest.approx((5 + 5 + 16) / 3)
    assert (value(found, "loss", "mean"), value(found, "loss", "worst")) == (1.5, 3)
    assert all(row["step"] == 7 for row in found.rows(step=7))


def test_the_consensus_distance_is_of_all_coordinates_however_they_are_cut_into_blocks(monkeypatch):
    models = torch.arange(15, dtype=torch.float64).view(3, 5) ** 2
    monkeypatch.setattr(kernels, "_BLOCK_BYTES", 1)
    monkeypatch.setattr(kernels, "_LEAST_COLUMNS", 2)
    apart = (models - models.mean(0)).square().sum() / 3
    assert evaluated(models).consensus == pytest.approx(float(apart))


def test_a_worker_that_has_drawn_nothing_has_no_training_loss_and_has_not_diverged():
    losses, drawn = LOSSES.clone(), DRAWN.clone()
    losses[1], drawn[1] = math.nan, False
    found = evaluated(losses=losses, drawn=drawn)
    assert not found.diverged
    assert value(found, "loss", "mean") == 1.75 and value(found, "loss", "worst") == 3
    assert evaluated(losses=losses, drawn=DRAWN).diverged, "a loss that is not a number is divergence"
    before = evaluated(losses=torch.full((3,), math.nan, dtype=torch.float64), drawn=~DRAWN)
    assert not before.diverged and not [row for row in before.rows() if row["metric"] == "loss"]


def test_workers_whose_models_are_equal_are_evaluated_once():
    models = MODELS[[0, 1, 0]]
    problem = Coordinates()
    found = evaluated(models, problem=problem)
    assert problem.asked_for[0] == 2
    assert [value(found, "score", i) for i in range(3)] == [1, 3, 1]
    problem = Coordinates(buffers=torch.tensor([0.0, 0.0, 1.0]))
    evaluated(models, problem=problem)
    assert problem.asked_for[0] == 3, "their statistics of batches are not equal"


@pytest.mark.parametrize("poison", [math.nan, math.inf])
def test_a_single_worker_that_is_not_finite_is_divergence(poison):
    assert not evaluated().diverged
    models, losses = MODELS.clone(), LOSSES.clone()
    models[1, 1] = losses[1] = poison
    assert evaluated(models=models).diverged
    assert evaluated(losses=losses).diverged
    assert not math.isfinite(evaluated(models=models).worst(1))


def over_processes(world: World, problem: type[Problem]) -> tuple[Evaluation, tuple[bool, ...]]:
    net = join(Ring().schedule(3), Losses(0.0, 0), world.device, world.rank, world.size, NetworkSettings())
    mine = slice(net.workers.start, net.workers.stop)
    found = evaluate(problem(), MODELS[mine], net, TrainLosses(LOSSES[mine], DRAWN[mine]), world.rank, world.size)
    return found, world.any(world.rank == 1, False)


def test_processes_see_the_same_evaluation_and_what_any_of_them_wants(worlds):
    expected = evaluated()
    for found, wishes in worlds(2).call(over_processes, Coordinates):
        assert wishes == (True, False)
        for ours, theirs in zip(found.rows(), expected.rows(), strict=True):
            assert ours == theirs | {"value": pytest.approx(theirs["value"], rel=1e-12)}
        assert torch.equal(found.workers, expected.workers)


@pytest.mark.parametrize("size", [1, 2])
def test_a_metric_that_is_a_ratio_of_sums_is_that_of_all_examples_however_processes_share_them(worlds, size):
    lengths = Text.LENGTHS
    nats = (lengths * (MODELS[:, :1] + 0.1 * lengths)).sum(1)
    expected = (nats / lengths.sum()).exp()
    averaged = math.exp(float((lengths * (2 + 0.1 * lengths)).sum() / lengths.sum()))
    for found, _ in worlds(size).call(over_processes, Text):
        torch.testing.assert_close(found.workers[:, 0], expected, rtol=1e-12, atol=0)
        assert value(found, "perplexity", "averaged") == pytest.approx(averaged, rel=1e-12)
        assert value(found, "perplexity", "worst") == float(found.workers.max())


DIVERGE = {
    "quadratics": ["task=quadratics", "lr=1e6", "steps=300"],
    "digits": ["data=digits", "model=mlp", "partition=iid", "batch_size=8", "lr=1e6", "steps=60"],
}


@pytest.mark.parametrize(("task", "processes"), [("quadratics", 2), ("digits", 1)])
def test_a_run_that_diverges_stops_and_says_so(start, task, processes):
    result = start(*DIVERGE[task], "num_workers=4", "evaluation.every_epochs=0.5", processes=processes)
    assert result.status == result.facts["status"] == "diverged"
    assert 0 < result.facts["step"] < (300 if task == "quadratics" else 60)
    last = [row["value"] for row in result.rows if row["step"] == result.facts["step"]]
    assert not all(map(math.isfinite, last))
    assert all(math.isfinite(row["value"]) for row in result.rows if row["step"] == 0)


@pytest.mark.usefixtures("undrawn")
def test_divergence_is_a_result_and_not_a_failure(tmp_path, capsys):
    config = compose([*DIVERGE["quadratics"], f"run_dir={tmp_path / 'run'}", "progress=false", "num_workers=4"])
    assert carry_out_command(config) == 0
    assert "diverged" in capsys.readouterr().out
    step = (RunStore.peek(tmp_path / "run") or {})["step"]
    assert carry_out_command(config) == 0
    assert "already finished" in capsys.readouterr().out
    assert (RunStore.peek(tmp_path / "run") or {})["step"] == step


@pytest.mark.parametrize(
    ("every", "steps", "expected"),
    [
        ("1", "5", [0, 1, 2, 3, 4, 5]),
        ("2", "5", [0, 2, 4, 5]),
        ("100", "5", [0, 5]),
        ("2.5", "6", [0, 2, 5, 6]),
        ("null", "5", [0, 1, 2, 3, 4, 5]),
        ("null", "301", [*range(0, 301, 3), 301]),
    ],
)
def test_runs_are_evaluated_before_the_first_step_every_so_often_and_after_the_last(start, every, steps, expected):
    result = start("task=quadratics", "num_workers=3", f"steps={steps}", f"evaluation.every_epochs={every}")
    assert sorted({row["step"] for row in result.rows}) == expected


def test_evaluating_each_step_is_a_run_of_its_own_where_the_task_suggests_less() -> None:
    """The usual run keeps the id that it had when each step was evaluated."""
    usual, each = compose(["task=quadratics"]), compose(["task=quadratics", "evaluation.every_epochs=1"])
    assert identity(usual)["eval_every_epochs"] == 1.0 and run_id(usual) != run_id(each)


def test_short_runs_are_evaluated_ten_times_without_a_new_id(start):
    small = ["data=digits", "model=mlp", "model.hidden=[2]", "num_workers=4", "batch_size=32", "alpha=10"]
    in_time = ["steps=1000", "cluster=even", "cluster.compute.mean_s=1", "stop_after_simulated_s=20"]
    stopped = ["steps=20", "early_stop.patience=9"]
    for words, number in ((["steps=20"], 11), (["steps=5"], 6), (in_time, 11), (stopped, 2)):
        result = start(*small, *words, directory=f"{words[0]}{len(words)}")
        steps = {row["step"] for row in result.rows}
        assert len(steps) == number, (words, steps)
    usual, same, study = compose(small), compose([*small, "evaluation.every_epochs=4"]), compose_all([small])[0]
    assert run_id(usual) == run_id(same) == run_id(study) and study.evaluation.every_epochs == 4.0


@pytest.mark.parametrize(
    ("examples", "expected"),
    [("all", None), ("2000", 2000), ("10000", None), ("auto", int((0.1 * 200 * 50_000 / (0.3 * 17) - 10_000) / 49))],
)
def test_on_the_way_a_tenth_of_the_passes_is_enough(examples, expected):
    settings = EvaluationSettings(examples=examples)
    assert settings.on_the_way(50_000, 10_000, num_workers=16, epochs=200, every_epochs=4.0) == expected


DIGITS = ("data=digits", "model=mlp", "num_workers=4", "batch_size=8", "steps=8", "evaluation.every_epochs=0.1")


def test_the_last_evaluation_is_on_everything_and_the_others_on_what_was_asked_for(start):
    whole, few = start(*DIGITS), start(*DIGITS, "evaluation.examples=100", "evaluation.initial=false", directory="few")
    last = [row for row in whole.rows if row["step"] == 8]
    strip = lambda rows: [{k: v for k, v in row.items() if k != "wall_s"} for row in rows]  # noqa: E731
    assert strip(last) == strip([row for row in few.rows if row["step"] == 8])
    accuracies = {
        (row["step"], row["worker"]): row["value"]
        for row in few.rows
        if row["metric"] == "accuracy" and isinstance(row["worker"], int)
    }
    assert min(step for step, _ in accuracies) > 0
    on_the_way = [value for (step, _), value in accuracies.items() if step < 8]
    assert on_the_way and all(round(100 * value, 9) == round(100 * value) for value in on_the_way)


SPLIT = [
    "evaluation.every_epochs=4",
    "data=digits",
    "model=mlp",
    "algo=dpsgd",
    "topology=ring",
    "num_workers=4",
    "alpha=0.1",
    "steps=8",
    "lr=0.3",
]
EXACT = ["trace=true", "precision=fp64", "model.hidden=[8]"]


@pytest.mark.parametrize("task", ["images", "text"])
def test_on_its_own_test_set_a_model_is_as_good_as_by_hand(start, task):
    more = ["task=text", "data=synthetic_text", "model=fasttext"] if task == "text" else []
    settings = [*SPLIT, *more, "evaluation.split=both", "evaluation.initial=false"]
    found = start(*settings)
    run = assemble(prepare(configure(*settings)), World(0, 1, torch.device("cpu")))
    labels, models = run.problem.data.test_labels(), load_models(found.directory)
    of_average: list[float] = []
    for i, numbers in enumerate(run.problem.local_tests):
        held = run.problem.data.train_labels[run.problem.indices[i]]
        own, shares = labels[numbers.numpy()], np.bincount(held) / len(held)
        assert len(set(numbers.tolist())) == len(numbers) > 20  # none twice
        assert np.abs(np.bincount(own, minlength=len(shares)) / len(own) - shares).max() < 1 / len(own) + 0.02
        right = {}
        for name in (f"worker{i}", AVERAGED):
            module = run.problem.models.for_tests(0)
            module.load_state_dict(models[name], assign=True)
            inputs, targets = run.problem.data.tested(numbers)
            right[name] = (module.eval()(inputs).argmax(1) == targets).double()
        (row,) = (row for row in found.rows if (row["split"], row["metric"], row["worker"]) == ("local", "accuracy", i))
        assert row["value"] == pytest.approx(right[f"worker{i}"].mean().item(), abs=1e-9)
        of_average += right[AVERAGED].tolist()
    rows = {row["worker"]: row["value"] for row in found.rows if (row["split"], row["metric"]) == ("local", "accuracy")}
    assert rows["averaged"] == pytest.approx(np.mean(of_average), abs=1e-9)
    assert "test accuracy" in (told := summary(found.directory)) and "local accuracy" in told
    table = pandas.read_csv(found.directory / "local_tests.csv")
    assert table["accuracy"].tolist() == pytest.approx([rows[i] for i in table["worker"]])
    assert "local_tests.csv  (each worker's test set, and its final metrics on it)" in told
    status = json.loads((found.directory / "status.json").read_text())
    for seconds, most in ((60.0, True), (9.0, False)):
        status["times_s"] = {"passes": 1.0, "evaluation": seconds}
        (found.directory / "status.json").write_text(json.dumps(status))
        assert ("evaluations took 98 % of the time: use evaluation.examples=200" in summary(found.directory)) is most


def test_test_sets_of_workers_make_no_difference_to_others_and_are_the_same_in_processes(start):
    both, local, usual = (
        start(*SPLIT, f"evaluation.split={split}", *EXACT, directory=split) for split in ("both", "local", "global")
    )
    assert np.array_equal(both.iterates, usual.iterates)
    rows = {split: [row for row in both.rows if row["split"] == split] for split in ("test", "local")}
    assert rows["local"] == [row for row in local.rows if row["split"] == "local"]
    assert not [row for row in local.rows if row["split"] == "test"]
    assert rows["test"] == [row for row in usual.rows if row["split"] == "test"]
    two = start(*SPLIT, "evaluation.split=both", *EXACT, processes=2, directory="two").rows
    assert [row["worker"] for row in two] == [row["worker"] for row in both.rows]
    assert all(a["value"] == pytest.approx(b["value"], rel=1e-9) for a, b in zip(two, both.rows, strict=True))


PARTS = ("validation", "test")
HALVED = {
    "images": ("task=images", *table.TASKS["images"], "metrics=[accuracy,f1]", "evaluation.split=both"),
    "text": ("task=text", *table.TASKS["text"], "data.num_test=61"),
    "language": ("task=language", *table.TASKS["language"], "evaluation.examples=all"),
    **{name: (f"task={name}", *words) for name, words in table.TASKS.items() if name == "translation"},
    "own": (f"data={__name__}:labeled", "model=mlp", "batch_size=4", f"metrics=[+{__name__}:right,accuracy]"),
    "imagefolder": ("data=imagefolder", "data.path=tree", "data.image_size=64", "model=cnn", "batch_size=2"),
}


def labeled() -> tuple[list[Any], list[Any]]:
    inputs, labels = torch.randn(51, 1, 4, 4, generator=torch.Generator().manual_seed(0)), torch.arange(51) % 3
    pairs = list(zip(inputs, labels.tolist(), strict=True))
    return pairs[:40], pairs[40:]


def right(outputs: Tensor, targets: Tensor) -> float:
    return (outputs.argmax(1) == targets).double().mean().item()


def test_the_halves_of_the_test_examples_are_disjoint_complete_and_the_same_for_ever():
    for num_test in (2, 3, 10_001):
        halves = [EvaluationSettings(part=part).numbers(num_test) for part in PARTS]
        assert 0 <= len(halves[0]) - len(halves[1]) <= 1 and all((np.diff(half) > 0).all() for half in halves)
        assert sorted(np.concatenate(halves)) == EvaluationSettings().numbers(num_test).tolist()
    assert EvaluationSettings(part="validation").numbers(12).tolist() == [0, 2, 7, 8, 10, 11]


@pytest.mark.parametrize("task", HALVED)
def test_what_is_counted_on_the_halves_adds_up_to_that_on_all_whatever_the_seed(task, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for split, name, number in itertools.product(("train", "test"), "ab", range(5)) if task == "imagefolder" else ():
        (folder := tmp_path / "tree" / split / name).mkdir(parents=True, exist_ok=True)
        pixels = np.random.default_rng(10 * number + ord(name)).integers(0, 255, (64, 64, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / f"{number}.png")
    found, looked_at = {}, {}
    for part, seed in (("all", 0), *((part, 0) for part in PARTS), ("validation", 1)):
        settings = (*HALVED[task], "num_workers=2", "precision=fp64", f"evaluation.part={part}", f"seed={seed}")
        run = assemble(prepare(configure(*settings, "device=cpu")), World(0, 1, torch.device("cpu")))
        problem, examples = run.problem, run.config.task.num_examples(run.config)[1]
        x = torch.linspace(-1, 1, run.stepper.models.shape[1], dtype=torch.float64)  # the same for both seeds
        found[part, seed] = problem.average_statistics(x, 0, 1)
        torch.testing.assert_close(sum(problem.average_statistics(x, p, 3) for p in range(3)), found[part, seed])
        looked_at[part, seed] = set(problem._chosen(WHOLE).tolist())
        few = problem._chosen(Scope(examples=3)).tolist()
        assert len(looked_at[part, seed]) == examples and len(few) == 3 and set(few) <= looked_at[part, seed]
        if problem.split == "both":
            assert all(set(own.tolist()) <= looked_at[part, seed] for own in problem.local_tests)
        run.close()
    torch.testing.assert_close(found["validation", 0] + found["test", 0], found["all", 0])
    assert not found["validation", 0].equal(found["test", 0])
    assert looked_at["validation", 0] == looked_at["validation", 1] < looked_at["all", 0]


def test_accuracies_on_the_halves_are_those_of_the_same_models_and_the_run_says_on_what_it_was_tested(start):
    settings = (*SPLIT, *EXACT, "evaluation.split=both", "evaluation.examples=100")
    results = {part: start(*settings, f"evaluation.part={part}", directory=part) for part in ("all", *PARTS)}
    accuracy = {}
    for part, result in results.items():
        assert np.array_equal(result.iterates, results["all"].iterates)
        rows = [row for row in result.rows if (row["step"], row["split"], row["metric"]) == (8, "test", "accuracy")]
        accuracy[part] = np.array([row["value"] for row in rows if row["worker"] != "worst"])
    assert (180 * accuracy["validation"] + 179 * accuracy["test"]) / 359 == pytest.approx(accuracy["all"])
    assert "evaluation.part" not in summary(results["all"].directory)
    assert "on the test half of the test examples, 179 of them (evaluation.part)" in summary(results["test"].directory)
    half = (*settings, "evaluation.part=validation")
    two = start(*half, processes=2, directory="two")
    start(*half, "checkpoint_every_s=0", directory="resumed", interrupt_at=4)
    resumed = start(*half, "checkpoint_every_s=0", directory="resumed")
    for rows in (two.rows, resumed.rows):
        each = zip(rows, results["validation"].rows, strict=True)
        assert all(a["value"] == pytest.approx(b["value"], rel=1e-9) for a, b in each)
    ids = {run_id(compose([*SPLIT, f"evaluation.part={part}"])) for part in ("all", *PARTS)}
    assert len(ids) == 3 and run_id(compose(SPLIT)) in ids


def test_a_worker_whose_classes_have_no_test_examples_is_named():
    labels = np.array([0, 0, 1, 1, 1])
    assert sorted(own_test_set(np.array([3, 0, 9]), labels, 0, 2).tolist()) == [0, 1]  # what there is of them
    with pytest.raises(ConfigError, match="has no test examples for worker 2"):
        own_test_set(np.array([0, 0, 9]), labels, 0, 2)


def test_tests_in_bf16_see_the_same_models_and_give_nearly_the_same_numbers(start):
    """Training is that of float32; logits are rounded to 8 bits, which changes few of the 360 answers."""
    rounded = "evaluation.precision=bf16"
    both = [start(*DIGITS), start(*DIGITS, rounded, directory="rounded")]
    exact, other = (
        {(row["split"], row["metric"], row["worker"]): row["value"] for row in result.rows if row["step"] == 8}
        for result in both
    )
    assert exact.keys() == other.keys()
    for key in (("train", "loss", "mean"), ("model", "consensus_distance", "mean")):
        assert exact[key] == other[key]
    loss, accuracy = ("test", "loss", "mean"), ("test", "accuracy", "mean")
    assert other[loss] != exact[loss] and other[loss] == pytest.approx(exact[loss], rel=0.01)
    assert other[accuracy] == pytest.approx(exact[accuracy], abs=0.01)
    assert run_id(compose(list(DIGITS))) != run_id(compose([*DIGITS, rounded]))


def test_a_run_knows_where_its_time_went_in_all_attempts(start):
    settings = (*DIGITS, "steps=40", "checkpoint_every_s=0")
    assert start(*settings, interrupt_at=20).status == "interrupted"
    result = start(*settings)
    times = result.facts["times_s"]
    assert list(times) == ["passes", "exchange", "waiting", "data", "evaluation", "checkpoints"]
    assert times.pop("waiting") == 0, "one process waits for nobody"
    assert all(seconds > 0 for seconds in times.values())
    steps_s = sum(times[part] for part in ("passes", "exchange", "data"))
    assert steps_s == pytest.approx(result.facts["wall_s"], abs=1e-5)
    assert "Time: " in summary(result.directory)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ("evaluation.precision=fp64", r"evaluation\.precision=fp64 exceeds the models' precision"),
        ("precision=fp64 evaluation.precision=bf16", r"evaluation\.precision=bf16 conflicts with precision=fp64"),
        ("task=quadratics evaluation.precision=bf16", r"evaluation\.precision=bf16 .*leave it out with task=quad"),
        ("task=quadratics evaluation.examples=5", r"evaluation\.examples=5 needs test examples, and task=quad"),
        ("task=quadratics evaluation.split=local", r"evaluation\.split=local needs test examples with classes"),
        ("task=language evaluation.split=both", r"evaluation\.split=both needs test examples with classes"),
        *(
            (f"task={task} evaluation.part=test", rf"part=test needs a task that trains .*part=all with task={task}\.")
            for task in ("quadratics", "regression", "mean_estimation")
        ),
        ("evaluation.part=train", r"evaluation\.part=train does not exist"),
        ("data=synthetic data.num_test=1 evaluation.part=test", r"part=test is half of the test images, .* has 1: use"),
        ("evaluation.split=own", r"evaluation\.split=own does not exist"),
        ("evaluation.examples=some", r"evaluation\.examples=some is not valid: use a number of test examples"),
    ],
)
def test_evaluations_that_there_are_not_are_refused(settings, message):
    with pytest.raises(ConfigError, match=message):
        compose(settings.split())


# -- The oracle: every call draws the next sample of each worker that it is for, however far the others a --------------

K = 3
TASKS = {
    "quadratics": ["task=quadratics", "task.noise=1"],
    "mean_estimation": ["task=mean_estimation", "algo=relay_mean", "topology=chain"],
    "one by one": ["model=cnn", "execution=loop"],
    "side by side": ["model=mlp", "execution=batched"],
    "dropout": ["data=user_table:data_of_vectors", "model=user_table:make_dropout_always", "batch_size=1"],
}
SAMPLES_PER_EPOCH = 479  # of the digits, for 3 workers


def assembled(name: str, *settings: str) -> Run:
    common = [f"num_workers={K}", "processes=1", "device=cpu", "partition=iid", "algo=dpsgd", "topology=ring"]
    config = configure(*common, *TASKS[name], *settings)
    config.task.prepare(config)
    with torch.no_grad():
        return assemble(prepare(config), World(0, 1, torch.device("cpu")))


def models(run: Run) -> Tensor:
    """Models that differ [K, P]."""
    x = run.stepper.models.clone()
    return x + 0.01 * torch.randn(x.shape, generator=torch.Generator().manual_seed(0), dtype=x.dtype)


def gradient(run: Run, x: Tensor, *draws: int) -> Tensor:
    """Of all workers, in these draws."""
    return run.problem.gradient(x, np.array(draws))[1].clone()


@pytest.fixture(params=TASKS)
def run(request: pytest.FixtureRequest) -> Run:
    return assembled(request.param)


def test_workers_of_a_process_sleep_as_long_as_the_latest_of_those_that_are_asked(run: Run, monkeypatch) -> None:
    slept: list[float] = []
    monkeypatch.setattr("decentral.training.oracle.time.sleep", slept.append)

    class Delays(NamedTuple):
        def delays(self, first: int, last: int) -> np.ndarray:
            return np.array([[10 * first + i for i in range(1, K + 1)]])

    run.oracle.sleep = Sleep(Delays())  # type: ignore[arg-type]
    x = models(run)
    run.oracle(x)
    run.oracle(x[[0, 1]], [0, 1])
    run.oracle(x[[0, 2]], [0, 2])
    assert slept == [3, 12, 21]


def test_workers_that_are_not_equally_far_draw_what_is_next_for_each(run: Run) -> None:
    x = models(run)
    for worker, draws in ((0, 5), (2, 1)):
        for _ in range(draws):
            run.oracle(x[worker : worker + 1], [worker])
    mixed = run.oracle(x).clone()
    assert run.oracle.draws.tolist() == [6, 1, 2]
    for worker, draw in enumerate((5, 0, 1)):
        torch.testing.assert_close(mixed[worker], gradient(run, x, draw, draw, draw)[worker])
    assert torch.isfinite(run.oracle.take_losses().mean).all()


def test_every_worker_drops_other_inputs_in_every_draw() -> None:
    run = assembled("dropout")
    x = models(run)
    g = torch.cat([gradient(run, x, *[draw] * K) for draw in range(2)])
    assert len({tuple(row) for row in (g == 0).tolist()}) == 2 * K  # a weight of an input that is dropped has none
    torch.testing.assert_close(run.problem.gradient(x[-1:], np.array([1]), [K - 1])[1], g[-1:])


@pytest.mark.parametrize("name", ["one by one", "side by side"])
def test_workers_in_different_epochs_have_batches_of_different_sizes(name: str) -> None:
    run = assembled(name, "batch_size=100", "task.drop_last=false")
    assert SAMPLES_PER_EPOCH % 100 != 0
    x = models(run)
    last = int(run.problem.steps_per_epoch) - 1
    whole = [gradient(run, x, *[draw] * K) for draw in (last, 0, last + 3)]
    mixed = gradient(run, x, last, 0, last + 3)
    for worker in range(K):
        torch.testing.assert_close(mixed[worker], whole[worker][worker])


def test_the_loss_is_per_draw(run: Run) -> None:
    x = models(run)
    losses = [run.problem.gradient(x, np.full(K, draw))[0].double() for draw in range(3)]
    for _ in range(2):
        run.oracle(x)
    run.oracle(x[:1], [0])
    expected = torch.stack([sum(loss[0] for loss in losses) / 3, *[(losses[0][i] + losses[1][i]) / 2 for i in (1, 2)]])
    assert run.oracle.recent_loss() == pytest.approx(expected.mean().item())
    torch.testing.assert_close(run.oracle.take_losses().mean, expected)
    assert run.oracle.take_losses().mean.isnan().all(), "nothing was drawn since"


def test_a_checkpoint_knows_how_far_every_worker_is(run: Run) -> None:
    x = models(run)
    run.oracle(x)
    run.oracle.take_losses()
    run.oracle(x[1:2], [1])
    part = copy.deepcopy(to_part(run.stepper.state, run.problem, run.oracle, run.net))
    following = run.oracle(x).clone()
    resumed = assembled_again(run)
    from_parts([part], 1, resumed.stepper.state, resumed.problem, resumed.oracle, resumed.net)
    assert resumed.oracle.draws.tolist() == [1, 2, 1]
    torch.testing.assert_close(resumed.oracle(x), following)
    torch.testing.assert_close(resumed.oracle.take_losses().mean, run.oracle.take_losses().mean)


def assembled_again(run: Run) -> Run:
    with torch.no_grad():
        return assemble(prepare(run.config), run.world)


def test_a_state_of_no_kind_is_refused_before_the_first_step(monkeypatch: pytest.MonkeyPatch) -> None:
    class State(NamedTuple):
        x: Rows  # noqa: F821
        compression_stats: Rows  # noqa: F821
        opt: list[Tensor]

    config = configure("num_workers=3", "task=quadratics", "algo=dpsgd", "topology=ring")
    monkeypatch.setattr(type(config.algo), "State", State)
    with pytest.raises(ConfigError, match=r"State\.opt: annotate it as Rows"):
        assemble(prepare(config), World(0, 1, torch.device("cpu")))


def test_a_task_with_the_names_of_version_2_is_taken_with_a_warning():
    with pytest.warns(UserWarning, match="Old.finish is now called usual_values"):

        class Old(Supervised):
            def finish(self, statistics: Tensor) -> Tensor:
                return statistics

    assert "usual_values" in vars(Old) and "finish" not in vars(Old)
