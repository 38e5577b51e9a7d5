"""The one table of the shared tests: every algorithm, topology, task, optimizer and metric, and what is true of it.

A new component joins all of `test_conformance.py` by being listed here, once; until then
`test_every_component_is_listed` fails.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from decentral.algorithms.asynchronous import in_rounds as carried_out_in_rounds
from decentral.algorithms.features import Feature
from decentral.conformance import properties
from decentral.registry import components


class Optimum(Enum):
    """Where a method ends on a heterogeneous quadratic with a constant learning rate and no noise."""

    exact = "exact"  # at the optimum
    biased = "biased"  # near it
    other = "other"  # it does not optimize, or does not step along gradients, or not with all workers


@dataclass(frozen=True)
class Net:
    """A topology and its number of workers."""

    topology: str
    n: int

    def overrides(self, folder: Path) -> list[str]:
        """As on the command line; `folder` is for files that the topology reads."""
        return [f"topology={self.topology}", f"num_workers={self.n}", *topology_overrides(self.topology, folder)]


@dataclass(frozen=True)
class AlgorithmCase:
    """The facts about an algorithm."""

    nets: tuple[Net, ...]  # what it runs on; the first is its usual one
    optimum: Optimum
    everyone: Net | None  # where all hear of all in every step, so that it is SGD on the mean gradient
    alone: tuple[str, ...] | None = ()  # more settings that make it SGD for n = 1; None: it never is
    overrides: tuple[str, ...] = ()
    task: str = "quadratics"

    @property
    def settings(self) -> dict[str, dict[str, Any]]:
        """Return the overrides by group, such as {"algo": {"beta": 0.5}}; a group's choice has the key ""."""
        groups: dict[str, dict[str, Any]] = {"algo": {}, "topology": {}, "compress": {}}
        for word in self.overrides:
            key, value = word.split("=")
            group, _, setting = key.partition(".")
            groups[group][setting] = yaml.safe_load(value)
        return groups

    @property
    def optimizes(self) -> bool:
        """Whether it follows gradients."""
        return self.optimum is not Optimum.other


RING, COMPLETE, TREES = Net("ring", 5), Net("complete", 5), (Net("dbt", 5), Net("star", 5), Net("chain", 5))
PAIR = Net("chain", 2)  # the only tree on which everybody is everybody's neighbor

