"""Consensus: the error of gossip averaging, and methods that estimate a mean."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from decentral.config.composition import compose
from decentral.config.schema import Config
from decentral.measurements.consensus import Consensus, starts
from decentral.store import Status


def consensus(config: Config, seed: int, rounds: int, dimension: int) -> Consensus:
    return Consensus(config, seeds=[seed], rounds=rounds, at=[rounds], dimension=dimension)


def config_of(folder: Path, *overrides: str) -> Config:
    return compose(["task=mean_estimation", "algo=dpsgd", *overrides, f"results_dir={folder}", "progress=false"])


@pytest.mark.parametrize("topology", ["ring", "star", "exponential", "one_peer_exponential"])
def test_the_error_after_t_rounds_is_that_of_the_product_of_the_matrices(topology: str, tmp_path: Path) -> None:
    n, d, rounds = 6, 3, 12
    config = config_of(tmp_path, f"topology={topology}", f"num_workers={n}")
    job = consensus(config, 4, rounds, d)
    assert job.carry_out() is Status.done
    ((line,)) = job.found()
    x, schedule = starts(n, d, 4).numpy(), config.rounds()
    mean = x.mean(0)
    for t, found in enumerate(line["errors"]):
        expected = np.linalg.norm(x - mean) / np.linalg.norm(np.tile(mean, (n, 1)))
        assert found == pytest.approx(expected, rel=1e-9, abs=1e-14)
        x = schedule.matrices(t)[0] @ x


def test_one_peer_exponential_is_exact_after_log2_n_rounds_and_push_sum_unbiased_on_a_grid(tmp_path: Path) -> None:
    exact = consensus(config_of(tmp_path, "topology=one_peer_exponential", "num_workers=8"), 1, 3, 5)
    grid = "topology=one_peer", "topology.graph=grid", "num_workers=6"
    pushed = consensus(config_of(tmp_path, *grid, "algo=sgp"), 1, 300, 5)
    for job in (exact, pushed):
        job.carry_out()
        errors = job.found()[0]["errors"]
        assert errors[-1] < 1e-12 and min(errors[:3]) > 0.1
