"""Tasks with a known optimum: quadratics, regression and distributed mean estimation."""

from __future__ import annotations

import zipfile
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from decentral.errors import ConfigError
from decentral.gradients.precision import Precision
from decentral.host.machine import refuse_if_too_large
from decentral.settings import setting
from decentral.store.files import at_home
from decentral.tasks.task import Problem, Task, TaskConfig

if TYPE_CHECKING:
    import torch


@dataclass
class Quadratics(Task):
    """Heterogeneous least squares with a known optimum, random (RelaySum paper, B.4) or from a file; float64.

        f(x) = 1/n sum_i ||A_i x - b_i||^2
        g_i(x) = A_i^T (A_i x - b_i)                         half of the gradient, as in the authors' code

    problem            .npz file with `A [n, d, d]`, `b [n, d]` and optionally `x0 [d]`, or `x0 [n, d]` with a start for
                       each worker (default: zeros); the generator's keys other than the noise are then ignored
    dimension          dimension d
    singular_min       smallest singular value of the A_i (null: rescale only by the largest); the g_i
                       have the least curvature mu = singular_min^2, as in certify.mu
    singular_max       largest singular value; the g_i have the largest curvature L = singular_max^2
    zeta2              heterogeneity 1/n sum_i ||grad f_i(x*)||^2
    initial_distance   ||x^0 - x*||
    noise              sigma: the gradient noise is normal with variance noise^2 / d per coordinate, from the run's seed
    problem_seed       seed of the problem (null: the run's seed)
    """

    eval_every_epochs: ClassVar[float | None] = None
    precision: ClassVar[Precision | None] = Precision.fp64
    names_samples: ClassVar[bool] = True
    name: str = "quadratics"
    problem: str | None = field(default=None, metadata={"content": True})
    dimension: int = setting(10, at_least=1, when="is_drawn")
    singular_min: float | None = setting(0.5, when="is_drawn")
    singular_max: float = setting(1.0, at_least=0, when="is_drawn")
    zeta2: float = setting(1.0, at_least=0, when="is_drawn")
    initial_distance: float = setting(100.0, at_least=0, when="is_drawn")
    noise: float = setting(0.0, at_least=0)
    problem_seed: int | None = setting(None, when="is_drawn")

    def __post_init__(self) -> None:
        if self.singular_min is not None and not 0 <= self.singular_min <= self.singular_max:
            raise ConfigError(
                f"task.singular_min={self.singular_min:g} is out of range; use a number from 0 to "
                f"task.singular_max={self.singular_max:g}, or null."
            )

    @property
    def is_drawn(self) -> bool:
        """Return whether the problem is random."""
        return not self.problem

    def resolve_num_workers(self, config: TaskConfig) -> int:
        """Return the file's n if there is a file."""
        if self.problem is None:
            return super().resolve_num_workers(config)
        return _workers_of(f"task.problem={self.problem}", read_problem(self.problem), config)

    def own_starts(self) -> bool:
        """Return whether the file has a start for each worker."""
        return self.problem is not None and read_problem(self.problem)["x0"].ndim == 2

    def check(self, config: TaskConfig) -> None:
        """Check that zeta2 is possible for this number of workers, and that A [n, d, d] fits into memory."""
        if self.problem is None:
            assert config.num_workers is not None
            refuse_if_too_large(f"task.dimension={self.dimension}", 8.0 * config.num_workers * self.dimension**2)
        if self.problem is None and self.zeta2 > 0 and config.num_workers == 1:
            raise ConfigError(f"task.zeta2={self.zeta2:g} needs several workers: with num_workers=1 use task.zeta2=0.")

    def open(self, config: TaskConfig, workers: range, device: torch.device) -> Problem:
        """Open the problem on the device."""
        import torch

        from decentral.tasks.problems.convex import LeastSquares, QuadraticProblem, random_problem

        if self.problem is not None:
            arrays = read_problem(self.problem)
            problem = LeastSquares(*(torch.from_numpy(arrays[key]) for key in ("A", "b", "x0")))
        else:
            problem = random_problem(
                config.num_workers,
                self.dimension,
                self.singular_min,
                self.singular_max,
                self.zeta2,
                self.initial_distance,
                config.seed if self.problem_seed is None else self.problem_seed,
            )
        return QuadraticProblem(problem, self.noise, config.seed, workers, device)


