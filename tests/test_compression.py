"""What every compressor has to do: sizes, addressed randomness, error feedback, numbers that are none, `combine`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from decentral.algorithms.allreduce import AllReduce
from decentral.compression.artopk import Select
from decentral.compression.compressor import Compressor, Encoder
from decentral.compression.rows import AcceptedCompression, Address, RowLayout
from decentral.config.composition import compose
from decentral.errors import ConfigError
from decentral.network.payload import Payload, Sizes
from decentral.registry import components

LAYOUT = RowLayout(("conv", "bias", "head", "scale"), ((8, 3, 3, 3), (8,), (10, 12), ()))  # 216 + 8 + 120 + 1
P, SEED, STEPS_PER_EPOCH = LAYOUT.num_coordinates, 5, 10.0
ENCODERS = sorted(name for name, cls in components("compression").items() if issubclass(cls, Encoder))
ROWS = pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["float32", "float64"])


def bound(name: str, layout: RowLayout = LAYOUT, **settings: Any) -> Any:
    return components("compression")[name](**settings).bound(layout, SEED, STEPS_PER_EPOCH)


def rows(k: int = 1, dtype: torch.dtype = torch.float32, seed: int = 0, size: int = P) -> Tensor:
    return torch.from_numpy(np.random.default_rng(seed).normal(size=(k, size))).to(dtype)


def decoded(compressor: Encoder, payload: Payload, like: Tensor, at: Address) -> Tensor:
    out = torch.zeros_like(like)
    compressor.add_decoded(payload, out, at)
    return out


class Together:
    """A network of one process: all n workers are local."""

    def __init__(self, n: int) -> None:
        self.n, self.workers, self.sizes = n, range(n), list[Sizes | None]()
        self.means: list[int] = []
        self.prices = None

    def mean(self, x: Tensor) -> Tensor:
        self.means.append(x.shape[1])
        return x.copy_(x.mean(0, keepdim=True))

    def allgather(self, payloads: Sequence[Payload], sizes: Sizes | None = None) -> list[Payload]:
        assert all(sizes in (None, payload.sizes) for payload in payloads)
        self.sizes.append(sizes)
        return [Payload({name: part.clone() for name, part in one.tensors.items()}) for one in payloads]

    def broadcast(self, payload: Payload | None, root: int, sizes: Sizes | None = None) -> Payload:
        assert payload is not None and sizes in (None, payload.sizes)
        return Payload({name: part.clone() for name, part in payload.tensors.items()})


ROUNDS = {"dct_topk", "int8", "sign"}


@pytest.mark.parametrize("name", ENCODERS)
def test_numbers_that_are_not_finite_arrive_as_none(name: str) -> None:
    compressor, at = bound(name), Address(0, 0 if name == "none" else 50)
    for place, value in ((0, float("nan")), (100, float("inf")), (P - 1, -float("inf"))):
        e = rows()[0]
        e[place] = value
        assert not decoded(compressor, compressor.encode(e, at), e, at).isfinite().all()


@pytest.mark.parametrize("name", ENCODERS)
def test_rows_with_equal_entries(name: str) -> None:
    compressor, at = bound(name), Address(0, 7)
    for value in (0.0, 1.0, -3.0):
        e = torch.full((P,), value)
        sent = decoded(compressor, compressor.encode(e, at), e, at)
        torch.testing.assert_close(sent[sent != 0], torch.full_like(sent[sent != 0], value))


@pytest.mark.parametrize("name", sorted(set(components("compression")) - {"none"}))
def test_all_workers_get_the_mean_of_the_messages(name: str) -> None:
    """Over some steps the sum of what was applied and the mean residual is that of the gradients."""
    for feedback in [True, False]:
        n, dtype = 3, torch.float64
        compressor: Compressor = bound(name, error_feedback=feedback)
        net: Any = Together(n)
        x = rows(n, dtype)
        r, memory = compressor.residual(x), compressor.memory(x, n)
        total, applied = torch.zeros(P, dtype=dtype), torch.zeros(P, dtype=dtype)
        for t in range(4):
            g = rows(n, dtype, seed=10 + t)
            total += g.mean(0)
            g, r, memory = compressor.combine(g, r, memory, net, t)
            assert torch.equal(g, g[:1].expand(n, P)) and g.any()
            applied += g[0]
        if feedback:
            tolerance = 2**-5 if name == "bf16" else 1e-12  # the mean of bf16 numbers is one
            torch.testing.assert_close(applied + r.mean(0), total, rtol=tolerance, atol=tolerance)


def test_ar_topk_takes_everybody_in_turn_or_who_has_the_largest_gradient() -> None:
    """The places that are sent are one worker's, the same for all."""
    n, k = 3, 4
    for select, chosen in (("star", [0, 1, 2, 0]), ("var", [2, 2, 2, 2])):
        compressor: Compressor = bound("artopk", keep=k / P, select=Select[select], error_feedback=False)
        net: Any = Together(n)
        memory = compressor.memory(rows(n), n)
        for t, b in enumerate(chosen):
            g = rows(n, seed=t) * torch.tensor([[1.0], [2.0], [3.0]])
            largest = g[b].abs().topk(k).indices
            expected = torch.zeros(P).index_copy_(0, largest, g[:, largest].mean(0))
            found, _, memory = compressor.combine(g, g.new_zeros(n, 0), memory, net, t)
            torch.testing.assert_close(found, expected.expand(n, P))


