"""What every architecture promises."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, ClassVar

from decentral.errors import ConfigError
from decentral.registry import components

if TYPE_CHECKING:
    from torch import nn


class Model(ABC):
    """An architecture for images.

    `image_shape` is (channels, height, width), in pixels. `min_image_size` is the smallest height and width taken.
    A `small` model is done with small pictures before several processes would pay.
    """

    name: str
    min_image_size: ClassVar[int] = 1
    small: ClassVar[bool] = False

    def check(self, image_shape: tuple[int, int, int]) -> None:
        """Raise a `ConfigError` if the images are too small for this model."""
        _, height, width = image_shape
        if min(height, width) >= self.min_image_size:
            return
        fitting = [
            name
            for name, model in components("models").items()
            if issubclass(model, Model) and model.min_image_size <= min(height, width)
        ]
        raise ConfigError(
            f"model={self.name} needs images of at least {self.min_image_size} x {self.min_image_size} pixels, "
            f"but those of this data= are {height} x {width}: choose a model that takes them "
            f"(model={', '.join(fitting)}) or larger images (other data=, "
            f"or data.image_size={self.min_image_size} where data= has it)."
        )

    @abstractmethod
    def build(self, image_shape: tuple[int, int, int], num_classes: int) -> nn.Module:
        """A new module, [B, *image_shape] -> logits [B, num_classes]: in train mode, on the CPU, in float32.

        The initial values come from torch's global generator, and nothing else does: the caller seeds it.
        """
