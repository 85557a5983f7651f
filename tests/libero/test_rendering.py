"""A picture put together from layers is the one that MuJoCo draws at once, on scenes made to make that hard."""

import numpy as np
import pytest

pytestmark = pytest.mark.usefixtures("libero_runtime")

SIZE = 64

SCENE = """
<mujoco>
  <default><geom group="1"/></default>
  <asset>
    <texture name="check" type="2d" builtin="checker" width="32" height="32" rgb1="0.2 0.4 0.6" rgb2="0.9 0.8 0.1"/>
    <texture name="sky" type="skybox" builtin="gradient" width="32" height="192" rgb1="0.5 0.6 0.7" rgb2="0 0 0"/>
    <material name="check" texture="check" texrepeat="4 4"/>
    <material name="mirror" reflectance="0.6" rgba="0.3 0.3 0.3 1"/>
    <material name="glass" rgba="0.2 0.9 0.2 0.3"/>
  </asset>
  <worldbody>
    <light pos="0 0 3" dir="0 0 -1" castshadow="{shadow}"/>
    <camera name="still" pos="1.6 0 1.4" xyaxes="0 1 0 -0.6 0 0.8"/>
    <geom name="floor" type="plane" size="2 2 0.1" material="check"/>
    <geom name="wall" type="box" size="0.05 2 1" pos="-1 0 1" material="check"/>
    {static}
    <body name="mover" pos="0 0 0.4">
      <freejoint/>
      <camera name="moving" pos="1.2 0 0.8" xyaxes="0 1 0 -0.6 0 0.8"/>
      <geom name="ball" type="sphere" size="0.2" rgba="0.9 0.1 0.1 1"/>
      <geom name="bar" type="capsule" size="0.06 0.5" euler="0 90 20" rgba="0.1 0.1 0.9 1"/>
    </body>
    <body name="slider" pos="0.1 -0.5 0.2">
      <joint type="slide" axis="0 1 0"/>
      <geom name="drawer" type="box" size="0.2 0.2 0.2" rgba="0.5 0.4 0.2 1"/>
    </body>
    <body name="stand">
      <geom name="block" type="box" size="0.2 0.2 0.2" pos="0.1 0.5 0.2" rgba="0.1 0.7 0.3 1"/>
      <geom name="twin" type="box" size="0.2 0.2 0.1" pos="0.2 0.5 0.3" rgba="0.8 0.3 0.7 1"/>
    </body>
  </worldbody>
</mujoco>
"""

MIRROR = '<geom name="mirror" type="box" size="0.4 0.6 0.02" pos="0.3 -0.2 0.02" material="mirror"/>'
GLASS = '<geom name="pane" type="box" size="0.02 0.5 0.5" pos="0.6 0 0.5" material="glass"/>'
SITE = '<site name="glow" pos="0.3 0.1 0.3" size="0.05" rgba="0.4 0.2 0.1 1"/>'
SCENES = {
    "plain": "",
    "mirror": MIRROR,
    "glass": GLASS,
    "mirror and glass": MIRROR + GLASS,
    "two mirrors": MIRROR + MIRROR.replace('name="mirror" ', "").replace("0.3 -0.2", "-0.5 0.4"),
}


@pytest.fixture(scope="module")
def context():
    from fast_libero.rendering.renderer import GlContext

    made = GlContext()
    made.make_current()
    yield made


@pytest.fixture
def stage_of(context):
    """Return a stage for one of the scenes, freed afterwards."""
    import mujoco

    from fast_libero.rendering.stage import Stage

    made = []

    def make(static, shadow="false"):
        context.make_current()
        model = mujoco.MjModel.from_xml_string(SCENE.format(static=static, shadow=shadow))
        made.append(Stage(model, SIZE))
        return made[-1]

    yield make
    for stage in made:
        stage.free()


