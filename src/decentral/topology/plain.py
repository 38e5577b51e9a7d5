"""Topologies from a user's function: topology=mymodule:function."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from decentral.errors import ConfigError
from decentral.randomness import seeded
from decentral.registry import blame
from decentral.registry.signature import Plain, call, component_from, further, parameters_of
from decentral.registry.sources import installed
from decentral.store.files import natural_order
from decentral.topology.graph import Graph
from decentral.topology.matrices import Matrices
from decentral.topology.rounds import Rounds
from decentral.topology.topology import GraphTopology, Weights, check_num_workers


class PlainTopology(Plain, GraphTopology):
    """A function of `num_workers` that returns a graph or mixing weights W [n, n]; its other parameters are settings.

    A graph is a networkx graph, whose nodes in natural order are the workers, or a matrix [n, n] of bools or integers:
    entry [i, j] says whether j sends to i. Its weights follow the rule `weights`. In a matrix of floats, W[i, j] is the
    weight of j's model at i. A list has one item per round.
    """

    _weighted = False
    _names: Sequence[str] = ()

    def weights_given(self) -> bool:
        """Return whether the function returns weights."""
        return self._weighted

    def implied_num_workers(self) -> int | None:
        """Return the size of the result, if the function has no parameter num_workers."""
        if isinstance(self.target(), type) or "num_workers" in parameters_of(self.target()) or self._takes_more:
            return None
        first = self._results(0)[1][0]
        return len(first) if first.ndim else None

    @property
    def _takes_more(self) -> bool:
        """Return whether the function has **kwargs, which get num_workers; those of networkx are for backends."""
        return bool(further(self.target())) and not installed(self.plain_module.partition(".")[0])

    def worker_names(self, num_workers: int) -> list[str]:
        """Return the names of the graph's nodes, unless they are 0 ... n - 1."""
        self._made(num_workers)
        return list(self._names)

    def graphs(self, num_workers: int) -> list[tuple[Graph, ...]]:
        """Return the graphs of the function's result."""
        return [(Graph.of(one),) for one in self._made(num_workers)]

    def schedule(self, num_workers: int) -> Rounds:
        """Return the rounds for `num_workers` workers. Raise ConfigError if the function returns none."""
        check_num_workers(num_workers)
        made = self._made(num_workers)
        self._weighted = any(one.dtype.kind == "f" for one in made)
        if not self._weighted:
            return super().schedule(num_workers)
        if self.weights is not Weights.auto:
            raise ConfigError(
                f"topology.weights={self.weights.name} conflicts with topology={self.name}, which returns weights: "
                "leave topology.weights out, or return a graph."
            )
        return Matrices(made).schedule(num_workers)

    def _made(self, num_workers: int) -> list[np.ndarray]:
        """Return the function's result as bools or float64. Raise ConfigError for other types, and if a second call
        returns a different result."""
        found, again = (self._called(num_workers) for _ in range(2))
        if len(found) != len(again) or not all(map(partial(np.array_equal, equal_nan=True), found, again)):
            raise ConfigError(
                f"topology={self.name} is not reproducible: draw from numpy.random, torch or random, which are seeded "
                "here, or use your own seed."
            )
        return found

    def _results(self, num_workers: int) -> tuple[Any, list[np.ndarray], list[list[Any] | None]]:
        """Return the function's result, each of its items as an array, and its nodes if it is a graph."""
        given = {"num_workers": num_workers}
        more = given if self._takes_more else {}
        with blame.named(f"topology={self.name}"), seeded(0, "topology"):
            made: Any = call(self.target(), {} if more else given, **more, **self.settings())
            each = made if isinstance(made, list | tuple) and made else [made]
            nodes = [natural_order(one) if hasattr(one, "adjacency") else None for one in each]
            return made, [as_matrix(*pair) for pair in zip(each, nodes, strict=True)], nodes

    def _called(self, num_workers: int) -> list[np.ndarray]:
        made, found, nodes = self._results(num_workers)
        self._names = [] if nodes[0] in (None, [*range(num_workers)]) else list(map(str, nodes[0] or []))
        verb, advised = self.plain_verbs
        for one in found:
            if one.shape != (num_workers, num_workers):
                what = f"an array {list(one.shape)}" if one.ndim else f"a {type(made).__name__}"
                raise ConfigError(
                    f"topology={self.name} {verb} {what} for num_workers={num_workers}: {advised} "
                    f"a graph or W [{num_workers}, {num_workers}], or a list of them"
                    + (f", or set num_workers={len(one)}." if one.ndim else ".")
                )
        weighted = {one.dtype.kind == "f" for one in found}
        if len(weighted) > 1 or any(one.dtype.kind not in "biu" and one.dtype != np.float64 for one in found):
            kinds = " and ".join(dict.fromkeys(str(one.dtype) for one in found))
            raise ConfigError(
                f"topology={self.name} {verb} matrices of {kinds}: {advised} graphs (bools, or whole numbers) in all "
                "rounds, or weights (float64) in all rounds."
            )
        if True not in weighted and any(one.min() < 0 for one in found):
            raise ConfigError(
                f"topology={self.name} {verb} a graph with negative entries: {advised} bools, or whole numbers >= 0."
            )
        return [one if True in weighted else one.astype(bool) for one in found]


def as_matrix(made: Any, nodes: list[Any] | None) -> np.ndarray:
    """Convert a matrix or a networkx graph with these nodes to a matrix [n, n]."""
    if nodes is not None:
        import networkx as nx

        return np.asarray(nx.to_numpy_array(made, nodes, dtype=bool, weight=None)).T
    return np.asarray(made)


def plain(name: str, target: Callable[..., Any]) -> type:
    """Return the topology of this name that calls a class or function."""
    return component_from("topology", name, target, PlainTopology, ("num_workers",))
