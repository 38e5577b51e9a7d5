"""TensorBoard."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from decentral.training.loggers.logger import Logger, Sink, require

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter

_FLUSH_S = 10


@dataclass
class TensorBoard(Logger):
    """TensorBoard event files in the run directory; view them with `tensorboard --logdir results/runs`."""

    name: str = "tensorboard"
    every_worker: bool = False

    def check(self) -> None:
        """Raise ConfigError if tensorboard is not installed."""
        require("tensorboard", self.name, "pip install tensorboard")

    def open(self, run_id: str, config: dict[str, Any], directory: Path) -> Sink:
        """Write event files into `directory/tensorboard`."""
        from torch.utils.tensorboard import SummaryWriter

        folder = directory / "tensorboard"
        writer = SummaryWriter(log_dir=str(folder), flush_secs=_FLUSH_S)
        writer.add_text("config", f"```\n{json.dumps(config, indent=2, default=str)}\n```", 0)
        return _Events(writer, f"{folder}  (tensorboard --logdir {directory.parent})")


class _Events(Sink):
    def __init__(self, writer: SummaryWriter, place: str) -> None:
        self._writer, self.place = writer, place
        self._last_step = 0

    def log(self, step: int, values: dict[str, float]) -> None:
        self._last_step = step
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)

    def close(self, status: str) -> None:
        self._writer.add_text("status", status, self._last_step)
        self._writer.close()
