"""The interface of an architecture."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar

from decentral.data.dataset import DataDescription, ImageData, LabelledTokens, NextTokens
from decentral.errors import ConfigError
from decentral.registry import components
from decentral.settings import Settings

if TYPE_CHECKING:
    from torch import Tensor, nn

    from decentral.compression.rows import RowLayout


class Model(Settings, ABC, where="model"):
    """An architecture for one kind of data; it is built from a description of the data."""

    name: str
    takes: ClassVar[type[DataDescription]]
    """The kind of data."""
    notes: tuple[str, ...] = ()
    """Notes for readers of the metrics, available once it is built."""

    def check(self, data: DataDescription) -> None:
        """Raise a `ConfigError` if this model cannot take the data, quickly and without torch."""
        if isinstance(data, self.takes):
            return
        known: dict[str, Any] = components("models")
        fitting = [name for name, model in known.items() if isinstance(data, model.takes)]
        other = f"a model for {data.kind} (model={', '.join(fitting)}) or " if fitting else ""
        raise ConfigError(
            f"model={self.name} needs {self.takes.kind}, but this data= has {data.kind}: choose {other}data= with "
            f"{self.takes.kind}."
        )

    def multiplications(self, data: Any) -> float:
        """Estimate the multiplications of a forward pass per example, without torch; infinity if there are many.

        `processes=auto` uses it to decide whether a run is long enough for several processes.
        """
        return math.inf

    def averaged(self, mean: Tensor, layout: RowLayout, rows: Callable[[slice], Tensor]) -> Tensor:
        """Return the averaged model [P] for the mean [P] of models, of which `rows` returns columns: see `Adapter`."""
        return mean

    @abstractmethod
    def build(self, data: Any) -> nn.Module:
        """Build a new module for the supported kind of data: in train mode, on the CPU, in float32.

        For images [B, C, H, W] and texts [B, L] it returns logits [B, num_classes], for running text [B, L] logits
        [B, L, vocabulary]. Only the initial values use torch's global generator, which the caller seeds.
        """


class ImageModel(Model):
    """An architecture for images; `min_image_size` is the smallest height and width in pixels that it takes."""

    takes: ClassVar[type[DataDescription]] = ImageData
    min_image_size: ClassVar[int] = 1

    def check(self, data: DataDescription) -> None:
        """Raise a `ConfigError` if the data are not images, or are too small for this model."""
        super().check(data)
        assert isinstance(data, ImageData)
        _, height, width = data.shape
        if min(height, width) >= self.min_image_size:
            return
        fitting = [
            name
            for name, model in components("models").items()
            if issubclass(model, ImageModel) and model.min_image_size <= min(height, width)
        ]
        raise ConfigError(
            f"model={self.name} needs images of at least {self.min_image_size} x {self.min_image_size} pixels, "
            f"but those of this data= are {height} x {width}: choose a model that takes them "
            f"(model={', '.join(fitting)}) or larger images (other data=, "
            f"or data.image_size={self.min_image_size} where data= has it)."
        )


class TextModel(Model):
    """An architecture for text classification. It ignores padding."""

    takes: ClassVar[type[DataDescription]] = LabelledTokens


class LanguageModel(Model):
    """An architecture that predicts the next token at every position of a text."""

    takes: ClassVar[type[DataDescription]] = NextTokens
