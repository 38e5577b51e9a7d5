"""Steps to a target beside what is known before: the error of a pass over the classes, the spectrum, and its gap."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from decentral.measurements.values import Labels, Meaning, Value
from decentral.plugins.certificates.measurements.theory import Theory
from decentral.plugins.data_graphs.shares import class_error

ERROR = "class error"


@dataclass
class ClassMixing(Theory):
    """Measured and predicted steps, as `theory`, and the class error of the graph on the run's partition.

        (||W Pi - J Pi||_F^2 + lam ||W - J||_F^2) / n      Pi [n, C] the workers' class shares

    lam  weight of the distance from exact averaging
    """

    name: str = "class_mixing"
    lam: float = 0.1

    folder: ClassVar[str] = "class_mixing"
    meanings: ClassVar[dict[str, Meaning]] = {**Theory.meanings, ERROR: Meaning(False)}

    def parameters(self) -> dict[str, Any]:
        """Return what the predictions depend on."""
        return super().parameters() | {"lam": self.lam}

    def line(self) -> dict[str, Any]:
        """Return the predicted steps, the spectral gap and the class error."""
        counts = self.config.task.class_counts(self.config)
        W = np.asarray(self.config.rounds().matrices(0)[0])
        return super().line() | {"error": class_error(W, counts / counts.sum(1, keepdims=True), self.lam)}

    def values(self, labels: Labels) -> Iterator[Value]:
        """Yield the steps, the inverse gap, and the class error."""
        yield from super().values(labels)
        (line,) = self.found()
        yield Value(labels, line["error"], ERROR, self.config.seed, None)
