"""The described model and data, and this machine as a cluster: passes, and links between processes."""

from __future__ import annotations

import math
import time
from functools import partial
from statistics import median
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch.nn.functional import cross_entropy

from decentral.cluster.cluster import VirtualCluster
from decentral.cluster.links import CollectiveName
from decentral.compression.rows import RowLayout
from decentral.data.dataset import LabelledData, LabelledTokens
from decentral.errors import ConfigError
from decentral.host.machine import num_cores
from decentral.measurements.timing import Turns, Verb, Work, in_group
from decentral.runtime.devices import device_kind
from decentral.terminal.console import duration

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from decentral.config.schema import Config
    from decentral.data.dataset import DataDescription
    from decentral.measurements.timing import Setup
    from decentral.network.world import World

_SMALL, _LARGE = 256, (250_000, 4_000_000)
"""Numbers of float32 in the two sizes of rows whose exchange times determine latency and bandwidth."""
_BYTES = 4
_TELLING = 3.0
"""Minimum ratio of the times of large and small rows for a reliable bandwidth."""
_ROUNDS, _EXCHANGES, _LEAST_S = 5, 2, 1e-12
_PASSES_S, _MOST_PASSES = 15.0, 20
_STARTS_S = 5.0
"""Estimated time until the processes have started."""


class MeasuredLinks(NamedTuple):
    """Link settings in the terms of `cluster.links`."""

    latency_s: float
    bandwidth_gbps: float
    copy_gbps: float
    collective: str


class Machine(NamedTuple):
    """Measurements of K processes that compute and communicate simultaneously."""

    gradient_s: float
    """Seconds of a forward and backward pass."""
    backward: float
    """Share of the backward pass."""
    links: MeasuredLinks
    num_processes: int

    @property
    def words(self) -> list[str]:
        """Return the measurements as overrides."""
        links = [f"cluster.links.{key}={value}" for key, value in self.links._asdict().items()]
        return ["cluster=machines", f"cluster.compute.mean_s={self.gradient_s}", *links]


def described(config: Config) -> DataDescription:
    """Return the description of the data, from their files or as known. Raises ConfigError if neither is possible."""
    try:
        return config.data.inspect()
    except ConfigError:
        if (found := config.data.nominal()) is None:
            raise
        return found


def layout_of(config: Config) -> RowLayout:
    """Return the layout of the transmitted parameters. For a task without a model, or a cluster that sets another model
    size (`cluster.num_parameters`), it has only the number of parameters.

    Raises ConfigError if the model cannot take the data.
    """
    cluster = config.cluster
    if isinstance(cluster, VirtualCluster) and cluster.num_parameters:
        return RowLayout.flat(cluster.num_parameters)
    if "model" not in config.task.uses:
        return RowLayout.flat(config.task.num_parameters(config))
    data = described(config)
    config.model.check(data)
    with torch.device("cpu" if ":" in config.model.name else "meta"):  # a plain module needs values
        named = dict(config.model.build(data).named_parameters())
    return RowLayout(tuple(named), tuple(tuple(parameter.shape) for parameter in named.values()))


def check_passes(config: Config) -> None:
    """Raise ConfigError if there is no model whose passes can be measured."""
    if "model" not in config.task.uses:
        raise ConfigError(
            f"task={config.task.name} has no model to time: choose a cluster with compute times, such as cluster=even."
        )
    if not isinstance(described(config), LabelledData | LabelledTokens):
        raise ConfigError(
            f"data={config.data.name} has no labels, which timing a pass needs: choose a cluster with compute times, "
            "such as cluster=even."
        )
    if device_kind(config) != "cpu":
        raise ConfigError(
            "without cluster=, only processes on this machine's CPUs are measured: set device=cpu, or describe your "
            "GPUs with cluster=machines, cluster.compute.mean_s= and cluster.links.bandwidth_gbps=."
        )


