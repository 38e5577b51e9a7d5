"""Your own model, data, loss, schedule and more, in plain torch: nothing here imports decentral."""

from __future__ import annotations

from pathlib import Path

import networkx as nx
import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.data import TensorDataset


class MyNet(nn.Module):
    """Two layers with dropout in between.

    in_features and num_classes come from the data, since the parameters have these names.

    width      of the hidden layer
    dropout    probability
    """

    def __init__(self, in_features: int, num_classes: int, width: int = 32, dropout: float = 0.1) -> None:
        super().__init__()
        self.hidden = nn.Linear(in_features, width)
        self.dropout = nn.Dropout(dropout)
        self.output = nn.Linear(width, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        """[B, in_features] -> logits [B, num_classes]."""
        return self.output(self.dropout(torch.relu(self.hidden(x))))


def make_data(size: int = 800, noise: float = 0.4) -> tuple[TensorDataset, TensorDataset]:
    """Points around four corners of a cube: (training data, test data).

    size     training examples; there are a quarter as many test examples
    noise    standard deviation around the corners
    """

    def cloud(number: int, seed: int) -> TensorDataset:
        generator = torch.Generator().manual_seed(seed)
        labels = torch.arange(number) % 4
        points = torch.eye(4, 6)[labels] + noise * torch.randn(number, 6, generator=generator)
        return TensorDataset(points, labels)

    return cloud(size, seed=1), cloud(size // 4, seed=2)


def focal(outputs: Tensor, targets: Tensor) -> Tensor:
    """Focal loss (Lin et al., ICCV 2017) with gamma = 2, one value per example: [B, C], [B] -> [B]."""
    loss = cross_entropy(outputs, targets, reduction="none")
    return (1 - torch.exp(-loss)) ** 2 * loss


def halves(epoch: float, every: float = 5.0) -> float:
    """Halve the learning rate every `every` epochs."""
    return float(0.5 ** (epoch // every))


def sorted_labels(labels: np.ndarray, num_workers: int) -> list[np.ndarray]:
    """Give each worker adjacent labels."""
    return np.array_split(np.argsort(labels, kind="stable"), num_workers)


def small_world(num_workers: int, rewired: float = 0.3) -> nx.Graph:
    """A ring with some edges rewired."""
    return nx.connected_watts_strogatz_graph(num_workers, 4, rewired, seed=0)


def fediverse(software: str = "peertube", graph_type: str = "follow") -> nx.Graph:
    """The largest component of a graph of servers, without the directions of its edges."""
    from fedivertex import GraphLoader

    graph = GraphLoader().get_graph(software, graph_type, only_largest_component=True, disable_tqdm=True)
    return graph.to_undirected()


class Lines:
    """A logger that appends a line to a file."""

    def __init__(self, directory: Path) -> None:
        self.path = directory / "lines.txt"

    def log(self, step: int, values: dict[str, float]) -> None:
        """The step and the worst worker's accuracy."""
        with self.path.open("a") as file:
            print(step, values["test/accuracy/worst"], file=file)


def kappa(outputs: Tensor, targets: Tensor) -> float:
    """Cohen's kappa of all test examples, [N, C] and [N]: 0 for guessing by the classes' frequencies, 1 at best."""
    guesses, C = outputs.argmax(1), outputs.shape[1]
    by_chance = torch.bincount(guesses, minlength=C) @ torch.bincount(targets, minlength=C) / len(targets) ** 2
    return float(((guesses == targets).float().mean() - by_chance) / (1 - by_chance))
