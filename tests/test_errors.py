"""Whatever is wrong with a command line: one sentence that helps, status 2, nothing created, nothing slow imported."""

from __future__ import annotations

import dataclasses
import math
import os
import shlex
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest

from decentral.cli.run import main
from decentral.cli.study import main as study
from decentral.config.composition import compose
from decentral.config.parsing import build
from decentral.config.schema import NODES, Config
from decentral.errors import ConfigError
from decentral.lr_schedules.schedule import LearningRateSchedule
from decentral.registry import find
from decentral.settings import limited, setting

# command line, and what the sentence has to contain: the key, the value, what would work
REFUSED = [
    # names
    ("algo=relysgd", "algo=relysgd", "'relaysgd'"),
    ("algo=RelaySGD", "algo=RelaySGD", "'relaysgd'"),
    ("optim=nestrov", "optim=nestrov", "'nesterov'"),
    ("algo=", "algo=", "relaysgd"),
    ("algo=null", "algo=null", "relaysgd"),
    ("topolgy=dbt", "topolgy", "'topology'"),
    ("+foo=1", "foo", "lr"),
    ("algo.fil=own", "algo=relaysgd", "'fill'"),
    ("data.path=x", "data=digits", "no settings"),
    ("network.drop=1", "network", "drop_probability"),
    ("task=quadratics data=imagefoldr", "data=imagefoldr", "'imagefolder'"),
    ("experiment=thesis_cifar1", "experiment=thesis_cifar1", "'thesis_cifar10'"),
    ("experiment=thesis_cifar10 optim.momentun=1", "momentun", "'momentum'"),
    # the form of the command line
    ("algo relaysgd", "'algo'", "algo=..."),
    ("relaysgd", "'relaysgd'", "algo=relaysgd?"),
    ("lr =0.1", "'lr'", "without spaces"),
    ("'lr=0.1 seed=2'", "lr=0.1 seed=2", "an argument of its own"),
    ("lr=0.1,", "lr=0.1,", "quotes"),
    ("algo=dpsgd,relaysgd", "algo=dpsgd,relaysgd", "-m"),
    ("model=mlp model.hidden=8,8", "model.hidden=8,8", "[1,2]"),
    ("~algo", "~algo", "algo=..."),
    ("alpha.x=1", "alpha", "alpha=..."),
    ("algo.fill.x=1", "algo.fill", "algo.fill=..."),
    ("algo.name=dpsgd", "algo.name=dpsgd", "algo=..."),
    ("network=5", "network", "network.timeout_s"),
    ("algo@model=relaysgd", "algo@model", "algo=..."),
    ("--lr=0.1", "--lr", "lr=..."),
    ("--multi lr=1,2", "--multi", "--multirun"),
    ("-x", "-x", "option"),
    ("--cfg", "--cfg", "argument"),
    ("--cfg job algo=relysgd", "algo=relysgd", "'relaysgd'"),
    ("--config-dir nowhere", "nowhere", "folder"),
    ("--help relaysdg", "relaysdg", "'relaysgd'"),
    ("--help algo=relaysdg", "algo=relaysdg", "'relaysgd'"),
    ("-m lr=interval(0,1)", "lr=interval(0,1)", "list the values"),
    ("-m seed=range(1000000000)", "seed=range(1000000000)", "1,000,000,000 combinations", "max_combinations=10000"),
    ("-m seed=shuffle(range(1000000000))", "1,000,000,000 combinations", "max_combinations=10000"),
    ("-m lr=range(0,1,1e-9)", "1,000,000,000 combinations", "max_combinations=10000"),
    ("-m seed=range(3) lr=1,2 max_combinations=5", "6 combinations", "max_combinations=5"),
    ("-m lr=range(0,1,0)", "lr=range(0,1,0)", "never ends"),
    ("-m algo=relysgd,dpsgd", "algo=relysgd", "'relaysgd'"),
    # types
    ("alpha=abc", "alpha=abc", "a number, such as 0.1"),
    ("alpha=", "alpha=", "a number"),
    ("alpha=null", "alpha=null", "a number"),
    ("num_workers=2.5", "num_workers=2.5", "a whole number"),
    ("seed=x", "seed=x", "a whole number"),
    ("trace=maybe", "trace=maybe", "true or false"),
    ("algo.fill=onw", "algo.fill=onw", "'own'"),
    ("model=mlp model.hidden=5", "model.hidden=5", "a list"),
    ("schedule=multistep schedule.milestones=[a]", "schedule.milestones=[a]", "a number"),
    ("experiment=relaysum_cifar10 optim.weight_decay=x", "optim.weight_decay=x", "a number"),
    ("alpha=${foo}", "alpha=${foo}", "'foo'"),
    ("alpha=${lr} lr=${alpha}", "alpha=${lr}", "recursive"),
    # values
    ("alpha=0", "alpha=0", "above 0"),
    ("lr=nan", "lr=nan", "at least 0"),
    ("epochs=1e300", "epochs=1e+300", "1e+12"),
    ("task=quadratics task.dimension=1000000000", "task.dimension=1000000000", "memory"),
    ("task=regression task.dimension=1000000000 task.l2=1", "task.dimension=1000000000", "memory"),
    ("task=mean_estimation task.dimension=10000000000000", "task.dimension=10000000000000", "memory"),
    ("optim.momentum=2", "optim.momentum=2", "at least 0 and below 1"),
    ("optim.nesterov=true", "optim.nesterov=true", "optim.momentum"),
    ("processes=0", "processes=0", "auto"),
    ("processes=two", "processes=two", "auto"),
    ("device=gpu", "device=gpu", "cuda"),
    ("device=cpu:7", "device=cpu:7", "cpu"),
    ("logger=wandb logger.mode=foo", "logger.mode=foo", "offline"),
    ("results_dir=", "results_dir=", "folder"),
    # what does not go together
    ("processes=17", "processes=17", "num_workers=16"),
    ("topology=ring", "algo=relaysgd", "topology=ring", "chain"),
    ("num_workers=1", "topology=dbt", "num_workers=1", "topology=bt"),
    ("num_workers=3 topology=hypercube algo=dpsgd", "topology=hypercube", "num_workers=2 or 4"),
    ("num_workers=3 topology=social algo=dpsgd", "topology=social", "num_workers=32"),
    ("algo=d2 topology=social num_workers=32", "algo=d2", "-1/3", "exact_diffusion"),
    ("num_workers=2000", "num_workers=2000", "1438"),
    ("num_workers=100", "num_workers=100", "batch_size=14"),
    ("model=vgg11", "model=vgg11", "32 x 32", "cnn"),
    ("algo=allreduce network.drop_probability=0.1", "network.drop_probability=0.1", "algo=allreduce"),
    # files
    ("data=imagefolder", "data.path", "train/<class>/"),
    ("data=imagefolder data.path=nowhere", "data.path=nowhere", "train/<class>/"),
    ("data=imagefolder data.path=a_file", "data.path=a_file", "train/<class>/"),
    ("data=imagefolder data.path=pictures", "pictures/train/cat", "no images"),
    ("data=imagefolder data.path=pipes", "pipes/train/cat/1.jpg", "not a regular file"),
    ("data=imagenet data.path=pipes/train data.single_folder=true", "pipes/train/cat/1.jpg", "not a regular file"),
    # the home of nobody
    ("data=imagefolder data.path='\"~nobody0/x\"'", "data.path=~nobody0/x", "train/<class>/"),
    ("data=textfile data.path='\"~nobody0/x\"'", "data.path=~nobody0/x", "no file and no folder"),
    ("data=agnews data.tokenizer='\"~nobody0/x\"'", "data.tokenizer=~nobody0/x", "tokenizer.json"),
    ("topology=file topology.path='\"~nobody0/x\"'", "topology.path=~nobody0/x", "not a file"),
    ("task=quadratics task.problem='\"~nobody0/x\"'", "task.problem=~nobody0/x", "A [n, d, d]"),
    ("cluster=even cluster.links.file='\"~nobody0/x\"'", "cluster.links.file=~nobody0/x", "not a file"),
    ("task=quadratics task.problem=nowhere.npz", "task.problem=nowhere.npz", "A [n, d, d]"),
    ("task=quadratics task.problem=a_file", "task.problem=a_file", ".npz"),
    ("task=quadratics task.problem=no_b.npz", "task.problem=no_b.npz", "'b'"),
    ("task=quadratics task.problem=flat.npz", "A has shape [4, 3, 2]", "[n, d, d]"),
    ("task=quadratics task.problem=good.npz num_workers=5", "num_workers=5", "4 workers"),
    ("topology=file", "topology.path=", ".csv"),
    ("topology=file topology.path=nowhere.csv", "topology.path=nowhere.csv", "not a file"),
    ("topology=file topology.path=empty.csv algo=dpsgd", "topology.path=empty.csv", "no edges"),
    ("topology=file topology.path=header.csv algo=dpsgd", "topology.path=header.csv", "no edges"),
    ("topology=file topology.path=pipe.csv algo=dpsgd", "topology.path=pipe.csv", "not a file"),
    ("topology=file topology.path=edges.csv num_workers=4", "line 2", "1,9"),
    ("run_dir=a_file", "run_dir=a_file", "is a file"),
    ("run_dir=a_file/run", "run_dir=a_file/run", "is a file"),
    ("run_dir=foreign", "run_dir=foreign", "new or empty"),
    ("run_dir=other_run", "run_dir=other_run", "another run_dir"),
    (f"run_dir={'x' * 300}", "run_dir=xxx", "255 bytes"),
    (f"results_dir={'x/' * 2000}", "results_dir=x/x/", "3840"),
    ("task=quadratics task.problem=huge.npz", "task.problem=huge.npz", "cannot be read"),
    ("topology=file topology.path=huge.npz algo=dpsgd", "topology.path=huge.npz", "cannot be read"),
    ("results_dir=a_file", "results_dir=a_file", "is a file"),
]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with things to stumble over."""
    monkeypatch.chdir(tmp_path)
    Path("a_file").write_text("text")
    for name in ("train/cat", "test/cat"):
        Path("pictures", name).mkdir(parents=True)
        Path("pipes", name).mkdir(parents=True)
    os.mkfifo("pipes/train/cat/1.jpg")
    os.mkfifo("pipe.csv")
    with zipfile.ZipFile("huge.npz", "w") as archive:  # a header that promises more than any machine has
        for name in ("A", "edges"):
            shape = {"shape": (2**45, 2), "fortran_order": False, "descr": "<i8"}
            with archive.open(f"{name}.npy", "w") as array:
                np.lib.format.write_array_header_1_0(array, shape)
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


def files(folder: Path) -> set[str]:
    """Everything in a folder, but for the lock that looking into a run's directory may leave there."""
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.name != "run.lock"}


