"""Means and standard deviations by which colour images are normalised."""

from __future__ import annotations

from enum import Enum


class Normalisation(Enum):
    """Per-channel statistics (red, green, blue), for pixels in 0 ... 255."""

    cifar10 = "cifar10"
    imagenet = "imagenet"

    @property
    def mean(self) -> list[float]:
        """Means of the three channels."""
        return [255 * fraction for fraction in _MEAN[self.value]]

    @property
    def std(self) -> list[float]:
        """Standard deviations of the three channels."""
        return [255 * fraction for fraction in _STD[self.value]]


_MEAN = {"cifar10": (0.4914, 0.4822, 0.4465), "imagenet": (0.485, 0.456, 0.406)}
_STD = {"cifar10": (0.2023, 0.1994, 0.2010), "imagenet": (0.229, 0.224, 0.225)}
