"""Models and data sets that Python objects give: components of a run of `decentral.train`."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, fields
from functools import partial
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from decentral.config.schema import Config
from decentral.data.dataset import ImageData, LabelledData
from decentral.data.own import PlainData, Sets
from decentral.errors import ConfigError
from decentral.models.layers.foreign import check
from decentral.models.plain import PlainModel
from decentral.network.transports.posting import as_bytes
from decentral.randomness import seeded


class Given:
    """Common parts of components made of Python objects."""

    def settings(self) -> dict[str, Any]:
        """Return no settings: the arguments are fixed."""
        return {}


@dataclass
class GivenModel(Given, PlainModel):
    """A module, from which all workers start, or a factory of one, called with seeded generators.

    kind             the class of the module
    num_parameters   how many numbers its parameters have
    """

    name: str = "given"
    kind: str = ""
    num_parameters: int = 0

    @classmethod
    def of(cls, model: nn.Module | Callable[..., nn.Module]) -> GivenModel:
        """Wrap a module or factory. Raises ConfigError if it is neither."""
        if not callable(model):
            raise ConfigError(f"model= is a {type(model).__name__}: give a torch.nn.Module, or a class or function.")
        if isinstance(model, nn.Module):
            check(model, cls.name)
        found = cls()
        vars(found)["plain_target"] = (lambda: model) if isinstance(model, nn.Module) else model
        return found

    def look_at(self, config: Config) -> None:
        """Build the module with which this run begins, and describe it."""
        with seeded(config.seed, "initial model"):
            module = self.build(config.task.describe(config))
        self.kind, self.num_parameters = type(module).__name__, sum(p.numel() for p in module.parameters())
        digest = hashlib.sha256()
        for name, value in module.state_dict().items():
            digest.update(name.encode())
            if isinstance(value, Tensor):
                digest.update(f"{value.dtype} {list(value.shape)}".encode())
                digest.update(as_bytes(value.detach().resolve_conj().resolve_neg().contiguous()).numpy().data)
        vars(self)["files_digest"] = partial(str, digest.hexdigest()[:16])  # in the run's identity

    def multiplications(self, data: LabelledData) -> float:
        """Count those of a forward pass of one example."""
        if "_count" not in vars(self):
            from torch.utils.flop_counter import FlopCounterMode

            try:
                with seeded(0, "count multiplications"):
                    module = self.build(data).float().eval()
                    with FlopCounterMode(display=False) as counter:
                        module(torch.zeros(1, *data.shape, dtype=torch.float32))
                vars(self)["_count"] = counter.get_total_flops() / 2
            except Exception:  # a forward pass that cannot be counted, such as one with gradients
                vars(self)["_count"] = math.inf
        return float(vars(self)["_count"])


@dataclass
class GivenData(Given, PlainData):
    """Two map-style data sets of pairs (tensor, label); the fields are those of their description."""

    name: str = "given"
    shape: list[int] = field(default_factory=list)
    num_classes: int = 0
    first_class: int = 0
    num_train: int = 0
    num_test: int = 0
    _found: ClassVar[Any] = None

    @classmethod
    def of(cls, train: Any, test: Any, share: str | None = None) -> GivenData:
        """Wrap the data sets, or one of which a share is for testing. Raises ConfigError for other types."""
        try:
            number = None if share in (None, "null") else float(str(share).strip("'\""))
        except ValueError:
            raise ConfigError(f"data.test_share={share} is not a number: use one between 0 and 1.") from None
        train, test = (
            TensorDataset(*one) if isinstance(one, tuple) and len(one) == 2 and all(map(torch.is_tensor, one)) else one
            for one in (train, test)
        )
        found = cls(test_share=number)
        both = (train, test) if number is None or test is not None else train
        vars(found)["plain_target"] = lambda: both
        sets = vars(found)["_found"] = found._made()
        vars(found).update(asdict(sets.description))
        labels = [hashlib.sha256(look.labels.tobytes()).hexdigest()[:8] for look in sets.looks]
        vars(found)["files_digest"] = partial(str, "".join(labels))
        return found

    def inspect(self) -> LabelledData:
        """Return the description, which a stored run has, too."""
        kind = ImageData if len(self.shape) == 3 else LabelledData
        known = {f.name: getattr(self, f.name) for f in fields(kind) if hasattr(self, f.name)}
        return kind(**known | {"shape": tuple(self.shape)})

    def _sets(self) -> Sets:
        if self._found is None:
            raise ConfigError(
                "this run was trained with data from Python, which are not stored: pass them, as in predict(test_data) "
                "or confusion(data=test_data)."
            )
        found: Sets = self._found
        return found
