"""Python objects as components, what a result offers, and the commands that a run prints."""

from __future__ import annotations

import importlib
import pickle
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import networkx
import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import decentral
from decentral.errors import ConfigError

PROGRAM = """
from dataclasses import dataclass, field

import networkx as nx
import numpy as np
import torch

import decentral
from decentral.algorithms.dpsgd import DPSGD
from decentral.compression.dense import NoCompression
from decentral.topology.matrices import Matrices
from decentral.topology.static import Ring
from decentral.optim.sgd import SGD
from decentral.partition.partition import IID
from decentral.lr_schedules.schedule import Inverse


@dataclass
class Mine(DPSGD):
    name: str = "mine"
    beta: float = 0.5
    steps: list = field(default_factory=list)

    def step(self, s, oracle, net, t):
        self.steps.append(t)  # state of the object, which no other run may see
        assert self.steps == list(range(len(self.steps)))
        return super().step(s, oracle, net, t)


@dataclass
class Silent(NoCompression):
    name: str = "silent"


class Unrelated:
    pass


@dataclass
class Same(DPSGD):
    pass


class Bare(DPSGD):
    name = "bare"


def circle(num_workers, hops: int = 1):
    return nx.circulant_graph(num_workers, range(1, hops + 1))


def averages(num_workers):
    return np.full((num_workers, num_workers), 1 / num_workers)


def deal(labels, num_workers, seed):
    return np.array_split(np.random.permutation(len(labels)), num_workers)


def inverse(t, power: float = 1.0):
    return (t + 1) ** -power


@dataclass
class Power:
    power: float = 1.0

    def __call__(self, t):
        return (t + 1) ** -self.power


class Counts:
    def __init__(self):
        self.calls = 0

    def __call__(self, t):
        self.calls += 1
        return self.calls


N, STEPS = 4, 3
W, ARROWS = averages(N), nx.cycle_graph(N, create_using=nx.DiGraph)
PARTS = np.array_split(np.arange(1438), N)
B = np.arange(float(N))[:, None]
TOPOLOGIES = [
    (nx.cycle_graph(N), "ring"),
    (nx.relabel_nodes(nx.cycle_graph(N), {0: "w0", 1: "w1", 2: "w2", 3: "w3"}), "ring"),
    (nx.to_numpy_array(nx.cycle_graph(N)) > 0, "ring"),
    (nx.to_numpy_array(nx.cycle_graph(N)).astype(int), "ring"),
    (circle, "ring"),
    (Ring(), "ring"),
    (Ring, "ring"),
    (W, "complete"),
    (W.astype(np.float32), "complete"),
    (W.tolist(), "complete"),
    (torch.tensor(W), "complete"),
    ([torch.tensor(W), np.eye(N, dtype=int)], None),
    (np.stack([W, np.eye(N)]), None),
    (Matrices([W, np.eye(N)]), None),
    ([nx.complete_graph(N), nx.empty_graph(N)], None),
    (lambda num_workers: [averages(num_workers), np.eye(num_workers)], None),
    (averages, "complete"),
    (ARROWS, "arrows"),
    (nx.to_numpy_array(ARROWS).T > 0, "arrows"),
]
ALGORITHMS = [Mine, Mine(beta=0.2), DPSGD(), DPSGD, "dpsgd"]


def iterates(algo, topology, **more):
    return decentral.iterates(algo, topology, lambda x, t: x - B, B, STEPS, **more)


def train(**settings):
    usual = {"algo": "dpsgd", "topology": "ring", "num_workers": N, "steps": STEPS, "progress": False, "save": "none"}
    return decentral.train("mlp", "digits", None, *settings.pop("words", ()), **usual | settings)


def losses(**settings):
    return train(**settings).metrics.query("metric == 'loss'").value.to_numpy()


def wrap(topology="ring", **settings):
    model = torch.nn.Linear(2, 1)
    optimizer = decentral.wrap(model, torch.optim.SGD(model.parameters(), lr=0.1), topology, **settings)
    optimizer.step()
    optimizer.close()


def same(found, expected):
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-6)


def refused(call, **settings):
    try:
        call(**settings)
    except decentral.ConfigError as error:
        assert "\\n" not in str(error)
        return str(error)
    raise AssertionError(f"{settings} was accepted")


def main():
    expected, trained = {}, {}
    for given, name in TOPOLOGIES:
        for algo in ALGORITHMS if given is W else ALGORITHMS[:1]:
            found = iterates(algo, given)
            same(found, expected.setdefault(name, iterates("dpsgd", name) if name in ("ring", "complete") else found))
    for given, name in (TOPOLOGIES[0], TOPOLOGIES[7], TOPOLOGIES[14]):
        found = losses(topology=given, algo=Mine, num_workers=None if isinstance(given, list) else N)
        same(found, trained.setdefault(name, losses(topology=name) if name in ("ring", "complete") else found))
    assert np.abs(expected["arrows"] - expected["ring"]).max() > 0.01
    same(iterates("dpsgd", circle, topology_settings={"hops": 2}), expected["complete"])
    same(losses(topology={"name": circle, "hops": 2}), trained["complete"])
    same(losses(topology=circle, words=["topology.hops=2"]), trained["complete"])
    heavy = iterates("dpsgd", "ring", optim_settings={"momentum": 0.9})
    same(iterates("dpsgd", "ring", optim=SGD(momentum=0.9)), heavy)
    same(iterates("dpsgd", "ring", optim=torch.optim.SGD), expected["ring"])
    for given in (PARTS, [torch.tensor(part) for part in PARTS], lambda num_workers: PARTS):
        same(losses(partition=given), trained.setdefault("parts", losses(partition=given)))
    same(losses(partition=IID()), losses(partition="iid"))
    assert np.abs(losses(partition=deal) - trained["parts"]).max() > 1e-3
    for given in (inverse, Power, Power(), Inverse(), lambda t: 1 / (t + 1), {"name": inverse, "power": 1}):
        same(losses(schedule=given), losses(schedule="inverse"))
    same(losses(optim=torch.optim.SGD), losses(optim="torch.optim:SGD"))
    betas = {"name": torch.optim.Adam, "betas": (0.8, 0.9)}
    same(losses(optim=betas), losses(optim="torch.optim:Adam", words=["optim.betas=[0.8,0.9]"]))
    for given in (Silent, Silent(), NoCompression()):
        same(losses(compress=given), trained["ring"])
        same(iterates("dpsgd", "ring", compress=given), expected["ring"])
        wrap(algo="dpsgd", compress=given)
    for given in ALGORITHMS:
        wrap(algo=given)
    wrap(algo=Mine, algo_settings={"beta": 0.1})
    for given in (circle, Ring, "exponential", nx.empty_graph(1), np.eye(1), [np.eye(1)]):
        wrap(given)
        decentral.join(given).close()
    settings = train(algo=Mine(beta=0.25), schedule=Power(2.0), topology=circle).settings
    assert (settings["algo"], settings["algo.beta"], settings["schedule.power"]) == ("mine", 0.25, 2.0), settings
    assert settings["topology"].endswith(":circle") and settings["topology.hops"] == 1
    assert "give the class or function itself" in refused(train, topology="__main__:circle")
    first, second, other = (train(topology=W, name=name) for name in ("first", "first", "other"))
    assert second.reused and not other.reused and train(topology=W).directory != train(topology=W).directory
    assert train(topology=Ring()).directory == train(topology="ring").directory
    says = {
        "is already used by decentral: choose another one": [(train, {"algo": Same()}), (wrap, {"algo": Same})],
        "is not a dataclass: decorate it": [(train, {"algo": Bare}), (wrap, {"algo": Bare()})],
        "is not derived from decentral.algorithms.algorithm.Algorithm": [(train, {"algo": Unrelated})],
        "algo is a function: give a name (decentral-run --help algo)": [(train, {"algo": inverse})],
        "algo is a Unrelated: give a name": [(wrap, {"algo": Unrelated()})],
        "compress is a function: give a name": [
            (train, {"compress": inverse}),
            (wrap, {"algo": "dpsgd", "compress": inverse}),
        ],
        "has an array [4, 4] for num_workers=5: give a graph or W [5, 5]": [(train, {"topology": W, "num_workers": 5})],
        "needs 4 workers, but there are 1 ranks": [(wrap, {"topology": W}), (decentral.join, {"topology": ARROWS})],
        "has no setting 'hop'. Did you mean 'hops'?": [
            (train, {"topology": {"name": circle, "hop": 1}}),
            (train, {"topology": circle, "words": ["topology.hop=1"]}),
            (decentral.join, {"topology": circle, "hop": 1}),
        ],
        "topology.hops='x' has the wrong type: use a whole number": [
            (train, {"topology": {"name": circle, "hops": "x"}}),
            (decentral.join, {"topology": circle, "hops": "x"}),
        ],
        "'beta' is neither an argument nor a setting of algo, which is given as an object": [
            (train, {"algo": {"name": Mine(), "beta": 1.0}}),
            (wrap, {"algo": Mine(), "algo_settings": {"beta": 1.0}}),
        ],
        "partition=indices has 3 parts": [(train, {"partition": PARTS[:3]})],
        "partition=indices has a list without an array of indices for each worker": [
            (train, {"partition": parts})
            for parts in ([[[0, 1], [2]], *PARTS[1:]], torch.utils.data.random_split([(B, 0)] * 1438, [0.25] * N))
        ],
        "a matrix of booleans or integers is a graph instead": [
            (train, {"topology": nx.to_numpy_array(nx.cycle_graph(N))})
        ],
        "schedule.step is missing: give a value": [(train, {"schedule": lambda step: 1.0})],
        "not each of 0 ... 1437 once": [(train, {"partition": [*PARTS[:3], PARTS[0]]})],
        "when called again: make it a deterministic function": [
            (train, {"schedule": Counts()})
        ],
        "partition is a Unrelated: give a name": [(train, {"partition": Unrelated()})],
        "Unrelated is none of them": [(train, {"topology": Unrelated()}), (decentral.join, {"topology": Unrelated()})],
        "numbers of shape [4, 3] are none of them": [(train, {"topology": W[:, :3]})],
        "processes=2 cannot be used with decentral.train": [(train, {"topology": W, "processes": 2})],
        "launcher=slurm cannot be used with decentral.train": [(train, {"algo": Mine, "launcher": "slurm"})],
        "name=first has a run with the given topology=": [(train, {"topology": (W + np.eye(N)) / 2, "name": "first"})],
    }
    for sentence, calls in says.items():
        for call, settings in calls:
            told = refused(call, **settings)
            assert sentence in told, (sentence, told)
    print("all of them")


if __name__ == "__main__":
    main()
"""


