"""Methods that treat matrices apart, written once more with dense matrices, and methods of several papers in their
limits."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import decentral
from configure import configure
from decentral.algorithms.dpsgd import Mode
from decentral.compression.rows import RowLayout
from decentral.errors import ConfigError
from decentral.network.local import LocalNetwork
from decentral.network.world import World
from decentral.optim.muon import Muon, Polynomial, Scale
from decentral.optim.optimizer import LocalRule
from decentral.optim.sgd import SGD
from decentral.randomness import numpy_generator
from decentral.registry import components
from decentral.topology.delivery import Losses
from reference_runs import iterates

N = 5
LAYOUT = RowLayout(("wide", "bias", "square", "kernel"), ((2, 4), (3,), (3, 3), (4, 3, 1, 2)))
MATRICES = [(0, 2, 4), (2, 3, 3), (3, 4, 6)]  # number and shape; a kernel is [out, rest]
X0 = np.random.default_rng(0).normal(size=LAYOUT.num_coordinates)


def gradients(t: int) -> np.ndarray:
    return np.random.default_rng([7, t]).normal(size=(N, len(X0)))


def opened(
    name: str, topology: str, n: int = N, lr: float = 0.1, **settings: Any
) -> tuple[Any, LocalNetwork, np.ndarray]:
    """The method with plain SGD for rows of this layout, its network, and W."""
    config = configure("task=quadratics", "algo=dpsgd", f"topology={topology}", f"num_workers={n}")
    net = LocalNetwork(config.rounds(), Losses(0, 0))
    algorithm = components("algorithms")[name](**settings)
    algorithm = algorithm.bind(LocalRule(SGD(), lambda t: lr), components("compression")["none"]().bound(LAYOUT, 0))
    return algorithm, net, net.rounds.matrices(0)[0]


def taken(algorithm: Any, net: LocalNetwork, steps: int) -> Iterator[Any]:
    """The state after each step with these gradients."""
    s = algorithm.init(torch.from_numpy(X0).repeat(N, 1), net)
    for t in range(steps):
        s = algorithm.step(s, lambda x, t=t: torch.from_numpy(gradients(t)), net, t)
        yield s


def agree(found: Tensor, wanted: np.ndarray, atol: float = 1e-11) -> None:
    np.testing.assert_allclose(found.numpy(), wanted, rtol=0, atol=atol)


def sign(y: np.ndarray) -> np.ndarray:
    """U V^T of every matrix, and vectors at length 1."""
    y = y.copy()
    for number, place in enumerate(LAYOUT.slices):
        if shapes := [shape for i, *shape in MATRICES if i == number]:
            U, _, Vt = np.linalg.svd(y[:, place].reshape(N, *shapes[0]), full_matrices=False)
            y[:, place] = (U @ Vt).reshape(N, -1)
        else:
            y[:, place] /= np.linalg.norm(y[:, place], axis=1, keepdims=True)
    return y


def test_demuon_tracks_the_momentum_and_steps_along_matrix_signs() -> None:
    algorithm, net, W = opened("demuon", "ring", beta=0.8, exact=True)
    x, m = np.tile(X0, (N, 1)), np.zeros((N, len(X0)))
    y = m
    for t, s in enumerate(taken(algorithm, net, 6)):
        m, before = 0.8 * m + 0.2 * gradients(t), m
        y = W @ (y + m - before)
        moved = W @ x
        x = W @ (x - 0.1 * sign(y))
        agree(s.x, x)
        for number, *shape in MATRICES:  # no matrix moves by more than lr sqrt(rank)
            length = np.linalg.norm((x - moved)[:, LAYOUT.slices[number]], axis=1)
            assert (length <= 0.1 * min(shape) ** 0.5 + 1e-12).all()


def test_demuon_is_muon_on_the_mean_gradient_where_all_meet() -> None:
    """Muon's vectors follow AdamW, so matrices are compared."""
    for polynomial in (Polynomial.quintic, Polynomial.triples):
        algorithm, net, _ = opened("demuon", "complete", beta=0.8, polynomial=polynomial)
        muon = Muon(scale=Scale.none, nesterov=False, momentum=0.8, weight_decay=0, polynomial=polynomial)
        muon.adamw_last = False
        local, x = muon.rule(lambda t: 0.1, LAYOUT), torch.from_numpy(X0)[None].clone()
        buffers = local.init(x)
        for t, s in enumerate(taken(algorithm, net, 4)):
            x, buffers = local.adapt(x, torch.from_numpy(gradients(t)).mean(0, keepdim=True), buffers, t)
            for number, *_ in MATRICES:
                place = LAYOUT.slices[number]
                agree(s.x[:, place], x[:, place].repeat(N, 1).numpy(), 1e-9)


