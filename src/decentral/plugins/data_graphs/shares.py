"""The class shares that a topology may see, and how far a matrix is from averaging them."""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from decentral.errors import ConfigError
from decentral.store.files import at_home
from decentral.topology.topology import Topology


@dataclass
class SeesClasses(Topology):
    """A topology that depends on Pi [n, C], the share of each class among the training examples of each worker.

    shares  a table of them: partition.csv of a run, or .npy [n, C], also of counts; null: those of the run's partition
    """

    name: str
    shares: str | None = field(default=None, metadata={"content": True}, kw_only=True)

    run: ClassVar[Any] = None
    """The configuration of the run, if there is one."""

    def on(self, config: Any) -> Topology:
        """Return a copy that sees the class counts of this run's partition."""
        bound = copy(self)
        bound.run = config  # type: ignore[misc]
        return bound

    def given(self, num_workers: int) -> np.ndarray:
        """Return Pi [n, C]. Raise ConfigError if there are no classes, or not for this number of workers."""
        if self.shares is not None:
            counts = _read(self.shares)
        elif self.run is None:
            raise ConfigError(
                f"topology={self.name} needs the workers' classes, and nothing here has a partition: give "
                "topology.shares=FILE, such as partition.csv of a run."
            )
        else:
            counts = self.run.task.class_counts(self.run)
        if len(counts) != num_workers:
            raise ConfigError(
                f"topology.shares={self.shares} has {len(counts)} workers, not num_workers={num_workers}: use "
                f"num_workers={len(counts)}."
            )
        return np.asarray(counts / counts.sum(1, keepdims=True))


def _read(shares: str) -> np.ndarray:
    """Return the counts or shares [n, C] of a file."""
    from pandas import read_csv

    path = at_home(shares)
    try:
        if path.suffix == ".npy":
            counts = np.load(path)
        else:
            counts = read_csv(path).drop(columns=["worker", "total", "groups"], errors="ignore").to_numpy(float)
        if counts.ndim == 2 and (counts >= 0).all() and (counts.sum(1) > 0).all():
            return np.asarray(counts, dtype=float)
    except (OSError, ValueError) as error:
        raise ConfigError(f"topology.shares={shares} cannot be read: {error}.") from error
    raise ConfigError(f"topology.shares={shares} needs a row for each worker with its counts of each class, [n, C].")


def class_error(W: np.ndarray, Pi: np.ndarray, lam: float) -> float:
    """Return f(W) = (||W Pi - J Pi||_F^2 + lam ||W - J||_F^2) / n, J = 1 1^T / n."""
    n = len(W)
    return float((np.square(W @ Pi - Pi.mean(0)).sum() + lam * np.square(W - 1 / n).sum()) / n)
