"""Weights & Biases.

Constraints (wandb 0.31): without a key it prompts on a terminal and waits forever, so `mode` is always passed and a key
is looked up first; it takes 10 s to notice an unreachable server; it does not notice a full disk.
"""

from __future__ import annotations

import importlib
import os
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any

from decentral.errors import ConfigError
from decentral.training.loggers.logger import Logger, Sink, one_line, require, warn

_INIT_TIMEOUT_S = 10.0
_FINISH_TIMEOUT_S = 25.0  # below the time that a run waits for its logger


class Mode(Enum):
    """The destination of Weights & Biases."""

    offline = "offline"
    online = "online"
    disabled = "disabled"


@dataclass
class WeightsAndBiases(Logger):
    """Weights & Biases; offline unless `logger.mode=online`; upload offline runs with `wandb sync`.

    It never prompts. Online without a key (WANDB_API_KEY or `wandb login`) or without a connection falls back to
    offline, with a warning. Raises ConfigError for a project name or a tag that the server would refuse.
    """

    name: str = "wandb"
    mode: Mode = Mode.offline
    project: str = "decentral"
    entity: str | None = None
    group: str | None = None
    tags: list[str] = field(default_factory=list)
    every_worker: bool = False

    def __post_init__(self) -> None:
        if not 1 <= len(self.project) <= 128 or set(self.project) & set("/\\#?%:"):
            raise ConfigError(
                f"logger.project='{self.project}' is not a valid project name: use 1 to 128 characters other than / "
                "\\ # ? % :."
            )
        for tag in self.tags:
            if not 1 <= len(tag) <= 64:
                raise ConfigError(f"logger.tags has the tag '{tag}': use 1 to 64 characters.")

    def check(self) -> None:
        """Raise ConfigError if wandb is needed and not installed."""
        if self.mode is not Mode.disabled:
            require("wandb", self.name, "pip install wandb")

    def open(self, run_id: str, config: dict[str, Any], directory: Path) -> Sink:
        """Start a run in `directory/wandb`, and on the server if requested and possible."""
        if self.mode is Mode.disabled:
            return Sink()
        os.environ["WANDB_SILENT"] = "true"  # its setting `silent` alone comes too late for the login
        if self.mode is Mode.online:
            try:
                if not importlib.import_module("wandb").login(prompt=False):
                    raise PermissionError("no API key: set WANDB_API_KEY, or run `wandb login`")
                return self._start("online", run_id, run_id, config, directory)
            except Exception as error:
                later = f"Send the run later with `wandb sync {directory}/wandb/offline-run-*`."
                warn(self.name, f"is offline: {one_line(error)}. {later}")
                return self._start("offline", f"{run_id}-offline", run_id, config, directory)
        return self._start("offline", run_id, run_id, config, directory)

    def _start(self, mode: str, wandb_id: str, run_id: str, config: dict[str, Any], directory: Path) -> Sink:
        wandb = importlib.import_module("wandb")
        settings = wandb.Settings(
            silent=True,
            console="off",
            disable_git=True,
            disable_code=True,
            init_timeout=_INIT_TIMEOUT_S,
            login_timeout=_INIT_TIMEOUT_S,
            finish_timeout=_FINISH_TIMEOUT_S,
        )
        run = wandb.init(
            mode=mode,
            project=self.project,
            entity=self.entity,
            group=self.group,
            tags=self.tags,
            id=wandb_id,
            name=run_id,
            resume="allow" if mode == "online" else None,
            config=config,
            dir=str(directory),
            settings=settings,
        )
        here = f"{directory / 'wandb'}  (wandb sync {directory / 'wandb' / 'offline-run-*'})"
        return _Run(run, run.url if mode == "online" else here)


class _Run(Sink):
    def __init__(self, run: Any, place: str) -> None:
        self._run, self.place = run, place

    def log(self, step: int, values: dict[str, float]) -> None:
        self._run.log(values, step=step)

    def close(self, status: str) -> None:
        self._run.summary["status"] = status
        self._run.finish(exit_code=int(status == "failed"))
