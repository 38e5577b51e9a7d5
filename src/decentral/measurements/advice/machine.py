"""This machine as a cluster: passes and exchanges of local processes, and steps that can be predicted from them."""

from __future__ import annotations

import math
import time
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from decentral.algorithms.allreduce import AllReduce
from decentral.cluster.links import CollectiveName
from decentral.compression.artopk import ARTopK
from decentral.compression.topk import TopK
from decentral.host.devices import num_cores
from decentral.measurements.advice.workload import Both, Pass, Passes, backward_share
from decentral.measurements.timing import Step, Turns, Verb, Work, in_group
from decentral.topology.one_peer_exponential import OnePeerExponential

if TYPE_CHECKING:
    from collections.abc import Mapping

    from decentral.config.schema import Config
    from decentral.measurements.timing import Setup
    from decentral.network.world import World

_SMALL, _LARGE = 256, (250_000, 4_000_000)
"""Numbers of float32 in the rows from whose exchange latency and bandwidth follow."""
_BYTES = 4
_TELLING = 3.0
"""How many times as long as the small rows large ones have to take, so that bandwidth is not lost in noise."""
_ROUNDS, _EXCHANGES, _MOST = 5, 2, 40
_FEW = 4
"""Of the works of `_steps`: passes, all-reduce and a ring."""
_KEEP = 0.01
_LEAST_S = 1e-12
_START_S = 3.0
"""Until processes have started and made their models."""


class MeasuredLinks(NamedTuple):
    """Links as `cluster.links` has them."""

    latency_s: float
    bandwidth_gbps: float
    copy_gbps: float
    collective: str

    @property
    def words(self) -> list[str]:
        """Overrides."""
        return [f"cluster.links.{key}={value}" for key, value in self._asdict().items()]


class Machine(NamedTuple):
    """What was measured between K processes, and, where there was time, steps that can be predicted: seconds by
    method."""

    passes: Passes
    links: MeasuredLinks
    num_processes: int
    steps: dict[str, float]
    """`allreduce`: a pass and an all-reduce; `dpsgd`, `one_peer`: a pass and an exchange with the neighbours on a ring,
    or with one of them; `topk`, `artopk`: a pass and an all-reduce of 1 % of the coordinates, by all-gather, or by
    broadcast and sum. Where time is short the first two alone."""


def measure(config: Config, host: Config, num_parameters: int, alone: Passes, end: float) -> Machine:
    """K processes of `host` (a ring of as many workers) exchange rows, and, if there is time for that until about `end`
    (`time.monotonic()`), take passes of the model and whole steps.

    alone   passes in one process: where there is no time for more, they take as many times as long as there are
            processes for a core
    """
    assert host.num_workers is not None
    size = host.num_workers
    links = _measured_links(host, size)
    shared = alone._replace(gradient_s=alone.gradient_s * max(1.0, size / num_cores()))
    works, exchanges_s = _steps(config, host, num_parameters), _exchanges_s(links, size, num_parameters)
    rounds = 0
    for few in (False, True):
        works = dict(list(works.items())[:_FEW]) if few else works
        turn_s = len(works) * shared.gradient_s + exchanges_s * (1 if few else 2)
        rounds = min(int((end - time.monotonic() - _START_S) / turn_s) - 1, _MOST)
        if rounds >= (1 if few else _ROUNDS):
            break
    if rounds < 1:
        return Machine(shared, links, size, {})
    (found,) = in_group(size, [Turns(works, rounds, warm_up=1)])
    whole_s, forward_s = (found.wall.median(name) for name in ("pass", "forward"))
    steps = {name: found.wall.median(name) for name in works if name not in ("pass", "forward")}
    return Machine(Passes(whole_s, backward_share(whole_s, forward_s)), links, size, steps)


def _measured_links(host: Config, size: int) -> MeasuredLinks:
    """From rows of a megabyte; or larger ones, where these take no longer than next to nothing does."""
    seconds, large = dict[str, float](), 0
    for large in _LARGE:
        works: dict[str, Setup] = {"copy": partial(_Copy, large)}
        for verb in ("mix", "mean"):
            works |= {
                f"{verb} small": partial(Verb, host, _SMALL, verb),
                f"{verb} large": partial(Verb, host, large, verb),
            }
        (found,) = in_group(size, [Turns(works, _ROUNDS, repeats=_EXCHANGES, warm_up=1)])
        seconds = {name: found.wall.median(name) for name in works}
        if seconds["mix large"] > _TELLING * seconds["mix small"]:
            break
    return fitted(seconds, size, _BYTES * large)


def _exchanges_s(links: MeasuredLinks, size: int, num_parameters: int) -> float:
    """About how long an all-reduce and an exchange on a ring take."""
    num_bytes, per_byte = _BYTES * num_parameters, 8e-9 / links.bandwidth_gbps
    mean_s = CollectiveName[links.collective].value.seconds(size, num_bytes, links.latency_s, per_byte)
    return mean_s + links.latency_s + min(size - 1, 2) * num_bytes * per_byte


def _steps(config: Config, host: Config, num_parameters: int) -> dict[str, Setup]:
    on_cpu = replace(config, device="cpu")
    works: dict[str, Setup] = {"pass": partial(Pass, on_cpu, True), "forward": partial(Pass, on_cpu, False)}
    one_peer = replace(host, topology=OnePeerExponential())
    for name, there, verb in (("allreduce", host, "mean"), ("dpsgd", host, "mix"), ("one_peer", one_peer, "mix")):
        works[name] = partial(Both, works["pass"], partial(Verb, there, num_parameters, verb))
    for name, kind in (("topk", TopK), ("artopk", ARTopK)):
        sparse = replace(host, algo=AllReduce(), compress=kind(keep=_KEEP))
        works[name] = partial(Both, works["pass"], partial(Step, sparse, num_parameters))
    return works


def fitted(seconds: Mapping[str, float], num_processes: int, large: int) -> MeasuredLinks:
    """Links with which exchanges on a ring take as long as those that were measured:

        seconds = latency + d N / bandwidth for rows of N bytes, d = 2 neighbours (1 of two processes)

    and, of an all-reduce of the larger rows (of `large` bytes), the collective whose formula comes closest.
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


class _Copy(Work):
    """Copies of a row of so many numbers within memory."""

    def __init__(self, num_coordinates: int, world: World) -> None:
        import torch

        self.x = torch.ones(num_coordinates)
        self.out = torch.empty_like(self.x)

    def __call__(self) -> None:
        self.out.copy_(self.x)
