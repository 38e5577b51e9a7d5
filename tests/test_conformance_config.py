"""Every choice in conf/ composes, and a run's identity holds what the computation depends on and nothing else."""

from __future__ import annotations

import dataclasses
import re
from functools import cache
from pathlib import Path
from typing import get_type_hints

import numpy as np
import pytest
from PIL import Image

from configure import configure
from decentral.config.composition import compose, conf_directory
from decentral.config.files import dump, load
from decentral.config.identity import run_directory, run_id
from decentral.config.schema import GROUPS
from decentral.data.dataset import LabelledTokens, NextTokens, SentencePairs
from decentral.environments.environment import EnvironmentDescription
from decentral.errors import ConfigError
from decentral.registry import components
from table import ALGORITHMS, ASYNCHRONOUS, FREE, TASKS, TOPOLOGIES, topology_overrides

CONF = conf_directory()
CHOICES = [(group, file.stem) for group in GROUPS for file in sorted((CONF / group).glob("*.yaml"))]
COMPONENTS = [(group, name) for group, package in GROUPS.items() for name in components(package)]
OF_TASK = {LabelledTokens: "text", NextTokens: "language", SentencePairs: "translation", EnvironmentDescription: "rl"}
PAIRS = ("train.en", "train.de", "test_2016_flickr.en", "test_2016_flickr.de")
BUNDLED = {"synthetic_text": "text", "textfile": "language", "synthetic_translation": "translation"}
TEXTS = {
    "agnews": ("text", ("train.csv", "test.csv"), '"1","a title","some news"\n' * 60),
    "multi30k": ("translation", PAIRS, "A dog .\n" * 60),
    "parallel": ("translation", (*PAIRS[:2], "test.en", "test.de"), "A dog .\n" * 60),
    "shakespeare": ("language", ("play_gut.txt",), "\n\nROMEO.\n" + "What light through yonder window breaks?\n" * 300),
    "textfolder": ("text", ("train.csv", "test.csv"), "text,label\ngood,a\nbad,b\n" * 60),
}
"""Data from files -> the task, and files with what they read."""
QUADRATICS = ("task=quadratics", "algo=dpsgd", "topology=ring")
IMAGES = ("task=images", "algo=dpsgd", "topology=ring")


@pytest.fixture
def needs(tmp_path):
    """(group, option) -> what else has to be said with it."""

    def _needs(group: str, option: str) -> list[str]:
        if group == "topology":
            n = TOPOLOGIES[option].n
            algo = "epidemic_learning" if option == "epidemic" else "dpsgd"
            return [f"algo={algo}", f"num_workers={n}", *topology_overrides(option, tmp_path)]
        if group == "algo" and option not in ALGORITHMS:
            return [*ASYNCHRONOUS[option].net.overrides(tmp_path), *ASYNCHRONOUS[option].overrides]
        if group == "algo":
            return [*ALGORITHMS[option].nets[0].overrides(tmp_path), f"task={ALGORITHMS[option].task}"]
        if group == "compress":
            return ["algo=allreduce", *(["cluster=slow_network"] if components("compression")[option].chooses else [])]
        if group == "cluster":
            return [word for word in FREE if option == "machines" and not word.startswith("cluster=")]
        if group == "task" and option in TASKS:
            return [*TASKS[option], "algo=dpsgd", "topology=ring", "num_workers=4"]
        if group == "partition" and option == "natural":
            return ["num_workers=4"]  # there are no more than ten classes of digits
        if group == "data" and option in TEXTS:
            task, files, content = TEXTS[option]
            for file in files:
                (tmp_path / file).write_text(content)
            return [f"task={task}", f"data.path={tmp_path}", "partition=iid", "num_workers=2", "batch_size=1"]
        takes = components("models")[option].takes if group == "model" else None
        if takes in OF_TASK:
            return [f"task={OF_TASK[takes]}"]
        if group == "data" and option in BUNDLED:
            return [f"task={BUNDLED[option]}"]
        if group == "model" or (group == "data" and option in ("imagefolder", "imagenet")):
            for split in ("train", "test", "val"):
                folder = tmp_path / split / "cat"
                folder.mkdir(parents=True)
                for number in range(2):
                    Image.fromarray(np.zeros((32, 32, 3), dtype=np.uint8)).save(folder / f"{number}.png")
            others = ["num_workers=2", "batch_size=1", f"data.path={tmp_path}", "partition=iid"]
            return others if group == "data" else ["data=imagefolder", "data.image_size=64", *others]
        if (group, option) == ("cluster", "machines"):  # what is not given is refused
            links = ["latency_s=0.1", "bandwidth_gbps=inf", "copy_gbps=1"]
            return ["cluster.compute.mean_s=1", *(f"cluster.links.{one}" for one in links)]
        return ["task=rl"] if group == "env" else []

    return _needs


@pytest.mark.parametrize(("group", "option"), CHOICES)
def test_every_choice_composes_and_survives_being_written_down(needs, group, option):
    chosen = [f"{group}={option}", *needs(group, option)]
    if option == "habitat":  # which no machine of ours has
        with pytest.raises(ConfigError, match=r"env=habitat needs habitat"):
            compose(chosen)
        return
    config = compose(chosen)
    again = load(dump(config))
    assert again == config
    assert run_id(again) == run_id(config)
    schema = re.search(r"schema/(\w+)@_here_", (CONF / group / f"{option}.yaml").read_text())
    assert schema is not None and getattr(config, group).name == schema[1]


