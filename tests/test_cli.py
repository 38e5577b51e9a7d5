"""The command line: help, choices, experiments, exit status."""

from __future__ import annotations

import dataclasses
import errno
import json
import math
import os
import re
import shlex
import subprocess
import sys
import tomllib
from functools import partial
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest
import torch

import decentral
from conftest import exit_status
from decentral.cli.command import guarded
from decentral.cli.completion import candidates
from decentral.cli.help import print_help
from decentral.cli.report import main as report
from decentral.cli.run import main
from decentral.cli.study import chosen_studies
from decentral.cli.study import main as study
from decentral.config.composition import compose
from decentral.config.identity import run_id
from decentral.config.overrides import CHOICES, checked, options
from decentral.config.parsing import folders_of
from decentral.config.schema import NODES, Config
from decentral.errors import ConfigError
from decentral.optim.sgd import SGD
from decentral.registry import components, find, plugins
from decentral.report.summary import summary
from decentral.settings import limited
from decentral.store.files import csv_cell, from_csv_cell, write_text
from decentral.terminal.console import aligned
from punisher import files_limited_to

QUICK = ("task=quadratics", "num_workers=4", "steps=3", "progress=false", "device=cpu", "processes=1")


def command(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[object, str, str]:
    """(exit status, stdout, stderr)"""
    return exit_status(main, *arguments), *capsys.readouterr()


def everything(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*")}


@pytest.mark.slow
@pytest.mark.usefixtures("undrawn", "inline")
def test_git_finds_nothing_new_but_what_is_to_be_committed(capsys: pytest.CaptureFixture[str], tmp_path: Path):
    for has_results in (False, True):
        repository = tmp_path / f"repository {has_results}"
        (repository / "results" / "paper" if has_results else repository).mkdir(parents=True)
        os.chdir(repository)
        subprocess.run(["git", "init", "-q"], check=True)
        elsewhere = [] if has_results else [["results_dir=new/mine"], ["run_dir=alone"]]
        for words in ([], *elsewhere, ["-m", "lr=0.1,0.2", "--save-study", "kept"]):
            status, said, errors = command(capsys, *QUICK, *words)
            assert status == 0, errors
        assert "Study:    conf/study/kept.yaml, to be committed" in said
        exit_status(report, "runs", "--rows", "lr")
        told = subprocess.run(["git", "status", "--porcelain", "-uall"], capture_output=True, text=True, check=True)
        assert told.stdout == "?? conf/study/kept.yaml\n"
        again = capsys.readouterr().out
        assert "Results:  results/tables/lr" in again and "committed" not in again


@pytest.fixture(autouse=True)
def working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.usefixtures("undrawn")
def test_a_run_without_arguments_ends_with_three_commands_that_exist_and_others_with_one(capsys, tmp_path) -> None:
    assert command(capsys, *QUICK, "run_dir=run")[0] == 0
    provenance = json.loads(Path("run/provenance.json").read_text())
    endings = {}
    for words in ([], ["seed=3"]):
        Path("run/provenance.json").write_text(json.dumps(provenance | {"command_line": ["decentral-run", *words]}))
        endings[len(words)] = summary(Path("run")).partition("Next:")[2].strip().splitlines()
    assert len(endings[1]) == 1 and endings[1][0].endswith("  (another seed)")
    one, several, of_a_paper = (shlex.split(line.partition("  (")[0]) for line in map(str.strip, endings[0]))
    compose(one[1:])
    assert several[1] == "-m" and all(len(given.split(",")) == 2 for given in several[2:])
    for algo, seed in zip(*(given.split(",") for given in several[2:]), strict=True):
        compose([algo if "=" in algo else f"algo={algo}", seed if "=" in seed else f"seed={seed}"])
    chosen_studies(of_a_paper[1:])
    assert [Path(words[0]).name for words in (one, several, of_a_paper)] == [*["decentral-run"] * 2, "decentral-study"]


# experiments


def test_experiments_and_choices_of_the_users_own_are_found_in_config_dir(tmp_path: Path) -> None:
    for name, text in {
        "experiment/mine.yaml": "# @package _global_\ndefaults:\n  - override /algo: eager\nalpha: 0.5\n",
        "algo/eager.yaml": "# Mine.\ndefaults:\n  - schema/relaysgd@_here_\n  - _self_\nfill: own\n",
    }.items():
        (tmp_path / "my conf" / name).parent.mkdir(parents=True)
        (tmp_path / "my conf" / name).write_text(text)
    for prefix in ("", "+"):
        config = compose([f"{prefix}experiment=mine", "lr=0.3"], "my conf")
        assert (config.algo.fill.name, config.partition.alpha, config.lr) == ("own", 0.5, 0.3)


# options


def test_help_names_every_setting_with_its_default(capsys: pytest.CaptureFixture[str]) -> None:

    code, out, _ = command(capsys, "--help")
    assert code == 0
    for field in dataclasses.fields(Config):
        if field.name == "name":  # an argument of decentral.train
            continue
        assert f"  {field.name}=" in out or f"  {field.name}." in out
        assert field.metadata.get("help", "") in " ".join(out.split())  # apart from the default, however long that is
    assert max(len(line) for line in out.splitlines()) <= 120


def with_setting(name: str) -> str:
    """Return how the help lists the optimizers that have a setting."""
    known = components("optim") | dict.fromkeys(("momentum", "nesterov"), SGD)
    return "of " + ", ".join(f"optim={each}" for each in sorted(known) if name in known[each].__dataclass_fields__)


_CLIP_NORM = (
    "optim.clip_norm=null maximum norm of each worker's gradient, over all parameters (of the mean where gradients "
    f"are averaged); > 0 {with_setting('clip_norm')}"
)
HELPED = [
    ("algo=relaysgd", "x_i^{t+1} ="),
    ("algo=relaysgd", "algo.fill=auto one of auto, initial, previous, own, count"),
    ("algo=dpsgd", "Default topology: topology=ring"),
    ("optim=nesterov", "optim.momentum=0.9 >= 0 and < 1 optim.nesterov=true"),  # what the choice's file sets
    (
        "cluster=two_delayed",
        "cluster.stragglers.count=2 number of slow workers in every step",
    ),  # a setting in a setting
    ("compress=topk", "compress.keep=0.1 share of the coordinates to send; > 0 and <= 1"),  # shared
    ("lr", "learning rate"),
    ("network", "lost"),
    (
        "clip_norm",
        _CLIP_NORM,
    ),
    (
        "optim.clip_norm",
        _CLIP_NORM,
    ),
    ("drop_probability", "network.drop_probability=0 each directed message"),
    (
        "stragglers.count",
        "cluster.stragglers.count=2 number of slow workers in every step of cluster=paper_wagma_resnet",
    ),
    ("count", "cluster.stragglers.count=2 number of slow workers in every step of cluster=paper_wagma_resnet"),
    ("local_steps", "communication.every=1"),
    ("gradient_clipping", "optim.clip_norm=null"),
    ("metrics", "metrics=[] metrics to record before"),
    ("beta1", f"of algo=dadam optim.beta1=0.9 >= 0 and < 1 {with_setting('beta1')}"),
]


def test_help_says_what_a_topic_is(capsys: pytest.CaptureFixture[str]) -> None:
    for topic, expected in HELPED:
        assert expected in " ".join(command(capsys, "--help", topic)[1].split()), topic


def test_cfg_prints_the_configuration_and_runs_nothing(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    code, out, _ = command(capsys, "--cfg", "job", "algo=dpsgd", "lr=0.3", "--resolve")
    assert "name: ring" in out
    assert code == 0
    assert "lr: 0.3" in out
    assert "name: dpsgd" in out
    assert everything(tmp_path) == set()


def test_completion_offers_what_is_accepted() -> None:
    for line, offered in (
        ("decentral-run algo=relaysgd algo.", "algo.correct_lr= algo.fill= algo.initial_count= algo.overlap="),
        ("decentral-run optim=nesterov optim.nesterov=", "optim.nesterov=false optim.nesterov=true"),
        ("decentral-run -m algo=d2,relaysgd_", "algo=d2,relaysgd_grad"),
        ("decentral-run network.t", "network.timeout_s= network.transport="),
        ("decentral-run cluster=even cluster.links.ports=", "cluster.links.ports=duplex cluster.links.ports=one"),
        ("decentral-run logger.", ""),
        ("decentral-study relaysum_fig2 scale=s", "scale=small scale=smoke"),
        ("decentral-study thesis_fig5_", "thesis_fig5_1 thesis_fig5_2 thesis_fig5_3"),
        ("decentral-study relaysum_fig2 topology=db", "topology=dbt"),
    ):
        assert candidates(line, line.split()[0]) == offered.split()


def test_every_setting_that_completion_offers_exists() -> None:
    folders = folders_of(None)
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
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0 and "algo=relaysgd" in done.stdout, done.stderr


def test_bash_completes_with_the_script_that_is_printed(tmp_path: Path) -> None:
    program = tmp_path / "decentral-run"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m decentral.cli.run "$@"\n')
    program.chmod(0o755)
    line = "decentral-run algo=relaysgd_g"
    asked = (
        f"eval \"$({program} -sc install=bash)\"; COMP_WORDBREAKS=$' \\t=:'; "
        f'COMP_LINE="{line}"; COMP_POINT={len(line)}; '
        f"_decentral {program}; printf '[%s]' \"${{COMPREPLY[@]}}\"; complete -p decentral-run decentral-study >&2"
    )
    done = subprocess.run(["bash", "-c", asked], capture_output=True, text=True, timeout=240)
    assert done.stdout == "[relaysgd_grad ]" and done.stderr.count("-F _decentral") == 2, done.stderr


def test_output_that_is_not_read_to_its_end_ends_quietly() -> None:
    read, write = os.pipe()
    os.close(read)  # as `head` does
    with os.fdopen(write, "w") as unread:
        done = subprocess.run(
            [sys.executable, "-m", "decentral.cli.run", "--help"],
            stdout=unread, stderr=subprocess.PIPE, text=True, timeout=240,
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
    assert "already finished" in out
    assert everything(tmp_path) == before
    (figure,) = tmp_path.glob("results/runs/*/learning_curves.png")
    figure.unlink()
    assert command(capsys, *QUICK)[0] == 0
    assert everything(tmp_path) == before, "a run whose command was killed before it drew has its figure now"


def test_a_failed_run_says_where_it_is_and_how_to_go_on(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(config: Config) -> None:
        raise OSError("no space left")

    monkeypatch.setattr("decentral.cli.single.launch", fails)
    code, _, err = command(capsys, *QUICK)
    assert code == 1
    assert err.count("\n") == 1
    assert "no space left" in err and "results/runs/" in err


SCRIPTS = tomllib.loads(Path(__file__).parents[1].joinpath("pyproject.toml").read_text())["project"]["scripts"]
SCRIPTS = {name: place for name, place in SCRIPTS.items() if plugins.shipped() or ".plugins." not in place}


def raising(error: BaseException) -> int:
    raise error


def test_an_error_is_a_sentence_and_a_status(capsys: pytest.CaptureFixture[str]) -> None:
    for error, status, sentence in (
        (ConfigError("alpha=-1 has to be above 0."), 2, "decentral-x: alpha=-1 has to be above 0."),
        (KeyboardInterrupt(), 130, "decentral-x: interrupted."),
        (OSError(errno.ENOSPC, "No space left on device", "table.md"), 1, "decentral-x: "),
        (
            PermissionError(errno.EACCES, "Permission denied", "them/data"),
            2,
            "decentral-x: them/data is not accessible",
        ),
    ):
        exit = exit_status(partial(guarded, "decentral-x", lambda _, error=error: raising(error)))
        told = capsys.readouterr()
        assert exit == status and told.out == ""
        assert told.err.startswith(sentence) and told.err.count("\n") == 1 and told.err.endswith(".\n")


def test_every_console_command_is_guarded(monkeypatch: pytest.MonkeyPatch) -> None:
    called: list[str] = []
    for place in SCRIPTS.values():
        module, _, name = place.partition(":")
        monkeypatch.setattr(f"{module}.guarded", lambda command, *more: called.append(command))
        getattr(import_module(module), name)(["--help"])
    assert called == list(SCRIPTS)


@pytest.mark.slow
def test_the_backend_of_a_notebook_does_not_cost_a_command_its_figures(tmp_path: Path) -> None:
    words = ["data=digits", "model=mlp", "num_workers=2", "topology=ring", "steps=1", f"results_dir={tmp_path}"]
    environment = {**os.environ, "MPLBACKEND": "module://matplotlib_inline.backend_inline"}
    started = [sys.executable, "-m", "decentral.cli.run", *words]
    found = subprocess.run(started, env=environment, capture_output=True, text=True, check=True)
    assert "warning" not in found.stderr and len(list(tmp_path.rglob("learning_curves.png"))) == 1


# command line, and what the sentence has to contain: the key, the value, what would work
REFUSED = [
    # names
    ("algo=relysgd", "algo=relysgd", "'relaysgd'"),
    ("topolgy=dbt", "topolgy", "'topology'"),
    ("+foo=1", "foo", "--help lists all settings"),
    ("algo.fil=own", "algo=relaysgd", "'algo.fill'"),
    ("data.path=x", "data=digits", "no setting 'path'"),
    ("network.drop=1", "network", "drop_probability"),
    ("experiment=thesis_cifar10 optim.momentun=1", "momentun", "'optim.momentum'"),
    ("momentum=0.9", "'momentum'", "'optim.momentum'?"),
    ("optimizer.momentum=0.9", "'optimizer.momentum'", "'optim.momentum'?"),
    ("momentun=0.9", "'momentun'", "'optim.momentum'?"),
    ("drop_probability=0.1", "'drop_probability'", "Did you mean 'network.drop_probability'?"),
    ("algo.drop_probability=0.1", "algo=relaysgd has no setting", "Did you mean 'network.drop_probability'?"),
    ("bandwidth=1", "'bandwidth'", "network.bandwidth_gbps"),
    ("learning_rate=0.1", "'learning_rate'", "Did you mean 'lr'?"),
    ("beta1=0.1", "'beta1'", "Did you mean 'algo.beta1' or 'optim.beta1'?"),
    ("-m momentum=0.9,0.5", "'momentum'", "'optim.momentum'?"),
    ("local_steps=2", "'local_steps'", "Did you mean 'communication.every'?"),
    ("algo.local_steps=2", "algo=relaysgd", "Did you mean 'communication.every'?"),
    ("clip=1", "'clip'", "Did you mean 'optim.clip_norm'"),
    ("gradient_clipping=1", "'gradient_clipping'", "Did you mean 'optim.clip_norm'?"),
    ("momentum_beta=0.9", "'momentum_beta'", "Did you mean 'optim.momentum'?"),
    ("message_dropout=0.1", "'message_dropout'", "Did you mean 'network.drop_probability'?"),
    ("network.dropout=0.1", "network has no setting", "Did you mean 'network.drop_probability'?"),
    ("evaluation.every=5", "evaluation has no setting", "Did you mean 'evaluation.every_epochs'"),
    ("weight_decay=0.1", "'weight_decay'", "Did you mean 'optim.weight_decay'?"),
    ("schedule.warmup_steps=5", "schedule=constant", "Did you mean 'schedule.warmup_epochs'?"),
    (
        "batch_size_per_worker=16",
        "batch_size_per_worker=16",
        "a list with one number per worker, or [uniform,LOW,HIGH]",
    ),
    ("--help clip_nrom", "clip_nrom", "Did you mean 'optim.clip_norm'?"),
    ("--help algo.fil", "algo.fil", "Did you mean 'algo.fill'?"),
    ("--help personalised", "no such setting or choice", "'evaluation.split'? decentral-run --help lists everything."),
    ("--help optimiser", "optimiser", "Did you mean 'optim'? decentral-run --help lists everything."),
    ("--help zzzz", "zzzz", "no such setting or choice. decentral-run --help lists all settings."),
    ("personalize=true", "'personalize'", "Did you mean 'evaluation.split'?"),
    ("qqq=1", "'qqq'", "decentral-run --help lists all settings."),
    # the form of the command line
    ("algo relaysgd", "'algo'", "algo=..."),
    ("lr =0.1", "'lr'", "without spaces"),
    ("'lr=0.1 seed=2'", "lr=0.1 seed=2", "a separate argument"),
    ("algo=dpsgd,relaysgd", "algo=dpsgd,relaysgd", "-m"),
    ("~algo", "~algo", "algo=..."),
    ("algo.fill.x=1", "algo.fill", "algo.fill=..."),
    ("algo.name=dpsgd", "algo.name=dpsgd", "algo=..."),
    ("network=5", "network", "network.timeout_s"),
    ("--lr=0.1", "--lr", "lr=..."),
    ("--multi lr=1,2", "--multi", "--multirun"),
    ("--cfg", "--cfg", "argument"),
    ("--config-dir nowhere", "nowhere", "folder"),
    ("--help relaysdg", "relaysdg", "'relaysgd'"),
    ("-m lr=interval(0,1)", "lr=interval(0,1)", "list the values"),
    ("-m seed=range(1000000000)", "seed=range(1000000000)", "more combinations than max_combinations=10000"),
    ("-m seed=range(3) lr=1,2 max_combinations=5", "more combinations than max_combinations=5"),
    ("-m algo=relysgd,dpsgd", "algo=relysgd", "'relaysgd'"),
    # types
    ("alpha=abc", "alpha='abc'", "a number, such as 0.1"),
    ("num_workers=2.5", "num_workers=2.5", "a whole number"),
    ("trace=maybe", "trace=maybe", "true, false or state"),
    ("algo.fill=onw", "algo.fill='onw'", "'own'"),
    ("model=mlp model.hidden=5", "model.hidden=5", "a list"),
    ("experiment=relaysum_cifar10 optim.weight_decay=x", "optim.weight_decay='x'", "a number"),
    ("alpha=${foo}", "alpha=${foo}", "'foo'"),
    # values
    ("alpha=0", "decentral-run: alpha=0", "> 0"),
    ("lr=nan", "lr=nan", "not finite", "finite number >= 0"),
    ("epochs=1e300", "epochs=1e+300", "1e+12"),
    ("task=quadratics task.dimension=1000000000", "task.dimension=1000000000", "memory"),
    ("task=regression task.dimension=1000000000 task.l2=1", "task.dimension=1000000000", "memory"),
    ("optim.momentum=2", "optim.momentum=2", ">= 0 and < 1"),
    ("optim.nesterov=true", "optim.nesterov=true", "optim.momentum"),
    ("processes=0", "processes=0", "auto"),
    ("device=gpu", "device=gpu", "cuda"),
    ("results_dir=", "results_dir=", "folder"),
    # what does not go together
    ("processes=17", "processes=17", "num_workers=16"),
    ("topology=ring", "algo=relaysgd", "topology=ring", "chain"),
    ("num_workers=1", "topology=dbt", "num_workers=1", "topology=bt"),
    ("num_workers=3 topology=hypercube algo=dpsgd", "topology=hypercube", "num_workers=2 or 4"),
    ("algo=d2 topology=social num_workers=32", "algo=d2", "-1/3", "exact_diffusion"),
    ("num_workers=2000", "num_workers=2000", "1438"),
    ("num_workers=100", "num_workers=100", "batch_size=14"),
    ("model=vgg11", "model=vgg11", "32 x 32", "cnn"),
    ("algo=allreduce network.drop_probability=0.1", "network.drop_probability=0.1", "algo=allreduce"),
    # files
    ("data=imagefolder data.path=nowhere", "data.path=nowhere", "train/<class>/"),
    ("data=imagefolder data.path=a_file", "data.path=a_file", "train/<class>/"),
    ("data=imagefolder data.path=pictures", "pictures/train/cat", "no images"),
    # the home of nobody
    ("data=imagefolder data.path='\"~nobody0/x\"'", "data.path=~nobody0/x", "train/<class>/"),
    ("task=quadratics task.problem=nowhere.npz", "task.problem=nowhere.npz", "A [n, d, d]"),
    ("task=quadratics task.problem=a_file", "task.problem=a_file", ".npz"),
    ("task=quadratics task.problem=no_b.npz", "task.problem=no_b.npz", "b [n, d]"),
    ("task=quadratics task.problem=flat.npz", "A [4, 3, 2]", "[n, d, d]"),
    ("task=quadratics task.problem=good.npz num_workers=5", "num_workers=5", "4 workers"),
    ("topology=file topology.path=nowhere.csv", "topology.path=nowhere.csv", "not a file"),
    ("topology=file topology.path=empty.csv algo=dpsgd", "topology.path=empty.csv", "no edges"),
    ("topology=file topology.path=edges.csv num_workers=4", "line 2", "1,9"),
    ("run_dir=a_file", "run_dir=a_file", "is a file"),
    ("run_dir=foreign", "run_dir=foreign", "new or empty"),
    ("run_dir=other_run", "run_dir=other_run", "another run_dir"),
    ("results_dir=a_file", "results_dir=a_file", "is a file"),
]


@pytest.fixture
def stumbling(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with things to stumble over."""
    monkeypatch.chdir(tmp_path)
    Path("a_file").write_text("text")
    for name in ("train/cat", "test/cat"):
        Path("pictures", name).mkdir(parents=True)
    Path("empty.csv").touch()
    Path("header.csv").write_text("source,target\n")
    A, b = np.ones((4, 3, 3)), np.ones((4, 3))
    np.savez("good.npz", A=A, b=b)
    np.savez("no_b.npz", A=A)
    np.savez("flat.npz", A=A[:, :, :2], b=b)
    Path("edges.csv").write_text("0,1\n1,9\n")
    for name, file, text in (("foreign", "thesis.tex", "?"), ("other_run", "config.yaml", "# run 0123456789ab\n")):
        Path(name).mkdir()
        Path(name, file).write_text(text)
    return tmp_path


def files(stumbling: Path) -> set[str]:
    """Everything in a stumbling, but for the lock that looking into a run's directory may leave there."""
    return {str(path.relative_to(stumbling)) for path in stumbling.rglob("*") if path.name != "run.lock"}


def test_a_bad_command_line_is_refused_in_one_helpful_sentence(stumbling: Path, capsys) -> None:
    before = files(stumbling)
    for words, *expected in REFUSED:
        code, out, err = command(capsys, *shlex.split(words))
        assert (code, out, err.count("\n")) == (2, "", 1), words
        assert err.startswith("decentral-run: ") and err.endswith((".\n", "?\n", "[1,2].\n"))
        assert all(one in err for one in expected), (words, err)
        assert files(stumbling) == before


def test_an_experiment_that_cannot_be_read_is_refused_in_one_sentence(tmp_path: Path, capsys) -> None:
    (tmp_path / "experiment").mkdir()
    for name, text, says in (
        ("syntax", "alpha: [\n", ""), ("type", "alpha: much\n", "alpha"), ("spelling", "alhpa: 0.5\n", "'alpha'"),
    ):  # fmt: skip
        (tmp_path / "experiment" / f"{name}.yaml").write_text(f"# @package _global_\n{text}")
        code, _, err = command(capsys, "--config-dir", str(tmp_path), f"experiment={name}")
        assert code == 2 and err.count("\n") == 1 and says in err


def test_a_file_of_the_users_that_cannot_be_loaded_is_refused_by_every_command(tmp_path: Path, capsys) -> None:
    content = "# @package _global_\nalpha: 0.5 # \u00e9t\u00e9\n".encode("latin-1")
    for group, entry, word in (("experiment", main, "experiment=latin"), ("study", study, "latin")):
        (tmp_path / group).mkdir()
        file = tmp_path / group / "latin.yaml"
        file.write_bytes(content)
        exit = exit_status(entry, "--config-dir", str(tmp_path), word)
        message = capsys.readouterr().err
        assert exit == 2 and message.count("\n") == 1 and str(file) in message and "is not UTF-8 (line 2)" in message
        file.unlink()


# -- ranges of settings ------------------------------------------------------------------------------------------------

SETTINGS = [Config, *NODES.values(), *(cls for package in find.CONTRACTS for cls in find.ours(package).values())]
LIMITED = [(cls, name) for cls in SETTINGS for name, metadata in limited(cls).items() if metadata["limits"]]
OUTSIDE = {
    "above": lambda limit: (limit, limit - 1),
    "at_least": lambda limit: (limit - 1,),
    "below": lambda limit: (limit, limit + 1),
    "at_most": lambda limit: (limit + 1,),
}


def test_a_value_outside_its_range_is_refused_wherever_an_instance_is_made() -> None:
    """Those of a class above count, too, where a default is another one."""
    refusal = r"=\S+ is (negative|out of range|not finite|not a number); use a (finite )?number "
    for cls, name in LIMITED:
        metadata = limited(cls)[name]
        values = [value for kind, limit in metadata["limits"].items() for value in OUTSIDE[kind](limit)]
        for value in [*values, math.nan, *([math.inf] if metadata["finite"] else []), "many"]:
            for given in (value, [value]):
                with pytest.raises(ConfigError, match=name + refusal):
                    cls(**{name: given})


SLOW = ("torch", "torchvision", "pandas", "matplotlib", "wandb", "sklearn", "networkx", "scipy", "PIL")
SCRIPT = """
import contextlib, io, sys
from decentral.cli.run import main
for command in {commands!r}:
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        try:
            main(command.split())
        except SystemExit:
            pass
    slow = sorted(set(sys.modules) & set({slow!r}))
    if slow:
        sys.exit(f"{{command}} imports {{', '.join(slow)}}")
"""


def test_values_with_a_unit_are_those_of_the_setting() -> None:
    base = ["cluster=even", "cluster.links.latency_s", "cluster.links.bandwidth_gbps", "stop_after_simulated_s"]
    plain, *others = (
        compose([base[0], *(f"{key}={value}" for key, value in zip(base[1:], values, strict=True))])
        for values in (("0.02", "0.1", "90"), ("20ms", "100Mbit", "1.5min"), ("'20000us'", "100Mbps", "90s"))
    )
    assert {run_id(config) for config in others} == {run_id(plain)} and plain.cluster.links.latency_s == 0.02
    short = ["cluster.latency=20ms", "cluster.bandwidth=100Mbit", "stop_after_simulated_s=90"]  # choose cluster=even
    assert {run_id(compose(words)) for words in (short, [base[0], *short])} == {run_id(plain)}
    fast = [
        compose(["cluster=fast_network", *words]).cluster for words in (short[:1], ["cluster.links.latency_s=0.02"])
    ]
    assert fast[0] == fast[1] and fast[0].links.bandwidth_gbps != plain.cluster.links.bandwidth_gbps
    with pytest.raises(ConfigError, match=r"latency_s=.20mm. has the wrong type"):
        compose(["cluster=even", "cluster.links.latency_s=20mm"])


def test_nothing_slow_is_imported_before_a_configuration_is_accepted(stumbling: Path) -> None:
    commands = [
        "--help",
        "--help algo=relaysgd",
        "--version",
        "--cfg job",
        "algo=relysgd",
        "alpha=abc",
        "alpha=0",
        "topology=ring",
        "model=vgg11",
        "num_workers=2000",
        "experiment=relaysum_cifar10 run_dir=foreign",
        "data=imagefolder data.path=nowhere",
        "task=quadratics task.problem=no_b.npz",
        "run_dir=a_file",
        "-m lr=x,y logger=wandb,tensorboard",
    ]
    script = SCRIPT.format(commands=commands, slow=SLOW)
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd=stumbling)
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
@pytest.mark.usefixtures("inline")
@pytest.mark.skipif(not plugins.shipped(), reason="studies of a plug-in")
def test_the_hints_of_every_kind_of_run_work_as_printed(tmp_path, monkeypatch, capsys):
    hinted = ["data=digits", "model=mlp", *QUICK[1:]]

    def said(entry, *words):
        monkeypatch.setattr("sys.argv", [f"decentral-{entry.__module__.rpartition('.')[2]}", *words])
        exit = exit_status(entry, *words)
        told = capsys.readouterr()
        assert exit == 0, told
        return told.out

    monkeypatch.syspath_prepend(str(tmp_path))
    Path("nets_of_mine.py").write_text(
        "from torch import nn\n\nclass Net(nn.Sequential):\n    def __init__(self):\n"
        "        super().__init__(nn.Flatten(), nn.Linear(64, 10))\n"
    )
    net = import_module("nets_of_mine").Net()
    data = torch.utils.data.TensorDataset(torch.randn(400, 64), torch.arange(400) % 10)
    trained = decentral.train(net, data, data, num_workers=4, steps=3, device="cpu", progress=False)
    printed = [
        summary(trained.directory),
        said(main, *hinted),
        said(main, *hinted[:1], "model=nets_of_mine:Net", *hinted[2:]),
    ]
    for text in printed:
        (hint,) = re.findall(r"in Python: (decentral\.load\(.*\))\)$", text, re.M)
        assert len(eval(hint, {"decentral": decentral, "net": net}).models) == 4, hint
    assert Path(*re.findall(r"^Curves: +(.*)$", text, re.M)).is_file()
    (again,) = re.findall(r"^Next: +(.*)  \(another seed\)$", text, re.M)
    monkeypatch.setattr("decentral.cli.single.draw", lambda *_: None)
    assert "seed 1" in said(main, *shlex.split(again)[1:])
    swept = said(main, "-m", *hinted, "seed=0,1")
    (table,) = re.findall(r"^Next: +(decentral-report .*)  \(--metric", swept, re.M)
    assert "±" in said(report, *shlex.split(table)[1:])
    said(study, "relaysum_fig2", "scale=smoke")
    finished = said(study, "relaysum_fig2", "scale=smoke")
    (again,) = re.findall(r"^Next: +decentral-study (.*)  \(make the report again\)", finished, re.M)
    assert "Results: " in said(study, *shlex.split(again))


@pytest.mark.skipif(not plugins.shipped(), reason="studies of a plug-in")
@pytest.mark.usefixtures("undrawn")
def test_a_run_in_the_current_folder_and_empty_lists_of_a_study(tmp_path, monkeypatch, capsys):
    (tmp_path / "here").mkdir()
    with monkeypatch.context() as patched:
        patched.chdir(tmp_path / "here")
        status, _, err = command(capsys, *QUICK, "run_dir=.")
        assert status == 0, err
    for name, key in (
        ("relaysum_fig2", "seeds"),
        ("bluefog_linear_regression", "tune_seeds"),
        ("relaysum_fig10", "seeds"),
    ):
        assert exit_status(study, name, "scale=smoke", f"study.{key}=[]") == 2
        assert f"{key}=[] leaves nothing to run: give at least one value" in capsys.readouterr().err


def test_a_full_disk_names_the_file_and_texts_reach_tables_without_formulas_and_control_characters(tmp_path, capsys):
    with pytest.raises(SystemExit) as exit, files_limited_to(10):
        guarded("decentral-report", lambda _: write_text(tmp_path / "table.md", "x" * 100) or 0, [])
    told = capsys.readouterr().err
    assert exit.value.code == 1 and str(tmp_path / "table.md") in told
    assert told.endswith("Free some space and rerun the same command.\n") and "checkpoint" not in told
    for text in ("=1+1", "+1+1", "-1+cmd|' /C calc'!A0", "@SUM(A1)", "\t=1"):
        assert csv_cell(text).startswith("'") and from_csv_cell(csv_cell(text)) == text
    for text in ("-1", "+1.5e-3", "-inf", "-0.3 at x", "-", "RelaySGD", 5, -1.5, None):
        assert csv_cell(text) == text
    assert "\x1b" not in csv_cell("\x1b[31mred") + aligned([["\x1b[31m", "a"], ["b\nc", "d"]])
    assert len(aligned([["a"], ["b\nc"]]).splitlines()) == 3


def test_help_explains_the_words_of_sweeps(capsys):
    for word in ("target", "tune", "budget"):
        print_help([word], [])
        assert re.match(rf"  {word}=.* with ", capsys.readouterr().out)
