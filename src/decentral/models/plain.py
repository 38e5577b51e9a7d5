"""A user's torch class: model=mymodule:MyNet."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import field, make_dataclass
from math import prod
from typing import TYPE_CHECKING, Any, ClassVar

from decentral.data.dataset import DataDescription, LabelledData, LabelledTokens, NextTokens, TokenData
from decentral.errors import ConfigError, suggest
from decentral.models.adapters import Adapter
from decentral.models.model import Model
from decentral.registry import blame, components
from decentral.registry.find import described
from decentral.registry.signature import Plain, call, component_from, further
from decentral.store.files import at_home

if TYPE_CHECKING:
    from torch import Tensor, nn

    from decentral.compression.rows import RowLayout

Examples = LabelledData | LabelledTokens | NextTokens
GIVEN: tuple[str, ...] = ("num_classes", "in_channels", "in_features", "input_shape", "vocabulary")
"""Parameters that the data determine: the number of classes, the first number of the shape, their product, the
shape; of texts, the number of tokens."""


class PlainModel(Plain, Model):
    """A class of torch modules, or a function that returns one; its parameters are the settings."""

    takes: ClassVar[type[DataDescription]] = LabelledData

    def check(self, data: DataDescription) -> None:
        """Raise a `ConfigError` if the data are neither labeled examples nor texts."""
        if not isinstance(data, LabelledTokens | NextTokens):
            super().check(data)

    def build(self, data: Examples) -> nn.Module:
        """Return a copy of the class's object, after a trial on two examples of zeros (tokens: ones). Raises
        ConfigError if that fails.

        Its numbers keep their precision. It is in train mode, except for parts that were not.
        """
        vars(self)["notes"] = ()
        module = self.made(data)
        for adapter in self._adapters():
            module, told = adapter.adapt(module, not isinstance(data, NextTokens))
            sizes = [(parameter.numel(), parameter.requires_grad) for parameter in module.parameters()]
            trained, total = sum(size for size, is_trained in sizes if is_trained), sum(size for size, _ in sizes)
            self.add_note(f"{told}: {trained:,} of {total:,} parameters are trained")
        return self.tried(module, data)

    def add_note(self, note: str) -> None:
        """Add a note for readers of the metrics."""
        vars(self)["notes"] = (*self.notes, note)

    def made(self, data: Examples) -> Any:
        """Create an object of the class."""
        if isinstance(data, TokenData):
            given = {"num_classes": getattr(data, "num_classes", data.vocabulary), "vocabulary": data.vocabulary}
        else:
            shape = data.shape[0] if data.shape else 1, prod(data.shape), data.shape
            given = dict(zip(GIVEN, (data.num_classes, *shape), strict=False))
        known = dict(zip(("num_classes", "in_chans"), given.values(), strict=False)) if self._of_timm() else {}
        known |= self.settings()
        with blame.named(f"model={self.name} cannot be built"):
            return call(self.target(), given, **known)

    def averaged(self, mean: Tensor, layout: RowLayout, rows: Callable[[slice], Tensor]) -> Tensor:
        """See `Model`."""
        for adapter in self._adapters():
            mean = adapter.averaged(mean, layout, rows)
        return mean

    def _adapters(self) -> list[Adapter]:
        return [value for value in vars(self).values() if isinstance(value, Adapter)]

    def _of_timm(self) -> bool:
        """Return whether it is a function of timm: all of these take the parameters by name, but do not declare
        them."""
        return getattr(self, "plain_module", "").partition(".")[0] == "timm" and bool(further(self.target()))

    def tried(self, original: Any, data: Examples) -> nn.Module:
        """Return a copy of the created module, as `build` does."""
        from decentral.models.layers.foreign import tried

        return tried(self, original, data)


class LibraryModel(PlainModel):
    """A model of the library transformers, by `from_pretrained` or `from_config` of a class. Further settings are those
    of its configuration.

    path   folder of a stored model, or its name on the hub
    """

    takes_any: ClassVar[bool] = True
    path: str

    def made(self, data: Examples) -> Any:
        """Create the model for these classes or tokens."""
        classes = {"num_labels": data.num_classes} if hasattr(data, "num_classes") else {}
        settings: dict[str, Any] = classes | self.settings()
        with blame.named(f"model={self.name} cannot be built"):
            if not hasattr(self, "path"):
                return self.target()(config_of(data, **settings))
            try:
                module = self.target()(str(at_home(self.path)), **settings)
            except RuntimeError as error:
                if "ignore_mismatched_sizes" not in str(error):
                    raise
                needs = f"{classes['num_labels']} classes need" if classes else "these settings need"
                raise ConfigError(
                    f"model.path={self.path} has weights of other shapes than {needs}: use "
                    "model.ignore_mismatched_sizes=true, which begins with new weights for these layers."
                ) from None
        if isinstance(data, TokenData):
            own = at_home(self.path) / "tokenizer.json"
            how = f"use the model's own tokenizer, data.tokenizer={own if own.is_file() else 'FILE'}"
            if (known := len(module.get_input_embeddings().weight)) < data.vocabulary:
                raise ConfigError(
                    f"model.path={self.path} has embeddings of {known:,} tokens, but this data= has "
                    f"{data.vocabulary:,}: {how}."
                )
            if not data.tokenizer:
                self.add_note(f"model={self.name} has weights for other tokens than those of this data=: {how}")
        return module


def config_of(data: Examples, model_type: str = "", **settings: Any) -> Any:
    """Return the configuration of a kind of model of the library transformers, for the tokens of the data.

    Raises ConfigError for an unknown kind or setting.
    """
    from transformers import CONFIG_MAPPING

    if model_type not in CONFIG_MAPPING:
        known = suggest(model_type, CONFIG_MAPPING) if model_type else " Set it, as in model.model_type=gpt2."
        raise ConfigError(f"model.model_type={model_type} does not exist in the library transformers.{known}")
    usual = CONFIG_MAPPING[model_type]()
    for key in settings:
        if not hasattr(usual, key):
            raise ConfigError(
                f"model.{key} does not exist with model.model_type={model_type}.{suggest(key, vars(usual))}"
            )
    tokens = {"vocab_size": data.vocabulary} if isinstance(data, TokenData) else {}
    return CONFIG_MAPPING[model_type](**tokens | {"bos_token_id": None, "eos_token_id": None} | settings)


def plain(name: str, target: Callable[..., Any]) -> type:
    """Return the model of this name that calls a class or function."""
    known: dict[str, Any] = components("models.adapters")
    own: list[Any] = [(key, cls | None, field(default=None, metadata={"older": None})) for key, cls in known.items()]
    text = {"__doc__": "\n".join(f"{key}  {described(cls)}" for key, cls in known.items())}
    base: type = PlainModel
    given = GIVEN
    if name.startswith("transformers:") and name.endswith((".from_pretrained", ".from_config")):
        base, given = LibraryModel, (*GIVEN, "config", "pretrained_model_name_or_path")
        if name.endswith("pretrained"):
            own.append(("path", str, field(metadata={"content": "or name"})))
    return component_from(
        "models", name, target, make_dataclass("Own", own, bases=(base,), namespace=text, kw_only=True), given
    )
