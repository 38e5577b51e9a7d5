"""Finding components: ours, and one's own in folders, in installed packages and in modules of torch classes."""

from decentral.registry.find import component, components, is_foreign

__all__ = ["component", "components", "is_foreign"]
