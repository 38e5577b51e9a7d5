"""What the workers of each method send, counted in a few steps on a small problem."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import torch

from decentral.algorithms.features import Feature
from decentral.config.composition import compose
from decentral.config.prepared import prepare
from decentral.network.world import World
from decentral.registry import components
from decentral.training.assemble import assemble

STEPS = 100


class Sent(NamedTuple):
    """By a worker in a step, on average."""

    topology: str
    models: float
    messages: float


def sent(methods: list[str], num_workers: int) -> dict[str, Sent]:
    """Of every method with its usual settings and topology, in one process."""
    given = [f"num_workers={num_workers}", f"steps={STEPS}", "device=cpu", "processes=1"]
    usual = {task: compose([f"task={task}", *given]) for task in ("quadratics", "mean_estimation")}
    algorithms, topologies = components("algorithms"), components("topology")
    found = {}
    for name in methods:
        algo = algorithms[name]()
        config = usual["mean_estimation" if Feature.training not in algo.supports else "quadratics"]
        topology = topologies[algo.usual["topology"]]() if "topology" in algo.usual else config.topology
        with torch.no_grad():
            compress = components("compression")[algo.usual.get("compress", "none")]()
            chosen = replace(config, algo=algo, topology=topology, compress=compress)
            r = assemble(prepare(chosen), World(0, 1, torch.device("cpu")))
            try:
                for _ in range(r.total_steps):
                    r.stepper.step()
                row = r.stepper.models[0].nbytes
                each = num_workers * r.total_steps
                found[name] = Sent(
                    topology.name, r.net.traffic.bytes_sent / row / each, r.net.traffic.messages_sent / each
                )
            finally:
                r.close()
    return found
