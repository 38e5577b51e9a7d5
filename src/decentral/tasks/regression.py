"""Linear and logistic regression on data that every worker has drawn for itself."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

from decentral.errors import ConfigError
from decentral.host.memory import refuse_if_too_large
from decentral.settings import setting
from decentral.tasks.task import Problem, Task

if TYPE_CHECKING:
    import torch

    from decentral.config.schema import Config


class Loss(Enum):
    """Of a sample (a, b) at the margin z = a^T x.

    - linear: (z - b)^2 / 2
    - logistic: log(1 + exp(-b z)) with labels b = -1 or 1
    """

    linear = "linear"
    logistic = "logistic"


@dataclass
class Regression(Task):
    """Linear or logistic regression with a known optimum: the examples of the BlueFog paper (section IV-A); float64.

        F_i(x) = 1/m sum_s loss(a_is^T x, b_is) + l2/2 ||x||^2              f = 1/n sum_i F_i
        a_is standard normal in R^d;  worker i's true model w_i = w + heterogeneity z_i, with w and z_i standard normal
        linear: b_is = a_is^T w_i + noise e_is, e normal    logistic: b_is = sign(a_is^T w_i + noise e_is), e logistic

    m samples and d = dimension for each worker, full gradients. The optimum is the solution of the normal equations
    (linear), or is found by Newton's method to machine precision (logistic). The metrics are f(x) - f(x*),
    ||x - x*|| and ||x - x*||^2 / ||x*||^2. All of it is drawn from the run's seed.

    loss                 linear or logistic
    samples_per_worker   m
    dimension            d
    l2                   weight of the regularisation; logistic regression needs some, or might have no optimum
    noise                scale of the disturbance of the labels
    heterogeneity        how far the workers' true models are apart
    """

    name: str = "regression"
    loss: Loss = Loss.linear
    samples_per_worker: int = setting(20, at_least=1)
    dimension: int = setting(5, at_least=1)
    l2: float = setting(0.01, at_least=0)
    noise: float = setting(1.0, at_least=0)
    heterogeneity: float = setting(1.0, at_least=0)

    def __post_init__(self) -> None:
        if self.loss is Loss.logistic and self.l2 == 0:
            raise ConfigError(
                "task.l2=0 cannot be used with task.loss=logistic, which has no optimum where a plane separates the "
                "labels: use task.l2=0.01, say."
            )

    def check(self, config: Config) -> None:
        """Without regularisation, fewer samples than coordinates do not determine the optimum; all have to fit into
        memory."""
        assert config.num_workers is not None
        samples = config.num_workers * self.samples_per_worker
        refuse_if_too_large(f"task.dimension={self.dimension}", 8.0 * samples * self.dimension)
        if self.l2 == 0 and samples < self.dimension:
            raise ConfigError(
                f"task.l2=0 needs at least task.dimension={self.dimension} samples, but {config.num_workers} workers "
                f"with task.samples_per_worker={self.samples_per_worker} have {samples}: use task.l2=0.01, say."
            )

    def open(self, config: Config, workers: range, device: torch.device) -> Problem:
        """The data of all workers, and the optimum."""
        from decentral.tasks.problems.regression import LOSSES, RegressionProblem, draw

        assert config.num_workers is not None
        shape = config.num_workers, self.samples_per_worker, self.dimension
        data = draw(*shape, self.loss.value, self.noise, self.heterogeneity, config.seed)
        return RegressionProblem(data, LOSSES[self.loss.value], self.l2, workers, device)