def gram_schmidt(A: np.ndarray) -> np.ndarray:
    A = A.copy()
    for i in range(A.shape[1]):
        A[:, i] /= np.linalg.norm(A[:, i]) + 1e-8
        A[:, i + 1 :] -= np.outer(A[:, i], A[:, i] @ A[:, i + 1 :])
    return A


@pytest.mark.parametrize(("mode", "rank", "iterations"), [("awc", 1, 1), ("awc", 2, 2), ("atc", 2, 1), ("atc", 8, 2)])
def test_powergossip_averages_differences_of_low_rank(mode: str, rank: int, iterations: int) -> None:
    algorithm, net, W = opened("powergossip", "ring", rank=rank, iterations=iterations, mode=Mode(mode), seed=3)
    edges = [(i, j) for i in range(N) for j in range(i + 1, N) if W[i, j]]
    ranks = [min(rank, a, b) for _, a, b in MATRICES]
    P: dict[Any, np.ndarray] = {}
    Q: dict[Any, np.ndarray] = {}
    for edge in edges:
        drawn, start = numpy_generator(3, "powergossip", *edge), 0
        sizes = [a * k for (_, a, _), k in zip(MATRICES, ranks, strict=True)]
        sizes += [b * k for (_, _, b), k in zip(MATRICES, ranks, strict=True)]
        values = drawn.normal(size=sum(sizes))
        for place, (size, k) in enumerate(zip(sizes, ranks * 2, strict=True)):
            factors, number = (P, place) if place < len(ranks) else (Q, place - len(ranks))
            factors[(*edge, number)] = values[start : start + size].reshape(-1, k)
            start += size
    numbers = 0

    def gossip(x: np.ndarray, s: int) -> np.ndarray:
        nonlocal numbers
        new = x.copy()
        vector = LAYOUT.slices[1]
        new[:, vector] = W @ x[:, vector]
        numbers += 2 * len(edges) * 3
        for lo, hi in edges:
            for m, (number, a, b) in enumerate(MATRICES):
                place, at = LAYOUT.slices[number], (lo, hi, m)
                D = (x[hi, place] - x[lo, place]).reshape(a, b)
                if s % 2:
                    Q[at] = gram_schmidt(Q[at])
                    P[at] = D @ Q[at]
                else:
                    P[at] = gram_schmidt(P[at])
                    Q[at] = D.T @ P[at]
                numbers += 2 * ranks[m] * (a if s % 2 else b)
                moved = W[lo, hi] * (P[at] @ Q[at].T).ravel()
                new[lo, place] += moved
                new[hi, place] -= moved
        return new

    x = np.tile(X0, (N, 1))
    for t, state in enumerate(taken(algorithm, net, 6)):
        u = -0.1 * gradients(t)
        if mode == "atc":
            x = x + u
            for r in range(iterations):
                x = gossip(x, iterations * t + 1 + r)
        else:
            y = x
            for r in range(iterations if t else 0):
                y = gossip(y, iterations * t + r)
            x = y + u
        agree(state.x, x, 1e-9)
        agree(state.x.mean(0), X0 - 0.1 * sum(gradients(s).mean(0) for s in range(t + 1)))
        assert net.traffic.bytes_sent == 8 * numbers


