"""Generated stand-ins for LIBERO-plus's asset files, which are on a model hub.

They do not look like its scenes, but show that both sides use the same files for the same task.
"""

from __future__ import annotations

import os
import re
import xml.etree.ElementTree as ET
import zlib
from collections.abc import Iterable
from pathlib import Path

import numpy as np
from PIL import Image

from services.libero.simulator import plus
from services.libero.simulator.suites import Task

BASE_SCENES = {
    "libero_tabletop_manipulation": "libero_tabletop_base_style.xml",
    "libero_floor_manipulation": "libero_floor_base_style.xml",
    "libero_kitchen_tabletop_manipulation": "libero_kitchen_tabletop_base_style.xml",
    "libero_living_room_tabletop_manipulation": "libero_living_room_tabletop_base_style.xml",
    "libero_study_tabletop_manipulation": "libero_study_base_style.xml",
}
OBJECT = """<mujoco model="{name}">
  <worldbody>
    {before}<body name="object">
      <geom type="box" size="{x} {y} 0.04" rgba="{red} 0.4 0.3 1" group="1" contype="0" conaffinity="0" mass="0"/>
      <geom type="box" size="{x} {y} 0.04" mass="0.05" group="0"/>{inner}
    </body>{after}
  </worldbody>
</mujoco>
"""
SITES = """
      <site name="bottom_site" pos="0 0 -0.04" size="0.005" rgba="0 0 0 0"/>
      <site name="top_site" pos="0 0 0.04" size="0.005" rgba="0 0 0 0"/>
      <site name="horizontal_radius_site" pos="0.03 0.03 0" size="0.005" rgba="0 0 0 0"/>"""


def complete(assets: Path, target: Path, tasks: Iterable[Task]) -> int:
    """Make `target` an asset directory: links to the files of `assets`, and a stand-in for each missing file.

    Return the number of stand-ins.
    """
    for path in assets.rglob("*"):
        if path.is_file():
            link = target / path.relative_to(assets)
            link.parent.mkdir(parents=True, exist_ok=True)
            link.symlink_to(path)
    made = 0
    for task in tasks:
        text = task.written()
        scene = plus.scene_of(text)
        if scene is not None:
            base = BASE_SCENES[plus.problem_of(text)[0].lower()]
            for name in scene.files():
                made += _make(target / name, target / "scenes" / base)
        for category in set(re.findall(r"-\s+(\w+)", text)) & plus.objects().keys():
            made += _make(target / plus.objects()[category], Path())
    return made


def _make(path: Path, base: Path) -> bool:
    """Write a stand-in, which depends on the name, unless the file exists; return whether it was written."""
    if path.exists():
        return False
    path.parent.mkdir(parents=True, exist_ok=True)
    number = zlib.crc32(path.name.encode())
    if path.suffix == ".png":
        colours = np.random.default_rng(number).integers(0, 256, (8, 8, 3), np.uint8)
        Image.fromarray(np.kron(colours, np.ones((16, 16, 1), np.uint8))).save(path)
    elif base.name:
        tree = ET.parse(base)  # the base's scene with other lights; its file references stay valid
        for part in tree.iter():
            if "file" in part.attrib:
                part.set("file", os.path.relpath(base.parent / part.get("file"), path.parent))
        draw = np.random.default_rng(number)
        for light in tree.iter("light"):
            light.set("diffuse", " ".join(f"{value:.3f}" for value in draw.uniform(0, 1, 3)))
            light.set("pos", " ".join(f"{value:.3f}" for value in draw.uniform((-3, -3, 1), (3, 3, 7))))
        tree.write(path)
    else:
        path.write_text(_object(path.stem, number))
    return True


def _object(name: str, number: int) -> str:
    """Return an object's MJCF; every second one has no outer body, which LIBERO-plus allows."""
    nested = number % 2 == 0
    before, after, inner = ("<body>", f"{SITES}\n    </body>", "") if nested else ("", "", SITES)
    x, y, red = (
        round(low + (number >> shift) % 16 * step, 3)
        for low, shift, step in ((0.02, 4, 0.001), (0.02, 8, 0.001), (0.2, 12, 0.05))
    )
    return OBJECT.format(name=name, before=before, after=after, inner=inner, x=x, y=y, red=red)
