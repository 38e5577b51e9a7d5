"""Features of a method: `Algorithm.supports`."""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING

from decentral.errors import ConfigError

if TYPE_CHECKING:
    from decentral.algorithms.algorithm import Algorithm


class Feature(Enum):
    """A feature that a configuration may ask for; its value has the words for methods without it, and what works."""

    training = "which estimates a mean and does not train", "use task=mean_estimation"
    """It minimizes any loss, instead of estimating a mean of samples x - gradient(x)."""

    batches = (
        "which needs gradients of given samples",
        "use task=quadratics or task=regression, or a method such as gradient_tracking",
    )
    """It takes its gradients on batches that the task draws, instead of on samples that the method names."""

    synchrony = "which is asynchronous", "leave it out, or use a synchronous method, such as dpsgd"
    """All workers take the same steps together, so that results do not depend on the pace of processes."""

    topology = "which does not use a topology", "leave it out"
    """The topology matters; otherwise, the run's ID excludes it."""

    local_steps = (
        "which needs the same graph in every step",
        "leave it out, or use algo=dpsgd (for communication.every alone, also d2, exact_diffusion and relaysgd)",
    )
    """`communication.every` works, although the method needs the same graph in every round. Implied for all other
    methods."""

    message_loss = (
        "which needs every message",
        "use an algorithm that tolerates message loss, such as relaysgd or dpsgd",
    )
    """Lost messages (`network.drop_probability`). A collective all-reduce does not lose messages."""

    absence = (
        "which does not support absent workers",
        "use a synchronous method, such as gradient_tracking, dpsgd, relaysgd or diloco",
    )
    """Workers may be absent for some steps (`availability=`). Rows of absent workers are frozen, so a synchronous
    method needs no special rule unless it keeps more than rows."""

    stale_return = "which never resends missed updates", "use availability.on_return=average"
    """A worker may return with the model it had when it left (`availability.on_return=stale`)."""

    corrections = (
        "which has no corrections that sum to zero",
        "leave it out, or use algo=gradient_tracking, momentum_tracking, d2, exact_diffusion or extra",
    )
    """It has corrections that sum to zero (`Parts.corrections`), which `availability.on_leave` may move."""

    own_starts = "which starts from one shared model", "give x0 [d], or use an algorithm such as dpsgd"
    """Workers may start from different models (a file's `x0 [n, d]`)."""

    own_rates = (
        "whose workers share one update",
        "use lr, or a synchronous method with local updates, such as dpsgd",
    )
    """Each update uses one worker's learning rate, so that rates may differ (`lr_per_worker`)."""

    own_steps = (
        "whose steps between communications are not purely local",
        "use a method such as dpsgd, sgp, local_sgd or diloco",
    )
    """A step between two communications is x_i + u_i only, which a worker may skip (`steps_per_worker`)."""

    robust_mixing = (
        "which sends or keeps more than plain models",
        "use algo=dadam, dpsgd, gasloc or qg_dpsgd",
    )
    """Workers send only models, through `Network.mix`, and no sum over workers is kept (`robust=`, `attack=`)."""

    error_feedback = "which keeps its own residuals, or none", "leave it out"
    """`compress.error_feedback=false`: without it, the compressor keeps no residuals."""

    timeline = (
        "which sends messages whose length depends on the layers",
        "train instead, or use another method",
    )
    """The bytes sent without a compressor depend on the row length only (`simulate=timeline`)."""

    equal_updates = "which weights the gradients of the workers by their size", "use another method"
    """Updates are linear in the gradients, and each worker's counts 1 / n: `decentral-check` tests the mean and the
    optimum."""

    plain_sgd = "which never is plain SGD", "use another method"
    """On a complete graph it is plain SGD on the mean gradient, if fields with metadata `as_sgd` have those values: the
    reference of `decentral-check`."""


USUAL = frozenset(Feature) - {
    Feature.local_steps,
    Feature.corrections,
    Feature.own_starts,
    Feature.own_steps,
    Feature.robust_mixing,
    Feature.error_feedback,
}
"""The features of a synchronous method that keeps rows of the workers and nothing else."""


def refusal(algorithm: Algorithm, feature: Feature, setting: str) -> ConfigError:
    """Return the error for a setting, such as `availability=sessions`, that asks for a feature the method lacks."""
    without, instead = feature.value
    return ConfigError(f"{setting} cannot be used with algo={algorithm.name}, {without}: {instead}.")


def require(algorithm: Algorithm, feature: Feature, setting: str) -> None:
    """Raise ConfigError if the method lacks the feature that this setting asks for."""
    if feature not in algorithm.supports:
        raise refusal(algorithm, feature, setting)
