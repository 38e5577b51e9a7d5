"""Every algorithm gives the same run whatever the number of processes: iterates, metrics and bytes. It ends where it
should: at the optimum or not, and as plain SGD where all hear of all."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Callable
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any, get_type_hints

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from configure import configure
from decentral.algorithms.dpsgd import DPSGD
from decentral.algorithms.features import Feature
from decentral.cli import check
from decentral.config.composition import compose
from decentral.config.identity import run_directory, run_id
from decentral.config.overrides import options
from decentral.config.parsing import conf_directory, dump, folders_of, load
from decentral.config.schema import GROUPS
from decentral.conformance import properties
from decentral.conformance.check import Checks, Verdict, as_sgd
from decentral.environments.environment import EnvironmentDescription
from decentral.errors import ConfigError
from decentral.registry import components, find
from table import (
    ALGORITHMS,
    ASYNCHRONOUS,
    FREE,
    OPTIMIZERS,
    TASKS,
    TOPOLOGIES,
    Optimum,
    a_third,
    agree,
    in_rounds,
    run_of,
    topology_overrides,
)

TABLES = {"algorithms": ALGORITHMS | ASYNCHRONOUS, "topology": TOPOLOGIES, "tasks": TASKS, "optim": OPTIMIZERS}
OPTIMIZING = [name for name, case in ALGORITHMS.items() if case.optimizes]
SGD_WHERE_ALL_MEET = [name for name, case in ALGORITHMS.items() if case.everyone is not None]
RULES = {
    "nesterov": (
        ["optim=nesterov", "optim.weight_decay=0.01"],
        lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.01),
    ),
    "adam": (["optim=adam"], lambda p: torch.optim.Adam(p, lr=0.1)),
    "radam": (
        ["optim=torch.optim:RAdam", "optim.betas=[0.8,0.9]"],
        lambda p: torch.optim.RAdam(p, lr=0.1, betas=(0.8, 0.9)),
    ),
}
SMALL = ["task=quadratics", "task.dimension=6", "task.initial_distance=1", "lr=0.1"]


def test_every_component_is_listed():
    for package, rows in TABLES.items():
        missing = set(components(package)) ^ {name for name in rows if ":" not in name}
        assert not missing, f"add a row for {missing} to tests/table.py (or remove it)"
        assert package in GROUPS.values()
    assert ALGORITHMS.keys() == in_rounds().keys()
    assert ASYNCHRONOUS.keys() == {name for name, cls in components("algorithms").items() if hasattr(cls, "program")}


def test_a_refusal_names_methods_that_have_the_feature():
    for feature in Feature:
        words = set(re.findall(r"\w+", feature.value[1]))
        for name in words & components("algorithms").keys():
            supports = components("algorithms")[name].supports
            assert feature in supports or (feature, name) == (Feature.local_steps, "dpsgd"), (feature, name)


def test_plain_sgd_is_declared_as_in_the_table():
    for name in OPTIMIZING:
        assert (Feature.plain_sgd in components("algorithms")[name].supports) == (name in SGD_WHERE_ALL_MEET)


# -- 1 = 2 = n processes -----------------------------------------------------------------------------------------------


def several(recorded, start, overrides: list[str], processes: int, rtol: float = 1e-12) -> None:
    """Compare the recorded run with the same run in several processes."""
    agree(recorded(*overrides), start(*overrides, processes=processes), processes, rtol)


NETS = [
    (name, net, net.n if net is case.nets[-1] else 2)
    for name, case in ALGORITHMS.items()
    for net in case.nets[1:] or case.nets
]
"""Topologies of a method besides its usual one, with which test_resume compares 3 and 2 processes with one."""
BY_EXCHANGE = ["allreduce", "choco", "gasloc", "noloco", "relaysgd_grad", "sgp", "sparta_diloco", "teleportation"]
"""A method for each way of exchanging models; all others are compared in test_resume."""
STEPS = ["optim=momentum", "steps=12", "trace=true", "evaluation.every_epochs=6"]


@pytest.mark.parametrize("name", BY_EXCHANGE)
def test_an_algorithm_gives_the_same_iterates_with_1_and_2_processes(recorded, start, name):
    several(recorded, start, run_of(name), 2)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "net", "processes"), NETS, ids=str)
def test_an_algorithm_gives_the_same_iterates_with_1_and_n_processes(recorded, start, name, net, processes):
    several(recorded, start, run_of(name, net), processes)


@pytest.mark.parametrize(("name",), a_third((name,) for name in OPTIMIZERS))
def test_an_optimizer_gives_the_same_iterates_with_1_and_2_processes(recorded, start, name):
    several(recorded, start, ["task=quadratics", *STEPS, *OPTIMIZERS[name], "num_workers=5"], 2)


@pytest.mark.slow
@pytest.mark.parametrize("name", TASKS)
def test_a_task_gives_the_same_iterates_with_1_and_2_processes(recorded, start, name):
    exact = ["precision=fp64"] if "model" in components("tasks")[name].uses else []
    overrides = [f"task={name}", *TASKS[name], *exact, "algo=dpsgd", "topology=ring", "num_workers=5"]
    rounding = 1e-11  # Adam, usual for texts, divides by small numbers
    several(recorded, start, [*overrides, *STEPS[1:]], 2, rounding)


# -- the optimum -------------------------------------------------------------------------------------------------------


def settle(start, tmp_path, name: str, *overrides: str, directory: str = "run"):
    case = ALGORITHMS[name]
    return start(
        f"algo={name}", *case.nets[0].overrides(tmp_path), *case.overrides, *SMALL,
        "lr=0.3", "steps=300", "evaluation.every_epochs=700", *overrides, directory=directory
    )  # fmt: skip


@pytest.mark.parametrize("name", [name for name in OPTIMIZING if ALGORITHMS[name].optimum is Optimum.exact])
@pytest.mark.parametrize("optim", ["sgd", pytest.param("momentum", marks=pytest.mark.slow)])
def test_an_exact_method_reaches_the_optimum_of_different_functions(start, tmp_path, name, optim):
    result = settle(start, tmp_path, name, f"optim={optim}", *(["lr=0.02", "steps=700"] if optim == "momentum" else []))
    assert abs(result.last("suboptimality", "worst")) < 1e-10
    assert result.last("distance_to_optimum", "worst") < 1e-6
    assert result.last("consensus_distance", "mean") < 1e-12


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in OPTIMIZING if ALGORITHMS[name].optimum is Optimum.biased])
def test_a_biased_method_settles_next_to_the_optimum(start, tmp_path, name):
    far = settle(start, tmp_path, name, "lr=0.1", "steps=700").last("suboptimality", "worst")
    assert 1e-4 < far < 0.1
    if name in ("dpsgd", "local_sgd", "relaysgd_grad", "sgp"):  # nearer with a smaller rate
        near = settle(start, tmp_path, name, "lr=0.05", "steps=1400", directory="near").last("suboptimality", "worst")
        assert 1e-4 < near < far


@pytest.mark.parametrize("name", [name for name in OPTIMIZING if ALGORITHMS[name].optimum is Optimum.biased])
def test_a_biased_method_is_exact_where_all_workers_want_the_same(start, tmp_path, name):
    assert settle(start, tmp_path, name, "task.zeta2=0").last("suboptimality", "worst") < 1e-10


@pytest.mark.parametrize("name", OPTIMIZING)
def test_the_mean_is_kept_and_every_workers_updates_count_the_same(tmp_path, name):
    case = ALGORITHMS[name]
    for net, holds in ((case.nets[0], properties.consensus), (case.nets[-1], properties.mean_kept)):
        holds(configure(f"algo={name}", *net.overrides(tmp_path), *case.overrides, "task=quadratics"))


# -- plain SGD ---------------------------------------------------------------------------------------------------------


plain_sgd = cache(properties.plain_sgd)


@pytest.mark.parametrize("name", SGD_WHERE_ALL_MEET)
def test_methods_on_a_complete_graph_are_sgd_on_the_mean_gradient(tmp_path, name):
    overrides, optimizer = RULES["nesterov"]
    net, settings = ALGORITHMS[name].everyone, [*as_sgd(components("algorithms")[name]), *SMALL, *overrides, "steps=15"]
    walk = properties.walk(configure(f"algo={name}", *net.overrides(tmp_path), *settings), 1)
    properties.as_sgd(walk, plain_sgd(net.n, 1.0, 15, optimizer), net.topology)


@pytest.mark.parametrize(
    ("place", "name"), list(enumerate(name for name in OPTIMIZING if ALGORITHMS[name].alone is not None))
)
def test_one_worker_alone_does_what_torch_does(place, name):
    """With momentum or a rule that is not linear, in turn; DES-LOC averages the states of known optimizers."""
    rule = "adam" if name == "desloc" else list(RULES)[place % 3]
    overrides, optimizer = RULES[rule]
    settings = [*as_sgd(components("algorithms")[name]), *(ALGORITHMS[name].alone or ()), *SMALL, *overrides]
    config = configure(f"algo={name}", "topology=chain", "num_workers=1", "task.zeta2=0", "steps=15", *settings)
    properties.as_sgd(properties.walk(config, 1), plain_sgd(1, 0.0, 15, optimizer), "alone")


def test_an_asynchronous_method_is_not_checked() -> None:
    for algo in ("wagma", "adpsgd", "eager_sgd"):
        with pytest.raises(ConfigError, match=rf"algo={algo} is asynchronous"):
            Checks([f"algo={algo}"])


SENT, MEAN, SGD, ALONE = (
    *("bytes counted = bytes sent", "the mean is kept"),
    *("where every worker hears all others, it is plain SGD", "one worker alone does plain SGD"),
)


@pytest.mark.parametrize(
    ("overrides", "name", "verdict"),
    [
        # with as many steps as it takes until something is sent
        (["algo=noloco", "algo.period_steps=15"], SENT, Verdict.passed),
        (["algo=noloco", "steps=12"], SENT, Verdict.not_tested),
        (["algo=streaming_diloco"], SENT, Verdict.not_asked),  # it averages all workers at once
        (["algo=extra"], SGD, Verdict.not_asked),
        (["algo=extra"], ALONE, Verdict.not_asked),
    ],
)
def test_a_property_is_asked_where_it_can_be_tested(overrides: list[str], name: str, verdict: Verdict) -> None:
    assert Checks(overrides).carry_out(name).verdict is verdict


def _step(mixed: Callable[..., Tensor]) -> Callable[..., Any]:
    """The step of D-PSGD with `mixed(y, s, net, t)` instead of W y."""

    def step(self: DPSGD, s: Any, oracle: Any, net: Any, t: int) -> Any:
        y, opt = self.local.adapt(s.x.clone(), oracle(s.x), s.opt, t)
        return self.State(mixed(y, s, net, t), s.compression_stats, opt)

    return step


WITHOUT_CONSENSUS = _step(lambda y, s, net, t: y.add(net.mix(y.clone(), t), alpha=0))
SHRINKING = _step(lambda y, s, net, t: 0.9 * net.mix(y, t))
RANDOM = _step(lambda y, s, net, t: y + torch.rand_like(y))


@pytest.mark.parametrize(
    ("step", "name", "verdict", "words"),
    [
        (WITHOUT_CONSENSUS, "the workers reach consensus", Verdict.failed, "still differ by 0.8"),
        (WITHOUT_CONSENSUS, MEAN, Verdict.passed, "topology=ring"),
        (SHRINKING, MEAN, Verdict.failed, "all gradients are zero, step 0 moves the models"),
        (
            _step(lambda y, s, net, t: net.mix(s.x + (y - s.x) * torch.arange(1, 6)[:, None] / 5, t)),
            *(MEAN, Verdict.failed, "instead of once each"),
        ),
        (_step(lambda y, s, net, t: s.x.clone()), MEAN, Verdict.failed, "updates of the workers are lost"),
        (SHRINKING, SGD, Verdict.failed, "differ from those of plain SGD"),
        (SHRINKING, ALONE, Verdict.failed, "with one worker the models differ from those of plain SGD"),
        (SHRINKING, "it finds the optimum where all workers share it", Verdict.failed, "the worst is still"),
        (
            _step(lambda y, s, net, t: y * math.nan),
            *(
                "models are finite and start at the initial models",
                Verdict.failed,
                "after step 1 a model is not finite",
            ),
        ),
        (RANDOM, "runs are reproducible", Verdict.failed, "two runs with the same seed differ"),
        (RANDOM, "a resumed run continues bit for bit", Verdict.failed, "a resumed run ends"),
        (
            _step(lambda y, s, net, t: net.gather(y).mean(0).repeat(len(y), 1)),
            *(SENT, Verdict.failed, "step calls net.gather, which is for evaluation"),
        ),
        (
            _step(lambda y, s, net, t: net.mix_with(y, np.full((net.n, net.n), 1 / net.n))),
            *("the same messages are lost with 1 and 2 processes", Verdict.not_tested, "is ever lost"),
        ),
    ],
)
def test_a_property_is_judged_by_itself(
    monkeypatch: pytest.MonkeyPatch, step: Any, name: str, verdict: Verdict, words: str
) -> None:
    monkeypatch.setattr(DPSGD, "step", step)
    monkeypatch.setattr("decentral.conformance.check._LONG", 60)
    monkeypatch.setattr(properties, "_AGREE_STEPS", 100)
    found = Checks(["algo=dpsgd"]).carry_out(name)
    assert found.verdict is verdict and words in found.words


def test_processes_with_other_iterates_or_bytes_are_not_the_same() -> None:
    one = properties.Walk(np.ones((3, 2, 1)), 5, 1, 5)
    for other, words in ((one._replace(iterates=one.iterates + 1e-9), "differ"), (one._replace(bytes_sent=6), "is 5")):
        with pytest.raises(properties.Violation, match=words):
            properties.same(one, other, 2)


def test_an_exception_is_shown_once_with_its_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(DPSGD, "step", lambda self, s, oracle, net, t: net.mix(s.x))
    with pytest.raises(SystemExit, match="1"):
        check.main(["algo=dpsgd"])
    out = capsys.readouterr().out
    assert out.count("TypeError") == 1 and f"{Path(__file__).name}, line " in out
    assert "dpsgd: 0 passed, 1 failed, 0 not applicable, 13 not tested" in out


def test_rows_that_an_algorithm_gives_away_are_not_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [*OPTIMIZING, "relay_mean"]:
        net = ALGORITHMS[name].nets[0].overrides(tmp_path)
        task = f"task={ALGORITHMS[name].task}"
        properties.rows_are_given_away(configure(f"algo={name}", *net, *ALGORITHMS[name].overrides, task), 12)
    monkeypatch.setattr(DPSGD, "step", _step(lambda y, s, net, t: (net.mix(y, t) + y) / 2))  # y may be what is mixed
    with pytest.raises(properties.Violation, match=r"give a copy, as in net\.mix\(y\.clone\(\), t\)"):
        properties.rows_are_given_away(configure("algo=dpsgd", "topology=ring", "num_workers=5", "task=quadratics"), 12)


# -- Every choice in conf/ composes, and a run's identity holds what the computation depends on and nothing else -------

CONF = conf_directory()
OF_TASK = {task.takes: name for name, task in components("tasks").items() if hasattr(task, "takes")}
OF_TASK |= {EnvironmentDescription: "rl"}
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
    parent = tmp_path

    def _needs(group: str, option: str) -> list[str]:
        tmp_path = parent / f"{group}-{option}"
        tmp_path.mkdir()
        if group == "topology":
            n = TOPOLOGIES[option].n
            algo = "epidemic_learning" if option == "epidemic" else "dpsgd"
            return [f"algo={algo}", f"num_workers={n}", *topology_overrides(option, tmp_path)]
        if group == "algo" and option not in ALGORITHMS:
            return [*ASYNCHRONOUS[option].net.overrides(tmp_path), *ASYNCHRONOUS[option].overrides]
        if group == "algo":
            return [*ALGORITHMS[option].nets[0].overrides(tmp_path), f"task={ALGORITHMS[option].task}"]
        if group in ("attack", "robust", "privacy"):
            return ["algo=dpsgd", "topology=ring"]
        if group == "compress":
            return ["algo=allreduce", *(["cluster=slow_network"] if components("compression")[option].chooses else [])]
        if group == "cluster":
            return [word for word in FREE if option == "machines" and not word.startswith("cluster=")]
        if group == "availability" and option == "trace":
            (tmp_path / "trace.csv").write_text("worker,from_step,to_step\n0,0,\n")
            return [f"availability.path={tmp_path / 'trace.csv'}"]
        if group == "availability":
            return {"fixed": ["availability.absences=[[3,1,2]]"]}.get(option, ["cluster=even"])
        if group == "task" and option in TASKS:
            return [*TASKS[option], "algo=dpsgd", "topology=ring", "num_workers=4"]
        if group == "partition" and option == "natural":
            return ["num_workers=4"]  # there are no more than ten classes of digits
        if (group, option) == ("data", "tokens"):
            (np.arange(20_000, dtype=np.uint16) % 50).tofile(tmp_path / "train.bin")
            words = "longest=16", "sections=2", "end_of_text=0", f"path={tmp_path}"
            return ["task=language", "partition=iid", "num_workers=2", *(f"data.{word}" for word in words)]
        if group == "data" and option in TEXTS:
            task, files, content = TEXTS[option]
            for file in files:
                (tmp_path / file).write_text(content)
            return [f"task={task}", f"data.path={tmp_path}", "partition=iid", "num_workers=2", "batch_size=1"]
        takes = components("models")["gpt" if option.startswith("gpt_") else option].takes if group == "model" else None
        if takes in OF_TASK and OF_TASK[takes] != "images":
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
        return ["task=rl"] if group == "env" and option != "none" else []

    return _needs


@pytest.mark.parametrize("group", GROUPS)
def test_every_choice_composes_and_survives_being_written_down(needs, group):
    for option in options(group, folders_of(None)):
        chosen = [f"{group}={option}", *needs(group, option)]
        if option in ("habitat", "trackio") and find_spec(option) is None:
            with pytest.raises(ConfigError, match=rf"{group}={option} needs .*{option}"):
                compose(chosen)
            continue
        config = compose(chosen)
        again = load(dump(config))
        assert again == config, option
        assert run_id(again) == run_id(config), option
        files = [file for folder in folders_of(None) if (file := folder / group / f"{option}.yaml").exists()]
        named = [re.search(r"schema/(\w+)@_here_", file.read_text()) for file in files]
        assert getattr(config, group).name == (named[0][1] if named and named[0] else option)


def test_every_experiment_composes(needs):
    images = needs("data", "imagefolder")
    for file in (CONF / "experiment").glob("*.yaml"):
        config = compose([f"experiment={file.stem}", *(images if "/data: imagefolder" in file.read_text() else [])])
        assert load(dump(config)) == config, file


def test_every_component_begins_with_its_name_and_has_plain_fields():
    for package in GROUPS.values():
        for name, cls in components(package).items():
            known, hints = {f.name: f.default for f in dataclasses.fields(cls)}, get_type_hints(cls)
            assert next(key for key in cls.__annotations__ if key in known) == "name" and known["name"] == name
            assert not any("Literal" in str(hints[key]) or "tuple" in str(hints[key]) for key in known), cls
            assert cls.__doc__ and not cls.__doc__.startswith(f"{cls.__name__}("), "a docstring for --help"


def test_the_shortcut_of_these_tests_gives_what_the_command_line_does():
    overrides = [*IMAGES, "optim=nesterov", "alpha=0.5", "lr=1e-3", "schedule=multistep", "schedule.milestones=[1,2.5]"]
    assert configure(*overrides) == compose(overrides)


# -- identity ----------------------------------------------------------------------------------------------------------


@cache
def id_of(*overrides: str) -> str:
    return run_id(configure(*overrides))


NOT = ("results_dir=elsewhere", "run_dir=elsewhere", "processes=2", "logger=tensorboard", "device=cpu",
       "progress=false", "checkpoint_every_s=1", "network.timeout_s=7", "num_workers=16", "lr=1e-1",
       "epochs=50.0")  # fmt: skip
OF_ALL = ("lr=0.2", "seed=1", "num_workers=8", "steps=7", "epochs=7", "evaluation.every_epochs=7", "trace=true",
          "optim=momentum", "optim=adam", "schedule=inverse", "topology=torus", "topology.weights=uniform",
          "algo.mode=awc", "algo=d2", "network.drop_probability=0.1", "communication.every=2")  # fmt: skip
OF_IMAGES = ("alpha=1", "batch_size=8", "model=mlp", "partition=iid")


@pytest.mark.parametrize("base", [QUADRATICS, IMAGES], ids=["quadratics", "images"])
def test_the_identity_depends_on_what_the_computation_depends_on(base):
    usual = (*base, "lr=0.1", "epochs=50")
    depends = dict.fromkeys(NOT, False) | dict.fromkeys(OF_ALL, True) | dict.fromkeys(OF_IMAGES, base is IMAGES)
    for override, other in depends.items():
        assert (id_of(*usual, override) != id_of(*usual)) == other, override
    assert id_of(*usual, "steps=10", "epochs=3") == id_of(*usual, "steps=10")
    assert id_of(*usual, "algo=d2") != id_of(*usual, "algo=exact_diffusion"), "which has the same fields"


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


def test_an_algorithm_has_its_usual_topology_unless_another_is_named(tmp_path: Path) -> None:
    (tmp_path / "experiment").mkdir()
    head = "# @package _global_\ndefaults:\n  - override /algo: dpsgd\n"
    (tmp_path / "experiment" / "gossip.yaml").write_text(head)
    (tmp_path / "experiment" / "mine.yaml").write_text(head + "  - override /topology: chain\n")
    for overrides, topology in {
        "algo=dpsgd": "ring",
        "algo=dpsgd topology=torus": "torus",
        "algo=dpsgd topology.split=interleaved": "dbt",
        "experiment=mine": "chain",
        "experiment=gossip": "ring",
        "experiment=gossip algo=relaysgd": "dbt",
        "": "dbt",
    }.items():
        words = ["task=quadratics", "num_workers=16", *overrides.split()]
        assert compose(words, str(tmp_path)).topology.name == topology


def test_usual_topology_and_compressor_of_every_algorithm_exist_and_suit_it() -> None:
    for name, cls in components("algorithms").items():
        task = "quadratics" if Feature.training in cls.supports else "mean_estimation"
        config = compose([f"algo={name}", f"task={task}"])
        assert config.topology.name == cls.usual.get("topology", "dbt")
        assert config.compress.name == cls.usual.get("compress", "none")


def test_names_are_read_from_the_files_as_they_are_found_by_importing_them():
    for package in GROUPS.values():
        assert find.names(package) == sorted(find.ours(package))
