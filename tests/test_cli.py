"""The command line: help, choices, experiments, exit status."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from decentral.cli.completion import candidates
from decentral.cli.run import main
from decentral.config.composition import compose, conf_directory
from decentral.config.overrides import CHOICES, checked, options
from decentral.config.schema import Config

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


def test_help_names_every_choice(capsys: pytest.CaptureFixture[str]) -> None:
    words = command(capsys, "--help")[1].split()
    assert {name for group in CHOICES for name in options(group, [conf_directory()])} <= set(words)


def test_the_defaults_and_the_command_of_the_papers() -> None:
    config = compose([])
    assert (config.algo.name, config.topology.name, config.num_workers) == ("relaysgd", "dbt", 16)
    config = compose(["algo=relaysgd", "topology=dbt", "alpha=1", "seed=3"])
    assert config.alpha == config.partition.alpha == 1 and isinstance(config.alpha, float)


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
    assert config.evaluation.every_epochs == 1


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
        assert field.metadata.get("help", "") in " ".join(out.split())  # apart from the default, however long that is
    assert max(len(line) for line in out.splitlines()) <= 120


HELPED = [
    ("algo=relaysgd", "x_i^{t+1} ="),
    ("algo=relaysgd", "arXiv:2110.04175"),
    ("algo=relaysgd", "algo.fill=auto one of auto, initial, previous, own, count"),
    ("algo=dpsgd", "Where no topology is named: topology=ring"),
    ("optim=nesterov", "optim.momentum=0.9 at least 0 and below 1 optim.nesterov=true"),  # what the choice's file sets
    ("cluster=two_delayed", "cluster.stragglers.count=2 how many are slow in every step"),  # a setting in a setting
    ("compress=topk", "compress.keep=0.1 the share of the coordinates that is sent; above 0 and at most 1"),  # shared
    ("lr", "learning rate"),
    ("dbt", "topology=dbt"),
    ("network", "lost"),
]


@pytest.mark.parametrize(("topic", "expected"), HELPED)
def test_help_says_what_a_topic_is(topic: str, expected: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert expected in " ".join(command(capsys, "--help", topic)[1].split())


@pytest.mark.parametrize("group", CHOICES)
def test_help_of_a_group_has_a_line_for_each_choice(group: str, capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = command(capsys, "--help", group)
    for name in options(group, [conf_directory()]):
        lines = [line for line in out.splitlines() if line.startswith(f"  {name} ")]
        assert len(lines) == 1
        assert len(lines[0].split()) > 1
    assert f"--help {group}=" in out


def test_cfg_prints_the_configuration_and_runs_nothing(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    code, out, _ = command(capsys, "--cfg", "job", "algo=dpsgd", "lr=0.3", "--resolve")
    assert "name: ring" in out
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


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("decentral-run algo=relaysgd algo.", "algo.correct_lr= algo.fill= algo.initial_count= algo.overlap="),
        ("decentral-run optim=adam optim.b", "optim.beta1= optim.beta2="),
        ("decentral-run optim=nesterov optim.nesterov=", "optim.nesterov=false optim.nesterov=true"),
        ("decentral-run -m algo=d2,relaysgd_", "algo=d2,relaysgd_grad"),
        ("decentral-run network.t", "network.timeout_s= network.transport="),
        ("decentral-run cluster=even cluster.links.l", "cluster.links.latency_s="),
        ("decentral-run cluster=even cluster.links.ports=", "cluster.links.ports=duplex cluster.links.ports=one"),
        ("decentral-run --mul", "--multirun"),
        ("decentral-run logger.", ""),
        ("decentral-study relaysum_fig2 scale=s", "scale=small scale=smoke"),
        ("decentral-study thesis_fig5_", "thesis_fig5_1 thesis_fig5_2 thesis_fig5_3"),
        ("decentral-study relaysum_fig2 topology=d", "topology=dbt"),
        ("decentral-study --p", "--plan"),
    ],
)
def test_completion_offers_what_is_accepted(line: str, offered: str) -> None:
    assert candidates(line, line.split()[0]) == offered.split()


def test_every_setting_that_completion_offers_exists() -> None:
    folders = [conf_directory()]
    for key in candidates("decentral-run ", "decentral-run"):
        within = [key] if key.endswith("=") else candidates(f"decentral-run {key}", "decentral-run")
        assert within, key
        for one in within:
            checked([f"{one}{options(one[:-1], folders)[0] if one[:-1] in CHOICES else 1}"], folders)


def test_completion_and_help_import_nothing_that_takes_long() -> None:
    code = (
        "import sys; from decentral.cli import run, study\n"
        "for main in (run.main, study.main):\n"
        "    try: main(['-sc', 'query=bash'])\n"
        "    except SystemExit as ended: assert ended.code == 0\n"
        "assert not {'torch', 'hydra', 'omegaconf', 'numpy.random', 'matplotlib'} & set(sys.modules)\n"
    )
    environment = os.environ | {"COMP_LINE": "decentral-run algo=", "COMP_POINT": "19"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0 and "algo=relaysgd" in done.stdout, done.stderr


@pytest.mark.parametrize("name", ["run", "study"])
def test_bash_completes_with_the_script_that_is_printed(tmp_path: Path, name: str) -> None:
    program = tmp_path / f"decentral-{name}"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m decentral.cli.{name} "$@"\n')
    program.chmod(0o755)
    line = f"decentral-{name} algo=relaysgd_g"
    asked = (
        f"eval \"$({program} -sc install=bash)\"; COMP_WORDBREAKS=$' \\t=:'; "
        f'COMP_LINE="{line}"; COMP_POINT={len(line)}; '
        f"_decentral {program}; printf '[%s]' \"${{COMPREPLY[@]}}\"; complete -p decentral-{name} >&2"
    )
    if name == "study":  # only decentral-run prints it
        asked = asked.replace(f"{program} -sc install", f"{sys.executable} -m decentral -sc install")
    done = subprocess.run(["bash", "-c", asked], capture_output=True, text=True, timeout=60)
    assert done.stdout == "[relaysgd_grad ]" and "-F _decentral" in done.stderr, done.stderr


def test_completion_of_another_shell_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = command(capsys, "-sc", "install=fish")
    assert code == 2 and "use -sc install=bash or -sc install=zsh" in err


@pytest.mark.parametrize(
    "arguments", ["run --help", "run --help algo", "run -sc install=bash", "run --cfg job", "study"]
)
def test_what_nobody_reads_to_its_end_ends_quietly(arguments: str) -> None:
    name, *rest = arguments.split()
    read, write = os.pipe()
    os.close(read)  # as `head` does
    with os.fdopen(write, "w") as unread:
        done = subprocess.run(
            [sys.executable, "-m", f"decentral.cli.{name}", *rest],
            stdout=unread, stderr=subprocess.PIPE, text=True, timeout=60,
        )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")


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
    (figure,) = tmp_path.glob("results/runs/*/learning_curves.png")
    figure.unlink()
    assert command(capsys, *QUICK)[0] == 0
    assert everything(tmp_path) == before, "a run whose command was killed before it drew has its figure now"


def test_a_failed_run_says_where_it_is_and_how_to_go_on(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from decentral.runtime import launch

    def fails(config: Config) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(launch, "launch", fails)
    code, _, err = command(capsys, *QUICK)
    assert code == 1
    assert err.count("\n") == 1
    assert "no space left" in err and "results/runs/" in err
