"""Compressors that leave coordinates out, against what their formulas say, written plainly."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from bench.traffic import Meter
from decentral.compression.address import Address
from decentral.compression.arithmetic import selection
from decentral.compression.row_layout import RowLayout
from decentral.compression.topk import TopK
from decentral.errors import ConfigError
from decentral.registry import components

AT = Address(0, 0)
DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])


def top(e: np.ndarray, k: int) -> list[int]:
    """The k indices with the largest |e|, the smaller ones first where these are equal; ascending."""
    magnitudes = np.where(np.isnan(e), np.inf, np.abs(e))
    order = sorted(range(len(e)), key=lambda i: (not np.isnan(e[i]), -magnitudes[i], i))
    return sorted(order[:k])


def indices(compressor: Any, e: Tensor, at: Address = AT) -> list[int]:
    payload = compressor.encode(e, at)
    found = payload.tensors["indices"].long()
    assert torch.equal(payload.tensors["values"].view(torch.uint8), e[found].view(torch.uint8))
    return found.tolist()


def flat(name: str, size: int, **settings: Any) -> Any:
    return components("compression")[name](**settings).bound(RowLayout.flat(size), 3)


def numbers(size: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> Tensor:
    return torch.from_numpy(np.random.default_rng(seed).normal(size=size)).to(dtype)


@DTYPES
@pytest.mark.parametrize("keep", [1e-9, 0.01, 0.1, 0.5, 0.999, 1.0])
@pytest.mark.parametrize("size", [1, 2, 97, 1000])
def test_topk_sends_the_largest(size: int, keep: float, dtype: torch.dtype) -> None:
    e = numbers(size, dtype)
    expected = top(e.double().numpy(), max(1, int(size * keep)))
    assert indices(flat("topk", size, keep=keep), e) == expected


@pytest.mark.parametrize("keep", [0.001, 0.1, 0.6])
@pytest.mark.parametrize("kind", ["normal", "heavy", "ties", "sparse", "sorted", "periodic"])
def test_topk_of_long_rows_is_exact_whatever_a_sample_says(
    kind: str, keep: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(selection, "_BLOCK", 700)
    monkeypatch.setattr(selection, "_SAMPLE", 64)
    generator, size = np.random.default_rng(7), 5003
    e = {
        "normal": generator.normal(size=size),
        "heavy": generator.standard_cauchy(size=size) ** 3,
        "ties": generator.integers(-3, 4, size=size).astype(float),
        "sparse": np.where(generator.random(size) < 0.01, generator.normal(size=size), 0.0),
        "sorted": np.arange(size, 0, -1.0),
        "periodic": np.where(np.arange(size) % -(-size // 64) == 0, 100.0, 1.0) + np.arange(size) / 1e5,
    }[kind]
    e = e.astype(np.float32)
    compressor = flat("topk", size, keep=keep)
    for _ in range(2):  # with memory that was used before
        assert indices(compressor, torch.from_numpy(e)) == top(e, max(1, int(size * keep)))


@DTYPES
def test_topk_takes_what_is_no_number_first_then_infinity(dtype: torch.dtype) -> None:
    e = numbers(100, dtype)
    e[[70, 30, 50]] = torch.tensor([float("nan"), -float("nan"), -float("inf")]).to(dtype)
    assert indices(flat("topk", 100, keep=0.01), e) == [30]
    assert indices(flat("topk", 100, keep=0.02), e) == [30, 70]
    assert indices(flat("topk", 100, keep=0.03), e) == [30, 50, 70]


def test_indices_have_4_bytes_or_8() -> None:
    for size in (4, 8):
        payload = flat("topk", 1000, index_bytes=size).encode(numbers(1000), AT)
        assert payload.num_bytes == 100 * (4 + size)
    with pytest.raises(ConfigError, match=r"index_bytes=4 is too small for 2147483648 parameters: set it to 8"):
        TopK().bound(RowLayout.flat(2**31), 0)
    TopK(index_bytes=8).bound(RowLayout.flat(2**31), 0)


def test_the_share_falls_linearly_from_all_to_keep() -> None:
    compressor = TopK(keep=0.1, warmup_epochs=2.5).bound(RowLayout.flat(1000), 0, steps_per_epoch=4)
    assert [compressor.count(1000, t) for t in (0, 1, 5, 9, 10, 99)] == [1000, 910, 550, 190, 100, 100]
    assert TopK(keep=0.1).bound(RowLayout.flat(1000), 0).count(1000, 0) == 100


# -- lwtopk ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("keep", [0.01, 0.3, 1.0])
@DTYPES
def test_lwtopk_sends_the_largest_of_every_layer(keep: float, dtype: torch.dtype) -> None:
    layout = RowLayout(("a", "b", "none", "c"), ((20, 5), (3,), (0, 4), ()))
    compressor, e = components("compression")["lwtopk"](keep=keep).bound(layout, 3), numbers(104, dtype)
    e[101] = float("nan")
    expected = []
    for start, size in ((0, 100), (100, 3), (103, 1)):
        part = e[start : start + size].double().numpy()
        expected += [start + i for i in top(part, max(1, int(size * keep)))]
    assert indices(compressor, e) == expected


# -- mstopk ------------------------------------------------------------------------------------------------------------


def multisampling(e: np.ndarray, k: int, samplings: int) -> tuple[set[int], list[int]]:
    """The spec's section 2.2 with its corrections: what is certainly sent, and where the rest comes from."""
    a = np.abs(e)
    mu, u = float(a.astype(np.float64).mean()), float(a.max())
    left, right, k1, k2, t1, t2 = 0.0, 1.0, 0, len(e), u, 0.0
    for _ in range(samplings):
        rho = (left + right) / 2
        t = float(np.float32(mu + rho * (u - mu)))
        z = int((a >= t).sum())
        if z <= k:
            right = rho
            if z > k1:
                k1, t1 = z, t
        else:
            left = rho
            if z < k2:
                k2, t2 = z, t
    first = set(np.flatnonzero(a >= t1).tolist())
    if len(first) > k:
        first, t1 = set(), np.inf
    return first, np.flatnonzero((a >= t2) & (a < t1)).tolist()


