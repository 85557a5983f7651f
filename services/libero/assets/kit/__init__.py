"""The project's own asset kit: simple meshes, textures and MJCF for everything that LIBERO's tasks refer to.

`build(directory)` writes it in LIBERO's directory layout; the bytes depend only on this package.
"""

from services.libero.assets.kit.writer import build, catalogue, damage, digest, version

__all__ = ["build", "catalogue", "damage", "digest", "version"]
