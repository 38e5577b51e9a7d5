"""A torch class of a module of one's own: model=mymodule:MyNet."""

from __future__ import annotations

from functools import cache
from math import prod
from typing import TYPE_CHECKING, Any, ClassVar

from decentral.data.description import DataDescription, LabelledData
from decentral.errors import ConfigError
from decentral.models.model import Model
from decentral.registry import blame
from decentral.registry.signature import Plain, component_from, taken

if TYPE_CHECKING:
    from torch import nn

GIVEN = ("num_classes", "in_channels", "in_features", "input_shape")
"""Parameters that the data decide: how many classes, the first number of the shape, all of it, the shape."""


class PlainModel(Plain, Model):
    """A class of torch modules, or a function that returns one; its parameters are the settings."""

    takes: ClassVar[type[DataDescription]] = LabelledData

    def build(self, data: LabelledData) -> nn.Module:
        """What the class makes, in float32; tried out on an example of zeros. Raises ConfigError if that fails."""
        import torch

        given = (data.num_classes, data.shape[0] if data.shape else 1, prod(data.shape), data.shape)
        known = self.settings()
        with blame.named():
            module = self.target()(**known, **taken(self.target(), dict(zip(GIVEN, given, strict=True))))
        if not isinstance(module, torch.nn.Module):
            raise ConfigError(f"model={self.name} has to be a torch.nn.Module, or return one, not {_type(module)}.")
        if not any(True for _ in module.parameters()):
            raise ConfigError(f"model={self.name} has no parameters to train.")
        frozen = [name for name, parameter in module.named_parameters() if not parameter.requires_grad]
        if frozen:
            raise ConfigError(
                f"model={self.name}: {frozen[0]} has requires_grad=False, but all parameters are trained: make it a "
                "buffer (register_buffer)."
            )
        module.float().cpu()
        self._try(module, data)
        return module.train()

    def _try(self, module: nn.Module, data: LabelledData) -> None:
        import torch

        shape = " x ".join(map(str, data.shape))
        try:
            with torch.no_grad():
                logits = module.eval()(torch.zeros(1, *data.shape))
        except Exception as error:
            where = blame.place(error)
            place = f" ({where})" if where else ""
            raise ConfigError(
                f"model={self.name} cannot take {data.kind} of {shape}{place}: {blame.sentence(error)}."
            ) from error
        found = list(logits.shape) if isinstance(logits, torch.Tensor) else _type(logits)
        if found != [1, data.num_classes]:
            raise ConfigError(
                f"model={self.name} has to give a number for each of the {data.num_classes} classes, "
                f"[1, {data.num_classes}] for one example, but it gives {found}: let it take num_classes as a "
                "parameter, which is then the number of classes of the data."
            )


@cache
def plain(name: str) -> type:
    """The model for `module:Name`. Raises ConfigError if there is no such thing."""
    return component_from("models", name, PlainModel, GIVEN)


def _type(value: Any) -> str:
    return f"a {type(value).__name__}"
