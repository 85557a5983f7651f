"""Where LIBERO's meshes and textures come from: a folder, the official files, or the project's own kit."""

from services.libero.assets.sources import AssetSource, resolve

__all__ = ["AssetSource", "resolve"]
