"""Private gossip: the account of pairs against worked examples, the noise of a run, and what a run records."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from configure import configure
from conftest import exit_status
from decentral.cli.run import main
from decentral.errors import ConfigError
from decentral.plugins.private.accountant import NoAccount, covariance, epsilon, pairs
from decentral.plugins.private.privacy.gaussian import Gaussian, Protected
from decentral.store.metrics import read_metrics


def squared(*words: str, T: int, pair_sigma: float = 0.0) -> np.ndarray:
    return np.square(pairs(configure("task=quadratics", *words), [1.0] * T, 1.0, pair_sigma))


def test_the_account_of_d_psgd_is_that_of_worked_examples() -> None:
    path = "algo=dpsgd", "topology=chain", "num_workers=3"  # end to end, Metropolis weights; by hand
    assert [squared(*path, T=T)[0, 2] for T in (2, 3, 4)] == pytest.approx([0.1, 9 / 26, 955 / 1370], abs=1e-9)
    ring = "algo=dpsgd", "topology=ring", "num_workers=8"
    assert squared(*ring, T=6)[0, 1:5] == pytest.approx([5.936, 0.969, 0.152, 0.0304], abs=5e-4)
    whole = squared("algo=dpsgd", "topology=complete", "num_workers=4", T=3)
    assert whole[0, 1] == pytest.approx(3)  # everybody hears everything


def test_correlated_noise_hides_less_from_its_partners_than_from_outside() -> None:
    rounds = configure("task=quadratics", "algo=dpsgd", "topology=ring", "num_workers=8").rounds()
    assert np.linalg.inv(covariance(rounds, 1.0, 3.0))[0, 0] == pytest.approx(0.1893, abs=1e-4)
    seen = squared("algo=dpsgd", "topology=ring", "num_workers=8", T=40, pair_sigma=3.0)[0, 1:5] / 40
    assert (seen <= [0.2890, 0.2333, 0.2077, 0.2003]).all() and (np.diff(seen) < 0).all()


def test_epsilon_is_exact() -> None:
    assert epsilon(0.1**0.5, 1e-5) == pytest.approx(1.1994, abs=1e-4)
    assert epsilon(2**0.5, 1e-5) == pytest.approx(6.573, abs=1e-3)
    assert epsilon(0.0, 1e-5) == epsilon(1e-6, 1e-5) == 0.0


def test_the_account_covers_momentum_and_tracking_and_names_what_it_does_not() -> None:
    plain, *others = (
        squared(*words, "topology=ring", "num_workers=6", T=5)
        for words in (("algo=dpsgd",), ("algo=dpsgd", "optim=nesterov"), ("algo=gradient_tracking",), ("algo=d2",))
    )
    for mu in (plain, *others):
        assert (mu <= 5 + 1e-9).all() and (mu.diagonal() == 0).all() and (mu[0, 1:] > 0).all()
    for words in (
        ("algo=allreduce",),
        ("algo=relaysgd", "topology=chain"),
        ("algo=dpsgd", "optim=adam"),
        ("algo=slowmo",),
    ):
        with pytest.raises(NoAccount):
            squared(*words, "num_workers=6", T=13)


class Zero:
    """A problem whose gradients are zero, or large."""

    size = 0.0

    def gradient(self, x: torch.Tensor, draws: np.ndarray, workers: Any = None) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.zeros(len(x)), torch.full_like(x, self.size)


def test_gradients_are_clipped_and_the_noise_of_pairs_cancels() -> None:
    config = configure("task=quadratics", "algo=dpsgd", "topology=ring", "num_workers=4")
    x, draws = torch.zeros(4, 50_000), np.zeros(4, dtype=np.int64)
    privacy, problem = Gaussian(clip=2.0, sigma=1e-6, pair_sigma=3.0), Zero()
    protected = Protected(problem, privacy, config, range(4))  # type: ignore[arg-type]
    _, g = protected.gradient(x, draws)
    assert g.sum(0).abs().max() < 1e-3 and g.std(1) == pytest.approx(np.full(4, 18**0.5), rel=0.02)
    half = Protected(problem, privacy, config, range(2, 4))  # type: ignore[arg-type]
    assert torch.equal(half.gradient(x[2:], draws[2:])[1], g[2:])
    assert torch.equal(half.gradient(x[3:], draws[3:], [1])[1], g[3:])
    assert not torch.equal(half.gradient(x[2:], draws[2:] + 1)[1], g[2:])
    problem.size = 5.0
    own = Protected(problem, Gaussian(clip=2.0, sigma=1e-9), config, range(4))  # type: ignore[arg-type]
    assert own.gradient(x, draws)[1].norm(dim=1) == pytest.approx(np.full(4, 2.0), rel=1e-4)


def test_a_run_records_how_private_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    words = "task=quadratics", "num_workers=6", "steps=12", "privacy=gaussian", "privacy.sigma=20", "logger=none"
    for name, more in (("gossip", ("algo=dpsgd", "topology=ring")), ("mean", ("algo=allreduce",))):
        exit_status(main, *words, *more, f"run_dir={name}")
    assert capsys.readouterr().out.count("Privacy:  gossip/privacy.csv") == 1
    rows = [row for row in read_metrics(tmp_path / "gossip") if row["split"] == "privacy"]
    of = {(row["metric"], row["worker"]): row["value"] for row in rows}
    assert {row["step"] for row in rows} == {12} and len(rows) == 10
    assert 0 < of["epsilon", "mean"] <= of["epsilon", "worst"] <= of["epsilon_if_all_is_seen", "worst"] + 1e-9
    assert len((tmp_path / "gossip" / "privacy.csv").read_text().splitlines()) == 1 + 6 * 5
    names = {row["metric"] for row in read_metrics(tmp_path / "mean") if row["split"] == "privacy"}
    assert names == {"epsilon_if_all_is_seen"}


def test_privacy_without_noise_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"privacy\.sigma=0 "):
        configure("task=quadratics", "privacy=gaussian", "privacy.sigma=0")
