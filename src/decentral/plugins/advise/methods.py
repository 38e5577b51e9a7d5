"""The compared methods, and the prediction of a step's time for each."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from decentral.cluster.clock import Clock, Underway
from decentral.cluster.cluster import VirtualCluster, WaitsFor
from decentral.compression.compressor import Compressor, Encoder
from decentral.compression.dense import NoCompression
from decentral.compression.rows import Address, RowLayout
from decentral.config.prepared import prepare
from decentral.config.schema import Config
from decentral.network.payload import Payload, Sizes
from decentral.randomness import torch_generator
from decentral.training.gradient_times import uneven

_BUCKET_BYTES = 25e6
"""Bytes of float32 gradients that DistributedDataParallel sends together by default."""
_LARGEST = 32_000_000
"""Maximum number of coordinates that are encoded. For a larger model only the first parameters are encoded and timed,
and the rest is assumed to behave like them."""
_CALLS = 2
_HEARD = 8
_LENGTH_BYTES = 8


class Case(NamedTuple):
    """A question about a method: its configuration with a cluster, the model's layout, and the share of the backward
    pass."""

    config: Config
    layout: RowLayout
    backward: float
    num_steps: int
    measured: bool = False
    """True to time encoding and decoding on this machine, False to use `CODING_NS`."""

    @property
    def n(self) -> int:
        """Return the number of workers."""
        assert self.config.num_workers is not None
        return self.config.num_workers

    def clock(self) -> Clock:
        """Return the cluster's clock at time 0."""
        cluster = self.config.cluster
        assert isinstance(cluster, VirtualCluster)
        times = uneven(cluster.gradient_times(self.n, self.config.seed), prepare(self.config))
        return Clock(self.n, times, cluster.costs(self.n), cluster.waits_for is WaitsFor.everyone)


class Prediction(NamedTuple):
    """Seconds per step, mean bytes that a worker sends per step, and the seconds of encoding and decoding per step."""

    step_s: float
    bytes_per_step: float
    coding_s: float = 0.0


# -- what encoding and decoding take -----------------------------------------------------------------------------------


class CodingCost(NamedTuple):
    """Nanoseconds per coordinate of the model."""

    mean: float
    """Encoding, and decoding one message, for a compressed mean over all workers."""
    heard: float
    """Decoding each further message."""
    encode: float = 0.0
    """Encoding a message to neighbors."""
    decode: float = 0.0
    """Decoding a message from a neighbor."""


CODING_NS = {
    "bf16": CodingCost(2.4, 0.04),
    "topk": CodingCost(3.7, 0.001, encode=2.3, decode=0.15),
    "artopk": CodingCost(3.3, 0.01),
    "powersgd": CodingCost(7.7, 0.0),
    "int8": CodingCost(6.4, 0.55),
}
"""Costs with the settings in `METHODS`, for 10 million float32 coordinates on one core of an AMD EPYC with torch
2.14.1."""


class Sent(NamedTuple):
    """A collective, its number of bytes as the clock expects it, and how often each worker sends it per step."""

    name: str
    num_bytes: float
    times: float


class Coding(NamedTuple):
    """The cost of a step besides the gradient: seconds of encoding and decoding, and bytes sent."""

    work_s: float
    sent: tuple[Sent, ...] = ()

    @property
    def bytes_per_worker(self) -> float:
        """Return the mean bytes that a worker sends per step."""
        return sum(each.num_bytes * each.times for each in self.sent)


class _Others:
    """The `Collectives` of a compressor with one real worker of n. The others are assumed to send the same. Records the
    sends.

    `heard` is the number of payloads it decodes.
    """

    def __init__(self, n: int, heard: int) -> None:
        self.n, self.workers, self.heard = n, range(1), heard
        self.sent: list[Sent] = []

    def mean(self, x: Tensor) -> Tensor:
        self.sent.append(Sent("all_reduce", x[0].numel() * x.element_size(), 2 * (self.n - 1) / self.n))
        return x

    def allgather(self, payloads: Sequence[Payload], sizes: Sizes | None = None) -> list[Payload]:
        lengths = 0 if sizes is not None else _LENGTH_BYTES * len(payloads[0].tensors)
        self.sent.append(Sent("allgather", payloads[0].num_bytes + lengths, self.n - 1))
        return list(payloads) * self.heard

    def broadcast(self, payload: Payload | None, root: int, sizes: Sizes | None = None) -> Payload:
        assert payload is not None
        self.sent.append(Sent("broadcast", payload.num_bytes, (self.n - 1) / self.n))
        return payload


