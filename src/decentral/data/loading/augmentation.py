"""Random transforms of training images: torchvision's AutoAugment, or a user's transform."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from typing import Any

import torch
from torch import Tensor

from decentral.errors import ConfigError
from decentral.randomness import seeded
from decentral.registry import blame, plugins
from decentral.registry.signature import function

TRIED = 4  # images tested when a run begins


class Transform:
    """A transform of the training images of a worker's draw, one by one: bytes [C, H, W] -> bytes.

    The global generators of torch, numpy and Python are seeded by (seed, worker, draw) before the first image, and
    restored afterwards. Images are transformed on the CPU, so that results do not depend on the device.
    """

    def __init__(self, name: str, policy: str, shape: Sequence[int], seed: int) -> None:
        """Create the transform `name`: autoaugment, with torchvision's policy of that name, or module:transform. The
        latter is a function, a callable object, or the class of one. `shape` [C, H, W] is the required output shape."""
        self.name, self.policy, self.shape, self.seed = name, policy, tuple(shape), seed
        self._passport, self._made = plugins.passport(), list[Callable[[Tensor], Any]]()

    def __getstate__(self) -> dict[str, Any]:
        return vars(self) | {"_made": []}

    def __call__(self, images: Sequence[Tensor], worker: int, draw: int) -> Tensor:
        """Transform images [C, H, W] -> [B, C, H, W]. Raises ConfigError if a result is not an image of this shape."""
        with blame.calling(f"data.augment={self.name}"), seeded(self.seed, "augment", worker, draw):
            self._made = self._made or [self._make()]
            results = [self._made[0](image) for image in images]
        for result in results:
            if not isinstance(result, Tensor) or result.dtype != torch.uint8 or result.shape != self.shape:
                kind = (
                    f"{result.dtype} {list(result.shape)}"
                    if isinstance(result, Tensor)
                    else f"a {type(result).__name__}"
                )
                raise ConfigError(
                    f"data.augment={self.name} returns {kind.removeprefix('torch.')}: return uint8 {list(self.shape)} "
                    "for an image of bytes; the data set normalizes it afterwards."
                )
        return torch.stack(results).as_subclass(Tensor)

    def try_on(self, images: Iterable[Tensor]) -> None:
        """Raise ConfigError if it fails on the first of these images, or is not reproducible."""
        some = [image.cpu() for image in islice(images, TRIED)]
        found = [self([image.clone() for image in some], 0, 0) for _ in range(2)]
        if not torch.equal(*found):
            raise ConfigError(
                f"data.augment={self.name} is not reproducible: draw only from the global generators of torch, numpy "
                "or random, which are seeded for every worker and draw."
            )

    def _make(self) -> Callable[[Tensor], Any]:
        if self.name == "autoaugment":
            from torchvision.transforms import v2

            return v2.AutoAugment(v2.AutoAugmentPolicy(self.policy))
        plugins.enter(self._passport)
        found = function("data.augment", self.name)
        return found() if isinstance(found, type) else found
