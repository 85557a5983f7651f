"""The project's own asset kit: simple meshes, textures and MJCF for everything that LIBERO's tasks refer to.

`build(folder)` writes it in the folder layout that LIBERO expects; the bytes depend on nothing but this package.
"""

from services.libero.assets.kit.writer import build, catalogue, damage, digest, version

__all__ = ["build", "catalogue", "damage", "digest", "version"]