OUTER = ("task=quadratics", "task.dimension=6", "task.initial_distance=1", "lr=0.05", "steps=24", "num_workers=5")
LOCAL_ADAMW = "optim=adamw optim.weight_decay=0.05"
LIMITS = {
    "slowmo over local sgd": ("algo=slowmo algo.base=local_sgd algo.period_steps=4 algo.outer_lr=0.7 optim=momentum",
                              "algo=diloco algo.nesterov=false algo.period_steps=4 algo.outer_lr=0.7 "
                              "algo.outer_momentum=0.5 optim=momentum"),
    "slowmo in each step": ("algo=slowmo algo.period_steps=1 algo.outer_momentum=0", "algo=model_averaging"),
    "slowmo that never steps": ("algo=slowmo algo.base=sgp algo.period_steps=40", "algo=sgp topology=ring"),
    "slowmo at a rate that stays": ("algo=slowmo algo.period_steps=3",
                                    "algo=slowmo algo.period_steps=3 algo.in_lr_units=false"),
    "averages over equal buffers": ("algo=slowmo algo.period_steps=1 optim=momentum algo.buffers=average topology=ring "
                                    "algo.outer_momentum=0", "algo=allreduce optim=momentum"),
    "gpa that averages nothing": ("algo=gpa algo.average=0 optim=adamw", "algo=allreduce optim=adamw"),
    "powergossip of vectors": ("algo=powergossip algo.mode=atc", "algo=dpsgd"),
    "gt-sarah of full gradients": ("algo=gt_sarah algo.inner_steps=0",
                                   "algo=gradient_tracking algo.mode=awc topology=ring"),
    "lt-admm of one local step": ("algo=lt_admm algo.period_steps=1 topology=ring", "algo=extra topology=ring"),
    "desloc whose states stay": (f"algo=desloc algo.period_steps=3 algo.state_periods=[0] {LOCAL_ADAMW}",
                                 f"algo=local_sgd algo.period_steps=3 {LOCAL_ADAMW}"),
    "desloc of models in each step": (f"algo=desloc algo.period_steps=1 algo.state_factors=[0] {LOCAL_ADAMW}",
                                      f"algo=model_averaging {LOCAL_ADAMW}"),
    "desloc of models and momentum in each step": (
        "algo=desloc algo.period_steps=1 algo.state_factors=[1] optim=momentum", "algo=allreduce optim=momentum"),
    "desloc alone": (f"algo=desloc num_workers=1 task.zeta2=0 algo.period_steps=2 {LOCAL_ADAMW}",
                     f"algo=allreduce num_workers=1 task.zeta2=0 {LOCAL_ADAMW}"),
    "mt-dao without a gradient": (f"algo=desloc {LOCAL_ADAMW} optim.gradient_share=0", f"algo=desloc {LOCAL_ADAMW}"),
    "all of the gradient": ("algo=desloc optim=momentum optim.gradient_share=1", "algo=desloc optim=sgd"),
    "sparta of everything": ("algo=sparta algo.share=1 optim=adam", "algo=model_averaging optim=adam"),
    "sparta of everything in turn": ("algo=sparta algo.share=1 algo.select=partitioned", "algo=allreduce"),
    "sparta of nothing": ("algo=sparta algo.share=0", "algo=local_sgd algo.period_steps=100"),
    "sparta with diloco of nothing": ("algo=sparta_diloco algo.share=0 algo.period_steps=5",
                                      "algo=diloco algo.period_steps=5"),
    "sparta with diloco that goes on": (
        "algo=sparta_diloco algo.share=0.4 algo.period_steps=4 algo.outer_lr=0 algo.outer_momentum=0 steps=3",
        "algo=sparta algo.share=0.4 steps=3"),
}  # fmt: skip


@pytest.mark.parametrize("limit", LIMITS)
def test_a_method_is_another_one_in_its_limit(limit: str) -> None:
    alone = World(0, 1, torch.device("cpu"))
    one, other = (iterates(alone, configure(*OUTER, *words.split())) for words in LIMITS[limit])
    np.testing.assert_allclose(one, other, rtol=0, atol=1e-12)
    assert np.abs(one[-1] - one[0]).max() > 0.01


def test_slowmo_may_reset_the_momentum_and_keeps_its_own_where_the_rate_is_zero() -> None:
    """Rates 0.1, 0.1; 0.1, 0: the second outer step moves to the mean, which plain SGD has reached after a reset."""
    for buffers in ("maintain", "reset"):
        config = configure("task=quadratics", "algo=slowmo", f"algo.buffers={buffers}", "algo.period_steps=2",
                           "topology=ring", f"num_workers={N}")  # fmt: skip
        rule = LocalRule(SGD(momentum=0.9), lambda t: 0.1 * (t != 3))
        algorithm = config.algo.bind(rule, components("compression")["none"]().bound(LAYOUT, 0))
        *_, last = taken(algorithm, LocalNetwork(config.rounds(), Losses(0, 0)), 4)
        gap = last.phi.numpy() - (X0 - 0.1 * last.u.numpy() - 0.1 * gradients(2).mean(0))
        assert (np.abs(gap).max() < 1e-12) == (buffers == "reset")


