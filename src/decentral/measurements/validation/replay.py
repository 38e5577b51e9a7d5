"""What the clock makes of known times: of those that were recorded, or of those that are expected."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from decentral.cluster.costs import LinkCosts
from decentral.cluster.known import KnownCluster
from decentral.cluster.links import CollectiveName, Links
from decentral.config.schema import Config
from decentral.measurements.validation.recording import pace, stale_share

_ROW_BYTES = 4
"""Of the rows that are simulated: one number in float32."""


class Simulated(NamedTuple):
    """What the clock says of a run."""

    step_s: float
    stale_share: float | None


def links_of(config: Config, latency_s: float, transfer_s: float) -> Links:
    """Links with a latency, on which a row takes so long to get through besides. Methods in rounds are given the
    all-reduce of the memory that processes share, asynchronous ones a butterfly, as they have it."""
    from decentral.algorithms.asynchronous import AsynchronousAlgorithm

    asynchronous = isinstance(config.algo, AsynchronousAlgorithm)
    collective = CollectiveName.recursive_doubling if asynchronous else CollectiveName.direct
    gbps = 8e-9 * _ROW_BYTES / transfer_s if transfer_s else math.inf
    return Links(latency_s=latency_s, bandwidth_gbps=gbps, copy_gbps=math.inf, collective=collective)


def known_cluster(durations: np.ndarray, links: Links) -> KnownCluster:
    """Where gradients take `durations` [T, n] seconds, and rows travel as if they had one number."""
    n = durations.shape[1]
    return KnownCluster(durations, LinkCosts(links.open(n), n), num_parameters=1)


def simulated(config: Config, steps: int, cluster: KnownCluster) -> Simulated:
    """So many steps of a method in this cluster, with rows of one number.

    Of methods in which workers take different numbers of gradients, time and gradients are counted until the first
    worker is done, as they are where a run is observed.
    """
    from decentral.algorithms.asynchronous import AsynchronousAlgorithm
    from decentral.cluster.spans import Spans
    from decentral.training.timing import timed

    n = cluster.links.num_workers
    alone = replace(config, processes="1", cluster=cluster, record_operations=False, steps=steps)
    free_running = isinstance(config.algo, AsynchronousAlgorithm) and config.algo.free_running
    spans = Spans(n) if free_running else None
    found = timed(alone, steps, 1, spans)
    if spans is None:
        return Simulated(found.simulated_s / steps, stale_share(found.ages))
    begins: list[list[float]] = [[] for _ in range(n)]
    ends: list[list[float]] = [[] for _ in range(n)]
    for span in spans.found:
        if span.kind == "compute":
            begins[span.worker].append(span.begin_s)
            ends[span.worker].append(span.end_s)
    return Simulated(pace(begins, ends), None)
