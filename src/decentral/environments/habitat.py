"""Navigation in Habitat, for those who have installed it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from decentral.environments.gymnasium import Gymnasium, installed
from decentral.errors import ConfigError
from decentral.store.metrics import Metric

if TYPE_CHECKING:
    import gymnasium

_HOW = (
    "env=habitat needs habitat-lab and habitat-sim, which are not installed: conda install habitat-sim withbullet "
    "headless -c conda-forge -c aihabitat, then pip install habitat-lab, and the scenes as its DATASETS.md says."
)


@dataclass
class Habitat(Gymnasium):
    """Navigation in the rooms of Habitat (Savva et al., ICCV 2019), as in the WAGMA paper; habitat-lab has to be there.

    The environment is what `habitat.gym.make_gym_from_config` makes of a configuration of habitat-lab, whose scenes
    and episodes are its own: those for testing are of its split `val`. What is seen are the camera's depth and, in two
    channels that are the same everywhere, distance and direction of the goal. Episodes are judged by Habitat's own
    measures of success and SPL. A run that breaks off begins its episodes again, from the same seeds.

    Written by habitat-lab's documentation; it has not been run.

    id       a configuration of habitat-lab, such as benchmark/nav/pointnav/pointnav_gibson.yaml
    path     the folder with its data, instead of ./data
    """

    name: str = "habitat"
    id: str = "benchmark/nav/pointnav/pointnav_gibson.yaml"
    num_test: int = 100
    path: str | None = None

    @property
    def metrics(self) -> tuple[Metric, ...]:  # type: ignore[override]
        """SPL and success."""
        return (
            Metric("test", "SPL", larger_is_better=True),
            Metric("test", "success", larger_is_better=True, unit="%"),
        )

    def make(self) -> gymnasium.Env[Any, Any]:
        """One of them. Raises ConfigError that says how to install what is missing."""
        try:
            habitat = installed("habitat", "habitat", "rl")
            gym: Any = installed("habitat.gym", "habitat", "rl")
        except (ConfigError, ModuleNotFoundError):
            raise ConfigError(_HOW) from None
        from decentral.environments.adapters.vectors import DepthAndGoal

        more = (
            []
            if self.path is None
            else [f"habitat.dataset.data_path={Path(self.path) / '{split}' / '{split}.json.gz'}"]
        )
        return DepthAndGoal(gym.make_gym_from_config(habitat.get_config(self.id, overrides=more)))

    def facts(self, reward: float, terminated: bool, info: dict[str, Any]) -> list[float]:
        """Habitat's measures."""
        return [float(info.get("spl", 0.0)), float(info.get("success", 0.0))]
