"""Where metrics are shown besides the run directory, which stays the only record that counts."""

from decentral.training.loggers.logger import Guarded, Logger, Sink

__all__ = ["Guarded", "Logger", "Sink"]
