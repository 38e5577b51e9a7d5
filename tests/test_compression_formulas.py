"""Compressors against their formulas, written plainly: those that give every coordinate a number, and sparse ones."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from bench.traffic import Meter
from decentral import iterates
from decentral.compression import selection
from decentral.compression.dct_topk import Transform
from decentral.compression.rows import Address, RowLayout
from decentral.compression.sparse import TopK
from decentral.errors import ConfigError
from decentral.network.local import LocalNetwork
from decentral.optim.optimizer import LocalRule
from decentral.optim.sgd import SGD
from decentral.registry import components
from decentral.topology.delivery import Losses
from decentral.topology.topology import topology_of
from test_compression import P, Together, bound, decoded, rows

# -- Compressors that give every coordinate a number, and PowerSGD, against their formulas, written plainly

AT = Address(0, 0)


def flat(name: str, size: int, **settings: Any) -> Any:
    return components("compression")[name](**settings).bound(RowLayout.flat(size), 3)


def through(compressor: Any, e: Tensor, at: Address = AT) -> Tensor:
    return decoded(compressor, compressor.encode(e, at), e, at)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_bf16_rounds_to_the_nearest_and_leaves_its_own_numbers_alone(dtype: torch.dtype) -> None:
    e = rows(dtype=dtype)[0] * torch.logspace(-20, 20, P, dtype=dtype)
    once = through(bound("bf16"), e)
    assert torch.equal(once, e.bfloat16().to(dtype)) and not torch.equal(once, e)
    assert ((once - e).abs() <= 2**-8 * e.abs()).all()
    assert torch.equal(through(bound("bf16"), once), once)


@pytest.mark.parametrize("size", [15, 16, 100])
def test_int8_rounds_up_or_down_to_the_levels_of_its_block(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(selection, "_BLOCK", 16)
    row = rows(size=size, dtype=torch.float64)[0]
    compressor, e = flat("int8", size, block=16), row.numpy()
    payload = compressor.encode(row, AT)
    expected = np.array([np.abs(e[b : b + 16]).max() / 127 for b in range(0, size, 16)])
    np.testing.assert_allclose(payload.tensors["scales"], expected, rtol=1e-15)
    scale = np.repeat(expected, 16)[:size]
    levels = payload.tensors["values"].double().numpy()
    assert np.all((levels == np.floor(e / scale + 1e-9)) | (levels == np.ceil(e / scale - 1e-9)))
    np.testing.assert_allclose(decoded(compressor, payload, row, AT), levels * scale, rtol=1e-14)
    assert payload.num_bytes == size + 8 * -(-size // 16)


def test_int8_is_unbiased() -> None:
    """The mean of 1,000 draws is e within 5 standard errors; a level is s, an error's variance at most s^2 / 4."""
    compressor, e, draws = flat("int8", 40, block=20), rows(size=40)[0], 1000
    total = torch.zeros(40, dtype=torch.float64)
    for step in range(draws):
        total += through(compressor, e, Address(1, step)).double()
    scale = e.view(2, 20).abs().amax(1).repeat_interleave(20) / 127
    assert ((total / draws - e).abs() <= 5 * scale / 2 / draws**0.5).all()
    assert not torch.equal(through(compressor, e, Address(1, 0)), through(compressor, e, Address(2, 0)))
    assert not torch.equal(through(compressor, e, Address(1, 0)), through(compressor, e, Address(1, 1)))


def test_a_nan_stays_in_its_block() -> None:
    e = rows(size=64)[0]
    e[20], e[40] = float("nan"), float("inf")
    found = through(flat("int8", 64, block=16), e).isfinite().view(4, 16)
    assert found[[0, 3]].all() and not found[[1, 2]].any()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("at_once", [64, 1 << 17])
