"""Drawings of topologies, from the matrices with which runs work."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import matplotlib
import networkx as nx
import numpy as np

matplotlib.use("svg")
from matplotlib import pyplot as plt

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from decentral.topology.rounds import Rounds

_MOST = 5
_EDGE, _NODE = "#7d8597", "#009485"


def draw(rounds: Rounds, file: Path) -> str:
    """One picture for each piece of the model or each of the first rounds; returns what it shows."""
    n = rounds.num_workers
    if rounds.num_pieces > 1:
        titles = [f"piece {number + 1}" for number in range(rounds.num_pieces)]
        matrices = list(rounds.matrices(0))
    else:
        count = min(rounds.period, _MOST)
        titles = [f"round {number + 1}" for number in range(count)] if rounds.period > 1 else [""]
        matrices = [np.array(rounds.matrices(number)[0]) for number in range(count)]
    figure, axes = plt.subplots(1, len(matrices), figsize=(2.4 * len(matrices), 2.6), squeeze=False)
    at = _places(matrices, changes=rounds.period > 1)
    for axis, W, title in zip(axes[0], matrices, titles, strict=True):
        _panel(axis, W, at if at is not None else _places([W], changes=False), title)
    figure.savefig(file, transparent=True, bbox_inches="tight")
    plt.close(figure)
    what = f"{n} workers"
    if rounds.period > len(matrices) and rounds.num_pieces == 1:
        what += f", the first {len(matrices)} of {rounds.period} rounds"
    return what


def _places(matrices: list[np.ndarray], changes: bool) -> dict[int, np.ndarray] | None:
    """Where workers stand: on a circle where edges change or are many; None: each picture by itself."""
    n = len(matrices[0])
    if len(matrices) > 1 and not changes:
        return None
    graph = nx.from_numpy_array((matrices[0] != 0) & ~np.eye(n, dtype=bool), create_using=nx.Graph)
    if changes or graph.number_of_edges() > 2 * n or not nx.is_connected(graph):
        return dict(nx.circular_layout(graph))
    if nx.is_tree(graph) and max(dict(graph.degree).values()) > 2:
        return dict(nx.kamada_kawai_layout(graph))
    return dict(nx.circular_layout(graph) if _is_cycle(graph) else nx.kamada_kawai_layout(graph))


def _is_cycle(graph: nx.Graph) -> bool:
    return all(degree == 2 for _, degree in graph.degree)


def _panel(axis: Axes, W: np.ndarray, at: dict[int, np.ndarray] | None, title: str) -> None:
    assert at is not None
    linked = (W != 0) & ~np.eye(len(W), dtype=bool)
    both = np.array_equal(linked, linked.T)
    graph = nx.from_numpy_array(linked if both else linked.T, create_using=nx.Graph if both else nx.DiGraph)
    arrows = {} if both else {"arrows": True, "arrowsize": 7}
    nx.draw_networkx_edges(graph, at, ax=axis, edge_color=_EDGE, width=0.9, node_size=70, **arrows)
    nx.draw_networkx_nodes(graph, at, ax=axis, node_color=_NODE, node_size=70)
    nx.draw_networkx_labels(graph, at, ax=axis, font_size=5, font_color="white")
    axis.set_title(title, fontsize=9, color=_EDGE)
    axis.set_axis_off()
    axis.set_aspect("equal")