ALGORITHMS: dict[str, AlgorithmCase] = {
    "allreduce": AlgorithmCase((RING,), Optimum.exact, RING),
    "async_push_sum": AlgorithmCase(
        (Net("star", 5), Net("one_peer_exponential", 5), Net("dbt", 5)),
        Optimum.biased,
        COMPLETE,
        overrides=("topology.weights=uniform",),
    ),
    "beer": AlgorithmCase((RING, Net("star", 5)), Optimum.exact, None),
    "choco": AlgorithmCase((RING, Net("grid", 6)), Optimum.biased, COMPLETE),
    "d2": AlgorithmCase((RING, Net("grid", 6)), Optimum.exact, COMPLETE, overrides=("topology.weights=metropolis",)),
    "dadam": AlgorithmCase((RING, Net("dbt", 5)), Optimum.other, None),
    "decentlam": AlgorithmCase((RING, Net("dbt", 5)), Optimum.biased, COMPLETE),
    "demo": AlgorithmCase((RING,), Optimum.other, None, overrides=("compress=dct_topk", "compress.k=2")),
    "demuon": AlgorithmCase((RING, Net("one_peer_exponential", 5)), Optimum.other, None),
    "desloc": AlgorithmCase((RING,), Optimum.biased, RING, overrides=("algo.period_steps=3",)),
    "diloco": AlgorithmCase(
        (RING,), Optimum.biased, RING, overrides=("algo.period_steps=3", "algo.outer_momentum=0.3")
    ),
    "dion": AlgorithmCase((RING,), Optimum.exact, None),  # without matrices it is all-reduce
    "dmsgd": AlgorithmCase(
        (RING, Net("dbt", 5), Net("one_peer_exponential", 5)),
        Optimum.biased,
        COMPLETE,
        overrides=("algo.beta=0.5",),
    ),
    "dpsgd": AlgorithmCase((RING, Net("dbt", 5), Net("one_peer_exponential", 5)), Optimum.biased, COMPLETE),
    "epidemic_learning": AlgorithmCase((RING, Net("random_regular", 6)), Optimum.biased, COMPLETE),
    "exact_diffusion": AlgorithmCase((RING, Net("star", 5), Net("dbt", 6)), Optimum.exact, None),
    "extra": AlgorithmCase((RING, Net("star", 5), Net("dbt", 6)), Optimum.exact, None),
    "gasloc": AlgorithmCase(
        (RING, Net("base_graph", 5)),
        Optimum.biased,
        COMPLETE,
        overrides=("algo.period_steps=2", "algo.outer_momentum=0.3"),
    ),
    "gpa": AlgorithmCase((RING,), Optimum.exact, RING, overrides=("algo.average=0.5",)),
    "gradient_tracking": AlgorithmCase((RING, Net("dbt", 5), Net("exponential", 5)), Optimum.exact, COMPLETE),
    "gt_nsgdm": AlgorithmCase(
        (RING, Net("dbt", 5), Net("one_peer_exponential", 5)), Optimum.other, None, overrides=("algo.beta=0.5",)
    ),
    "gt_saga": AlgorithmCase((RING, Net("one_peer_exponential", 5)), Optimum.other, None, overrides=("algo.batch=2",)),
    "gt_sarah": AlgorithmCase((RING, Net("dbt", 5)), Optimum.other, None, overrides=("algo.inner_steps=3",)),
    "local_sgd": AlgorithmCase((RING,), Optimum.biased, RING, overrides=("algo.period_steps=3",)),
    "lt_admm": AlgorithmCase((RING, Net("star", 5)), Optimum.exact, None, overrides=("algo.period_steps=3",)),
    "lt_admm_vr": AlgorithmCase((RING,), Optimum.other, None, overrides=("algo.period_steps=3",)),
    "model_averaging": AlgorithmCase((RING,), Optimum.exact, RING),
    "momentum_tracking": AlgorithmCase(
        (RING, Net("dbt", 5), Net("exponential", 5)),
        Optimum.exact,
        None,
        alone=("algo.beta=0",),
        overrides=("algo.beta=0.3",),
    ),
    "motef": AlgorithmCase(
        (RING, Net("star", 5)), Optimum.exact, None, alone=("algo.lam=1",), overrides=("algo.lam=0.5",)
    ),
    "nids": AlgorithmCase((RING, Net("star", 5), Net("dbt", 6)), Optimum.exact, None),
    "noloco": AlgorithmCase(
        (RING,),
        Optimum.biased,
        RING,
        overrides=("algo.period_steps=2",),
    ),
    "powergossip": AlgorithmCase((RING, Net("grid", 6)), Optimum.biased, None),
    "push_diging": AlgorithmCase(
        (Net("star", 5), Net("one_peer_exponential", 5)),
        Optimum.exact,
        COMPLETE,
        overrides=("topology.weights=uniform",),
    ),
    "qg_dpsgd": AlgorithmCase((RING, Net("dbt", 5)), Optimum.biased, COMPLETE),
    "relay_mean": AlgorithmCase(TREES, Optimum.other, None, task="mean_estimation"),
    "relaysgd": AlgorithmCase(TREES, Optimum.exact, PAIR),
    "relaysgd_grad": AlgorithmCase(TREES, Optimum.biased, PAIR),
    "slowmo": AlgorithmCase(
        (RING, Net("one_peer_exponential", 5)),
        Optimum.biased,
        COMPLETE,
        overrides=("algo.period_steps=3", "algo.outer_momentum=0.3"),
    ),
    "sparta": AlgorithmCase((RING,), Optimum.biased, RING, overrides=("algo.share=0.4",)),
    "sparta_diloco": AlgorithmCase(
        (RING,),
        Optimum.biased,
        RING,
        overrides=("algo.share=0.4", "algo.period_steps=3", "algo.outer_momentum=0.3"),
    ),
    "sparseloco": AlgorithmCase((RING,), Optimum.biased, RING, overrides=("algo.period_steps=3",)),
    "streaming_diloco": AlgorithmCase(
        (RING,),
        Optimum.biased,
        RING,
        overrides=("algo.period_steps=4", "algo.fragments=2", "algo.outer_momentum=0.1"),
    ),
    "teleportation": AlgorithmCase((RING,), Optimum.other, None, overrides=("algo.active=3",)),
    "sgp": AlgorithmCase(
        (Net("one_peer_exponential", 5), Net("exponential", 6)), Optimum.biased, COMPLETE, overrides=("algo.rounds=2",)
    ),
}