@pytest.fixture
def composed(stage_of):
    """Return a stage of a scene, its compositor and the number of a camera; the compositor is freed afterwards."""
    from fast_libero.rendering.compositor import Compositor

    made = []

    def make(static, camera="still"):
        stage = stage_of(static)
        assert Compositor.supports(stage)
        made.append(Compositor(stage))
        return stage, made[-1], stage.model.camera(camera).id

    yield make
    for compositor in made:
        compositor.free()


def poses(count, seed=0):
    """Return poses float64 [count][8] of the mover (anywhere, also inside other things) and the drawer.

    The first few have faces in one plane with standing faces: the drawer stands where the block does.
    """
    rng = np.random.RandomState(seed)
    for number in range(count):
        turn = rng.randn(4)
        place = rng.uniform([-1, -1, -0.1], [1, 1, 0.8])
        slide = (1.0, 0.6, 0.0)[number] if number < 3 else rng.uniform(-0.5, 1.2)
        yield np.concatenate([place, turn / np.linalg.norm(turn), [slide]])


@pytest.mark.parametrize("name", ["plain", "mirror", "glass"])
def test_layers_change_no_pixel(composed, name):
    (stage, compositor, camera), seen = composed(SCENES[name]), []
    for qpos in poses(40):
        stage.pose(camera, qpos)
        expected = stage.render(camera)
        layered = compositor.render(camera)
        assert layered is not None
        assert np.array_equal(expected, layered)
        seen.append(expected.tobytes())
    assert len(set(seen)) == len(seen)


def test_a_moving_camera_has_a_layer_of_the_mirror_where_it_sees_it(composed):
    (stage, compositor, camera), areas = composed(MIRROR, "moving"), set()
    mirror = stage.model.geom("mirror").id
    for qpos in poses(80):
        stage.pose(camera, qpos)
        expected = stage.render(camera)
        layered = compositor.render(camera)
        area = stage.culling.area(stage.data, camera, mirror, SIZE)
        is_below = stage.data.cam_xpos[camera][2] < 0
        assert (layered is None) == (is_below or min(area[2:]) == 0)
        assert layered is None or np.array_equal(expected, layered)
        areas.add(area if layered is not None else None)
    assert None in areas and (0, 0, SIZE, SIZE) in areas  # a part of the mirror is behind the eye
    assert len(areas) > 20


def test_what_stands_is_drawn_once(composed, monkeypatch):
    """Also where the scene has a mirror: then it has a layer, and the scene is not drawn twice."""
    (stage, compositor, camera), drawn = composed(MIRROR), []
    draw = stage.draw

    def counted():
        geoms = stage.scene.geoms[: stage.scene.ngeom]
        drawn.append(sorted(stage.model.geom(geom.objid).name for geom in geoms if geom.objid >= 0))  # without layers
        draw()

    monkeypatch.setattr(stage, "draw", counted)
    away = np.array([0, -0.8, 0.6, 1, 0, 0, 0, -0.2])  # touches nothing
    stage.pose(camera, away)
    compositor.render(camera)
    mirror, background, rest = drawn
    assert background == ["block", "floor", "twin", "wall"]
    assert "mirror" in mirror and "floor" not in mirror  # nothing below the mirror has an image in it
    assert rest == ["ball", "bar", "drawer"]
    drawn.clear()
    compositor.render(camera)
    assert drawn == [rest]  # neither the background nor what the mirror shows has changed
    drawn.clear()
    stage.model.geom_rgba[stage.model.geom("block").id] = 0, 0, 1, 1
    expected = stage.render(camera)
    assert np.array_equal(expected, compositor.render(camera))
    drawn.clear()
    inside_the_block = np.array([0.1, 0.5, 0.3, 1, 0, 0, 0, -0.2])
    stage.pose(camera, inside_the_block)
    compositor.render(camera)
    assert {"block", "twin"} < set(drawn[-1])  # the mover touches the first, the first the second


