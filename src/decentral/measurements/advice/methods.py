"""The methods that are compared, and how the time of a step is predicted for each."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from decentral.cluster.clock import Clock, Underway
from decentral.cluster.cluster import VirtualCluster, WaitsFor
from decentral.compression.compressor import Encoder
from decentral.compression.none import NoCompression
from decentral.measurements.advice.coding import Coding, in_means, in_messages

if TYPE_CHECKING:
    from decentral.compression.row_layout import RowLayout
    from decentral.config.schema import Config

_BUCKET_BYTES = 25e6
"""Of float32 gradients that DistributedDataParallel sends together, by default."""


class Case(NamedTuple):
    """What a method is asked about: its configuration with a cluster, the model's layout, and the share of a pass that
    is backward."""

    config: Config
    layout: RowLayout
    backward: float
    num_steps: int


class Prediction(NamedTuple):
    """Seconds of a step, bytes that a worker sends in it on average, and the seconds of it that are encoding and
    decoding."""

    step_s: float
    bytes_per_step: float
    coding_s: float = 0.0


@dataclass(frozen=True)
class Method(ABC):
    """A method as a person and as `decentral-run` calls it."""

    title: str
    words: tuple[str, ...]
    check: str = ""
    """Under which name a measured step of it is known."""
    is_ddp: bool = False
    needs_shapes: bool = False
    """Whether it is impossible to say anything where only the number of parameters is known."""

    @abstractmethod
    def predict(self, case: Case) -> Prediction:
        """Raises ConfigError if it is impossible."""


class InRows(Method):
    """Rows as they are, by the clock of `simulate=timeline`."""

    def predict(self, case: Case) -> Prediction:
        """See `Method`."""
        from decentral.training.timing import timed

        found = timed(case.config, case.num_steps, case.layout.num_coordinates, dtype=case.config.precision.dtype)
        return Prediction(found.step_s, found.bytes_sent / found.gradients)


class InMessages(Method):
    """Compressed messages between neighbours: the exchange by the clock, encoding and decoding as measured here.

    What every worker does in every step once adds just that to a step, however workers wait for each other.
    """

    def predict(self, case: Case) -> Prediction:
        """See `Method`."""
        compressor, n = case.config.compress, case.config.num_workers
        assert isinstance(compressor, Encoder) and n is not None
        sent = InRows(self.title, self.words).predict(case)
        graph = case.config.rounds().mixing(0)[0].graph
        coding = in_messages(compressor, case.layout, len(graph) / n)
        return Prediction(sent.step_s + coding.work_s, sent.bytes_per_step, coding.work_s)


class InMeans(Method):
    """An all-reduce of something compressed, after the gradient: t <- max over all t + encode + decode, then what its
    verbs take."""

    def predict(self, case: Case) -> Prediction:
        """See `Method`."""
        assert case.config.num_workers is not None
        coding = in_means(case.config.compress, case.layout, case.config.num_workers)
        clock = _clock(case.config)
        for _ in range(case.num_steps):
            clock.gradient()
            _work(clock, coding.work_s)
            for each in coding.sent:
                clock.wait(clock.begin_collective(each.name, each.num_bytes))
        return Prediction(clock.latest_s / case.num_steps, coding.bytes_per_worker, coding.work_s)


class Overlapped(Method):
    """An all-reduce of gradients in buckets of 25 MB, each as soon as all workers have it, while the backward pass goes
    on: DistributedDataParallel.

        begin_b = max(end_(b-1), max_i (s_i + (1 - w + w b / B) g_i)),   end_b = begin_b + all-reduce of bucket b

    for b = 1 ... B, a worker that begins its gradient at s_i, takes g_i and spends the share w of it backwards. All
    begin the next step at end_B. Messages of bf16 have half the bytes, and are encoded and decoded within the step.
    """

    def predict(self, case: Case) -> Prediction:
        """See `Method`."""
        config, n = case.config, case.config.num_workers
        assert isinstance(config.cluster, VirtualCluster) and n is not None
        dense = 4.0 * case.layout.num_coordinates
        coding = Coding(0.0)
        num_bytes = dense
        if not isinstance(config.compress, NoCompression):
            coding = in_means(config.compress, case.layout, n)
            num_bytes = sum(each.num_bytes for each in coding.sent)
        count = max(1, math.ceil(dense / _BUCKET_BYTES))
        bucket_s = config.cluster.costs(n).all_reduce_s(n, num_bytes / count)
        clock = _clock(config)
        for _ in range(case.num_steps):
            began = clock.now
            clock.gradient()
            _work(clock, coding.work_s)
            ends = _buckets_end(began, clock.now - began, case.backward, count, bucket_s)
            spent = np.full(n, ends - clock.latest_s)
            clock.wait(Underway(np.full(n, ends), spent))
        return Prediction(clock.latest_s / case.num_steps, 2 * (n - 1) / n * num_bytes, coding.work_s)


def _buckets_end(began: np.ndarray, took: np.ndarray, backward: float, count: int, bucket_s: float) -> float:
    end = 0.0
    for b in range(1, count + 1):
        ready = float((began + (1 - backward + backward * b / count) * took).max())
        end = max(end, ready) + bucket_s
    return end


def _clock(config: Config) -> Clock:
    cluster, n = config.cluster, config.num_workers
    assert isinstance(cluster, VirtualCluster) and n is not None
    times = cluster.gradient_times(n, config.seed)
    return Clock(n, times, cluster.costs(n), cluster.waits_for is WaitsFor.everyone)


def _work(clock: Clock, seconds: float) -> None:
    """All workers compute for so long."""
    clock.now = clock.now + seconds
    clock.compute_s += seconds


_MEAN = ("algo=allreduce", "topology=ring")
METHODS: tuple[Method, ...] = (
    Overlapped("DistributedDataParallel: all-reduce during the backward pass", _MEAN, is_ddp=True),
    Overlapped("DistributedDataParallel, bf16 gradients", (*_MEAN, "compress=bf16"), is_ddp=True),
    InRows("all-reduce after the gradient", _MEAN, check="allreduce"),
    InRows("D-PSGD on a ring", ("algo=dpsgd", "topology=ring"), check="dpsgd"),
    InRows("D-PSGD, one peer at a time", ("algo=dpsgd", "topology=one_peer_exponential"), check="one_peer"),
    InRows("D-PSGD, one peer, during the gradient", ("algo=dpsgd", "algo.mode=awc", "topology=one_peer_exponential")),
    InRows("local SGD, all-reduce every 8 steps", ("algo=local_sgd", "algo.period_steps=8", "topology=ring")),
    InRows("RelaySGD on double binary trees", ("algo=relaysgd", "topology=dbt")),
    InRows("WAGMA", ("algo=wagma", "topology=ring")),
    InMeans("all-reduce, top-k 1 %", (*_MEAN, "compress=topk", "compress.keep=0.01"), check="topk"),
    InMeans("all-reduce, AR-Topk 1 %", (*_MEAN, "compress=artopk", "compress.keep=0.01"), check="artopk"),
    InMeans("all-reduce, PowerSGD rank 4", (*_MEAN, "compress=powersgd", "compress.rank=4"), needs_shapes=True),
    InMeans("all-reduce, int8", (*_MEAN, "compress=int8")),
    InMessages(
        "CHOCO-SGD on a ring, top-k 1 %", ("algo=choco", "topology=ring", "compress=topk", "compress.keep=0.01")
    ),
)