@pytest.mark.parametrize(
    ("command", "expected"), [(case[0], case[1:]) for case in REFUSED], ids=[c[0] for c in REFUSED]
)
def test_a_bad_command_line_is_refused_in_one_helpful_sentence(
    command: str, expected: tuple[str, ...], folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = files(folder)
    with pytest.raises(SystemExit) as exit:
        main(shlex.split(command))
    captured = capsys.readouterr()
    assert exit.value.code == 2
    assert captured.err.startswith("decentral-run: ")
    assert captured.err.count("\n") == 1
    assert captured.err.endswith((".\n", "?\n", "[1,2].\n"))
    assert captured.out == ""
    for words in expected:
        assert words in captured.err
    assert files(folder) == before


def test_a_gpu_that_is_not_there_is_refused(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    with pytest.raises(SystemExit) as exit:
        main(["device=cuda", "task=quadratics"])
    assert exit.value.code == 2
    assert "device=cpu" in capsys.readouterr().err


def test_a_misspelt_setting_in_a_file_of_the_users_is_named_with_its_experiment(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "experiment").mkdir()
    (tmp_path / "experiment" / "mine.yaml").write_text("# @package _global_\nalhpa: 0.5\n")
    with pytest.raises(SystemExit) as exit:
        main(["--config-dir", str(tmp_path), "experiment=mine"])
    message = capsys.readouterr().err
    assert exit.value.code == 2
    assert "alhpa" in message and "'alpha'" in message and "experiment=mine" in message


@pytest.mark.parametrize(
    "text", ["alpha: 0.5\n", "# @package _global_\nalpha: [\n", "# @package _global_\nalpha: much\n"],
    ids=["without its first line", "no YAML", "wrong type"],
)  # fmt: skip
def test_an_experiment_that_cannot_be_read_is_refused_in_one_sentence(
    text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "experiment").mkdir()
    (tmp_path / "experiment" / "mine.yaml").write_text(text)
    with pytest.raises(SystemExit) as exit:
        main(["--config-dir", str(tmp_path), "experiment=mine"])
    assert exit.value.code == 2
    assert capsys.readouterr().err.count("\n") == 1


def bomb(levels: int) -> str:
    """A list of lists of lists ..., each of which is written down once: 9^levels values."""
    lines = ["# @package _global_", "a0: &a0 [1, 1, 1, 1, 1, 1, 1, 1, 1]"]
    lines += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]" for i in range(1, levels)]
    return "\n".join([*lines, ""])


@pytest.mark.timeout(60)
@pytest.mark.parametrize("group", ["experiment", "algo", "study"])
@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("# @package _global_\nalpha: 0.5 # \u00e9t\u00e9\n".encode("latin-1"), "is not UTF-8 (line 2)"),
        (bomb(9).encode(), "values once its aliases are written out"),
        (b"# @package _global_\na: &a [*a]\n", "endlessly many values once its aliases are written out"),
        (None, "is not a regular file"),
    ],
    ids=["latin-1", "alias bomb", "endless", "pipe"],
)
def test_a_file_of_the_users_that_cannot_be_loaded_is_refused_by_every_command(
    group: str, content: bytes | None, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / group / "mine.yaml"
    file.parent.mkdir()
    os.mkfifo(file) if content is None else file.write_bytes(content)
    entry, choice = (study, ["mine"]) if group == "study" else (main, [f"{group}=mine"])
    with pytest.raises(SystemExit) as exit:
        entry(["--config-dir", str(tmp_path), *choice])
    message = capsys.readouterr().err
    assert exit.value.code == 2 and message.count("\n") == 1
    assert str(file) in message and words in message


def test_aliases_that_stay_small_are_accepted(tmp_path: Path) -> None:
    (tmp_path / "experiment").mkdir()
    text = "# @package _global_\nlr: &rate 0.25\nalpha: *rate\n"
    (tmp_path / "experiment" / "mine.yaml").write_text(text)
    assert compose(["experiment=mine"], str(tmp_path)).alpha == 0.25


# -- ranges of settings ------------------------------------------------------------------------------------------------

SETTINGS = [Config, *NODES.values(), *(cls for package in find.CONTRACTS for cls in find.ours(package).values())]
LIMITED = [(cls, name) for cls in SETTINGS for name, metadata in limited(cls).items() if metadata["limits"]]
OUTSIDE = {
    "above": lambda limit: (limit, limit - 1),
    "at_least": lambda limit: (limit - 1,),
    "below": lambda limit: (limit, limit + 1),
    "at_most": lambda limit: (limit + 1,),
}


@pytest.mark.parametrize(("cls", "name"), LIMITED, ids=lambda one: getattr(one, "__name__", one))
def test_a_value_outside_its_range_is_refused_wherever_an_instance_is_made(cls: type, name: str) -> None:
    """Those of a class above count, too, where a default is another one."""
    metadata = limited(cls)[name]
    limits = metadata["limits"]
    values = [value for name, limit in limits.items() for value in OUTSIDE[name](limit)]
    for value in [*values, math.nan, *([math.inf] if metadata["finite"] else []), "many"]:
        for given in (value, [value]):
            with pytest.raises(ConfigError, match=rf"{name}=\S+ makes no sense: it has to be"):
                cls(**{name: given})


def test_a_class_with_checks_of_its_own_keeps_those_of_its_fields() -> None:
    @dataclasses.dataclass
    class Mine(LearningRateSchedule, where="optim"):
        name: str = "mine"
        beta: list[float] = setting([0.5], above=0, below=1)
        mode: str = setting("fast", choices=("fast", "exact"))

        def __post_init__(self) -> None:  # does not call super().__post_init__()
            self.loud = True

        def factor(self, t: int, steps_per_epoch: float) -> float:
            return 1.0

    with pytest.raises(ConfigError, match=r"^optim.beta=1 makes no sense: it has to be above 0 and below 1\.$"):
        Mine(beta=[0.5, 1.0])
    with pytest.raises(ConfigError, match=r"^optim.mode=exat does not exist\. Did you mean 'exact'\?$"):
        Mine(mode="exat")
    with pytest.raises(ConfigError, match=r"^study\.beta=nan makes no sense: it has to be finite and above 0"):
        build(Mine, {"beta": [float("nan")]}, "study")


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


def test_nothing_slow_is_imported_before_a_configuration_is_accepted(folder: Path) -> None:
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
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd=folder)
    assert done.returncode == 0, done.stderr