@dataclass(frozen=True)
class AsynchronousCase:
    """What is true of an algorithm whose workers go on by themselves."""

    net: Net
    overrides: tuple[str, ...] = ()
    agrees: bool = False  # all models are the same after the last step


ASYNCHRONOUS: dict[str, AsynchronousCase] = {
    "a2cid2": AsynchronousCase(Net("ring", 6)),
    "adpsgd": AsynchronousCase(Net("ring", 6), ("algo.gossips_per_step=2",)),
    "async_diloco": AsynchronousCase(
        Net("ring", 5), ("algo.period_steps=2", "algo.outer_momentum=0.3", "algo.regions=2", "algo.global_every=2")
    ),
    "async_push_sum": AsynchronousCase(Net("one_peer_exponential", 5)),
    "eager_sgd": AsynchronousCase(Net("ring", 8), ("algo.period_steps=6",), agrees=True),
    "wagma": AsynchronousCase(Net("ring", 8), ("algo.tau=4",), agrees=True),
}
"""Those with a program; the ones that can be carried out in steps, too, are in both tables."""

FREE = (
    *("cluster=machines", "cluster.compute.mean_s=1", "cluster.links.latency_s=0"),
    *("cluster.links.bandwidth_gbps=inf", "cluster.links.copy_gbps=inf"),
)
"""All workers are equally fast, and messages take no time."""

MACHINES = (
    *("cluster=machines", "cluster.compute.distribution=lognormal", "cluster.compute.mean_s=0.02"),
    "cluster.compute.sigma=0.5",
)
"""Workers with different speeds: the faster ones meet ports that are still busy."""
SLOW_LINKS = ("cluster.links.latency_s=1e-4", "cluster.links.bandwidth_gbps=1e-5", "cluster.links.copy_gbps=inf")
"""A number takes 6.4 ms, so that messages take longer than gradients."""
LOSSY = "network.drop_probability=0.2"


def a_third(cases: Iterable[tuple[Any, ...]]) -> list[Any]:
    """Return all cases, two of three of them marked as slow: those that start processes."""
    return [case if place % 3 == 0 else pytest.param(*case, marks=pytest.mark.slow) for place, case in enumerate(cases)]


def run_of(name: str, net: Net | None = None) -> list[str]:
    """Return the overrides of a method's run that is recorded once per session; with `net`, on another topology.

    Messages are lost where the method supports it.
    """
    case, supports = ALGORITHMS[name], components("algorithms")[name].supports
    noise = ["task.noise=0.1", "task.initial_distance=1"] if case.task == "quadratics" else []
    cluster = [] if name in ASYNCHRONOUS else [*MACHINES, *SLOW_LINKS]
    return [
        *(f"algo={name}", f"task={case.task}", "task.dimension=7", *noise, *(net or case.nets[0]).overrides(Path())),
        *(*case.overrides, *cluster, "optim=momentum", "lr=0.05", "steps=12", "trace=true"),
        *("checkpoint_every_s=0", "evaluation.every_epochs=6", *([LOSSY] if Feature.message_loss in supports else [])),
    ]


def agree(one: Any, other: Any, processes: int, rtol: float = 1e-12) -> None:
    """Compare a run with one of several processes: iterates, metrics and bytes."""
    assert one.status == other.status == "done"
    properties.same(one.walk, other.walk, processes, rtol)
    rows = [[{**row, "value": None} for row in result.rows] for result in (one, other)]
    assert rows[0] == rows[1]
    ours, theirs = ([row["value"] for row in result.rows] for result in (other, one))
    np.testing.assert_allclose(ours, theirs, rtol=100 * rtol, atol=rtol * np.abs(one.iterates).max())