@pytest.mark.parametrize("file", sorted((CONF / "experiment").glob("*.yaml")), ids=lambda file: file.stem)
def test_every_experiment_composes(needs, file):
    own_images = needs("data", "imagefolder") if "/data: imagefolder" in file.read_text() else []
    config = compose([f"experiment={file.stem}", *own_images])
    assert load(dump(config)) == config


@pytest.mark.parametrize(("group", "name"), COMPONENTS)
def test_a_component_begins_with_its_name_and_has_plain_fields(group, name):
    cls = components(GROUPS[group])[name]
    fields, hints = dataclasses.fields(cls), get_type_hints(cls)
    assert fields[0].name == "name" and fields[0].default == name
    assert not any("Literal" in str(hints[f.name]) or "tuple" in str(hints[f.name]) for f in fields)
    assert cls.__doc__ and not cls.__doc__.startswith(f"{cls.__name__}("), "a docstring of its own, for --help"


def test_the_shortcut_of_these_tests_gives_what_the_command_line_does():
    overrides = [*IMAGES, "optim=nesterov", "alpha=0.5", "lr=1e-3", "schedule=multistep", "schedule.milestones=[1,2.5]"]
    assert configure(*overrides) == compose(overrides)


# -- identity ----------------------------------------------------------------------------------------------------------


@cache
def id_of(*overrides: str) -> str:
    return run_id(configure(*overrides))


def ids(base: tuple[str, ...], *others: str) -> tuple[str, str]:
    return id_of(*base), id_of(*base, *others)


NOT = ("results_dir=elsewhere", "run_dir=elsewhere", "processes=2", "logger=tensorboard", "device=cpu",
       "progress=false", "checkpoint_every_s=1", "network.timeout_s=7", "num_workers=16", "lr=1e-1",
       "epochs=50.0")  # fmt: skip
OF_ALL = ("lr=0.2", "seed=1", "num_workers=8", "steps=7", "epochs=7", "evaluation.every_epochs=7", "trace=true",
          "optim=momentum", "optim=adam", "schedule=inverse", "topology=torus", "topology.weights=uniform",
          "algo.mode=awc", "algo=d2", "network.drop_probability=0.1", "communication.every=2")  # fmt: skip
OF_IMAGES = ("alpha=1", "batch_size=8", "model=mlp", "partition=iid")


@pytest.mark.parametrize(("base", "overrides", "depends"), [
    *((base, override, False) for base in (QUADRATICS, IMAGES) for override in NOT),
    *((base, override, True) for base in (QUADRATICS, IMAGES) for override in OF_ALL),
    *((base, override, base is IMAGES) for base in (QUADRATICS, IMAGES) for override in OF_IMAGES),
    ((*QUADRATICS, "steps=10"), "epochs=3", False),
    ((*QUADRATICS, "algo=d2"), "algo=exact_diffusion", True),  # which has the same fields
], ids=str)  # fmt: skip
def test_the_identity_depends_on_what_the_computation_depends_on(base, overrides, depends):
    one, other = ids((*base, "lr=0.1", "epochs=50"), overrides)
    assert (one != other) == depends


def test_a_file_counts_by_what_is_in_it_not_by_where_it_is(tmp_path):
    rng = np.random.default_rng(0)
    for name, A in (("a", rng.normal(size=(3, 2, 2))), ("b", rng.normal(size=(3, 2, 2)))):
        np.savez(tmp_path / f"{name}.npz", A=A, b=np.ones((3, 2)))
    (tmp_path / "copy.npz").write_bytes((tmp_path / "a.npz").read_bytes())
    a, b, copy = (run_id(compose([*QUADRATICS, f"task.problem={tmp_path / name}.npz"])) for name in ("a", "b", "copy"))
    assert a == copy != b


def test_a_run_lives_under_its_id_unless_told_otherwise():
    config = compose([*QUADRATICS, "results_dir=there"])
    assert run_directory(config) == Path("there/runs") / run_id(config)
    assert re.fullmatch("[0-9a-f]{12}", run_id(config))
    assert run_directory(compose([*QUADRATICS, "run_dir=here"])) == Path("here")


@pytest.mark.parametrize(("overrides", "topology"), [
    (["algo=dpsgd"], "ring"),
    (["algo=dpsgd", "topology=torus"], "torus"),
    (["algo=dpsgd", "topology.split=interleaved"], "dbt"),
    (["experiment=mine"], "chain"),
    (["experiment=gossip"], "ring"),
    (["experiment=gossip", "algo=relaysgd"], "dbt"),
    ([], "dbt"),
])  # fmt: skip
def test_an_algorithm_has_its_usual_topology_unless_something_is_said_of_one(
    overrides: list[str], topology: str, tmp_path: Path
) -> None:
    (tmp_path / "experiment").mkdir()
    head = "# @package _global_\ndefaults:\n  - override /algo: dpsgd\n"
    (tmp_path / "experiment" / "gossip.yaml").write_text(head)
    (tmp_path / "experiment" / "mine.yaml").write_text(head + "  - override /topology: chain\n")
    assert compose(["task=quadratics", "num_workers=16", *overrides], str(tmp_path)).topology.name == topology


def test_the_usual_topology_of_every_algorithm_exists_and_suits_it() -> None:
    for name, cls in components("algorithms").items():
        task = "mean_estimation" if cls.needs_samples else "quadratics"
        config = compose([f"algo={name}", f"task={task}"])
        assert config.topology.name == (cls.usual_topology or "dbt")
