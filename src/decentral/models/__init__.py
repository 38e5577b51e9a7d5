"""Architectures, one file each.

A model is a dataclass: its fields are the user's configuration, and `build` makes the module. Files that define layers
import torch at the top; they live in `layers/`, which is not scanned for components.
"""
