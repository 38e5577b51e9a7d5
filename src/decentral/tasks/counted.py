"""The metrics that `metrics=` selects by name. Each is a function of counts; `COUNTED` lists them."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor


def accuracy(right: Tensor, labels: Tensor, predicted: Tensor) -> Tensor:
    """Return the share of the examples that are predicted right [...]."""
    return right.sum(-1) / labels.sum(-1)


def f1(right: Tensor, labels: Tensor, predicted: Tensor) -> Tensor:
    """Return the mean over classes of 2 right / (labels + predicted) [...], without classes that have neither."""
    return (2 * right / (labels + predicted)).nanmean(-1)


def per_class_accuracy(right: Tensor, labels: Tensor, predicted: Tensor) -> Tensor:
    """Return the share of each class's examples that are predicted right [..., C]; nan without examples."""
    return right / labels


COUNTED: dict[str, Callable[[Tensor, Tensor, Tensor], Tensor]] = {
    "accuracy": accuracy,
    "f1": f1,
    "macro_f1": f1,
    "per_class_accuracy": per_class_accuracy,
}
"""Name -> function of three counts per class [..., C]: right predictions, examples, predictions.

The result is a fraction of 1, and larger is better. It has one number [...], or one per class [..., C] if the name
begins with `per_class_`.
"""


def metric_names(name: str, num_classes: int) -> list[str]:
    """Return the names under which a metric is recorded: one for each class c if it begins with `per_class_`."""
    kind = name.removeprefix("per_class_")
    return [name] if kind == name else [f"{kind}_of_class_{c}" for c in range(num_classes)]
