"""Topologies that are made from another one, chosen by its name."""

from __future__ import annotations

import numpy as np

from decentral.errors import ConfigError, suggest
from decentral.registry import components
from decentral.topology.topology import Repeating


def check_choice(topology: str, graph: str, path: str | None) -> None:
    """Refuse a topology.graph that does not exist or is `topology` itself, and a path that nobody reads.

    Raises:
        ConfigError: names the topologies that there are.
    """
    known = sorted(components("topology").keys() - {topology})
    if graph not in known:
        raise ConfigError(f"topology.graph={graph} is not another topology.{suggest(graph, known)}")
    if path is not None and graph != "file":
        raise ConfigError(f"topology.path={path} is read with topology.graph=file only, not {graph}.")


def graphs_of(graph: str, path: str | None, num_workers: int) -> list[tuple[np.ndarray, ...]] | Repeating:
    """The graphs of the topology `graph` with its default settings, by round and piece (see GraphTopology.graphs).

    Raises:
        ConfigError: it does not exist for so many workers.
    """
    topology = components("topology")[graph]
    found: list[tuple[np.ndarray, ...]] | Repeating = (topology(path=path) if path else topology()).graphs(num_workers)
    return found
