"""Finding components: ours, and one's own in folders, in installed packages and in modules of torch classes."""

from decentral.registry.find import component, components

__all__ = ["component", "components"]
