"""What it costs to encode and to decode a row, for every compressor, and what that saves over a slow link."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from decentral.benchmarks.harness.benchmark import Benchmark, Effort, Findings, Table, Target
from decentral.compression.address import Address
from decentral.jobs.timing.times import in_turn
from decentral.registry import components

if TYPE_CHECKING:
    from torch import Tensor

    from decentral.compression.compressor import Encoder

_NUMBERS, _NUMBERS_QUICK = 10_000_000, 100_000
_KEEP = 0.01
_SETTINGS: dict[str, dict[str, Any]] = {"threshold": {"threshold": 2.576}}  # 1 % of normal numbers reach it
_REFERENCE = "torch.topk"
_ROUNDS_MOST = 5
_LINK_GBPS, _LINK_GBPS_QUICK = 0.1, 1.0
_DENSE, _SPARSE, _WORK = "all-reduce, float32", "AR-Topk 1 %", "AR-Topk 1 %, links without limits"
_LIMITED_COLUMNS = {"step": "a step without a gradient", "wall_ms": "ms wall", "model_ms": "model (ms)"}
_COLUMNS = {
    "compressor": "compressor",
    "num_bytes": "payload (bytes)",
    "smaller": "dense / payload",
    "encode_ms": "encode (ms CPU)",
    "decode_ms": "decode (ms CPU)",
    "encode_ratio": "encode / torch.topk",
    "decode_ratio": "decode / torch.topk",
    "allocated": "allocated by a step / row",
}


@dataclass
class Compression(Benchmark):
    """Encode and decode of 10 million normal float32 numbers, for every compressor that encodes a row by itself; and
    steps of 8 processes of as many parameters over links of 100 Mbit/s."""

    name: str = "compression"
    title: ClassVar[str] = "encoding 10 million numbers / torch.topk of them, on one core"

    def measure(self, effort: Effort) -> Findings:
        """All compressors and `torch.topk(e, k)` in turn, in one process with one thread."""
        import torch

        size = _NUMBERS_QUICK if effort.quick else _NUMBERS
        e = torch.randn(size, generator=torch.Generator().manual_seed(0))
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            rows = costs(e, min(effort.rounds, _ROUNDS_MOST))
        finally:
            torch.set_num_threads(threads)
        found = {row["compressor"]: row for row in rows}
        titles = (("topk", "Top-k"), ("mstopk", "MSTopk"))
        targets = [
            Target(
                f"{title} of {size:,} numbers at {_KEEP:.0%} / torch.topk of them",
                found[name]["encode_ratio"].median,
                1.5,
            )
            for name, title in titles
        ]
        most = max(row["allocated"] for row in rows)
        targets.append(Target("memory that encoding and decoding allocate in a later step / row", most, 0.01))
        shown = [row | {key: row[key].median for key in ("encode_ratio", "decode_ratio")} for row in rows]
        limited, more = over_a_slow_link(size, effort)
        notes = [
            "PowerSGD encodes no single row: its cost is two products of matrices.",
            "The model is a broadcast of k indices and a ring of k values (dense: a ring of all) over the limited "
            "bandwidth, and for AR-Topk what the same step takes without limits: finding places, and all else.",
        ]
        tables = [Table(f"{size:,} numbers, keep={_KEEP:g}", _COLUMNS, shown), limited]
        return Findings(tables, [*targets, *more], notes)


def costs(e: Tensor, rounds: int) -> list[dict[str, Any]]:
    """A row for each compressor: its times, in turn with torch.topk of the k largest numbers."""
    import torch

    from decentral.benchmarks.baselines.meter import Meter
    from decentral.compression.compressor import Encoder
    from decentral.compression.row_layout import RowLayout

    out, found = torch.zeros_like(e), []
    for name, cls in components("compression").items():
        if not issubclass(cls, Encoder):
            continue
        given = _SETTINGS.get(name) or ({"keep": _KEEP} if hasattr(cls, "keep") else {})
        compressor = cls(**given).bound(RowLayout.flat(len(e)), 0)
        coder = _Coder(compressor, e, out)
        topk = lambda: torch.topk(e, int(len(e) * _KEEP))  # noqa: E731
        times = in_turn({_REFERENCE: topk, "encode": coder.encode, "decode": coder.decode}, rounds)
        with Meter() as meter:
            coder.encode()
            coder.decode()
        found.append(
            {
                "compressor": name,
                "num_bytes": coder.payload.num_bytes,
                "smaller": e.numel() * e.element_size() / coder.payload.num_bytes,
                "encode_ms": 1e3 * times.median("encode"),
                "decode_ms": 1e3 * times.median("decode"),
                "encode_ratio": times.ratio("encode", _REFERENCE),
                "decode_ratio": times.ratio("decode", _REFERENCE),
                "allocated": meter.allocated_bytes / (e.numel() * e.element_size()),
            }
        )
    return found


def over_a_slow_link(size: int, effort: Effort) -> tuple[Table, list[Target]]:
    """Steps of all-reduce SGD with a gradient that is there already, dense and AR-Topk, against the cost model."""
    from decentral.benchmarks.cases.communication import composed
    from decentral.jobs.timing.group import Turns, in_group
    from decentral.jobs.timing.verbs import Step

    processes, gbps = (2, _LINK_GBPS_QUICK) if effort.quick else (8, _LINK_GBPS)
    link, sparse = f"network.bandwidth_gbps={gbps}", ("compress=artopk", f"compress.keep={_KEEP}")
    common = ("algo=allreduce", "network.collective=ring", "lr=0.001")
    configs = composed([(*common, link), (*common, link, *sparse), (*common, *sparse)], processes)
    setups = {name: Step(config, size) for name, config in zip((_DENSE, _SPARSE, _WORK), configs, strict=True)}
    (found,) = in_group(processes, [Turns(setups, rounds=min(effort.rounds, 3), warm_up=1)])
    seconds = {name: found.wall.median(name) for name in setups}
    model = _modelled(size, processes, gbps)
    model[_SPARSE] += seconds[_WORK]
    rows = [
        {"step": name, "wall_ms": 1e3 * taken, "model_ms": 1e3 * model[name] if name in model else None}
        for name, taken in seconds.items()
    ]
    what = f"{size:,} parameters, {processes} processes over {1000 * gbps:g} Mbit/s"
    table = Table(f"A step of {what}", _LIMITED_COLUMNS, rows)
    away = abs(seconds[_SPARSE] / model[_SPARSE] - 1)
    return table, [
        Target(f"all-reduce / AR-Topk at {_KEEP:.0%}, {what}", seconds[_DENSE] / seconds[_SPARSE], at_least=10.0),
        Target("AR-Topk's step there / the model's, less 1 (either way)", away, at_most=0.15),
    ]


def _modelled(size: int, processes: int, gbps: float) -> dict[str, float]:
    """Seconds of communication by the cost model: without latency, of float32 numbers."""
    import torch

    from decentral.cluster.costs import LinkCosts
    from decentral.cluster.links import CollectiveName, Links
    from decentral.cluster.prices import Prices
    from decentral.compression.artopk import ARTopK
    from decentral.compression.row_layout import RowLayout

    links = Links(latency_s=0.0, bandwidth_gbps=gbps, copy_gbps=float("inf"), collective=CollectiveName.ring)
    prices = Prices(processes, LinkCosts(links.open(processes), processes))
    sparse = ARTopK(keep=_KEEP).bound(RowLayout.flat(size), 0)
    return {_DENSE: prices.mean_s(4 * size), _SPARSE: sparse.planned_s(prices, 0, torch.float32)}


class _Coder:
    """Encodes a row step by step, so that what is random is drawn each time, and decodes what it encoded last."""

    def __init__(self, compressor: Encoder, e: Tensor, out: Tensor) -> None:
        self.compressor, self.e, self.out, self.step = compressor, e, out, 0
        self.encode()

    def encode(self) -> None:
        """The next step's payload."""
        self.step += 1
        self.payload = self.compressor.encode(self.e, Address(0, self.step))

    def decode(self) -> None:
        """Adds the payload of this step."""
        self.compressor.add_decoded(self.payload, self.out, Address(0, self.step), 0.125)
