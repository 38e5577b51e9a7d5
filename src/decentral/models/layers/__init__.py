"""Layers that torch lacks. Imported by `build` only: this package is not scanned, so its modules may import torch."""