def in_rounds() -> dict[str, type]:
    """The algorithms that can be carried out in steps that all workers take together, by name."""
    return {name: cls for name, cls in components("algorithms").items() if carried_out_in_rounds(cls)}


VARIANTS: dict[str, list[str]] = {
    "allreduce": ["compress=topk", "compress=randomk", "compress=threshold", "compress=powersgd", "compress=dct_topk"],
    "beer": ["algo.start=initial", "compress=topk"],
    "choco": ["algo.order=combine_then_compress", "algo.start=zero", "compress=topk", "compress=int8"],
    "d2": ["algo.probability=0.4", "algo.dual_step=0.7"],
    "dadam": ["algo.mode=atc", "algo.accumulate_steps=3", "algo.decoupled_decay=0.1"],
    "demo": ["algo.signed=false", "algo.subtract=0.5", "algo.decoupled_decay=0.1"],
    "desloc": ["optim=adam", "algo.state_periods=[5]", "algo.order=before"],
    "diloco": ["algo.nesterov=false"],
    "dmsgd": ["algo.form=ying"],
    "dpsgd": ["algo.mode=awc", "compress=bf16"],
    "exact_diffusion": ["algo.probability=0.4"],
    "gradient_tracking": ["algo.mode=awc"],
    "lt_admm_vr": ["algo.refill=false", "algo.batch=2"],
    "motef": ["compress=sign"],
    "noloco": ["algo.group_size=3"],
    "powergossip": ["algo.mode=atc", "algo.iterations=2"],
    "push_diging": ["algo.mode=awc"],
    "relaysgd": [
        *("algo.overlap=true", "algo.fill=own", "algo.fill=previous", "algo.fill=count", "algo.correct_lr=true"),
        *("compress=bf16", "compress=int8"),
    ],
    "qg_dpsgd": ["algo.nesterov=false", "algo.a=0.3"],
    "relaysgd_grad": ["algo.receiver_lr=true"],
    "sgp": ["algo.rounds=2"],
    "slowmo": [
        *("algo.base=dpsgd_awc", "algo.base=sgp", "algo.base=local_sgd", "algo.average=false", "compress=bf16"),
        *("algo.buffers=reset", "algo.buffers=average"),
    ],
    "sparseloco": ["compress=topk", "algo.mean_of=senders"],
    "sparta": ["algo.select=shuffled", "algo.select=partitioned", "algo.share=0"],
    "sparta_diloco": ["algo.select=partitioned"],
    "streaming_diloco": ["algo.delay_steps=1", "algo.own_share=0.5", "algo.split=interleaved"],
    "teleportation": ["algo.active=5", "algo.active=1"],
}
"""Settings that take another way through an algorithm."""


SEVERAL_GRADIENTS = {"gt_saga", "gt_sarah", "lt_admm_vr"}
"""Methods that also take gradients of named examples, which take time."""


@dataclass(frozen=True)
class TopologyCase:
    """What is true of a topology, with default settings."""

    n: int  # a number of workers for which it exists, small
    tree: bool = False  # or a tree for each piece of the model


TOPOLOGIES: dict[str, TopologyCase] = {
    "base_graph": TopologyCase(6),
    "bt": TopologyCase(6, tree=True),
    "chain": TopologyCase(5, tree=True),
    "cliques": TopologyCase(6),
    "complete": TopologyCase(5),
    "d_cliques": TopologyCase(5),
    "dbt": TopologyCase(6, tree=True),
    "epidemic": TopologyCase(6),
    "equidyn": TopologyCase(6),
    "equistatic": TopologyCase(6),
    "exponential": TopologyCase(6),
    "file": TopologyCase(5),
    "grid": TopologyCase(6),
    "hypercube": TopologyCase(8),
    "inner_outer_exponential": TopologyCase(8),
    "inner_outer_ring": TopologyCase(8),
    "networkx": TopologyCase(5),
    "one_peer": TopologyCase(5),
    "one_peer_exponential": TopologyCase(5),
    "optimized": TopologyCase(5),
    "random_regular": TopologyCase(6),
    "ring": TopologyCase(5),
    "simple_base_graph": TopologyCase(6),
    "social": TopologyCase(32),
    "spanning_tree": TopologyCase(6, tree=True),
    "star": TopologyCase(6, tree=True),
    "stl_fw": TopologyCase(5),
    "symmetric_exponential": TopologyCase(6),
    "torus": TopologyCase(6),
}
TOPOLOGIES = {name: case for name, case in TOPOLOGIES.items() if name in components("topology")}
"""Topologies of plug-ins are listed only if the plug-in exists, and so are the tasks below."""

