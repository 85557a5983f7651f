"""The kit beside the official files: same joints and regions, nearly equal masses and sizes."""

import xml.etree.ElementTree as ET
from pathlib import Path

import numpy as np
import pytest

from services.libero.assets import kit
from services.libero.simulator import pro

CATALOGUE = kit.catalogue()
CAPSULE = 3  # mjtGeom.mjGEOM_CAPSULE
WITHIN_M = 0.009  # of the corners of the collision shapes' bounding box
WITHIN_MASS = 0.06  # of the official mass


pytestmark = pytest.mark.outside  # in an image there is no way to the package index


@pytest.fixture(scope="module")
def directory(libero_runtime, tmp_path_factory):  # the runtime first: it must be configured before MuJoCo is imported
    where = tmp_path_factory.mktemp("kit")
    kit.build(where)
    return where


def compiled(file: Path):
    """Model and data of one asset file, without what is only shown: pictures may be missing and carry no mass here."""
    root = ET.parse(file).getroot()
    for parent in list(root.iter()):
        for child in list(parent):
            shown = child.tag == "geom" and (child.get("group") == "1" or child.get("class") == "microwave")
            if child.tag == "asset" or child.tag == "compiler" or shown:
                parent.remove(child)
    for geom in root.iter("geom"):
        geom.attrib.pop("material", None)
    for default in root.iter("default"):
        for geom in default.iter("geom"):
            geom.attrib.pop("mesh", None)
    root.insert(0, ET.Element("compiler", angle="radian", inertiagrouprange="0 0"))
    import mujoco

    model = mujoco.MjModel.from_xml_string(ET.tostring(root, encoding="unicode"))
    data = mujoco.MjData(model)
    mujoco.mj_forward(model, data)
    return model, data


def joints(model):
    found = {}
    for j in range(model.njnt):
        numbers = np.round([*model.jnt_axis[j], *model.jnt_range[j], *model.jnt_pos[j]], 4).tolist()
        damping = float(model.dof_damping[model.jnt_dofadr[j]])
        found[model.joint(j).name] = [model.body(model.jnt_bodyid[j]).name, damping, *numbers]
    return found


def sites(model, data):
    return {
        model.site(s).name: [*data.site_xpos[s], *data.site_xmat[s], *model.site_size[s][:2]]
        for s in range(model.nsite)
    }


def extent(model, data):
    shapes = np.flatnonzero(model.geom_group == 0)
    reach = np.einsum("nij,nj->ni", np.abs(data.geom_xmat[shapes].reshape(-1, 3, 3)), half_sizes(model, shapes))
    origin = data.body("object").xpos
    return np.concatenate(
        [(data.geom_xpos[shapes] - reach).min(0) - origin, (data.geom_xpos[shapes] + reach).max(0) - origin]
    )


def half_sizes(model, shapes):
    sizes = model.geom_size[shapes].copy()
    capsule = model.geom_type[shapes] == CAPSULE
    sizes[capsule] = np.column_stack([sizes[capsule, 0], sizes[capsule, 0], sizes[capsule, 0] + sizes[capsule, 1]])
    return sizes


@pytest.mark.parametrize("name", CATALOGUE)
def test_kit_has_the_official_joints_regions_masses_and_sizes(directory, official_assets, name):
    file = f"{CATALOGUE[name].path}.xml"
    if name in pro.LIKE and not (official_assets / file).is_file():
        pytest.skip(
            "LIBERO-PRO's objects are not beside these official files; `./lab assets libero --all` fetches them"
        )
    theirs, their_data = compiled(official_assets / file)
    ours, our_data = compiled(directory / file)
    assert joints(ours) == joints(theirs)
    assert list(joints(ours)) == list(joints(theirs)), "the order is the order of the init state's numbers"
    expected, found = sites(theirs, their_data), sites(ours, our_data)
    assert found.keys() == expected.keys()
    regions = [n for n in expected if not n.endswith("_site")]
    assert np.allclose([found[n] for n in regions], [expected[n] for n in regions], atol=1e-3)
    placement = [n for n in expected if n.endswith("_site")]
    assert np.allclose([found[n][:3] for n in placement], [expected[n][:3] for n in placement], atol=1e-3)
    mass = theirs.body_subtreemass[theirs.body("object").id]
    assert ours.body_subtreemass[ours.body("object").id] == pytest.approx(mass, rel=WITHIN_MASS)
    assert np.abs(extent(ours, our_data) - extent(theirs, their_data)).max() < WITHIN_M
