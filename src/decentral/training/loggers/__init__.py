"""Loggers: additional displays of metrics; the run directory remains the authoritative record."""

from decentral.training.loggers.logger import Guarded, Logger, Sink

__all__ = ["Guarded", "Logger", "Sink"]