def test_nids_is_exact_where_each_worker_has_its_own_step_size(start) -> None:
    rates = "lr_per_worker=[0.3,0.15,0.24,0.27,0.18]"
    words = (
        "task=quadratics",
        "task.dimension=6",
        "num_workers=5",
        "topology=ring",
        rates,
        "evaluation.every_epochs=500",
    )
    reached = [
        start(f"algo={name}", *words, "steps=500", directory=name).last("distance_to_optimum", "worst")
        for name in ("nids", "exact_diffusion")
    ]
    assert reached[0] < 1e-8 and reached[1] > 1e-2


def test_methods_that_name_samples_follow_given_indices_and_gt_saga_is_exact_at_a_constant_rate(
    start, tmp_path
) -> None:
    n, m = 5, 8
    words = [f"num_workers={n}", "topology=ring", "task=regression", f"task.samples_per_worker={m}", "task.l2=0.1"]
    words += ["evaluation.every_epochs=600", "lr=0.1", "trace=true"]
    for algo in ("gt_saga", "gt_sarah", "lt_admm_vr"):
        drawn = [[numpy_generator(0, "samples", i, t).integers(m, size=1) for i in range(n)] for t in range(30)]
        np.savez(tmp_path / "indices.npz", indices=drawn)
        one = start(f"algo={algo}", *words, "steps=600" if algo == "gt_saga" else "steps=30", directory=algo)
        assert algo != "gt_saga" or one.last("distance_to_optimum", "worst") < 1e-6
        short = [f"algo={algo}", *words, "steps=30", f"algo.indices={tmp_path}/indices.npz"]
        np.testing.assert_array_equal(start(*short, directory=f"given {algo}").iterates, one.iterates[:31])
    with pytest.raises(ConfigError, match=r"task=images cannot be used with algo=gt_saga, which needs gradients of"):
        configure("algo=gt_saga", "task=images", "data=synthetic", "num_workers=4", "topology=ring")
    np.savez(tmp_path / "indices.npz", indices=np.full((3, n, 1), m))
    with pytest.raises(ConfigError, match=rf"holds int64 \[3, 5, 1\]: give an .npz file with .*each from 0 to {m - 1}"):
        start(*short, directory="wrong")


def test_iterates_take_gradients_of_samples_and_shapes_of_parameters(start, tmp_path) -> None:
    n, d, lr = 5, 4, 0.02
    draw = np.random.default_rng(3)
    A, b, x0 = draw.normal(size=(n, d, d)), draw.normal(size=(n, d)), draw.normal(size=(n, d))
    np.savez(tmp_path / "problem.npz", A=A, b=b, x0=x0)
    np.savez(tmp_path / "indices.npz", indices=draw.integers(d, size=(20, n, 2)))

    def oracle(x: np.ndarray, t: int, samples: np.ndarray) -> np.ndarray:
        a, own = A[np.arange(n)[:, None], samples], np.arange(n)[:, None]
        return d * a * (np.einsum("nbd,nd->nb", a, x) - b[own, samples])[..., None]

    given = {"batch": 2, "indices": str(tmp_path / "indices.npz")}
    words = ["task=quadratics", f"task.problem={tmp_path}/problem.npz", "topology=ring", f"lr={lr}", "steps=20"]
    for algo in ("gt_saga", "gt_sarah", "lt_admm_vr"):
        run = start(
            f"algo={algo}",
            *words,
            *(f"algo.{key}={value}" for key, value in given.items()),
            "trace=true",
            directory=algo,
        )
        found = decentral.iterates(algo, "ring", oracle, x0, 20, lr=lr, num_samples=d, algo_settings=given)
        np.testing.assert_allclose(found, run.iterates, rtol=0, atol=1e-12)

    W, g = opened("demuon", "ring")[2], draw.normal(size=(n, d))
    settings: dict[str, Any] = {"lr": lr, "shapes": [(2, 2)], "algo_settings": {"exact": True}}
    U, _, Vt = np.linalg.svd((W @ g).reshape(n, 2, 2))
    found = decentral.iterates("demuon", "ring", lambda x, t: g, x0, 1, **settings)
    np.testing.assert_allclose(found[1], W @ (x0 - lr * (U @ Vt).reshape(n, d)), rtol=0, atol=1e-12)
    for refused, sentence in (({"shapes": [(3,)]}, "have 3 numbers, but x0 has 4"), ({"num_samples": 2}, "leave")):
        with pytest.raises(ConfigError, match=sentence):
            decentral.iterates("dpsgd", "ring", lambda x, t: g, x0, 1, **refused)