def python(folder: Path, *arguments: str, given: str = "") -> str:
    done = subprocess.run(
        [sys.executable, *arguments], cwd=folder, input=given, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
def test_objects_in_a_notebook_are_what_the_command_line_makes_of_names(tmp_path: Path) -> None:
    run = "import sys; exec(compile(sys.stdin.read(), '<ipython-input-1>', 'exec'))"
    assert python(tmp_path, "-c", run, given=PROGRAM).endswith("all of them\n")


HINTS = """
import re
import sys

import networkx as nx
import torch
from torch import nn
from torch.utils.data import TensorDataset


class Net(nn.Module):
    def __init__(self, in_features: int, num_classes: int, width: int = 8) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Flatten(), nn.Linear(in_features, width), nn.Linear(width, num_classes))

    def forward(self, x):
        return self.inner(x)


class Animals(TensorDataset):
    classes = ["cat", "dog"]


def make(size: int = 64):
    x = torch.randn(size, 1, 4, 4)
    return [Animals(x, (x.mean((1, 2, 3)) > 0).long())] * 2


def others(size: int = 64):
    return make(size)


def loss(outputs, targets):
    return nn.functional.cross_entropy(outputs, targets)


def right(outputs, targets):
    return float((outputs.argmax(1) == targets).double().mean())


def circle(num_workers):
    return nx.cycle_graph(num_workers)


def deal(labels, num_workers):
    return torch.arange(len(labels)).tensor_split(num_workers)


net = Net(64, 10)
SMALL = {"algo": "dpsgd", "num_workers": 2, "steps": 2, "batch_size": 4, "device": "cpu"}
TRAINED = [
    ("mlp", "digits", {"topology": circle}),
    (net, "digits", {}),
    (Net, "digits", {}),
    (lambda: net, "digits", {}),
    ("hints:Net", "digits", {"model.width": 4}),
    ("__main__:Net", "digits", {"model.width": 4}),
    ("__main__:Net", "hints:others", {"data.size": 32}),
    ("mlp", "hints:others", {}),
    ("cnn", "digits", {"task.loss": "hints:loss"}),
    ("mlp", "digits", {"topology": "hints:circle", "optim": "torch.optim:RAdam", "partition": "hints:deal"}),
    ("mlp", "digits", {"partition": deal, "schedule": lambda t: 1.0}),
    (net, "digits", {"partition": [range(700), range(700, 1438)]}),
    ("mlp", None, {"task": "quadratics"}),
    ("tiny", "digits", {"config_dir": "mine"}),
]
COMMANDS = [
    ["model=hints:Net", "model.width=3", "data=digits"],
    ["data=hints:make", "model=hints:Net", "metrics=[per_class_accuracy]"],
    ["metrics=[+hints:right]", "data=digits", "model=mlp"],
    ["topology=hints:circle", "data=digits", "model=mlp", "processes=2"],
    ["--config-dir", "mine", "model=tiny", "data=digits"],
]


def load(text: str) -> None:
    import decentral

    hints = re.findall(r"decentral[.]load[(].*?[)](?=[)]| reads)", text)
    assert len(hints) == len(TRAINED if "__main__" in text else COMMANDS), hints
    for hint in hints:
        result = eval(hint, {"decentral": decentral, "net": net, "Net": Net})
        assert len(result.models) in (0, 2) and result.status == "done", hint
        if result.models and "model=" not in hint and "others" not in result.settings["data"]:
            assert result.predict(result.test_data).shape == (len(result.test_data),), hint


if __name__ == "__main__":
    import decentral
    from decentral.cli.run import main

    for model, data, settings in TRAINED:
        decentral.train(model, data, **SMALL | settings)
    print("__main__|next|")
    for words in COMMANDS:
        sys.argv = ["decentral-run", *words, *(f"{key}={value}" for key, value in SMALL.items()), "progress=false"]
        try:
            main(sys.argv[1:])
        except SystemExit as end:
            assert not end.code, words
"""
TINY = """
from dataclasses import dataclass
from math import prod

from decentral.data.dataset import LabelledData
from decentral.models.model import Model


@dataclass
class Tiny(Model):
    takes = LabelledData
    name: str = "tiny"

    def build(self, data):
        from torch import nn

        return nn.Sequential(nn.Flatten(), nn.Linear(prod(data.shape), data.num_classes))
"""
LOAD = "import sys, hints; [hints.load(text) for text in sys.stdin.read().split('|next|')]"


@pytest.mark.slow
def test_the_command_that_a_run_prints_loads_it_in_another_process(tmp_path: Path) -> None:
    (tmp_path / "hints.py").write_text(HINTS)
    (tmp_path / "mine" / "models").mkdir(parents=True)
    (tmp_path / "mine" / "models" / "tiny.py").write_text(TINY)
    told = python(tmp_path, "hints.py")
    assert "test accuracy of class dog " in told
    python(tmp_path, "-c", LOAD, given=told)


def test_a_result_predicts_tests_and_names_classes(tmp_path: Path) -> None:
    """After `train`, `load` and pickling; with several kinds of inputs."""
    settings = {"num_workers": 4, "steps": 40, "batch_size": 8, "results_dir": tmp_path, "progress": False}
    result = decentral.train("mlp", "digits", **settings)
    x, y = result.test_data.tensors
    best = result.models[0]
    assert result.class_names == [str(label) for label in range(10)] and len(y) == 359
    for found in (result, decentral.load(result.directory), pickle.loads(pickle.dumps(result))):
        confusion, predicted = found.confusion(), found.predict(x)
        accuracy = found.metrics.query("metric == 'accuracy' and worker == 'averaged'").value.iloc[-1]
        assert np.trace(confusion) / len(y) == pytest.approx(accuracy) == (predicted == y.numpy()).mean()
        assert confusion.loc["3"].sum() == (y == 3).sum() and list(confusion.columns) == found.class_names
        for inputs in (x.numpy(), x.double(), found.test_data, DataLoader(found.test_data, 100), list(x), iter([x])):
            assert np.array_equal(found.predict(inputs), predicted)
        assert np.array_equal(found.predict(x, best), best(x).argmax(1)) and found.confusion(best).shape == (10, 10)
    half = decentral.train("mlp", "digits", **settings, evaluation={"part": "test"})
    assert len(half.test_data) == 179 and half.confusion().to_numpy().sum() == 179

    data = TensorDataset(torch.randn(60, 3), torch.arange(60) % 2)
    data.classes = ["cat", "dog"]
    net = nn.Linear(3, 4)  # more outputs than classes
    given = decentral.train(net, data, data, **settings)
    assert given.class_names == ["cat", "dog"] and list(given.confusion().index) == ["cat", "dog"]
    rows = [[1.0, 0.0, 2.0], [0.5, 0.5, 0.5]]
    assert np.array_equal(given.predict(rows), given.predict(np.array(rows)))
    with pytest.raises(ConfigError, match="data= is a single example"):
        given.predict(np.array(rows[0]))
    loaded = decentral.load(given.directory, model=net)
    assert np.array_equal(loaded.predict(data), given.predict(given.test_data))
    assert loaded.confusion(data=data).equals(given.confusion())
    for call in (loaded.confusion, lambda: loaded.test_data):
        with pytest.raises(ConfigError, match=r"not stored: pass them, as in predict.* or confusion\(data=test_data\)"):
            call()
    convex = decentral.train("mlp", None, task="quadratics", **settings)
    for call, sentence in {
        lambda: convex.predict(x): "has no models",
        lambda: convex.test_data: "has no test data: it is a run of task=quadratics",
        convex.confusion: "has no classes: it is a run of task=quadratics",
    }.items():
        with pytest.raises(ConfigError, match=sentence):
            call()
    text = decentral.train("fasttext", "synthetic_text", task="text", **settings)
    assert text.confusion().to_numpy().sum() == len(text.test_data)


def averages(world) -> list[np.ndarray]:
    """Return what every second kind of topology makes of the ranks' numbers."""
    exec(PROGRAM, names := {"__name__": __name__})
    found = []
    for given, _ in names["TOPOLOGIES"][::2]:
        with decentral.join(given) as peers:
            found.append(peers.neighbor_allreduce(torch.eye(4)[world.rank]).numpy())
    return found


def test_ranks_average_over_a_topology_that_is_an_object(worlds) -> None:
    exec(PROGRAM, names := {"__name__": __name__})
    expected = {"complete": np.full((4, 4), 0.25)}
    for (_, name), *rows in zip(names["TOPOLOGIES"][::2], *worlds(4).call(averages), strict=True):
        W = np.stack(rows)
        np.testing.assert_allclose(W, expected.setdefault(name, W), atol=1e-7)
        np.testing.assert_allclose(W.sum(1), 1, atol=1e-6)


@pytest.mark.slow
def test_objects_are_checked_as_names_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    source = Path(__file__).parents[1] / "examples/own_algorithm/mine/algorithms/partway.py"
    (tmp_path / "partway_here.py").write_text(source.read_text().replace('"partway"', '"partway_here"'))
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    chosen = importlib.import_module("partway_here").Partway(step_size=0.4)
    found = decentral.check(chosen, topology=networkx.path_graph(3))
    assert (found.verdict == "passed").all() and list(found.remark.str.split("=").str[-1]).count("graph") == 1
    told = capsys.readouterr().out
    assert "algo=partway_here: 14 passed" in told and "algo.step_size=1" in told
    inner = dataclass(type("Inner", (type(chosen),), {"__module__": "__main__"}))
    assert (decentral.check(inner, num_workers=3).verdict == "not tested").sum() == 4


def test_a_pair_of_tensors_is_a_data_set_and_another_start_is_explained(tmp_path: Path) -> None:
    x, y = torch.randn(40, 3), torch.arange(40) % 2
    settings = {"num_workers": 2, "steps": 2, "batch_size": 4, "progress": False, "results_dir": tmp_path, "name": "a"}
    given = [decentral.train(nn.Linear(3, 2), (x, y), (x, y), **settings)]
    assert len(given[0].test_data) == 40
    with pytest.raises(ConfigError, match=r"seed=0 does not apply to .* already built: call torch.manual_seed"):
        decentral.train(nn.Linear(3, 2), TensorDataset(x, y), (x, y), **settings)
