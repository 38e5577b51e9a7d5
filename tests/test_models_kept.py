"""models.safetensors: what is kept of a run, loading it, and starting from it."""

from __future__ import annotations

import json
import shutil
import struct

import pytest
import torch
from safetensors.torch import save_file

import decentral
from decentral.cli.single import carry_out
from decentral.config.composition import compose
from decentral.config.identity import run_id
from decentral.errors import ConfigError
from decentral.script.loading import load, runs
from decentral.store.models import FILE, load_models, stored_facts
from decentral.training import keeping

MLP = ("data=digits", "model=mlp", "num_workers=4", "batch_size=8", "steps=6", "algo=dpsgd", "topology=ring", "seed=3")
NORMED = ("data=digits", "model=resnet18", "num_workers=2", "batch_size=4", "steps=2", "algo=dpsgd", "topology=ring",
          "task.statistics_images=64")  # fmt: skip


def accuracy(module: torch.nn.Module, config) -> float:
    """On the whole test set, as a stranger would compute it."""
    data = config.data.load("cpu", config.seed)
    correct = total = 0
    with torch.no_grad():
        for images, labels in data.test_batches(config.evaluation.batch_size):
            correct += int((module(images).argmax(1) == labels).sum())
            total += len(labels)
    return correct / total


@pytest.mark.parametrize("settings", [MLP, NORMED], ids=["mlp", "batch statistics"])
def test_loaded_models_have_the_accuracy_that_the_run_recorded_last(start, settings):
    result, config = start(*settings), compose(settings)
    found = load(result.directory)
    assert [accuracy(model, config) for model in found.models] == [
        result.last("accuracy", i) for i in range(config.num_workers)
    ]
    assert accuracy(found.averaged, config) == result.last("accuracy", "averaged")
    assert not any(model.training for model in (*found.models, found.averaged))
    assert found.settings["algo"] == "dpsgd" and found.settings["lr"] == 0.1 and found.status == "done"
    assert len(found.metrics) == len(result.rows)


@pytest.mark.parametrize("algo", [["algo=dpsgd", "topology=ring"], ["algo=wagma"]], ids=["rounds", "programs"])
def test_a_run_that_simulated_time_ends_keeps_its_models(start, algo):
    result = start(*MLP[:5], *algo, "cluster=even", "stop_after_simulated_s=0.4")
    facts = stored_facts(result.directory)
    assert int(facts["step"]) == result.rows[-1]["step"] == 3
    assert accuracy(load(result.directory).averaged, compose(MLP)) == result.last("accuracy", "averaged")


@pytest.mark.parametrize("accumulate", [1, 2])
def test_a_task_without_modules_keeps_none(start, accumulate):
    result = start("task=quadratics", "num_workers=2", "steps=2", "algo=allreduce", f"accumulate={accumulate}")
    assert not (result.directory / FILE).exists()


def test_any_number_of_processes_keeps_the_same_models(start):
    one, two = start(*MLP, directory="one"), start(*MLP, processes=2, directory="two")
    mine, theirs = load_models(one.directory).models, load_models(two.directory).models
    assert mine.keys() == theirs.keys() == {"averaged", *(f"worker{i}" for i in range(4))}
    for model, tensors in mine.items():
        for name, tensor in tensors.items():
            torch.testing.assert_close(theirs[model][name], tensor, rtol=1e-5, atol=1e-7)


def test_names_are_those_of_the_module(start):
    found = start(*NORMED).directory
    config = compose(NORMED)
    module = config.model.build(config.data.inspect())
    assert list(load_models(found).models["worker1"].keys() ^ module.state_dict().keys()) == []


def test_none_are_kept_where_none_are_wanted_or_there_are_none(start):
    assert not (start(*MLP, "save=none").directory / FILE).exists()
    assert not (start("task=quadratics", "num_workers=3", "steps=3", directory="q").directory / FILE).exists()
    assert load(start(*MLP, "save=none").directory).models == []