def test_a_mirror_is_drawn_again_when_what_it_shows_has_changed(composed):
    """Whatever that is: what stands in it, colours, lights and sites. What it does not show is none of it."""
    (stage, compositor, camera), captured = composed(MIRROR + SITE), []
    aside = np.array([-0.6, 0.8, 0.3, 1, 0, 0, 0, 1.2])  # beside what the mirror shows
    above = np.array([0.3, -0.2, 0.5, 1, 0, 0, 0, 1.2])
    model = stage.model

    def look(qpos):
        """Return whether the mirror was drawn anew, having compared the picture."""
        stage.pose(camera, qpos)
        expected = stage.render(camera)
        assert np.array_equal(expected, compositor.render(camera))
        captured.append(compositor._mirror_layers[camera][1])
        return len(captured) < 2 or captured[-2] != captured[-1]

    assert look(aside)
    assert not look(aside + 0.02 * np.eye(8)[0])
    assert look(above)
    assert not look(above)
    assert look(np.nextafter(above.astype(np.float32), np.float32(1)))
    for array, index in (
        (model.geom_rgba, model.geom("ball").id),
        (model.mat_rgba, model.material("mirror").id),
        (model.site_rgba, 0),
        (model.site_pos, 0),
        (model.light_diffuse, 0),
        (model.light_pos, 0),
        (model.cam_pos, camera),
    ):
        look(above)
        array[index][0] += 0.1
        assert look(above)


