"""What it costs to encode and to decode a row, for every compressor, and what that saves over a slow link."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor

from bench.exchanges import configs_of
from bench.harness import Effort, Findings, Table, Target, benchmark
from bench.traffic import Meter
from decentral.cluster.links import CollectiveName, LinkCosts, Links, Prices
from decentral.compression.address import Address
from decentral.compression.artopk import ARTopK
from decentral.compression.compressor import Encoder
from decentral.compression.row_layout import RowLayout
from decentral.measurements.timing import Step, Turns, in_group, in_turn
from decentral.registry import components

_KEEP, _TOPK = 0.01, "torch.topk"
_SETTINGS: dict[str, dict[str, Any]] = {"threshold": {"threshold": 2.576}}  # 1 % of normal numbers reach it
_DENSE, _SPARSE, _WORK = "all-reduce, float32", "AR-Topk 1 %", "AR-Topk 1 %, links without limits"


@benchmark("encoding 10 million numbers / torch.topk of them, on one core")
def compression(effort: Effort) -> Findings:
    """Encode and decode of normal float32 numbers, for every compressor that encodes a row by itself; and steps of 8
    processes of as many parameters over links of 100 Mbit/s."""
    size = 100_000 if effort.quick else 10_000_000
    torch.set_num_threads(1)
    e = torch.randn(size, generator=torch.Generator().manual_seed(0))
    found = {name: costs(name, e, effort.at_most(5)) for name in encoders()}
    targets = []
    for name, title in (("topk", "Top-k"), ("mstopk", "MSTopk")):
        measure = f"{title} of {size:,} numbers at {_KEEP:.0%} / torch.topk of them"
        targets.append(Target(measure, found[name]["encode_ratio"], 1.5))
    most = max(row["allocated"] for row in found.values())
    targets.append(Target("memory that encoding and decoding allocate in a later step / row", most, 0.01))
    limited, more = over_a_slow_link(size, effort)
    columns = {
        "compressor": "compressor",
        "num_bytes": "payload (bytes)",
        "smaller": "dense / payload",
        "encode_ms": "encode (ms CPU)",
        "decode_ms": "decode (ms CPU)",
        "encode_ratio": "encode / torch.topk",
        "decode_ratio": "decode / torch.topk",
        "allocated": "allocated by a step / row",
    }
    notes = [
        "PowerSGD encodes no single row: its cost is two products of matrices.",
        "The model is a broadcast of k indices and a ring of k values (dense: a ring of all) over the limited "
        "bandwidth, and for AR-Topk what the same step takes without limits: finding places, and all else.",
    ]
    tables = [Table(f"{size:,} numbers, keep={_KEEP:g}", columns, [*found.values()]), limited]
    return Findings(tables, [*targets, *more], notes)


def encoders() -> dict[str, type[Encoder]]:
    """The compressors that encode a row by itself."""
    return {name: cls for name, cls in components("compression").items() if issubclass(cls, Encoder)}


def costs(name: str, e: Tensor, rounds: int) -> dict[str, Any]:
    """A compressor's times, in turn with torch.topk of the k largest numbers."""
    cls = encoders()[name]
    given = _SETTINGS.get(name) or ({"keep": _KEEP} if hasattr(cls, "keep") else {})
    coder = _Coder(cls(**given).bound(RowLayout.flat(len(e)), 0), e)
    topk = partial(torch.topk, e, int(len(e) * _KEEP))
    times = in_turn({_TOPK: topk, "encode": coder.encode, "decode": coder.decode}, rounds)
    with Meter() as meter:
        coder.encode()
        coder.decode()
    row_bytes = e.numel() * e.element_size()
    return {
        "compressor": name,
        "num_bytes": coder.payload.num_bytes,
        "smaller": row_bytes / coder.payload.num_bytes,
        "encode_ms": 1e3 * times.median("encode"),
        "decode_ms": 1e3 * times.median("decode"),
        "encode_ratio": times.ratio("encode", _TOPK).median,
        "decode_ratio": times.ratio("decode", _TOPK).median,
        "allocated": meter.allocated_bytes / row_bytes,
    }


class _Coder:
    """Encodes a row step by step, so that what is random is drawn each time, and decodes what it encoded last."""

    def __init__(self, compressor: Encoder, e: Tensor) -> None:
        self.compressor, self.e, self.out, self.step = compressor, e, torch.zeros_like(e), 0
        self.encode()

    def encode(self) -> None:
        """The next step's payload."""
        self.step += 1
        self.payload = self.compressor.encode(self.e, Address(0, self.step))

    def decode(self) -> None:
        """Adds the payload of this step."""
        self.compressor.add_decoded(self.payload, self.out, Address(0, self.step), 0.125)


def over_a_slow_link(size: int, effort: Effort) -> tuple[Table, list[Target]]:
    """Steps of all-reduce SGD with a gradient that is there already, dense and AR-Topk, against the cost model."""
    processes, gbps = (2, 1.0) if effort.quick else (8, 0.1)
    link, sparse = f"network.bandwidth_gbps={gbps}", ("compress=artopk", f"compress.keep={_KEEP}")
    common = ("algo=allreduce", "network.collective=ring", "lr=0.001")
    configs = configs_of([(*common, link), (*common, link, *sparse), (*common, *sparse)], processes)
    setups = {name: partial(Step, config, size) for name, config in zip((_DENSE, _SPARSE, _WORK), configs, strict=True)}
    (found,) = in_group(processes, [Turns(setups, effort.at_most(3), warm_up=1)])
    seconds = {name: found.wall.median(name) for name in setups}
    model = modelled(size, processes, gbps)
    model[_SPARSE] += seconds[_WORK]
    rows = [
        {"step": name, "wall_ms": 1e3 * taken, "model_ms": 1e3 * model[name] if name in model else None}
        for name, taken in seconds.items()
    ]
    what = f"{size:,} parameters, {processes} processes over {1000 * gbps:g} Mbit/s"
    columns = {"step": "a step without a gradient", "wall_ms": "ms wall", "model_ms": "model (ms)"}
    away = abs(seconds[_SPARSE] / model[_SPARSE] - 1)
    return Table(f"A step of {what}", columns, rows), [
        Target(f"all-reduce / AR-Topk at {_KEEP:.0%}, {what}", seconds[_DENSE] / seconds[_SPARSE], at_least=10.0),
        Target("AR-Topk's step there / the model's, less 1 (either way)", away, at_most=0.15),
    ]


def modelled(size: int, processes: int, gbps: float) -> dict[str, float]:
    """Seconds of communication by the cost model: without latency, of float32 numbers."""
    links = Links(latency_s=0.0, bandwidth_gbps=gbps, copy_gbps=float("inf"), collective=CollectiveName.ring)
    prices = Prices(processes, LinkCosts(links, processes))
    sparse = ARTopK(keep=_KEEP).bound(RowLayout.flat(size), 0)
    return {_DENSE: prices.mean_s(4 * size), _SPARSE: sparse.planned_s(prices, 0, torch.float32)}
