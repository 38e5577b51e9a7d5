"""What it costs to average a gradient, dense or compressed, by the formulas of the collectives: jobs.

log2 is a real number here, as in the flexible communication paper; elsewhere (`cluster.links.whole_phases`) it is
rounded up, as the algorithms do.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from itertools import product
from typing import Any, ClassVar, NamedTuple

from decentral.cluster import collectives
from decentral.jobs.computation import Computation
from decentral.store.lines import LineFile

_DENSE, _HALF = 4.0, 2.0
"""Bytes of a number in float32, and in bfloat16."""


class Link(NamedTuple):
    """alpha in seconds, beta in seconds per byte."""

    alpha: float
    beta: float


Scheme = Callable[[int, float, float, Link], float]
"""(n workers, P parameters, share of them that is kept, link) -> seconds."""

_BROADCAST, _ALL_GATHER = collectives.Broadcast(), collectives.AllGather()


def _alone(collective: collectives.Collective, bytes_each: float) -> Scheme:
    """The collective with rows of so many bytes for each parameter, whatever is kept."""

    def seconds(n: int, parameters: float, keep: float, link: Link) -> float:
        return collective.seconds(n, bytes_each * parameters, *link, math.log2)

    return seconds


def _artopk(all_reduce: collectives.AllReduce) -> Scheme:
    """AR-Topk: one worker's k = keep P indices to all (4 bytes each), then an all-reduce of k values (4 bytes each)."""

    def seconds(n: int, parameters: float, keep: float, link: Link) -> float:
        kept = _DENSE * keep * parameters
        return sum(each.seconds(n, kept, *link, math.log2) for each in (_BROADCAST, all_reduce))

    return seconds


def _gathered(n: int, parameters: float, keep: float, link: Link) -> float:
    """AG-Topk: everybody's k values and k indices to all."""
    return _ALL_GATHER.seconds(n, 2 * _DENSE * keep * parameters, *link, math.log2)


SCHEMES: dict[str, Scheme] = {
    "star": _alone(collectives.Star(), _DENSE),
    "ring": _alone(collectives.Ring(), _DENSE),
    "tree": _alone(collectives.Tree(), _DENSE),
    "rabenseifner": _alone(collectives.Rabenseifner(), _DENSE),
    "allgather": _alone(_ALL_GATHER, _DENSE),
    "broadcast": _alone(_BROADCAST, _DENSE),
    "bf16_ring": _alone(collectives.Ring(), _HALF),
    "bf16_tree": _alone(collectives.Tree(), _HALF),
    "bf16_rabenseifner": _alone(collectives.Rabenseifner(), _HALF),
    "artopk_ring": _artopk(collectives.Ring()),
    "artopk_tree": _artopk(collectives.Tree()),
    "topk_allgather": _gathered,
}
"""Each a way to average n rows of P parameters; `allgather` and `broadcast` are the paper's two other operations."""

PARTS = ("latency", "volume")
"""What `term` can give: how many alpha, and how many times the bytes of a dense row (or of what is kept) beta."""

CROSSOVERS = {
    "c1": ("artopk_ring", "artopk_tree"),
    "c2": ("artopk_ring", "topk_allgather"),
    "c3": ("artopk_tree", "topk_allgather"),
}
"""The first costs as much as the second where alpha / beta is so many times the bytes of the values that are kept."""


def term(scheme: str, part: str, n: int) -> float:
    """The factor of alpha (`latency`), or of the bytes of what is sent (M; compressed: Mc) times beta (`volume`)."""
    link = Link(1.0, 0.0) if part == "latency" else Link(0.0, 1.0)
    return SCHEMES[scheme](n, 1 / _DENSE, 1.0, link)


def crossover(first: str, second: str, n: int) -> float:
    """alpha / beta over the bytes of the values kept at which both cost the same; the first is cheaper below it."""
    fewer = term(second, "volume", n) - term(first, "volume", n)
    return fewer / (term(first, "latency", n) - term(second, "latency", n))


@dataclass(frozen=True)
class CollectiveFacts(Computation):
    """Factors of alpha and beta of some schemes, and the crossovers, for some numbers of workers.

    A line of facts.jsonl for each: {"scheme": a key of SCHEMES or CROSSOVERS, "part": one of PARTS ('' for a
    crossover), "num_workers", "value"}.
    """

    schemes: tuple[str, ...] = ()
    num_workers: tuple[int, ...] = ()

    folder: ClassVar[str] = "collective_facts"
    lines: ClassVar[str] = "facts.jsonl"

    def parameters(self) -> dict[str, Any]:
        """Schemes and numbers of workers."""
        return {"schemes": list(self.schemes), "sizes": list(self.num_workers)}

    def work(self, lines: LineFile, stop: Callable[[], bool], show: Callable[[float, str], None]) -> bool:
        """All at once: it is a matter of microseconds."""
        if lines.known:
            return True
        for scheme, n in product(self.schemes, self.num_workers):
            if scheme in CROSSOVERS:
                found = {"": crossover(*CROSSOVERS[scheme], n)}
            else:
                found = {part: term(scheme, part, n) for part in PARTS}
            for part, value in found.items():
                lines.append({"scheme": scheme, "part": part, "num_workers": n, "value": value})
        return True


@dataclass(frozen=True)
class CollectiveMap(Computation):
    """Seconds of one scheme over n, the share that is kept, bandwidth and latency.

    A line of seconds.jsonl: {"seconds": nested lists [n][keep][latency][bandwidth]}.
    """

    scheme: str = ""
    num_parameters: int = 0
    num_workers: tuple[int, ...] = ()
    keep: tuple[float, ...] = ()
    gbps: tuple[float, ...] = ()
    latency_ms: tuple[float, ...] = ()

    folder: ClassVar[str] = "collective_map"
    lines: ClassVar[str] = "seconds.jsonl"

    def parameters(self) -> dict[str, Any]:
        """The scheme and all places."""
        places = {"keep": list(self.keep), "gbps": list(self.gbps), "latency_ms": list(self.latency_ms)}
        return {"scheme": self.scheme, "size": self.num_parameters, "sizes": list(self.num_workers), **places}

    def work(self, lines: LineFile, stop: Callable[[], bool], show: Callable[[float, str], None]) -> bool:
        """All at once."""
        if not lines.known:
            lines.append({"seconds": [[self._table(n, keep) for keep in self.keep] for n in self.num_workers]})
        return True

    def _table(self, n: int, keep: float) -> list[list[float]]:
        scheme = SCHEMES[self.scheme]
        return [
            [scheme(n, self.num_parameters, keep, Link(1e-3 * latency, 8e-9 / gbps)) for gbps in self.gbps]
            for latency in self.latency_ms
        ]