def test_compression_errors_are_measured_in_every_tenth_step() -> None:
    compressor: Compressor = bound("topk", keep=2 / P)
    net: Any = Together(1)
    g = torch.zeros(1, P)
    compression_stats = compressor.compression_stats(g)
    assert not compression_stats.any()
    g[0, :3] = torch.tensor([4.0, 2.0, 1.0])
    for t in range(11):
        compressor.combine(g.clone(), torch.zeros(1, P), g.new_zeros(0), net, t)
        expected = [20 / 21, 1 / 21, 2 / P] if t < 10 else [1.0, 0.0, 2 / P]
        torch.testing.assert_close(compression_stats, torch.tensor([expected], dtype=torch.float64))
        if t == 9:
            g[0, 2] = 0.0


@pytest.mark.parametrize(
    "pieces", [[slice(0, None, 2), slice(1, None, 2)], [slice(0, 220), slice(220, P)], [slice(0, 0), slice(0, P)]]
)
def test_pieces_of_a_row_have_their_share_of_each_parameter(pieces: list[slice]) -> None:
    numbers = torch.repeat_interleave(torch.arange(4), torch.tensor([216, 8, 120, 1]))
    for piece in pieces:
        held, count = torch.unique(numbers[piece], return_counts=True)
        layout = LAYOUT.cut(piece)
        assert layout.names == tuple(LAYOUT.names[number] for number in held.tolist())
        assert layout.shapes == tuple((length,) for length in count.tolist())


# -- the configuration

SMALL = ("task=quadratics", "algo=allreduce", "num_workers=4")


def test_an_algorithm_takes_nothing_rows_payloads_or_all(monkeypatch: pytest.MonkeyPatch) -> None:
    for takes, known in TAKEN.items():
        monkeypatch.setattr(AllReduce, "takes", takes)
        for name in sorted(components("compression")):
            if name in known:
                assert compose([*SMALL, f"compress={name}", "cluster=even"]).compress.name == name
            else:
                with pytest.raises(ConfigError, match=f"compress={name} cannot be used with algo=allreduce, which"):
                    compose([*SMALL, f"compress={name}"])


TAKEN = {
    AcceptedCompression.nothing: {"none"},
    AcceptedCompression.rows: {"none", "bf16", "int8", "sign"},
    AcceptedCompression.payloads: set(ENCODERS),
    AcceptedCompression.senders: set(ENCODERS) - {"randomk"},
    AcceptedCompression.means: set(components("compression")),
}


@pytest.mark.parametrize("name", ENCODERS)
@ROWS
def test_every_compressor_keeps_its_promises(name: str, dtype: torch.dtype) -> None:
    compressor, e, at = bound(name), rows(dtype=dtype)[0], Address(3, 1)
    before, payload = e.clone(), compressor.encode(e, at)
    for step in (0, 3, 40):
        found = bound(name).encode(e, Address(1, step))
        assert bound(name).sizes(step, dtype) in (None, found.sizes)
        assert all(part.dim() == 1 and part.is_contiguous() for part in found.tensors.values())
    # decoding adds the weighted row
    once, out = decoded(compressor, payload, e, at), rows(dtype=dtype, seed=1)[0]
    expected = out + 0.25 * once
    compressor.add_decoded(payload, out, at, 0.25)
    torch.testing.assert_close(out, expected)
    # what was sent and what is left are the row
    left = e.clone()
    compressor.subtract_sent(payload, left, at)
    rounding = 4 * torch.finfo(dtype).eps if name in ROUNDS else 0.0
    torch.testing.assert_close(left + once, e, rtol=rounding, atol=rounding)
    # the row is left as it is, and the payload is its own, also beside another worker's
    assert torch.equal(e, before)
    e.zero_()
    compressor.encode(rows(dtype=dtype, seed=9)[0], Address(1, 1))
    assert torch.equal(decoded(compressor, payload, e, at), once)
    # randomness is that of seed, worker and step, whatever came before
    again = compressor.encode(before, at)
    assert torch.equal(decoded(compressor, again, e, at), once)
