"""The kit itself: same bytes every time, what LIBERO looks up, sizes that fit the gripper, cheap to draw."""

import subprocess
import sys
import xml.etree.ElementTree as ET

import numpy as np
import pytest

from services.libero.assets import kit
from services.libero.assets.kit.mesh import Mesh, box, lathe, merge, tube
from services.libero.assets.sources import LANDMARKS
from services.libero.simulator import suites

GRIPPER_OPENING_M = 0.08
CATALOGUE = kit.catalogue()
STANDARD_SUITES = ("libero_spatial", "libero_object", "libero_goal", "libero_10", "libero_90")


@pytest.fixture(scope="module")
def directory(libero_runtime, tmp_path_factory):  # the runtime first: it must be configured before MuJoCo is imported
    where = tmp_path_factory.mktemp("kit")
    kit.build(where)
    return where


def compiled(directory, asset):
    """The asset's own model, its masses counted as robosuite counts them: from collision geoms alone."""
    root = ET.parse(directory / f"{asset.path}.xml").getroot()
    root.find("compiler").set("inertiagrouprange", "0 0")
    for element in root.iter():
        if element.get("file"):
            element.set("file", str((directory / asset.path).parent / element.get("file")))
    import mujoco

    return mujoco.MjModel.from_xml_string(ET.tostring(root, encoding="unicode"))


def test_same_bytes_in_another_process(directory, tmp_path):
    code = "import sys, pathlib; from services.libero.assets import kit; kit.build(pathlib.Path(sys.argv[1]))"
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=True, timeout=120)
    ours = {str(p.relative_to(directory)): p.read_bytes() for p in directory.rglob("*") if p.is_file()}
    theirs = {str(p.relative_to(tmp_path)): p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()}
    assert ours.keys() == theirs.keys()
    assert [name for name in ours if ours[name] != theirs[name]] == []


def test_the_last_bit_of_a_sum_changes_no_byte():
    mesh = box((1, 1, 1), (0, 0, 1, 1))
    zero = mesh.pos - mesh.pos
    there, here = (Mesh(zero + noise, zero + noise, mesh.uv, mesh.tri).tobytes() for noise in (1e-17, -1e-17))
    assert there == here


def test_kit_is_an_asset_directory_and_complete_until_a_file_is_gone(directory, tmp_path):
    assert all((directory / path).is_file() for path in LANDMARKS)
    assert not kit.damage(directory)
    kit.build(tmp_path)
    (tmp_path / LANDMARKS[0]).unlink()
    assert kit.damage(tmp_path)


def test_every_category_that_a_suite_names_is_in_the_kit():
    named = set()
    for suite in STANDARD_SUITES:
        for task in suites.load_suite(suite).tasks:
            text = task.bddl_path.read_text()
            for block in ("(:objects", "(:fixtures"):
                lines = text.split(block, 1)[1].split(")", 1)[0].splitlines()
                named |= {line.split(" - ")[1].strip() for line in lines if " - " in line}
    rooms = {"table", "floor", "kitchen_table", "living_room_table", "study_table"}
    assert named - rooms - CATALOGUE.keys() == set()


@pytest.mark.parametrize("name", CATALOGUE)
def test_asset_has_the_frame_that_libero_reads(directory, name):
    asset = CATALOGUE[name]
    outer = ET.parse(directory / f"{asset.path}.xml").getroot().find("./worldbody/body")
    assert {site.get("name") for site in outer.findall("site")} == {"bottom_site", "top_site", "horizontal_radius_site"}
    body = outer.find("./body[@name='object']")
    geoms = list(body.iter("geom"))
    assert {g.get("group") for g in geoms} == {"0", "1"}
    assert all(g.get("contype") == g.get("conaffinity") == "0" for g in geoms if g.get("group") == "1")


@pytest.mark.parametrize("name", CATALOGUE)
def test_asset_compiles_light_enough_to_draw_and_collide(directory, name):
    model = compiled(directory, CATALOGUE[name])
    assert model.nmeshvert < 1500
    assert np.count_nonzero(model.geom_group == 0) <= 36
    movable = model.body("object").id
    assert 0.001 < model.body_subtreemass[movable] < 15


def test_what_is_picked_up_fits_the_gripper_somewhere(directory):
    import mujoco

    for name in ("butter", "cream_cheese", "cookies", "milk", "orange_juice", "ketchup", "alphabet_soup", "moka_pot"):
        model = compiled(directory, CATALOGUE[name])
        data = mujoco.MjData(model)
        mujoco.mj_forward(model, data)
        shapes = np.flatnonzero(model.geom_group == 0)
        frames = data.geom_xmat[shapes].reshape(-1, 3, 3)
        reach = np.einsum("nij,nj->ni", np.abs(frames), model.geom_size[shapes])
        extent = (data.geom_xpos[shapes] + reach).max(0) - (data.geom_xpos[shapes] - reach).min(0)
        across = [extent[0], extent[1 if CATALOGUE[name].up == "z" else 2]]
        assert min(across) < GRIPPER_OPENING_M, f"{name} is {extent} m"


def test_drawers_slide_and_their_regions_move_along(directory):
    import mujoco

    for name in ("wooden_cabinet", "white_cabinet"):
        model = compiled(directory, CATALOGUE[name])
        data = mujoco.MjData(model)
        assert [model.joint(j).name for j in range(model.njnt)] == ["top_level", "middle_level", "bottom_level"]
        mujoco.mj_forward(model, data)
        before = data.site("middle_region").xpos.copy()
        data.joint("middle_level").qpos[0] = -0.15
        mujoco.mj_forward(model, data)
        assert np.allclose(data.site("middle_region").xpos - before, [0, -0.15, 0])
        assert data.ncon == 0, "an open drawer must not touch its cabinet"


def test_stove_knob_and_microwave_door_turn_the_way_libero_asks(directory):
    stove, oven = compiled(directory, CATALOGUE["flat_stove"]), compiled(directory, CATALOGUE["microwave"])
    assert np.allclose(stove.joint("button").range, [-0.005, 2.1])
    assert np.allclose(oven.joint("microjoint").range, [-2.094, 0])


@pytest.mark.parametrize(
    "mesh",
    [
        box((0.1, 0.2, 0.3), (0, 0, 1, 1)),
        lathe([(0, 0), (0.1, 0), (0.2, 0.3), (0.15, 0.3), (0, 0.1)], (0, 0, 1, 1), 16),
        tube([(0, 0, 0), (0, 0, 0.2), (0.1, 0, 0.3)], 0.02, (0, 0, 1, 1)),
        merge([box((1, 1, 1), (0, 0, 1, 1)), box((1, 1, 1), (0, 0, 1, 1)).transformed((3, 0, 0))]),
    ],
    ids=["box", "lathe", "tube", "merged"],
)
def test_faces_look_outwards_and_close_the_mesh(mesh):
    a, b, c = (mesh.pos[mesh.tri[:, k]] for k in range(3))
    normal = np.cross(b - a, c - a)
    assert (np.einsum("ij,ij->i", normal, mesh.nrm[mesh.tri].mean(1)) > 0).all()
    assert np.allclose(normal.sum(0), 0, atol=1e-9), "the faces of a closed mesh cancel out"
    assert np.allclose(np.linalg.norm(mesh.nrm, axis=1), 1)