def in_means(compressor: Compressor, layout: RowLayout, num_workers: int, measured: bool = False) -> Coding:
    """Return the cost of the compressed mean of all workers' float32 rows, by `CODING_NS`, or `measured` on this
    machine. The time to decode n messages is extrapolated from one and several. Raises ConfigError if the compressor
    cannot compress such rows."""
    part, row, scale = _beginning(layout)
    calls = _CALLS if measured else 0

    def combined(heard: int) -> Coding:
        bound, g = compressor.bound(part, 0), row[None]
        r, memory = bound.residual(g), bound.memory(g, num_workers)
        seconds, others = math.inf, _Others(num_workers, heard)
        for call in range(1 + calls):
            rows, others = g.clone(), _Others(num_workers, heard)
            began = time.perf_counter()
            _, r, memory = bound.combine(rows, r, memory, others, call * num_workers)  # type: ignore[arg-type]
            seconds = min(seconds, time.perf_counter() - began if call else math.inf)
        return Coding(seconds, tuple(others.sent))

    work_s, sent = combined(1)
    heard, gathers = min(num_workers, _HEARD), any(each.name == "allgather" for each in sent)
    if not measured:
        cost = CODING_NS[compressor.name]
        work_s = 1e-9 * row.numel() * (cost.mean + (num_workers - 1) * cost.heard * gathers)
    elif heard > 1 and gathers:
        work_s += (num_workers - 1) * max(0.0, combined(heard).work_s - work_s) / (heard - 1)
    return Coding(scale * work_s, tuple(each._replace(num_bytes=scale * each.num_bytes) for each in sent))


def in_messages(compressor: Encoder, layout: RowLayout, num_neighbors: float, measured: bool = False) -> Coding:
    """Return the cost of a compressed message to `num_neighbors` neighbors: encoding it, decoding each neighbor's
    message, and decoding the worker's own message three times (CHOCO-SGD: two sums, and the neighbors' estimate). The
    bytes are not included."""
    if not measured:
        cost = CODING_NS[compressor.name]
        return Coding(1e-9 * layout.num_coordinates * (cost.encode + (num_neighbors + 2) * cost.decode))
    part, row, scale = _beginning(layout)
    bound, out = compressor.bound(part, 0), torch.zeros_like(row)
    encode_s, decode_s = math.inf, math.inf
    for _ in range(1 + _CALLS):
        began = time.perf_counter()
        payload = bound.encode(row, Address(0, 0))
        encoded = time.perf_counter()
        bound.add_decoded(payload, out, Address(0, 0))
        encode_s, decode_s = min(encode_s, encoded - began), min(decode_s, time.perf_counter() - encoded)
    return Coding(scale * (encode_s + (num_neighbors + 2) * decode_s))


def _beginning(layout: RowLayout) -> tuple[RowLayout, Tensor, float]:
    """Return the first parameters of a layout, as many as are measured but at least one; a row of normal numbers for
    them; and the size of the whole relative to them."""
    count, total = 0, 0
    for shape in layout.shapes:
        if count and total + math.prod(shape) > _LARGEST:
            break
        count, total = count + 1, total + math.prod(shape)
    row = torch.randn(total, generator=torch_generator("cpu", 0, "advice"))
    return RowLayout(layout.names[:count], layout.shapes[:count]), row, layout.num_coordinates / total


# -- predictions: each raises ConfigError for what is impossible -------------------------------------------------------


def predict_rows(case: Case) -> Prediction:
    """Predict uncompressed rows, by the clock of `simulate=timeline`."""
    from decentral.training.timing import timed

    times = timed(prepare(case.config), case.num_steps, case.layout.num_coordinates)
    return Prediction(times.step_s, times.bytes_sent / times.gradients)


def predict_messages(case: Case) -> Prediction:
    """Predict compressed messages between neighbors: exchanges by the clock, encoding and decoding from `in_messages`.

    Work that every worker does in every step adds exactly its own time to the step, whatever the waiting pattern.
    """
    compressor = case.config.compress
    assert isinstance(compressor, Encoder)
    sent = predict_rows(case)
    graph = case.config.rounds().mixing(0)[0].graph
    coding = in_messages(compressor, case.layout, len(graph) / case.n, case.measured)
    return Prediction(sent.step_s + coding.work_s, sent.bytes_per_step, coding.work_s)


def predict_means(case: Case) -> Prediction:
    """Predict a compressed all-reduce after the gradient: t <- max over all t + encode + decode, then the time of its
    network operations."""
    coding, clock = in_means(case.config.compress, case.layout, case.n, case.measured), case.clock()
    for _ in range(case.num_steps):
        clock.gradient()
        _work(clock, coding.work_s)
        for each in coding.sent:
            clock.wait(clock.begin_collective(each.name, each.num_bytes)[0])
    return Prediction(clock.latest_s / case.num_steps, coding.bytes_per_worker, coding.work_s)