TASKS: dict[str, tuple[str, ...]] = {
    "images": ("data=digits", "model=mlp", "model.hidden=[8]", "batch_size=8", "alpha=1"),
    "language": (
        *("data=textfile", "data.longest=16", "evaluation.examples=40", "partition=natural", "batch_size=4"),
        *("model=char_transformer", "model.dim=8", "model.heads=2", "model.hidden=8", "model.layers=1"),
    ),
    "mean_estimation": ("task.dimension=3", "schedule=inverse", "lr=1"),
    "quadratics": ("task.dimension=4", "task.noise=0.1"),
    "regression": ("task.dimension=3", "task.loss=logistic"),
    "rl": (
        *(
            "model=policy_mlp",
            "model.hidden=[8]",
            "batch_size=16",
            "alpha=1",
            "task.num_envs=4",
            "task.rollout_steps=8",
        ),
        *("env.size=5", "env.view=3", "env.num_train=40", "env.num_test=10", "env.max_steps=6"),
    ),
    "text": (
        *("data=synthetic_text", "data.num_train=400", "data.num_test=60", "data.words=50", "data.longest=12"),
        *("model=text_transformer", "model.dim=8", "model.heads=2", "model.hidden=8", "batch_size=8", "alpha=1"),
    ),
    "translation": (
        *("data=synthetic_translation", "data.num_train=120", "data.num_test=6", "data.longest=8", "partition=iid"),
        *("model=transformer_small", "model.dim=16", "model.heads=2", "model.hidden=16", "batch_size=4"),
    ),
}
TASKS = {name: words for name, words in TASKS.items() if name in components("tasks")}

OPTIMIZERS: dict[str, tuple[str, ...]] = {
    "adam": ("optim=adam", "optim.weight_decay=0.01"),
    "adamw": ("optim=adamw", "optim.weight_decay=0.01", "optim.clip_norm=0.5"),
    "adopt": ("optim=adopt", "optim.clip_norm=0.5"),
    "muon": ("optim=muon", "optim.weight_decay=0.01"),
    "sgd": ("optim=nesterov", "optim.weight_decay=0.01"),
    "torch.optim:RAdam": ("optim=torch.optim:RAdam", "optim.betas=[0.9,0.99]", "optim.clip_norm=0.5"),
}
"""Those with a dotted name stand for all of torch's."""


METRICS: dict[str, tuple[str, dict[str, Any]]] = {
    "accuracy": ("accuracy_score", {}),
    "f1": ("f1_score", {"average": "macro"}),
    "macro_f1": ("f1_score", {"average": "macro"}),
    "per_class_accuracy": ("recall_score", {"average": None, "zero_division": 0}),
}
"""What `metrics=` selects by name -> the function of scikit-learn with its settings."""


def topology_overrides(name: str, folder: Path) -> list[str]:
    """What a topology cannot do without."""
    if name == "file":
        path = folder / "graph.csv"
        path.write_text("source,target\n0,1\n1,2\n2,3\n3,0\n3,4\n")
        return [f"topology.path={path}"]
    if name == "networkx":
        path = folder / "graph.edgelist"
        path.write_text("a b\nb c\nc d\nd a\nd e\n")
        return [f"topology.path={path}"]
    if name in ("stl_fw", "d_cliques"):
        path = folder / "shares.npy"
        np.save(path, np.eye(3)[np.arange(TOPOLOGIES[name].n) % 3] + 0.1)
        return [f"topology.shares={path}"]
    return {"one_peer": ["topology.graph=ring"], "spanning_tree": ["topology.graph=grid"]}.get(name, [])
