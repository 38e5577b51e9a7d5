"""Numbers about schedules that papers and tables quote."""

from __future__ import annotations

import numpy as np

from decentral.topology.schedule import Schedule


def second_largest_eigenvalue_modulus(W: np.ndarray) -> float:
    """|lambda_2|: mixing with W shrinks disagreement by this factor each round in the long run; 0 for one worker."""
    moduli = np.sort(np.abs(_eigenvalues(W)))
    return float(moduli[-2]) if len(moduli) > 1 else 0.0


def smallest_eigenvalue(W: np.ndarray) -> float:
    """The smallest eigenvalue of W (its real part where W is not symmetric)."""
    return float(_eigenvalues(W).real.min())


def _eigenvalues(W: np.ndarray) -> np.ndarray:
    return np.linalg.eigvalsh(W) if np.array_equal(W, W.T) else np.linalg.eigvals(W)


def mean_delay(schedule: Schedule, overlap: bool = False) -> float:
    """How many steps old, on average, the models are that RelaySum adds up: (1/n^2) sum_ij max(tau_ij - 1, 0).

    A neighbour's message is used in the step in which it is sent; with `overlap` in the next one, so the delay is
    tau_ij. Averaged over the pieces. 1 + mean_delay is the factor by which RelaySGD shrinks the effect of a single
    update (Vogels et al., NeurIPS 2021, appendix D.1). The schedule must be static and every piece connected.
    """
    tau = schedule.hops()
    assert (tau >= 0).all(), "some workers never hear of each other"
    return float(np.mean(tau if overlap else np.maximum(tau - 1, 0)))
