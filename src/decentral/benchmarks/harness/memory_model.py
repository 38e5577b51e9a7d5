"""How much memory n workers need, computed: the states of the algorithms, and what autograd keeps of a forward pass."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from decentral.data.description import ImageData
from decentral.errors import ConfigError
from decentral.registry import components

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from decentral.topology.rounds import Rounds

FLOAT_BYTES = 4
BATCH_SIZE = 32
_SIZES = 1 << 10, 1 << 11  # of the models with which states are measured
_TOPOLOGIES = ("ring", "dbt")  # the first that an algorithm accepts


class Architecture(NamedTuple):
    """A model and what it is built for."""

    label: str
    model: str
    data: ImageData


ARCHITECTURES = (
    Architecture("VGG-11", "vgg11", ImageData(shape=(3, 32, 32), num_classes=10)),
    Architecture("ResNet-50", "resnet50", ImageData(shape=(3, 224, 224), num_classes=1000)),
)


class Rows(NamedTuple):
    """What an algorithm keeps for each worker, in rows of P numbers; the gradient's row is among them."""

    algorithm: str
    topology: str
    rows: float


def rows_per_worker(num_workers: int, momentum: float = 0.0) -> list[Rows]:
    """For every algorithm that trains models: by how many bytes its state grows with P, over 4 n, and one for g."""
    found = []
    cls: Any
    for name, cls in components("algorithms").items():
        if cls.needs_samples:
            continue
        topology, schedule = _accepted(cls, name, num_workers)
        small, large = (_initial_bytes(cls(), schedule, momentum, size) for size in _SIZES)
        growth = (large - small) / (_SIZES[1] - _SIZES[0])
        found.append(Rows(name, topology, growth / (FLOAT_BYTES * num_workers) + 1))
    return found


def _accepted(algorithm: Any, name: str, num_workers: int) -> tuple[str, Rounds]:
    from decentral.topology.requirements import check

    for topology in _TOPOLOGIES:
        rounds = components("topology")[topology]().schedule(num_workers)
        try:
            check(rounds, algorithm.needs, name, topology)
        except ConfigError:
            continue
        return topology, rounds
    raise ConfigError(f"algo={name} takes none of the topologies {', '.join(_TOPOLOGIES)}.")


def _initial_bytes(algorithm: Any, rounds: Rounds, momentum: float, size: int) -> int:
    """Of the state of all workers, for models of `size` parameters."""
    import torch

    from decentral.network.delivery import Losses
    from decentral.network.local import LocalNetwork
    from decentral.optim.optimizer import LocalRule
    from decentral.optim.sgd import SGD

    net = LocalNetwork(rounds, Losses(0.0, 0))
    rule = LocalRule(SGD(momentum=momentum), lambda t: 0.1)
    state = algorithm.using(rule).init(torch.zeros(rounds.num_workers, size), net)
    return state_bytes(state)


def state_bytes(state: Any) -> int:
    """Of all tensors of an algorithm's state; what shares its memory counts once."""
    storages = {part.untyped_storage().data_ptr(): part.untyped_storage().nbytes() for part in _tensors(state)}
    return sum(storages.values())


def _tensors(state: Any) -> Iterator[Tensor]:
    for part in state:
        yield from _tensors(part) if isinstance(part, tuple) else [part]


class ModelMemory(NamedTuple):
    """One model: its parameters, and the bytes that its forward pass keeps for the backward pass."""

    parameters: int
    activations: int


def memory_of_model(architecture: Architecture) -> ModelMemory:
    """Of one worker's model with a batch of 32, computed on torch's `meta` device: nothing takes memory or time."""
    import torch

    model = components("models")[architecture.model]()
    with torch.device("meta"):
        module = model.build(architecture.data)
        images = torch.empty(architecture.data.batch_shape(BATCH_SIZE))
    parameters = {id(p) for p in module.parameters()}
    kept: dict[int, torch.Tensor] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        base = tensor if tensor._base is None else tensor._base
        if id(base) not in parameters:
            kept[id(base)] = base
        return tensor

    with torch.enable_grad(), torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        module(images)
    return ModelMemory(
        sum(p.numel() for p in module.parameters()), sum(t.numel() * t.element_size() for t in kept.values())
    )


def total_bytes(rows: float, model: ModelMemory, num_workers: int) -> float:
    """Of `num_workers` workers in one process: their rows, and the activations of the one whose turn it is."""
    return rows * num_workers * model.parameters * FLOAT_BYTES + model.activations


def largest_num_workers(rows: float, model: ModelMemory, capacity: float, devices: int) -> int:
    """How many workers fit on so many devices, each with `capacity` bytes and its share of the workers."""
    room = (capacity - model.activations) / (rows * model.parameters * FLOAT_BYTES)
    return devices * max(0, int(room))