def measure(config: Config, ring: Config, size: int, tell: Callable[[str], None]) -> Machine:
    """Measure passes of a configured model, and exchanges on a ring, by `size` simultaneous processes; `tell` receives
    the expected duration beforehand."""
    alone = Pass(config, True)
    began = time.perf_counter()
    alone()
    pass_s = (time.perf_counter() - began) * max(1.0, size / num_cores())
    rounds = max(1, min(_MOST_PASSES, int(_PASSES_S / (2 * pass_s)) - 1))
    passes_s = _STARTS_S + (rounds + (rounds > 1)) * 1.4 * pass_s  # a forward pass takes about 0.4 of it
    tell(
        f"measuring {rounds} passes in each of {size} processes: about {duration(passes_s)}; then exchanges: about 10 s"
    )
    works: dict[str, Setup] = {"pass": partial(Pass, config, True), "forward": partial(Pass, config, False)}
    (times,) = in_group(size, [Turns(works, rounds, warm_up=int(rounds > 1))])
    whole_s, forward_s = median(times["wall"]["pass"]), median(times["wall"]["forward"])
    return Machine(whole_s, min(max(1 - forward_s / whole_s, 0.0), 1.0), _measured_links(ring, size), size)


def _measured_links(ring: Config, size: int) -> MeasuredLinks:
    """Return links fitted to rows of one megabyte, or to larger rows if these take hardly longer than tiny ones."""
    seconds, large = dict[str, float](), 0
    for large in _LARGE:
        works: dict[str, Setup] = {"copy": partial(_Copy, large)}
        for verb in ("mix", "mean"):
            for what, numbers in (("small", _SMALL), ("large", large)):
                works[f"{verb} {what}"] = partial(Verb, ring, numbers, verb)
        (times,) = in_group(size, [Turns(works, _ROUNDS, repeats=_EXCHANGES, warm_up=1)])
        seconds = {name: median(times["wall"][name]) for name in works}
        if seconds["mix large"] > _TELLING * seconds["mix small"]:
            break
    return fitted(seconds, size, _BYTES * large)


def fitted(seconds: Mapping[str, float], num_processes: int, large: int) -> MeasuredLinks:
    """Return links with which exchanges on a ring take as long as measured:

        seconds = latency + d N / bandwidth for rows of N bytes, d = 2 neighbors (1 with two processes)

    The collective is the one whose formula is closest to the measured all-reduce of the larger rows (of `large` bytes).
    """
    small, neighbors = _SMALL * _BYTES, min(num_processes - 1, 2)
    per_byte = max(seconds["mix large"] - seconds["mix small"], _LEAST_S) / (neighbors * (large - small))
    latency = max(seconds["mix small"] - neighbors * small * per_byte, _LEAST_S)
    away = {
        each.name: abs(math.log(each.value.seconds(num_processes, large, latency, per_byte) / seconds["mean large"]))
        for each in CollectiveName
        if each.candidates == [each]
    }
    copy_gbps = 8e-9 * large / seconds["copy"]
    return MeasuredLinks(latency, 8e-9 / per_byte, copy_gbps, min(away, key=away.__getitem__))


class Pass(Work):
    """A forward pass and optionally a backward pass of the configured model on a batch of random examples."""

    def __init__(self, config: Config, backward: bool, world: World | None = None) -> None:
        data = described(config)
        assert isinstance(data, LabelledData | LabelledTokens)
        self.precision, self.backward = config.precision, backward
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(config.seed)
            self.module = config.model.build(data).to(config.precision.dtype)
            shape = data.batch_shape(config.batch_size)
            if isinstance(data, LabelledTokens):
                self.x = torch.randint(1, data.vocabulary, shape)
            else:
                self.x = torch.randn(shape, dtype=config.precision.dtype)
            self.y = torch.randint(data.num_classes, (config.batch_size,))

    def __call__(self) -> None:
        """Compute one pass."""
        self.module.zero_grad(set_to_none=True)
        with torch.set_grad_enabled(self.backward):
            with self.precision.forward(self.x.device):
                loss = cross_entropy(self.module(self.x), self.y)
            if self.backward:
                loss.backward()  # type: ignore[no-untyped-call]


class _Copy(Work):
    """Copies of a row in memory."""

    def __init__(self, num_coordinates: int, world: World) -> None:
        self.x = torch.ones(num_coordinates)
        self.out = torch.empty_like(self.x)

    def __call__(self) -> None:
        self.out.copy_(self.x)