@pytest.mark.parametrize("name", ["plain", "mirror", "glass"])
def test_what_rests_joins_the_layer_and_leaves_it_when_it_moves(composed, monkeypatch, name):
    """The mover rests in mid air, at the block and inside it; meanwhile the drawer goes on, and its turn comes too."""
    from fast_libero.rendering import compositor

    monkeypatch.setattr(compositor, "JOINING", 0)
    (stage, made, camera), held = composed(SCENES[name]), []
    places = [(0, -0.8, 0.6), (0.1, 0.5, 0.6), (0.1, 0.5, 0.3)]
    slides = np.linspace(-0.4, 1.1, 15)  # the last ones stand in the block
    for number in range(30):
        place, slide = places[number // 10], slides[min(number, 14)]
        qpos = np.array([*place, 1, 0, 0, 0, slide])
        stage.pose(camera, qpos)
        expected = stage.render(camera)
        assert np.array_equal(expected, made.render(camera)), f"picture {number}"
        held.append({stage.model.geom(geom).name for geom in np.flatnonzero(made._resting[camera].at_rest)})
    assert held[1] == set()
    assert held[5] == {"ball", "bar"}
    assert held[10] == set()
    assert held[19] == {"ball", "bar", "drawer"}
    assert held[20] == {"drawer"}


@pytest.mark.parametrize(("place", "drawn"), [((0, -0.8, 0.6), {"ball", "bar"}), ((0.1, 0.5, 0.3), None)])
def test_what_joins_is_drawn_over_the_layer_unless_it_touches_what_comes_later(composed, monkeypatch, place, drawn):
    """In mid air the mover alone is drawn; inside the block, which MuJoCo draws later, the whole layer is."""
    from fast_libero.rendering import compositor

    monkeypatch.setattr(compositor, "JOINING", 0)
    (stage, made, camera), captured = composed(""), []
    scene, capture = stage.scene, compositor.layers.Layer.capture

    def capturing(layer):
        captured.append({stage.model.geom(geom.objid).name for geom in scene.geoms[: scene.ngeom] if geom.objid >= 0})
        capture(layer)

    monkeypatch.setattr(compositor.layers.Layer, "capture", capturing)
    for number in range(6):
        stage.pose(camera, np.array([*place, 1, 0, 0, 0, 0.01 * number]))  # the drawer moves on
        expected = stage.render(camera)
        assert np.array_equal(expected, made.render(camera)), number
    first, joined = captured
    assert joined == (drawn or first | {"ball", "bar"})


def test_objects_join_when_leaving_them_out_has_cost_as_much():
    from fast_libero.rendering.compositor import JOINING, MIN_STILL_FRAMES, RestDetector

    resting = RestDetector(np.array([True, True]), np.array([JOINING // 2, 0]))
    joined = [resting.update(np.zeros((2, 12), np.float32)).tolist() for _ in range(MIN_STILL_FRAMES + 2)]
    assert joined == [[False, False]] * (MIN_STILL_FRAMES + 1) + [[True, True]]  # the plain one with the other


def test_what_moves_soon_after_it_rested_has_to_rest_longer():
    from fast_libero.rendering.compositor import JOINING, MIN_STILL_FRAMES, RestDetector

    resting = RestDetector(np.array([True, True, False]), np.full(3, JOINING))
    poses = np.zeros((3, 12), np.float32)
    waited = []
    for _ in range(3):
        waited.append(next(count for count in range(100) if resting.update(poses.copy())[0]))
        poses[0] += 1  # at once
    assert waited == [MIN_STILL_FRAMES, 2 * MIN_STILL_FRAMES, 4 * MIN_STILL_FRAMES]
    assert resting.at_rest.tolist() == [True, True, False]
    for _ in range(100):
        resting.update(poses.copy())  # the first has moved and rests, for long this time
    poses[0] += 1
    resting.update(poses.copy())
    again = [resting.update(poses.copy())[0] for _ in range(MIN_STILL_FRAMES)]
    assert again == [False] * (MIN_STILL_FRAMES - 1) + [True]
    poses[1] = np.nextafter(poses[1], np.float32(1))  # the least move there is
    assert not resting.update(poses)[1]


@pytest.mark.parametrize("name", ["two mirrors", "shadow"])
def test_scenes_that_layers_cannot_hold_are_refused(stage_of, name):
    from fast_libero.rendering.compositor import Compositor

    stage = stage_of(SCENES.get(name, ""), shadow="true" if name == "shadow" else "false")
    assert not Compositor.supports(stage)


@pytest.mark.parametrize(("name", "camera"), [("plain", "moving"), ("mirror and glass", "still")])
def test_images_that_layers_cannot_make_are_left_to_others(composed, name, camera):
    stage, compositor, number = composed(SCENES[name], camera)
    stage.pose(number, next(poses(1)))
    assert compositor.render(number) is None


def test_a_driver_that_cannot_draw_layers_still_draws(context, monkeypatch, caplog):
    import mujoco
    from OpenGL import GL
    from OpenGL.error import GLError

    from fast_libero.rendering import layers
    from fast_libero.rendering.renderer import SceneRenderer

    def refuse(self):
        GL.glBindFramebuffer(GL.GL_FRAMEBUFFER, self._framebuffer)
        raise GLError(1282, description="invalid operation")

    model = mujoco.MjModel.from_xml_string(SCENE.format(static=MIRROR, shadow="false"))
    monkeypatch.setattr(layers.Layer, "capture", refuse)
    renderer = SceneRenderer(context, model, SIZE)
    camera, qpos = model.camera("still").id, next(poses(1))
    images = [renderer.render(camera, qpos) for _ in range(2)]
    assert caplog.text.count("cannot render from layers") == 1
    renderer._stage.pose(camera, qpos)
    expected = renderer._stage.render(camera)
    assert all(np.array_equal(expected, image) for image in images)
    renderer.free()


def test_a_driver_that_draws_layers_wrongly_is_found_out(libero_runtime, context, monkeypatch, caplog):
    """The first picture is drawn both ways; from then on only the way that was right is used."""
    import mujoco

    from fast_libero.rendering import layers
    from fast_libero.rendering.renderer import SceneRenderer

    model = mujoco.MjModel.from_xml_string(SCENE.format(static="", shadow="false"))
    monkeypatch.setattr(layers.Layer, "capture", lambda self: None)  # what comes back is not what was drawn
    renderer = SceneRenderer(context, model, SIZE)
    qpos = next(poses(1))
    image = renderer.render(model.camera("still").id, qpos)
    assert "different images from layers" in caplog.text
    renderer._stage.pose(model.camera("still").id, qpos)
    assert np.array_equal(image, renderer._stage.render(model.camera("still").id))
    assert np.array_equal(image, renderer.render(model.camera("still").id, qpos))
    renderer.free()
