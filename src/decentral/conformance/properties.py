"""The properties, each with the sentence that says what was seen instead."""

from __future__ import annotations

import numpy as np
import torch

from decentral.config.schema import Config
from decentral.conformance.walk import Impulses, Walk, simulated
from decentral.tasks.problems.convex import random_problem

_STILL_STEPS = 30
_AGREE_STEPS = 3000
_AGREED = 1e-9


class Violation(AssertionError):
    """A property does not hold; the message says what was seen."""


def same(one: Walk, many: Walk, processes: int, tolerance: float = 1e-12) -> None:
    """Whatever the number of processes: the same iterates but for rounding, and the same bytes and messages counted."""
    scale = float(np.abs(one.iterates).max())
    error = np.abs(many.iterates - one.iterates).max(axis=(1, 2))
    if not (error <= tolerance * scale).all():
        step = int(np.argmax(~(error <= tolerance * scale)))
        raise Violation(
            f"with {processes} processes the models differ from those with one by {error[step]:.2g} after step {step} "
            f"(models are up to {scale:.2g}, rounding would be {tolerance * scale:.2g}): something is computed of the "
            "workers of one process that should go through the network, or depends on which process it is in."
        )
    for what in ("bytes_sent", "messages_sent"):
        ours, theirs = getattr(one, what), getattr(many, what)
        if ours != theirs:
            raise Violation(f"{what} is {ours} with one process and {theirs} with {processes}.")


def bytes_sent(walk: Walk) -> None:
    """With one worker in each process, what they send is what is counted."""
    if walk.wire_bytes != walk.bytes_sent:
        raise Violation(f"{walk.bytes_sent} bytes were counted, and the processes sent {walk.wire_bytes}.")


def deterministic(one: Walk, again: Walk) -> None:
    """The same run twice is the same, bit for bit."""
    if not np.array_equal(one.iterates, again.iterates):
        raise Violation(
            f"the same run twice differs by {np.abs(one.iterates - again.iterates).max():.2g}: something is "
            "random that does not follow from the seed (decentral.randomness), or is remembered between runs."
        )


def resumed(straight: np.ndarray, loaded: np.ndarray) -> None:
    """A run that goes on from a checkpoint has the very models that it would have had."""
    if not np.array_equal(straight, loaded):
        raise Violation(
            f"a run that was saved and loaded ends {np.abs(straight - loaded).max():.2g} beside the one that went on: "
            "something that is remembered between steps is not in State."
        )


def finite(walk: Walk) -> None:
    """The models are numbers."""
    if not np.isfinite(walk.iterates).all():
        step = int(np.argmax(~np.isfinite(walk.iterates).all(axis=(1, 2))))
        raise Violation(f"after step {step} a model is infinite or not a number.")


def starts_at(walk: Walk, x0: np.ndarray) -> None:
    """Before the first step every worker has the initial model."""
    if not np.array_equal(walk.iterates[0], np.broadcast_to(x0, walk.iterates[0].shape)):
        raise Violation("before the first step, the models are not the initial model: init should not change it.")


def mean_kept(config: Config) -> None:
    """Without gradients nothing moves, and every worker's update counts as much as any other's."""
    n = config.num_workers
    assert n is not None
    with torch.no_grad():
        x0 = torch.linspace(1.0, 2.0, n, dtype=torch.float64)
        still = simulated(config, x0.repeat(n, 1), Impulses())
        for t in range(_STILL_STEPS):
            still.step()
            moved = float((still.models - x0).abs().max())
            if not moved <= 1e-12:
                raise Violation(
                    f"the mean of the models is not kept: although all workers agree and all gradients are zero, step "
                    f"{t} moves the models by {moved:.2g} (weights that do not sum to one?)."
                )
        moving = simulated(config, x0.repeat(n, 1), Impulses(torch.eye(n, dtype=torch.float64)))
        for _ in range(_AGREE_STEPS):
            moving.step()
            mean = moving.models.mean(0)
            if float((moving.models - mean).abs().max()) <= _AGREED and moving.t > _STILL_STEPS:
                break
        apart = float((moving.models - mean).abs().max())
        if not apart <= 1e-6:
            raise Violation(
                f"the workers do not come to agree: {_AGREE_STEPS} steps after the last gradient their models still "
                f"differ by {apart:.2g}."
            )
        counted = (x0 - mean) * n  # what worker i's update has come to count, times n
        _check_counted(counted, float(config.algo.dilution(config.rounds())))


def _check_counted(counted: torch.Tensor, dilution: float) -> None:
    low, high = int(counted.argmin()), int(counted.argmax())
    if not float(counted[high] - counted[low]) <= 1e-6:
        raise Violation(
            f"the mean of the models is not kept: an update of worker {high} ends up in it {float(counted[high]):.4g} "
            f"times, one of worker {low} {float(counted[low]):.4g} times, although every worker should count once."
        )
    if not float(counted.min()) > 1e-6:
        raise Violation("updates of the workers are lost: they do not end up in the models.")


def plain_sgd(n: int, zeta2: float, number: int, optimizer: object, dimension: int = 6) -> np.ndarray:
    """`optimizer`, a function of parameters, on 1/n sum_i 1/2 ||A_i x - b_i||^2, by torch: [steps + 1, dimension]."""
    problem = random_problem(n, dimension, 0.5, 1.0, zeta2, 1.0, seed=0)
    with torch.enable_grad():
        x = problem.x0.clone().requires_grad_()
        assert callable(optimizer)
        rule, iterates = optimizer([x]), [x.detach().clone()]
        for _ in range(number):
            rule.zero_grad()
            residual = torch.einsum("nij,j->ni", problem.A, x) - problem.b
            (residual.square().sum() / (2 * n)).backward()
            rule.step()
            iterates.append(x.detach().clone())
    return torch.stack(iterates).numpy()


def as_sgd(walk: Walk, reference: np.ndarray, where: str) -> None:
    """All models are those of plain SGD on the mean gradient: iterates [steps + 1, n, P], reference [steps + 1, P]."""
    error = np.abs(walk.iterates - reference[:, None]).max(axis=(1, 2))
    if not (error <= 1e-12).all():
        step = int(np.argmax(~(error <= 1e-12)))
        raise Violation(
            f"{where} the models differ from those of plain SGD on the mean gradient by {error[step]:.2g} after step "
            f"{step}: say in as_sgd with which settings they are the same (None: with none)."
        )


def optimum(distance: float, steps: int) -> None:
    """Where all workers want the same, they get there."""
    if not distance <= 1e-3:
        raise Violation(
            f"where all workers have the same optimum, the worst is still {distance:.2g} away from it after {steps} "
            "steps (at first 1)."
        )
