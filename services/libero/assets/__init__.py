"""LIBERO's meshes and textures: from a directory, the official files, or the project's own kit."""

from services.libero.assets.sources import AssetSource, resolve

__all__ = ["AssetSource", "resolve"]
