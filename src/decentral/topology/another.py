"""Topologies that are made from another one, chosen by its name."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from enum import Enum
from typing import Any, cast

from decentral.errors import ConfigError, suggest
from decentral.registry import components
from decentral.topology.graph import Graph
from decentral.topology.topology import GraphTopology, Repeating


def check_choice(topology: str, graph: str, settings: Mapping[str, Any]) -> None:
    """Refuse a topology.graph that does not exist or is `topology` itself, and settings that it does not have.

    Settings that are None have not been given.

    Raises:
        ConfigError: names the topologies that there are, or the settings.
    """
    topologies = components("topology")
    known = sorted(name for name, its in topologies.items() if name != topology and hasattr(its, "graphs"))
    if graph not in known:
        what = "has matrices, not graphs" if graph in topologies and graph != topology else "is not another topology"
        raise ConfigError(f"topology.graph={graph} {what}.{suggest(graph, known)}")
    for key, value in settings.items():
        own = {f.name for f in dataclasses.fields(topologies[graph])}
        if value is not None and key not in own:
            told = value.name if isinstance(value, Enum) else value
            takers = [name for name in known if key in {f.name for f in dataclasses.fields(topologies[name])}]
            takers = [name for name in takers if name not in ("one_peer", "spanning_tree")]
            raise ConfigError(
                f"topology.{key}={told} is read with topology.graph={' or topology.graph='.join(takers)} only, not "
                f"{graph}."
            )


def graphs_of(graph: str, settings: Mapping[str, Any], num_workers: int) -> list[tuple[Graph, ...]] | Repeating:
    """The graphs of the topology `graph` with these settings, by round and piece (see GraphTopology.graphs).

    Raises:
        ConfigError: it does not exist for so many workers.
    """
    found = topology_of(graph, settings).graphs(num_workers)
    return found if isinstance(found, Repeating) else [tuple(Graph.of(A) for A in pieces) for pieces in found]


def topology_of(graph: str, settings: Mapping[str, Any]) -> GraphTopology:
    """The topology `graph` with the settings that have been given, those that are not None."""
    return cast(GraphTopology, components("topology")[graph](**{k: v for k, v in settings.items() if v is not None}))
