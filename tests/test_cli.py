"""The command line: help, choices, experiments, exit status."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from decentral import cli
from decentral.cli import main
from decentral.complaints import CHOICES, options
from decentral.composition import compose, conf_directory
from decentral.config import GROUPS, Config

QUICK = ("task=quadratics", "num_workers=4", "steps=3", "progress=false", "device=cpu", "processes=1")


def command(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[object, str, str]:
    """(exit status, stdout, stderr)"""
    with pytest.raises(SystemExit) as exit:
        main(arguments)
    return exit.value.code, *capsys.readouterr()


def everything(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*")}


@pytest.fixture(autouse=True)
def working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


# what can be chosen


def test_every_choice_composes(capsys: pytest.CaptureFixture[str]) -> None:
    choices = {group: options(group, [conf_directory()]) for group in GROUPS}
    for i in range(max(map(len, choices.values()))):  # one of every group at a time: Hydra takes its time
        chosen = {group: names[min(i, len(names) - 1)] for group, names in choices.items()}
        code, out, err = command(capsys, "--cfg", "job", *(f"{group}={name}" for group, name in chosen.items()))
        assert (code, err) == (0, "")
        for group in chosen:
            assert f"{group}:\n  name: " in out


def test_help_names_every_choice(capsys: pytest.CaptureFixture[str]) -> None:
    words = command(capsys, "--help")[1].split()
    assert {name for group in CHOICES for name in options(group, [conf_directory()])} <= set(words)


def test_the_defaults_are_relaysgd_on_double_binary_trees_with_sixteen_workers() -> None:
    config = compose([])
    assert (config.algo.name, config.topology.name, config.num_workers) == ("relaysgd", "dbt", 16)


def test_the_command_of_the_papers_works() -> None:
    config = compose(["algo=relaysgd", "topology=dbt", "alpha=0.01"])
    assert config.alpha == config.partition.alpha == 0.01


def test_numbers_have_the_type_of_their_setting() -> None:
    config = compose(["alpha=1", "seed=3"])
    assert isinstance(config.alpha, float)
    assert isinstance(config.seed, int)


def test_a_plus_before_a_setting_has_no_meaning() -> None:
    assert compose(["+lr=0.3", "++alpha=0.2", "+algo=dpsgd"]) == compose(["lr=0.3", "alpha=0.2", "algo=dpsgd"])


# experiments


def test_the_relaysum_experiment_has_the_settings_of_appendix_c_1() -> None:
    config = compose(["experiment=relaysum_cifar10"])
    assert (config.data.name, config.partition.name, config.model.name) == ("cifar10", "dirichlet", "vgg11")
    assert (config.num_workers, config.batch_size, config.epochs) == (16, 32, 200)
    assert (config.optim.momentum, config.optim.nesterov, config.optim.weight_decay) == (0.9, True, 1e-4)
    assert config.schedule.name == "multistep"
    assert config.schedule.milestones == [150, 180]
    assert (config.schedule.warmup_epochs, config.schedule.gamma) == (5, 0.1)
    assert config.data.normalisation.name == "cifar10"


def test_the_thesis_experiment_has_the_settings_of_its_code() -> None:
    config = compose(["experiment=thesis_cifar10"])
    assert (config.data.name, config.partition.name, config.model.name) == ("cifar10", "dirichlet_thesis", "vgg11")
    assert (config.num_workers, config.batch_size, config.epochs) == (8, 8, 200)
    assert (config.optim.momentum, config.optim.nesterov, config.optim.weight_decay) == (0.9, False, 5e-4)
    assert (config.schedule.name, config.schedule.gamma) == ("exponential", 0.9)
    assert config.data.normalisation.name == "imagenet"
    assert (config.task.reshuffle, config.task.drop_last) == (False, False)
    assert config.eval_every_epochs == 1


def test_everything_in_an_experiment_can_be_overridden() -> None:
    relaxed = ["optim=sgd", "optim.weight_decay=0", "num_workers=8", "epochs=5"]
    overrides = ["algo=dpsgd", "topology=ring", "alpha=1", "lr=0.4", *relaxed]
    config = compose(["experiment=relaysum_cifar10", *overrides])
    assert (config.algo.name, config.topology.name, config.optim.momentum) == ("dpsgd", "ring", 0)
    assert (config.partition.alpha, config.lr, config.num_workers, config.epochs) == (1, 0.4, 8, 5)
    assert config.optim.weight_decay == 0
    assert config.model.name == "vgg11"


@pytest.mark.parametrize("prefix", ["", "+"])
def test_experiments_and_choices_of_the_users_own_are_found_in_config_dir(tmp_path: Path, prefix: str) -> None:
    for name, text in {
        "experiment/mine.yaml": "# @package _global_\ndefaults:\n  - override /algo: eager\nalpha: 0.5\n",
        "algo/eager.yaml": "# Mine.\ndefaults:\n  - schema/relaysgd@_here_\n  - _self_\nfill: own\n",
    }.items():
        (tmp_path / "my conf" / name).parent.mkdir(parents=True)
        (tmp_path / "my conf" / name).write_text(text)
    config = compose([f"{prefix}experiment=mine", "lr=0.3"], "my conf")
    assert (config.algo.fill.name, config.partition.alpha, config.lr) == ("own", 0.5, 0.3)


# options


def test_version_is_that_of_the_package(capsys: pytest.CaptureFixture[str]) -> None:
    from decentral import __version__

    assert command(capsys, "--version") == (0, f"decentral-run {__version__}\n", "")


def test_help_names_every_setting_with_its_default(capsys: pytest.CaptureFixture[str]) -> None:
    import dataclasses

    code, out, _ = command(capsys, "--help")
    assert code == 0
    for field in dataclasses.fields(Config):
        assert f"  {field.name}=" in out or f"  {field.name}." in out
    assert max(len(line) for line in out.splitlines()) <= 120


def test_help_of_a_choice_shows_its_formula_and_settings(capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = command(capsys, "--help", "algo=relaysgd")
    assert "x_i^{t+1} =" in out
    assert "arXiv:2110.04175" in out
    assert "algo.fill=auto" in out
    assert "one of auto, initial, previous, own, count" in out


def test_help_shows_the_values_that_a_choice_sets(capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = command(capsys, "--help", "optim=nesterov")
    assert "optim.momentum=0.9" in out
    assert "optim.nesterov=true" in out


@pytest.mark.parametrize("group", CHOICES)
def test_help_of_a_group_has_a_line_for_each_choice(group: str, capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = command(capsys, "--help", group)
    for name in options(group, [conf_directory()]):
        lines = [line for line in out.splitlines() if line.startswith(f"  {name} ")]
        assert len(lines) == 1
        assert len(lines[0].split()) > 1
    assert f"--help {group}=" in out


@pytest.mark.parametrize(("topic", "expected"), [("lr", "learning rate"), ("dbt", "topology=dbt"), ("network", "lost")])
def test_help_knows_settings_and_choices_by_their_name(
    topic: str, expected: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert expected in command(capsys, "--help", topic)[1]


def test_cfg_prints_the_configuration_and_runs_nothing(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    code, out, _ = command(capsys, "--cfg", "job", "algo=dpsgd", "lr=0.3", "--resolve")
    assert code == 0
    assert "lr: 0.3" in out
    assert "name: dpsgd" in out
    assert everything(tmp_path) == set()


def test_completion_offers_choices(tmp_path: Path) -> None:
    line = "decentral-run algo=relaysgd_g"
    environment = os.environ | {"COMP_LINE": line, "COMP_POINT": str(len(line))}
    done = subprocess.run(
        [sys.executable, "-m", "decentral", "-sc", "query=bash"],
        env=environment, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert done.stdout.split() == ["algo=relaysgd_grad"], done.stderr
    assert everything(tmp_path) == set()


def test_completion_prints_its_script(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = command(capsys, "-sc", "install=bash")
    assert code == 0
    assert "complete -o nospace" in out


# runs


def test_a_run_is_done_once_and_leaves_nothing_elsewhere(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    code, out, _ = command(capsys, *QUICK)
    assert code == 0
    assert "results/runs/" in out
    before = everything(tmp_path)
    assert {name.split("/")[0] for name in before} == {"results"}
    code, out, _ = command(capsys, *QUICK)
    assert code == 0
    assert "done before" in out
    assert everything(tmp_path) == before


def test_hydras_own_launchers_can_be_asked_for_and_write_below_results(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[int] = []

    def start(config: Config) -> int:
        started.append(config.seed)
        return 0

    monkeypatch.setattr(cli, "carry_out", start)
    code, _, _ = command(capsys, "hydra.mode=MULTIRUN", "seed=0,1", "task=quadratics")
    assert code == 0
    assert started == [0, 1]
    assert set(os.listdir()) == {"results"}
    assert set(os.listdir("results")) == {"sweeps"}


def test_a_failed_run_says_where_it_is_and_how_to_go_on(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from decentral.launch import launch

    def fails(config: Config) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(launch, "launch", fails)
    code, _, err = command(capsys, *QUICK)
    assert code == 1
    assert err.count("\n") == 1
    assert "no space left" in err and "results/runs/" in err