def read_problem(path: str) -> dict[str, np.ndarray]:
    """Read A [n, d, d], b [n, d] and x0 [d] or [n, d], float64, from an .npz file. Raises ConfigError for other
    content."""
    wanted = "give an .npz file with finite real numbers A [n, d, d], b [n, d] and, if any, x0 [d] or [n, d]"
    return _read_arrays(f"task.problem={path}", path, wanted, square=True)


def _workers_of(said: str, arrays: dict[str, np.ndarray], config: TaskConfig) -> int:
    """Return the file's n. Raises ConfigError for another number of workers."""
    n = len(arrays["A"])
    if config.num_workers not in (None, n):
        raise ConfigError(
            f"num_workers={config.num_workers} conflicts with {said}, which has {n} workers: leave it out."
        )
    return n


def _read_arrays(said: str, path: str, wanted: str, square: bool) -> dict[str, np.ndarray]:
    """Read A [n, m, d], b [n, m] and x0 from an .npz file; m = d if `square`."""
    file = at_home(path)
    if not file.is_file():
        raise ConfigError(f"{said} is not a file: {wanted}.")
    try:
        with np.load(file, allow_pickle=False) as found:
            names = [key for key in ("A", "b", "x0") if key in found]
            arrays = {key: found[key].astype(np.float64, casting="same_kind") for key in names}
    except (OSError, ValueError, zipfile.BadZipFile, TypeError, AttributeError, EOFError, MemoryError):
        raise ConfigError(f"{said} cannot be read: {wanted}.") from None
    A = arrays.get("A", np.empty(0))
    n, m, d = A.shape if A.ndim == 3 else (0, 0, 0)
    x0 = arrays.setdefault("x0", np.zeros(d))
    finite = all(np.isfinite(array).all() for array in arrays.values())
    fits = len(arrays) == 3 and arrays["b"].shape == (n, m) and x0.shape in ((d,), (n, d)) and (m == d or not square)
    if not (finite and A.size and fits):
        kind = "" if finite else " with non-finite numbers"
        has = ", ".join(f"{key} {list(array.shape)}" for key, array in arrays.items())
        raise ConfigError(f"{said} holds {has}{kind}: {wanted}.")
    return arrays


