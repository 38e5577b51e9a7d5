"""Compressors that give every coordinate a number, and PowerSGD, against their formulas, written plainly."""

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
from decentral.registry import components
from test_compression import LAYOUT, P, Together, bound, decoded, rows

AT = Address(0, 0)


def flat(name: str, size: int, **settings: Any) -> Any:
    return components("compression")[name](**settings).bound(RowLayout.flat(size), 3)


def through(compressor: Any, e: Tensor, at: Address = AT) -> Tensor:
    return decoded(compressor, compressor.encode(e, at), e, at)


# -- bf16 --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_bf16_rounds_to_the_nearest_and_leaves_its_own_numbers_alone(dtype: torch.dtype) -> None:
    e = rows(dtype=dtype)[0] * torch.logspace(-20, 20, P, dtype=dtype)
    once = through(bound("bf16"), e)
    assert torch.equal(once, e.bfloat16().to(dtype)) and not torch.equal(once, e)
    assert ((once - e).abs() <= 2**-8 * e.abs()).all()
    assert torch.equal(through(bound("bf16"), once), once)


def test_the_mean_of_bf16_rows_is_formed_in_bf16() -> None:
    net: Any = Together(2)
    g = torch.ones(2, P)
    g[1] += 2**-6
    compressor = bound("bf16", error_feedback=False)
    found, _, _ = compressor.combine(g, compressor.residual(g), compressor.memory(g, 4), net, 0)
    assert torch.equal(found, torch.full((2, P), 1 + 2**-7)) and net.means == [P]


# -- int8 --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1, 15, 16, 17, 100])
@pytest.mark.parametrize("at_once", [16, 1 << 17])
def test_int8_rounds_up_or_down_to_the_levels_of_its_block(
    size: int, at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(selection, "_BLOCK", at_once)
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
    """The mean of 4,000 draws is e within 5 standard errors; a level is s, an error's variance at most s^2 / 4."""
    compressor, e, draws = flat("int8", 40, block=20), rows(size=40)[0], 4000
    total = torch.zeros(40, dtype=torch.float64)
    for step in range(draws):
        total += through(compressor, e, Address(1, step)).double()
    scale = e.view(2, 20).abs().amax(1).repeat_interleave(20) / 127
    assert ((total / draws - e).abs() <= 5 * scale / 2 / draws**0.5).all()
    assert not torch.equal(through(compressor, e, Address(1, 0)), through(compressor, e, Address(2, 0)))
    assert not torch.equal(through(compressor, e, Address(1, 0)), through(compressor, e, Address(1, 1)))


def test_a_block_with_what_is_no_number_says_so_and_the_others_do_not_suffer() -> None:
    e = rows(size=64)[0]
    e[20], e[40] = float("nan"), float("inf")
    found = through(flat("int8", 64, block=16), e).isfinite().view(4, 16)
    assert found[[0, 3]].all() and not found[[1, 2]].any()


# -- sign --------------------------------------------------------------------------------------------------------------


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


def test_signs_of_a_row_of_zeros_decode_to_zeros_and_a_layer_alone_suffers_from_what_is_no_number() -> None:
    e = torch.zeros(P)
    assert not through(bound("sign"), e).any()
    e[218] = float("nan")
    assert through(bound("sign"), e).isfinite().logical_not().nonzero()[:, 0].tolist() == list(range(216, 224))


# -- powersgd ----------------------------------------------------------------------------------------------------------


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


def test_powersgd_gives_matrices_of_its_rank_as_they_are() -> None:
    x = torch.zeros(1, P, dtype=torch.float64)
    for part, a, b in MATRICES.values():
        x[0, part] = (rows(a, size=2, dtype=torch.float64) @ rows(2, size=b, dtype=torch.float64, seed=1)).ravel()
    net: Any = Together(1)
    for rank in (2, 3):  # the third column belongs to nothing
        compressor = bound("powersgd", rank=rank)
        found, r, _ = compressor.combine(x.clone(), compressor.residual(x), compressor.memory(x, 4), net, 0)
        torch.testing.assert_close(found, x)
        assert r.abs().max() < 1e-12


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


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("place", [5, 218, 300])
def test_powersgd_passes_on_what_is_no_number(place: int, value: float) -> None:
    compressor, net = bound("powersgd"), Together(2)
    g = rows(2)
    g[1, place] = value
    found, _, _ = compressor.combine(g, compressor.residual(g), compressor.memory(g, 4), net, 0)  # type: ignore[arg-type]
    assert not found.isfinite().all()


# -- memory ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["none", "bf16", "int8", "sign"])
def test_after_the_first_step_nothing_is_allocated_that_grows_with_the_row(name: str) -> None:
    """But for one scale in 2,048 numbers."""
    allocated = []
    for size in (1_000_000, 2_000_000):
        compressor, e, out = flat(name, size), rows(size=size)[0], torch.zeros(size)
        for step in range(2):
            with Meter() as meter:
                payload = compressor.encode(e, Address(0, step))
                compressor.add_decoded(payload, out, Address(0, step), 0.5)
        allocated.append(meter.allocated_bytes)
    assert allocated[1] - allocated[0] <= 8 * 1_000_000 / 2048 + 1000


def test_the_layout_says_where_parameters_lie() -> None:
    assert LAYOUT.slices == [slice(0, 216), slice(216, 224), slice(224, 344), slice(344, 345)]
    assert RowLayout.flat(7).num_coordinates == 7