def test_models_that_have_diverged_are_not_kept(start):
    result = start(*MLP[:-1], "lr=1e6", "partition=iid", "steps=60", "evaluation.every_epochs=0.5")
    assert result.status == "diverged" and not (result.directory / FILE).exists()


def test_the_best_are_those_of_the_evaluation_that_was_best_for_the_worst_worker(start):
    settings = (*MLP, "steps=60", "lr=0.3", "evaluation.every_epochs=0.2")
    result = start(*settings, "save=best")
    by_step = {row["step"]: row["value"] for row in result.rows
               if (row["metric"], row["worker"]) == ("accuracy", "worst") and row["step"] > 0}  # fmt: skip
    best = max(by_step, key=lambda step: (by_step[step], -step))
    assert int(stored_facts(result.directory)["step"]) == best
    crashed = start(*settings, "save=best", "checkpoint_every_s=0", directory="crashed", interrupt_at=50)
    assert crashed.status == "interrupted"
    resumed = start(*settings, "save=best", "checkpoint_every_s=0", directory="crashed")
    assert int(stored_facts(resumed.directory)["step"]) == best


def test_where_all_would_take_too_much_the_worst_and_the_average_are_kept(start, monkeypatch):
    monkeypatch.setattr(keeping, "LIMIT_BYTES", 1000)
    result = start(*MLP)
    worst = min(range(4), key=lambda i: result.last("accuracy", i))
    kept = load_models(result.directory)
    assert kept.facts["worst"] == str(worst) and set(kept.models) == {"averaged", f"worker{worst}"}
    (model,) = load(result.directory).models
    assert accuracy(model, compose(MLP)) == result.last("accuracy", "worst")


@pytest.mark.parametrize("damage", ["cut", "empty", "noise"])
def test_a_damaged_file_is_refused_in_one_sentence(start, damage):
    directory = start(*MLP).directory
    content = (directory / FILE).read_bytes()
    (directory / FILE).write_bytes({"cut": content[:-100], "empty": b"", "noise": b"\x93" * 500}[damage])
    with pytest.raises(ConfigError, match=rf"{FILE} is damaged \(.*\): delete the run's directory and repeat the run"):
        load(directory)


STRANGE = {
    "no number of a worker": ("workerX.x", {}),
    "a negative number": ("worker-1.x", {}),
    "another name": ("x", {}),
    "no averaged model": (None, {}),
    "tied to nothing": ("worker0.x", {"tied": '{"averaged.y": "z"}'}),
    "no dict of ties": ("worker0.x", {"tied": "[3]"}),
    "no pairs of numbers": ("worker0.x", {"complex": '["averaged.x"]'}),
    "deep": ("worker0.x", {"extra": "[" * 100_000}),
    "no dict of states": ("worker0.x", {"extra": "[1]"}),
    "state of no known type": ("worker0.x", {"extra": '{"averaged.y": ["eval", ["1"]]}'}),
}
"""The name of a tensor beside the averaged model's (None: instead of it), and more of the header."""


@pytest.mark.parametrize("what", STRANGE)
def test_a_file_that_holds_something_else_is_refused_in_one_sentence(what, tmp_path):
    name, header = STRANGE[what]
    tensors = {"averaged.x" if name else "worker0.x": torch.zeros(3), name or "worker1.x": torch.zeros(3)}
    save_file(tensors, tmp_path / FILE, metadata={"run_id": "abc", **header})
    with pytest.raises(ConfigError, match=rf"{FILE} is damaged \(.*\): delete the run's directory and repeat the run"):
        load_models(tmp_path)


def test_a_file_of_another_run_is_refused_in_one_sentence(start):
    mine, other = start(*MLP), start(*MLP, "lr=0.01", directory="other")
    (mine.directory / FILE).write_bytes((other.directory / FILE).read_bytes())
    with pytest.raises(ConfigError, match=f"belongs to run {run_id(compose([*MLP, 'lr=0.01']))}, not to run"):
        load(mine.directory)
    header = json.dumps({"x": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}).encode()
    (mine.directory / FILE).write_bytes(struct.pack("<Q", len(header)) + header + bytes(4))
    with pytest.raises(ConfigError, match="belongs to no run of decentral"):
        load(mine.directory)


