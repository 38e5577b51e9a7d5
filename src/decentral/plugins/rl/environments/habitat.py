"""Navigation in Habitat, if it is installed."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from decentral.errors import ConfigError
from decentral.plugins.rl.environments.gymnasium import Gymnasium, installed
from decentral.store.metrics import Metric

if TYPE_CHECKING:
    import gymnasium

_HOW = (
    "env=habitat needs habitat-lab and habitat-sim, which are not installed: conda install habitat-sim withbullet "
    "headless -c conda-forge -c aihabitat, then pip install habitat-lab, and the scenes as its DATASETS.md says."
)


@dataclass
class Habitat(Gymnasium):
    """Navigation in the rooms of Habitat (Savva et al., ICCV 2019), as in the WAGMA paper; needs habitat-lab.

    `habitat.gym.make_gym_from_config` creates the environment from a configuration of habitat-lab, with its scenes and
    episodes: test scenes are its split `val`. Observations are the camera's depth and, in two constant channels,
    distance and direction of the goal. Metrics are Habitat's success and SPL. A resumed run restarts its episodes from
    the same seeds.

    Written from habitat-lab's documentation; not yet run.

    id       a configuration of habitat-lab, such as benchmark/nav/pointnav/pointnav_gibson.yaml
    path     the folder with its data, instead of ./data
    """

    name: str = "habitat"
    id: str = "benchmark/nav/pointnav/pointnav_gibson.yaml"
    num_test: int = 100
    path: str | None = None

    @property
    def metrics(self) -> tuple[Metric, ...]:  # type: ignore[override]
        """Return the metrics SPL and success."""
        return (
            Metric("test", "SPL", larger_is_better=True),
            Metric("test", "success", larger_is_better=True, unit="%"),
        )

    def make(self) -> gymnasium.Env[Any, Any]:
        """Create an environment. Raises ConfigError with instructions to install missing packages."""
        try:
            habitat = installed("habitat", "habitat", "rl")
            gym: Any = installed("habitat.gym", "habitat", "rl")
        except (ConfigError, ModuleNotFoundError):
            raise ConfigError(_HOW) from None
        from decentral.plugins.rl.vectors import DepthAndGoal

        more = (
            []
            if self.path is None
            else [f"habitat.dataset.data_path={Path(self.path) / '{split}' / '{split}.json.gz'}"]
        )
        return DepthAndGoal(gym.make_gym_from_config(habitat.get_config(self.id, overrides=more)))

    def facts(self, reward: float, terminated: bool, info: dict[str, Any]) -> list[float]:
        """Return Habitat's measures."""
        return [float(info.get("spl", 0.0)), float(info.get("success", 0.0))]