def predict_overlapped(case: Case) -> Prediction:
    """Predict an all-reduce of gradients in buckets of 25 MB that overlaps with the backward pass, as in
    DistributedDataParallel. The all-reduce of a bucket begins as soon as all workers have it.

        begin_b = max(end_(b-1), max_i (s_i + (1 - w + w b / B) g_i)),   end_b = begin_b + all-reduce of bucket b

    Here b = 1 ... B, worker i begins its gradient at s_i, takes g_i, and spends the share w of g_i on the backward
    pass. All workers begin the next step at end_B. Messages of bf16 have half the bytes, and are encoded and decoded
    within the step.
    """
    config, n = case.config, case.n
    num_bytes = dense = 4.0 * case.layout.num_coordinates
    coding = Coding(0.0)
    if not isinstance(config.compress, NoCompression):
        coding = in_means(config.compress, case.layout, n, case.measured)
        num_bytes = sum(each.num_bytes for each in coding.sent)
    count = max(1, math.ceil(dense / _BUCKET_BYTES))
    clock = case.clock()
    bucket_s = config.cluster.costs(n).all_reduce_s(n, num_bytes / count)
    for _ in range(case.num_steps):
        began = clock.now
        clock.gradient()
        _work(clock, coding.work_s)
        took, end = clock.now - began, 0.0
        for b in range(1, count + 1):
            ready = float((began + (1 - case.backward + case.backward * b / count) * took).max())
            end = max(end, ready) + bucket_s
        clock.wait(Underway(np.full(n, end), np.full(n, end - clock.latest_s), *np.zeros((3, n))))
    return Prediction(clock.latest_s / case.num_steps, 2 * (n - 1) / n * num_bytes, coding.work_s)


def _work(clock: Clock, seconds: float) -> None:
    """Let all workers compute for this many seconds."""
    clock.now = clock.now + seconds
    clock.compute_s += seconds


# -- the methods -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Method:
    """A method: its title and its overrides for `decentral-run`."""

    title: str
    words: tuple[str, ...]
    predict: Callable[[Case], Prediction] = predict_rows
    is_ddp: bool = False
    needs_shapes: bool = False
    """True if no prediction is possible from the number of parameters alone."""


_MEAN, _ONE_PEER = ("algo=allreduce", "topology=ring"), ("algo=dpsgd", "topology=one_peer_exponential")
_TOPK = ("compress=topk", "compress.keep=0.01")
METHODS: tuple[Method, ...] = (
    Method("DistributedDataParallel: all-reduce during the backward pass", _MEAN, predict_overlapped, is_ddp=True),
    Method("DistributedDataParallel, bf16 gradients", (*_MEAN, "compress=bf16"), predict_overlapped, is_ddp=True),
    Method("all-reduce after the gradient", _MEAN),
    Method("D-PSGD on a ring", ("algo=dpsgd", "topology=ring")),
    Method("D-PSGD, one peer at a time", _ONE_PEER),
    Method("D-PSGD, one peer, during the gradient", (*_ONE_PEER, "algo.mode=awc")),
    Method("local SGD, all-reduce every 8 steps", ("algo=local_sgd", "algo.period_steps=8", "topology=ring")),
    Method("RelaySGD on double binary trees", ("algo=relaysgd", "topology=dbt")),
    Method("WAGMA", ("algo=wagma", "topology=ring")),
    Method("all-reduce, top-k 1 %", (*_MEAN, *_TOPK), predict_means),
    Method("all-reduce, AR-Topk 1 %", (*_MEAN, "compress=artopk", "compress.keep=0.01"), predict_means),
    Method(
        "all-reduce, PowerSGD rank 4",
        (*_MEAN, "compress=powersgd", "compress.rank=4"),
        predict_means,
        needs_shapes=True,
    ),
    Method("all-reduce, int8", (*_MEAN, "compress=int8"), predict_means),
    Method("CHOCO-SGD on a ring, top-k 1 %", ("algo=choco", "topology=ring", *_TOPK), predict_messages),
)


def coding_s(layout: RowLayout) -> float:
    """Estimate the seconds needed to time the encoding and decoding of all methods, by `CODING_NS`."""
    coordinates = min(layout.num_coordinates, _LARGEST)
    each = [cost for method in METHODS for name, cost in CODING_NS.items() if f"compress={name}" in method.words]
    return 1e-9 * coordinates * (1 + _CALLS) * sum(2 * cost.mean + _HEARD * cost.heard for cost in each)