@pytest.mark.parametrize("samplings", [1, 4, 25])
@pytest.mark.parametrize("kind", ["normal", "heavy", "ties", "sparse"])
@pytest.mark.parametrize("long", [False, True])
def test_mstopk_is_the_search_of_the_paper(
    long: bool, kind: str, samplings: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    if long:  # as where a sample leaves most entries out
        monkeypatch.setattr(selection, "_BLOCK", 500)
        monkeypatch.setattr(selection, "_SAMPLE", 100)
    generator, size, k = np.random.default_rng(3), 2000, 50
    e = {
        "normal": generator.normal(size=size),
        "heavy": generator.standard_cauchy(size=size) ** 3,
        "ties": generator.integers(-3, 4, size=size).astype(float),
        "sparse": np.where(generator.random(size) < 0.01, generator.normal(size=size), 0.0),
    }[kind].astype(np.float32)
    first, others = multisampling(e, k, samplings)
    starts = set()
    for worker in range(20):
        compressor = flat("mstopk", size, keep=k / size, samplings=samplings)
        found = indices(compressor, torch.from_numpy(e), Address(worker, 0))
        rest = sorted(set(found) - first)
        assert len(found) == k and first <= set(found) and found == sorted(found)
        if rest:
            start = others.index(rest[0])
            assert others[start : start + len(rest)] == rest
            starts.add(start)
    assert len(starts) > 1 or len(others) == k - len(first) or len(first) == k


def test_mstopk_finds_the_largest_with_25_samplings() -> None:
    for seed in range(20):
        e = numbers(3000, seed=seed)
        assert indices(flat("mstopk", 3000, keep=0.05), e) == top(e.numpy(), 150)


def test_mstopk_always_sends_k() -> None:
    """The authors' run begins one place too late now and then, and sends k - 1: with 4 samplings for one seed of 7."""
    e = numbers(200)
    found = {len(indices(flat("mstopk", 200, keep=0.1, samplings=4), e, Address(0, step))) for step in range(300)}
    assert found == {20}


@pytest.mark.parametrize("value", [0.0, 2.0, -2.0])
def test_mstopk_of_equal_entries_sends_k_of_them(value: float) -> None:
    assert len(indices(flat("mstopk", 100, keep=0.1), torch.full((100,), value))) == 10


def test_mstopk_sends_one_entry_where_k_would_be_none() -> None:
    assert indices(flat("mstopk", 100, keep=0.001), torch.arange(100.0)) == [99]


def test_mstopk_sends_what_is_no_number_as_topk_does() -> None:
    for value in (float("nan"), float("inf")):
        e = numbers(100)
        e[33] = value
        assert indices(flat("mstopk", 100), e) == indices(flat("topk", 100), e)


# -- threshold ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_threshold_sends_what_reaches_it(dtype: torch.dtype) -> None:
    e = torch.tensor([0.5, -0.5, 0.49, -3.0, 0.0, float("nan"), -float("inf")], dtype=dtype)
    assert indices(flat("threshold", 7, threshold=0.5), e) == [0, 1, 3, 5, 6]
    assert indices(flat("threshold", 7, threshold=0.5), e[:5].abs().clamp(max=0.4)) == []
    assert flat("threshold", 7).sizes(0, dtype) is None


# -- randomk -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("keep", [0.02, 0.3, 1.0])
def test_randomk_draws_the_same_places_for_all_workers_and_others_in_each_step(keep: float) -> None:
    size, k = 500, max(1, int(500 * keep))
    compressor, e = flat("randomk", size, keep=keep), torch.arange(1.0, size + 1)
    drawn = [compressor.encode(e, Address(worker, 4)).tensors["values"].clone() for worker in range(3)]
    assert torch.equal(drawn[0], drawn[1]) and torch.equal(drawn[0], drawn[2])
    assert len(set(drawn[0].tolist())) == k
    out = torch.zeros(size)
    compressor.add_decoded(compressor.encode(e, AT), out, AT)
    assert torch.equal(out[out != 0], e[out != 0]) and int((out != 0).sum()) == k
    if keep < 1:
        again = compressor.encode(e, Address(0, 5)).tensors["values"]
        assert set(again.tolist()) != set(drawn[0].tolist())
        assert set(flat("randomk", size, keep=keep).encode(e, Address(7, 5)).tensors["values"].tolist()) == set(
            again.tolist()
        )


@pytest.mark.parametrize("keep", [0.05, 0.4])
def test_randomk_is_unbiased_if_it_is_scaled_and_a_contraction_if_not(keep: float) -> None:
    """Means over 4,000 steps, within 5 standard errors of what they should be."""
    size, steps = 40, 4000
    e = numbers(size, torch.float64)
    k = int(size * keep)
    for unbiased, expected in ((True, e), (False, e * k / size)):
        compressor = flat("randomk", size, keep=keep, unbiased=unbiased, error_feedback=not unbiased)
        total = torch.zeros_like(e)
        for step in range(steps):
            compressor.add_decoded(compressor.encode(e, Address(0, step)), total, Address(0, step), 1 / steps)
        scale = size / k if unbiased else 1.0
        error = scale * e.abs() * (keep * (1 - keep) / steps) ** 0.5
        assert ((total - expected).abs() <= 5 * error).all()


def test_an_unbiased_residual_is_what_was_not_sent() -> None:
    compressor, e = flat("randomk", 50, unbiased=True, error_feedback=False), numbers(50, torch.float64)
    payload, left = compressor.encode(e, AT), e.clone()
    compressor.subtract_sent(payload, left, AT)
    compressor.add_decoded(payload, left, AT)
    torch.testing.assert_close(left, e)


# -- memory ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["topk", "lwtopk", "mstopk", "randomk"])
def test_after_the_first_step_nothing_is_allocated_that_grows_with_the_row(name: str) -> None:
    allocated = []
    for size in (200_000, 400_000):
        compressor, e, out, left = flat(name, size, keep=0.01), numbers(size), torch.zeros(size), numbers(size)
        for step in range(3):
            with Meter() as meter:
                at = Address(0, step)
                payload = compressor.encode(e, at)
                compressor.add_decoded(payload, out, at, 0.5)
                compressor.subtract_sent(payload, left, at)
        allocated.append(meter.allocated_bytes)
    assert abs(allocated[0] - allocated[1]) < 4000
