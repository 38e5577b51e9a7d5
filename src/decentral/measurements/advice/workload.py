"""What is trained: where its parameters lie, and a pass on random examples, without the data."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from decentral.cluster.cluster import VirtualCluster
from decentral.compression.row_layout import RowLayout
from decentral.data.description import LabelledData, LabelledTokens
from decentral.errors import ConfigError
from decentral.measurements.timing import Work

if TYPE_CHECKING:
    from torch import nn

    from decentral.config.schema import Config
    from decentral.data.description import DataDescription
    from decentral.measurements.timing import Setup
    from decentral.network.world import World

ASSUMED_BACKWARD = 2 / 3
"""Of a pass, the share that is backward where that is not measured: it has twice the products of the forward one."""


class Passes(NamedTuple):
    """How long a pass takes, in seconds, and the share of it that is backward."""

    gradient_s: float
    backward: float


def described(config: Config) -> DataDescription:
    """The data, as their files say, or else as they are known to be. Raises ConfigError if neither is possible."""
    try:
        return config.data.inspect()
    except ConfigError:
        if (found := config.data.nominal()) is None:
            raise
        return found


def layout_of(config: Config) -> RowLayout:
    """Where the parameters lie that are sent; of a task without a model, and of another model that the cluster speaks
    of (`cluster.num_parameters`), no more than their number.

    Raises ConfigError if the model cannot take the data.
    """
    import torch

    cluster = config.cluster
    if isinstance(cluster, VirtualCluster) and cluster.num_parameters:
        return RowLayout.flat(cluster.num_parameters)
    if "model" not in config.task.uses:
        return RowLayout.flat(config.task.num_parameters(config))
    data = described(config)
    config.model.check(data)
    with torch.device("meta"):
        named = dict(config.model.build(data).named_parameters())
    return RowLayout(tuple(named), tuple(tuple(parameter.shape) for parameter in named.values()))


class Pass(Work):
    """A forward and perhaps a backward pass of the configured model on a batch of random examples."""

    def __init__(self, config: Config, backward: bool, world: World | None = None) -> None:
        import torch

        data = described(config)
        assert isinstance(data, LabelledData | LabelledTokens)
        self.precision, self.backward = config.precision, backward
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(config.seed)
            self.module: nn.Module = config.model.build(data).to(config.precision.dtype)
            shape = data.batch_shape(config.batch_size)
            if isinstance(data, LabelledTokens):
                self.x = torch.randint(1, data.vocabulary, shape)
            else:
                self.x = torch.randn(shape, dtype=config.precision.dtype)
            self.y = torch.randint(data.num_classes, (config.batch_size,))

    def __call__(self) -> None:
        """Once."""
        import torch
        from torch.nn.functional import cross_entropy

        self.module.zero_grad(set_to_none=True)
        with torch.set_grad_enabled(self.backward):
            with self.precision.forward(self.x.device):
                loss = cross_entropy(self.module(self.x), self.y)
            if self.backward:
                loss.backward()  # type: ignore[no-untyped-call]


class Both(Work):
    """One work, and then another one."""

    def __init__(self, first: Setup, then: Setup, world: World) -> None:
        self.works = first(world), then(world)

    def __call__(self) -> None:
        """Once."""
        for work in self.works:
            work()

    def close(self) -> None:
        """See `Work`."""
        for work in self.works:
            work.close()


def check_passes(config: Config) -> None:
    """Raise ConfigError if there is no model whose passes can be measured."""
    from decentral.runtime.devices import device_kind

    if "model" not in config.task.uses:
        raise ConfigError(
            f"task={config.task.name} has no model whose passes could be measured: choose a cluster that says how long "
            "they take, such as cluster=even."
        )
    if not isinstance(described(config), LabelledData | LabelledTokens):
        raise ConfigError(
            f"data={config.data.name} has no labels, and a pass is measured with cross-entropy: choose a cluster that "
            "says how long it takes, such as cluster=even."
        )
    if device_kind(config) != "cpu":
        raise ConfigError(
            "without cluster= what is measured is processes of this machine's CPUs: set device=cpu, or describe your "
            "GPUs with cluster=machines, cluster.compute.mean_s= and cluster.links.bandwidth_gbps=."
        )


def measured_alone(config: Config, limit_s: float) -> Passes:
    """A few passes in this process, with one thread, for about `limit_s`: the first one counts only if it is all."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        whole, forward = Pass(config, True), Pass(config, False)
        began = time.monotonic()
        first_s = _seconds(whole)
        if 3 * first_s > limit_s:
            return Passes(first_s, ASSUMED_BACKWARD)
        pairs = [(_seconds(whole), _seconds(forward))]
        while time.monotonic() - began < limit_s and len(pairs) < 10:
            pairs.append((_seconds(whole), _seconds(forward)))
    finally:
        torch.set_num_threads(threads)
    both, half = (sorted(times)[len(pairs) // 2] for times in zip(*pairs, strict=True))
    return Passes(both, backward_share(both, half))


def backward_share(whole_s: float, forward_s: float) -> float:
    """Of a pass that takes so long, and its forward pass alone so long: between 0 and 1, whatever the noise."""
    return min(max(1 - forward_s / whole_s, 0.0), 1.0)


def _seconds(work: Callable[[], None]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began
