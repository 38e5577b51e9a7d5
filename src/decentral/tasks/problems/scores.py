"""The additional metrics selected by `metrics=`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from numbers import Real
from typing import Any

import numpy as np
import torch
from torch import Tensor

from decentral.errors import ConfigError
from decentral.randomness import seeded
from decentral.registry import blame
from decentral.registry.signature import call, function, taken
from decentral.store.metrics import Metric
from decentral.tasks.counted import COUNTED, metric_names

_TRIED = 4  # examples of each class


class OwnMetric:
    """A user's metric: `function(outputs [N, C], targets [N])` of all test examples -> one number; or a class of such
    functions.

    Its attributes `larger_is_better` (or torchmetrics' `higher_is_better`) and `unit` describe it; a sign before its
    name, + or -, takes precedence. An object of a class is used for one call, since it may be stateful. Functions and
    classes get `num_classes`, and task="multiclass", if they have parameters of these names.
    """

    def __init__(self, name: str, num_classes: int) -> None:
        """Load the metric. Raises ConfigError unless it returns a number for random outputs."""
        self.name, path = name, name.lstrip("+-")
        self._given = {"num_classes": num_classes, "task": "multiclass"}
        if path.partition(":")[2] in ("nan", "inf"):  # in files, these are numbers
            raise ConfigError(f"metrics={name} looks like a number: rename the function.")
        self._target: Any = function("metrics", path)
        with blame.calling(f"metrics={name}"):
            made = self._target
            made = made(**taken(made, self._given)) if isinstance(made, type) else made
        larger = getattr(made, "larger_is_better", getattr(made, "higher_is_better", None))
        self.metric = Metric(
            "test",
            path.partition(":")[2],
            larger_is_better={"+": True, "-": False}.get(name[0], larger),
            unit=getattr(made, "unit", ""),
            own=True,
        )
        targets = torch.arange(_TRIED * num_classes) % num_classes
        with seeded(0, "try the metric"):
            self(torch.randn(len(targets), num_classes), targets)

    def __call__(self, outputs: Tensor, targets: Tensor) -> float:
        """Return the number, possibly infinite; nan if undefined, as for a diverged model."""
        if not outputs.isfinite().all():
            return math.nan
        with blame.calling(f"metrics={self.name}"), seeded(0, "metric"):
            found: Any = call(self._target, self._given, outputs, targets)
        if isinstance(found, Tensor | np.ndarray) and math.prod(found.shape) == 1:
            found = found.item()
        if isinstance(found, bool) or not isinstance(found, Real):
            kind = list(found.shape) if isinstance(found, Tensor | np.ndarray) else f"a {type(found).__name__}"
            raise ConfigError(f"metrics={self.name} returns {kind}: return one number for all test examples.")
        return float(found)


class Scores:
    """Statistics of test examples that are summed, and the metrics computed from them.

    For metrics in `COUNTED`: right predictions, examples and predictions of each class [3, C]. For user functions: the
    outputs of all N test examples, one per row [N, C + 2], with target and number of evaluations.
    """

    def __init__(
        self, names: Sequence[str], chance: float | None, num_classes: int, num_test: int, ignored: int | None
    ):
        """Store the settings. `names` are those of `metrics=`; `chance` is the probability of guessing an example's
        class; `ignored` are targets that do not count."""
        self.names, self.num_classes, self.num_test, self.ignored = list(names), num_classes, num_test, ignored
        self.own = {name: OwnMetric(name, num_classes) for name in names if ":" in name}
        self.num_counts = 3 * num_classes if len(self.own) < len(names) else 0
        self.size = self.num_counts + (num_test * (num_classes + 2) if self.own else 0)
        """Number of statistics S."""
        self.metrics = tuple(metric for name in names for metric in self._metrics(name, chance))

    def _metrics(self, name: str, chance: float | None) -> list[Metric]:
        if name in self.own:
            return [self.own[name].metric]
        metric = Metric("test", name, larger_is_better=True, unit="%", chance=chance if name == "accuracy" else None)
        each = metric_names(name, self.num_classes)
        return [metric] if each == [name] else [replace(metric, name=one, may_lack=True) for one in each]

    def add(self, total: Tensor, outputs: Tensor, targets: Tensor, numbers: Tensor) -> None:
        """Add outputs [b, ..., C] for targets [b, ...], of test examples with these numbers [b], to total [S]."""
        C = self.num_classes
        if self.own and outputs.shape != (len(targets), C):
            raise ConfigError(
                f"metrics={next(iter(self.own))} takes outputs [N, {C}], one number per class, but the model gives "
                f"{list(outputs.shape)} for {len(targets)} examples: use {', '.join(COUNTED)}."
            )
        if self.num_counts:
            taken_for, labels = outputs.argmax(-1).flatten(), targets.flatten()
            if self.ignored is not None:
                taken_for, labels = taken_for[labels != self.ignored], labels[labels != self.ignored]
            right = labels[taken_for == labels]
            counts = [torch.bincount(one[one < C], minlength=C) for one in (right, labels, taken_for)]
            total[: 3 * C] += torch.cat(counts)
        if self.own:
            rows = torch.cat([outputs, targets[:, None], torch.ones_like(targets)[:, None]], dim=1).to(total)
            total[self.num_counts :].view(self.num_test, C + 2).index_add_(0, numbers.to(total.device), rows)

    def finish(self, statistics: Tensor, dtype: torch.dtype) -> Tensor:
        """Return the metrics: [..., S] -> [..., metrics]. Outputs have this type."""
        rows = statistics.reshape(-1, self.size)
        tables = rows[:, self.num_counts :].view(len(rows), -1, self.num_classes + 2)
        counts = rows[:, : self.num_counts].view(len(rows), 3, self.num_counts // 3).unbind(1)

        def values(name: str) -> Tensor:
            if name in COUNTED:
                return COUNTED[name](*counts).view(len(rows), -1)
            return rows.new_tensor([[self.own[name](*_examples(table, dtype))] for table in tables])

        return torch.cat([values(name) for name in self.names], dim=1).view(*statistics.shape[:-1], -1)


def _examples(table: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Return outputs [N, C] and targets [N] of the evaluated examples, each as often as it was evaluated: [N', C + 2]
    -> ..."""
    times = table[:, -1].long()
    seen = table[times > 0].repeat_interleave(times[times > 0], dim=0)
    seen = seen[:, :-1] / seen[:, -1:]
    return seen[:, :-1].to(dtype), seen[:, -1].round().long()