class Loss(Enum):
    """Loss of a sample (a, b) at the margin z = a^T x.

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
    (linear), or is found by Newton's method to machine precision (logistic). The metrics are f(x) - f(x*), ||x - x*||
    and ||x - x*||^2 / ||x*||^2. All data are drawn from the run's seed, or read from a file.

    samples              .npz file with samples `A [n, m, d]`, labels `b [n, m]` (logistic: -1 or 1), and optionally the
                         start `x0 [d]`, or `x0 [n, d]` with one for each worker (default: zeros); all keys below other
                         than l2 and loss are then ignored
    loss                 linear or logistic
    samples_per_worker   samples per worker m
    dimension            dimension d
    l2                   weight of the L2 regularization; without it, logistic regression may have no optimum
    noise                scale of the label noise
    heterogeneity        distance between the workers' true models
    """

    eval_every_epochs: ClassVar[float | None] = None
    precision: ClassVar[Precision | None] = Precision.fp64
    names_samples: ClassVar[bool] = True
    name: str = "regression"
    samples: str | None = setting(None, content=True, older=None)
    loss: Loss = Loss.linear
    samples_per_worker: int = setting(20, at_least=1, when="is_drawn")
    dimension: int = setting(5, at_least=1, when="is_drawn")
    l2: float = setting(0.01, at_least=0)
    noise: float = setting(1.0, at_least=0, when="is_drawn")
    heterogeneity: float = setting(1.0, at_least=0, when="is_drawn")

    def __post_init__(self) -> None:
        if self.loss is Loss.logistic and self.l2 == 0:
            raise ConfigError(
                "task.l2=0 cannot be used with task.loss=logistic, which has no optimum for linearly separable "
                "labels: use a positive number, such as task.l2=0.01."
            )

    def check(self, config: TaskConfig) -> None:
        """Check that the optimum is unique, which without regularization requires at least as many samples as
        coordinates, and that all data fit into memory."""
        if self.samples is not None:
            n, m, d = self._arrays()["A"].shape
        else:
            n, m, d = config.num_workers, self.samples_per_worker, self.dimension
            refuse_if_too_large(f"task.dimension={self.dimension}", 8.0 * n * m * d)
        if self.l2 == 0 and n * m < d:
            raise ConfigError(
                f"task.l2=0 needs at least task.dimension={d} samples, but {n} workers with "
                f"task.samples_per_worker={m} have {n * m}: use a positive number, such as task.l2=0.01."
            )

    @property
    def is_drawn(self) -> bool:
        """Return whether the samples are random."""
        return not self.samples

    def resolve_num_workers(self, config: TaskConfig) -> int:
        """Return the file's n if there is a file."""
        if self.samples is None:
            return super().resolve_num_workers(config)
        return _workers_of(f"task.samples={self.samples}", self._arrays(), config)

    def own_starts(self) -> bool:
        """Return whether the file has a start for each worker."""
        return self.samples is not None and self._arrays()["x0"].ndim == 2

    def _arrays(self) -> dict[str, np.ndarray]:
        """Return the content of the file. Raises ConfigError if it is invalid."""
        wanted = "give an .npz file with finite real numbers A [n, m, d], b [n, m] and, if any, x0 [d] or [n, d]"
        assert self.samples is not None
        arrays = _read_arrays(f"task.samples={self.samples}", self.samples, wanted, square=False)
        if self.loss is Loss.logistic and not (np.abs(arrays["b"]) == 1).all():
            raise ConfigError(
                f"task.samples={self.samples} has labels b other than -1 and 1: give these, or task.loss=linear."
            )
        return arrays

    def open(self, config: TaskConfig, workers: range, device: torch.device) -> Problem:
        """Open the data of all workers, and the optimum."""
        import torch

        from decentral.tasks.problems.convex import LOSSES, RegressionProblem, Samples, draw

        loss, x0 = LOSSES[self.loss.value], None
        if self.samples is not None:
            A, b, x0 = (torch.from_numpy(self._arrays()[key]) for key in ("A", "b", "x0"))
            data = Samples(A, b)
        else:
            shape = config.num_workers, self.samples_per_worker, self.dimension
            data = draw(*shape, self.loss.value, self.noise, self.heterogeneity, config.seed)
        try:
            return RegressionProblem(data, loss, self.l2, workers, device, x0)
        except torch.linalg.LinAlgError:
            raise ConfigError(
                f"task.l2={self.l2:g} leaves more than one optimum for the samples of task.samples={self.samples}: "
                "use a larger number, such as task.l2=0.01."
            ) from None


@dataclass
class MeanEstimation(Task):
    """Distributed mean estimation: every worker draws a sample in every step (RelaySum paper, section 3).

        s_i^t ~ N(mean, std^2) in each of `dimension` coordinates;  gradient x_i - s_i^t, of 1/2 ||x_i - s_i^t||^2

    RelaySum: `algo=relay_mean topology=chain`. Gossip: `algo=dpsgd schedule=inverse lr=1 topology=ring`. The metric is
    the squared error per coordinate; one run with many dimensions is many independent runs with one.
    """

    name: str = "mean_estimation"
    mean: float = 1.0
    std: float = setting(1.0, at_least=0)
    dimension: int = setting(1, at_least=1)
    eval_every_epochs: ClassVar[float | None] = 5.0
    precision: ClassVar[Precision | None] = Precision.fp64

    def check(self, config: TaskConfig) -> None:
        """Check that the models fit into memory."""
        refuse_if_too_large(f"task.dimension={self.dimension}", 8.0 * config.num_workers * self.dimension)

    def open(self, config: TaskConfig, workers: range, device: torch.device) -> Problem:
        """Open the stream of samples."""
        from decentral.tasks.problems.convex import SampleMean

        return SampleMean(self.mean, self.std, self.dimension, config.seed, workers, device)