def test_a_run_of_a_study_is_found_by_its_id(start, tmp_path):
    done = start(*MLP).directory
    shutil.copytree(done, tmp_path / "results" / "own" / "runs" / "abc")
    assert decentral.load("abc", tmp_path / "results").metrics.equals(decentral.load(done).metrics)


def test_what_is_no_run_is_said_to_be_none(tmp_path):
    with pytest.raises(ConfigError, match="abc is no run"):
        decentral.load("abc", tmp_path)


@pytest.mark.slow
def test_a_run_starts_from_the_averaged_model_of_another(start):
    first = start(*NORMED)
    init = f"init={first.directory}"
    second = start(*NORMED, init, "trace=true", directory="second")
    averaged = load_models(first.directory).models["averaged"]
    names = [name for name, _ in load(first.directory).averaged.named_parameters()]
    x0 = torch.cat([averaged[name].reshape(-1) for name in names])
    assert all((row == x0.numpy()).all() for row in second.iterates[0])
    assert len({run_id(compose(NORMED)), run_id(compose([*NORMED, init]))}) == 2


def test_init_that_cannot_be_used_is_refused(start, tmp_path):
    with pytest.raises(ConfigError, match=r"init=nothing has no models\.safetensors that can be read in"):
        compose([*MLP, "init=nothing"])
    first = start(*MLP)
    with pytest.raises(ConfigError, match=r"is a run of another model than model=cnn: its .* is .*, here it is"):
        start(*MLP, "model=cnn", f"init={first.directory}", directory="second")
    assert not (tmp_path / "second").exists(), "a run that was refused claims no folder"
    (tmp_path / "second").mkdir()
    (tmp_path / "second" / "log.txt").write_text("a launcher's")
    with pytest.raises(ConfigError, match="is a run of another model"):
        start(*MLP, "model=cnn", f"init={first.directory}", directory="second")
    assert [path.name for path in (tmp_path / "second").iterdir()] == ["log.txt"]
    with pytest.raises(ConfigError, match="init= is for tasks that train networks"):
        start("task=quadratics", "num_workers=3", "steps=3", f"init={first.directory}", directory="third")


def test_all_runs_are_rows_of_one_table(start, tmp_path):
    first, second = start(*MLP, directory="runs/a"), start(*MLP, "lr=0.2", "save=none", directory="runs/b")
    table = runs(tmp_path).set_index("directory")
    assert set(table.loc[:, "status"]) == {"done"} and set(table.loc[:, "algo"]) == {"dpsgd"}
    assert table.loc[str(second.directory), "lr"] == 0.2 and table.loc[str(second.directory), "step"] == 6
    assert table.loc[str(first.directory), "test accuracy (worst)"] == first.last("accuracy", "worst")
    assert len(runs(tmp_path / "nothing")) == 0
    (second.directory / "metrics.jsonl").write_text("damaged\n")
    table = runs(tmp_path).set_index("directory")
    assert table.loc[str(second.directory), "status"] == "done" and table.loc[str(first.directory), "step"] == 6


def test_a_finished_run_that_kept_other_models_says_how_to_get_these(tmp_path, capsys):
    run = [*MLP, f"run_dir={tmp_path / 'run'}", "progress=false", "device=cpu"]
    assert carry_out(compose([*run, "save=none"])) == 0
    assert "rerun=true" not in capsys.readouterr().out
    assert carry_out(compose(run)) == 0
    assert "Its models are those of save=none: rerun=true computes it again with save=final." in capsys.readouterr().out


@pytest.mark.parametrize("facts", [{"run_id": "another", "score": "0.9999"}, {"score": "abc"}])
def test_the_best_so_far_is_that_of_this_run_alone(start, monkeypatch, facts):
    monkeypatch.setattr(keeping, "stored_facts", lambda path: facts)
    result = start(*MLP, "save=best")
    assert float(stored_facts(result.directory)["score"]) < 0.9
