"""What is known of a data set before it is loaded, and what models are built from."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar


@dataclass(frozen=True, kw_only=True)
class DataDescription(ABC):
    """Data of some kind: a subclass for each, with what a model has to know of it.

    num_train, num_test   examples for training and for testing
    """

    kind: ClassVar[str]
    """In words, in the plural: images."""
    num_train: int = 0
    num_test: int = 0

    @abstractmethod
    def batch_shape(self, size: int) -> tuple[int, ...]:
        """The shape of what a model takes in one call, a batch of `size` examples: [size, ...]."""


@dataclass(frozen=True, kw_only=True)
class LabelledData(DataDescription):
    """Examples of some shape, each of one of several classes.

    shape         of one example
    num_classes   labels are 0 ... num_classes - 1
    """

    kind: ClassVar[str] = "labelled examples"
    shape: tuple[int, ...]
    num_classes: int

    def batch_shape(self, size: int) -> tuple[int, ...]:
        """[size, *shape]."""
        return size, *self.shape


@dataclass(frozen=True, kw_only=True)
class ImageData(LabelledData):
    """Images, each of one of several classes; their shape is (C, H, W): channels, height and width in pixels."""

    kind: ClassVar[str] = "images"
    shape: tuple[int, int, int]