def test_sign_sends_bits_and_the_mean_magnitude_of_each_layer(
    at_once: int, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(selection, "_BLOCK", at_once)
    compressor, e = bound("sign"), rows(dtype=dtype)[0]
    e[[3, 200, 344]] = 0.0
    payload = compressor.encode(e, AT)
    signs = np.packbits((e >= 0).numpy(), bitorder="little")
    np.testing.assert_array_equal(payload.tensors["signs"], signs)
    expected = torch.cat([part.abs().mean() * torch.where(part >= 0, 1.0, -1.0) for part in e.split([216, 8, 120, 1])])
    torch.testing.assert_close(decoded(compressor, payload, e, AT), expected.to(dtype))
    assert payload.num_bytes == 44 + 4 * dtype.itemsize


def test_signs_of_zeros_are_zeros_and_a_nan_stays_in_its_layer() -> None:
    e = torch.zeros(P)
    assert not through(bound("sign"), e).any()
    e[218] = float("nan")
    assert through(bound("sign"), e).isfinite().logical_not().nonzero()[:, 0].tolist() == list(range(216, 224))


def power_iteration(
    e: np.ndarray, Q: dict[int, np.ndarray], shapes: dict[int, tuple[slice, int, int]]
) -> tuple[np.ndarray, np.ndarray, dict[int, np.ndarray]]:
    """Algorithm 1 and 2 of the paper: the mean, the residuals and the new Q, for e [n, P]."""
    mean, left, following = e.mean(0), np.zeros_like(e), {}
    for number, (part, a, b) in shapes.items():
        M = e[:, part].reshape(-1, a, b)
        orthonormal = np.linalg.qr(M.mean(0) @ Q[number])[0]
        own = np.swapaxes(M, 1, 2) @ orthonormal
        following[number] = own.mean(0)
        mean[part] = (orthonormal @ following[number].T).ravel()
        left[:, part] = (M - orthonormal @ np.swapaxes(own, 1, 2)).reshape(len(e), -1)
    return mean, left, following


MATRICES = {0: (slice(0, 216), 8, 27), 2: (slice(224, 344), 10, 12)}


@pytest.mark.parametrize("rank", [1, 2, 3])
def test_powersgd_is_the_papers_algorithm_step_after_step(rank: int) -> None:
    n, net, compressor = 3, Together(3), bound("powersgd", rank=rank)
    x = rows(n, torch.float64)
    r, memory = compressor.residual(x), compressor.memory(x, 4)
    Q = dict(
        zip(MATRICES, (q.numpy().reshape(-1, rank) for q in memory.clone().split([27 * rank, 12 * rank])), strict=True)
    )
    left = np.zeros((n, P))
    for t in range(4):
        g = rows(n, torch.float64, seed=t)
        mean, left, Q = power_iteration(left + g.numpy(), Q, MATRICES)
        found, r, memory = compressor.combine(g, r, memory, net, t)  # type: ignore[arg-type]
        np.testing.assert_allclose(found, np.tile(mean, (n, 1)), atol=1e-12)
        np.testing.assert_allclose(r, left, atol=1e-12)
        np.testing.assert_allclose(memory, np.concatenate([Q[0].ravel(), Q[2].ravel()]), atol=1e-12)
    assert net.means[:2] == [(8 + 10) * rank + 8 + 1, (27 + 12) * rank]


def test_powersgd_sends_small_matrices_and_vectors_as_they_are() -> None:
    layout = RowLayout(("bias", "small", "wide"), ((7,), (4, 4), (3, 50)))
    compressor, net = bound("powersgd", layout, rank=3), Together(2)
    g = rows(2, torch.float64, size=173)
    expected = g.mean(0)
    found, r, memory = compressor.combine(g, compressor.residual(g), compressor.memory(g, 4), net, 0)  # type: ignore[arg-type]
    torch.testing.assert_close(found[0], expected)
    assert not r.any() and net.means == [173] and len(memory) == 0


def test_a_layer_whose_gradient_was_zero_is_learned_later() -> None:
    compressor, net = bound("powersgd"), Together(1)
    g = torch.zeros(1, P)
    r, memory = compressor.residual(g), compressor.memory(g, 4)
    before = memory.clone()
    g, r, memory = compressor.combine(g, r, memory, net, 0)  # type: ignore[arg-type]
    assert not g.any() and not r.any() and torch.equal(memory, before)
    g, r, memory = compressor.combine(rows(), r, memory, net, 1)  # type: ignore[arg-type]
    assert g[0, :216].any() and g[0, 224:344].any()


def test_powersgd_passes_on_a_nan() -> None:
    for place, value in ((5, float("nan")), (218, float("inf")), (300, float("nan"))):
        compressor, net, g = bound("powersgd"), Together(2), rows(2)
        g[1, place] = value
        found, _, _ = compressor.combine(g, compressor.residual(g), compressor.memory(g, 4), net, 0)  # type: ignore[arg-type]
        assert not found.isfinite().all()


@pytest.mark.parametrize("name", ["none", "bf16", "int8", "sign", "topk", "lwtopk", "mstopk", "randomk"])
def test_after_the_first_step_nothing_is_allocated_that_grows_with_the_row(name: str) -> None:
    """But for one scale in 2,048 numbers, and what is sent of sparse rows."""
    allocated, settings = [], {"keep": 0.001} if "k" in name else {}
    for size in (200_000, 400_000):
        compressor, e, out = flat(name, size, **settings), rows(size=size)[0], torch.zeros(size)
        left = e.clone()
        for step in range(3):
            with Meter() as meter:
                payload = compressor.encode(e, Address(0, step))
                compressor.add_decoded(payload, out, Address(0, step), 0.5)
                compressor.subtract_sent(payload, left, Address(0, step))
        allocated.append(meter.allocated_bytes)
    assert abs(allocated[1] - allocated[0]) <= 4000


# -- Compressors that leave coordinates out, against what their formulas say, written plainly

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


def numbers(size: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> Tensor:
    return torch.from_numpy(np.random.default_rng(seed).normal(size=size)).to(dtype)


@DTYPES
def test_topk_sends_the_largest(dtype: torch.dtype) -> None:
    for size, keep in [(1, 1e-9), (2, 0.5), (97, 0.01), (1000, 0.1), (1000, 0.999), (97, 1.0)]:
        e = numbers(size, dtype)
        expected = top(e.double().numpy(), max(1, int(size * keep)))
        assert indices(flat("topk", size, keep=keep), e) == expected


@pytest.mark.parametrize("keep", [0.001, 0.6])
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
def test_topk_takes_nan_first_then_infinity(dtype: torch.dtype) -> None:
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


@pytest.mark.parametrize("samplings", [4, 25])
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


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_threshold_sends_values_that_reach_it(dtype: torch.dtype) -> None:
    e = torch.tensor([0.5, -0.5, 0.49, -3.0, 0.0, float("nan"), -float("inf")], dtype=dtype)
    assert indices(flat("threshold", 7, threshold=0.5), e) == [0, 1, 3, 5, 6]
    assert indices(flat("threshold", 7, threshold=0.5), e[:5].abs().clamp(max=0.4)) == []
    assert flat("threshold", 7).sizes(0, dtype) is None


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
    """Means over 1,000 steps, within 5 standard errors of what they should be."""
    size, steps = 40, 1000
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


# -- The largest DCT coefficients of chunks, and DeMo, with a dense matrix of cosines and loops over chunks

PARAMETERS = RowLayout(("kernel", "bias", "none", "weight", "scale"), ((8, 6, 3, 1), (6,), (0, 4), (10, 12), ()))
NUM, CHUNK, KEPT = PARAMETERS.num_coordinates, 4, 5


def cosines(h: int) -> np.ndarray:
    D = np.array([[np.cos(np.pi * (2 * j + 1) * i / (2 * h)) for j in range(h)] for i in range(h)]) * np.sqrt(2 / h)
    D[0] = 1 / np.sqrt(h)
    return D


def in_chunks(dct: bool) -> tuple[np.ndarray, list[int]]:
    """The transform [NUM, NUM] of a row into coefficients, chunk after chunk, and how many numbers each chunk has."""
    T, sizes, start = [], [], 0
    for shape in PARAMETERS.shapes:
        size = int(np.prod(shape))
        r, c = (shape[0], size // shape[0] if shape[0] else 0) if len(shape) > 1 else (1, size)
        places = start + np.arange(size).reshape(r, c)
        start += size
        if not size:
            continue
        h, w = (max(d for d in range(1, CHUNK + 1) if side % d == 0) for side in (r, c))
        for top in range(0, r, h):
            for left in range(0, c, w):
                block = np.zeros((h * w, NUM))
                block[:, places[top : top + h, left : left + w].ravel()] = (
                    np.kron(cosines(h), cosines(w)) if dct else np.eye(h * w)
                )
                T.append(block)
                sizes.append(h * w)
    return np.concatenate(T), sizes


def kept(e: np.ndarray, T: np.ndarray, sizes: list[int]) -> np.ndarray:
    """The coefficients [n, NUM] of rows that are sent, 0 elsewhere."""
    q = e @ T.T
    for row in q:
        start = 0
        for size in sizes:
            row[start + np.argsort(-np.abs(row[start : start + size]))[KEPT:]] = 0
            start += size
    return q


def of_senders(q: np.ndarray) -> np.ndarray:
    return q.sum(0) / np.maximum((q != 0).sum(0), 1)


@pytest.mark.parametrize("transform", ["dct", "none"])
def test_dct_topk_sends_the_largest_coefficients_of_every_chunk(transform: str) -> None:
    T, sizes = in_chunks(transform == "dct")
    settings = {"transform": Transform[transform], "chunk": CHUNK, "k": KEPT}
    compressor, net, n = bound("dct_topk", PARAMETERS, **settings), Together(3), 3
    np.testing.assert_allclose(T @ T.T, np.eye(NUM), atol=1e-14)
    g = rows(n, torch.float64, size=NUM)
    q = kept(g.numpy(), T, sizes)
    for row, wanted in zip(g, q @ T, strict=True):
        np.testing.assert_allclose(through(compressor, row), wanted, rtol=0, atol=1e-13)
    r = compressor.residual(g)
    for senders, mean in ((False, q.mean(0) @ T), (True, of_senders(q) @ T)):
        found, left, _ = compressor.combine(g.clone(), r.clone(), g[0, :0], net, 0, of_senders=senders)
        np.testing.assert_allclose(found, np.tile(mean, (n, 1)), rtol=0, atol=1e-13)
        np.testing.assert_allclose(left, g.numpy() - q @ T, rtol=0, atol=1e-13)
    assert np.abs(q.mean(0) - of_senders(q)).max() > 0.1


def test_dct_topk_counts_a_byte_for_an_index_into_a_small_chunk_and_two_for_a_large_one() -> None:
    layout = RowLayout(("large", "small", "bias"), ((128, 192), (16, 16), (96,)))
    e = rows(size=layout.num_coordinates)[0]
    large, small = 2 * 3 * 32, 32 + 2 * 32  # 6 chunks of 64 x 64; one of 16 x 16, and 2 of 48
    assert bound("dct_topk", layout).encode(e, AT).num_bytes == large * (4 + 2) + small * (4 + 1)
    assert bound("dct_topk", layout, index_bytes=8).encode(e, AT).num_bytes == (large + small) * 12
    whole = bound("dct_topk", RowLayout(("square",), ((256, 256),)), chunk=256, k=65536)
    e = rows(size=65536, dtype=torch.float64)[0]
    payload = whole.encode(e, AT)
    assert payload.num_bytes == 65536 * (8 + 2)
    torch.testing.assert_close(decoded(whole, payload, e, AT), e, rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    "settings",
    [{}, {"signed": False, "subtract": 0.3, "decay": 0.8}, {"subtract": 0.6, "decoupled_decay": 0.2}],
    ids=str,
)
def test_demo_is_its_formula_on_matrices_and_what_leaves_a_momentum_is_what_it_sent(settings: dict[str, Any]) -> None:
    n, (T, sizes) = 3, in_chunks(True)
    net = LocalNetwork(topology_of("ring", {}).schedule(n), Losses(0.0, 0))
    demo = components("algorithms")["demo"](**settings)
    algorithm = demo.bind(LocalRule(SGD(), lambda t: 0.1 / (1 + t)), bound("dct_topk", PARAMETERS, chunk=CHUNK, k=KEPT))
    x = rows(dtype=torch.float64, size=NUM, seed=9).repeat(n, 1)
    s, y, D = algorithm.init(x.clone(), net), x[0].numpy(), np.zeros((n, NUM))
    for t in range(6):
        g, lr = rows(n, torch.float64, size=NUM, seed=t), 0.1 / (1 + t)
        D = demo.decay * D + lr * g.numpy()
        q = kept(D, T, sizes)
        D = D - demo.subtract * q @ T
        u = of_senders(q) @ T
        before, y = y, (1 - lr * demo.decoupled_decay) * y - lr * (np.sign(u) if demo.signed else u)
        s = algorithm.step(s, lambda x, g=g: g.clone(), net, t)
        np.testing.assert_allclose(s.x, np.tile(y, (n, 1)), rtol=0, atol=1e-12)
        np.testing.assert_allclose(s.D, D, rtol=0, atol=1e-12)
        assert demo.decoupled_decay or not demo.signed or np.abs(y - before).max() <= lr + 1e-15


def test_demo_passes_on_a_nan() -> None:
    def gradient(x: np.ndarray, t: int) -> np.ndarray:
        return np.full_like(x, np.nan)

    assert np.isnan(iterates("demo", "ring", gradient, np.zeros(8), 1, num_workers=2)[-1]).all()
