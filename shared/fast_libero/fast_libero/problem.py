"""LIBERO's problem classes with fast resets, steps and images. Import it only after `startup.prepare`.

`fast(problem)` returns a subclass that differs in three places, each tested bit for bit against the original:

- `reset` restores the compiled model instead of building it again. It keeps what a rebuild consumes of numpy's global
  generator and what it leaves in Python objects.
- `step` runs robosuite's OSC_POSE controller by `control.ArmControl`. Other controllers and settings run robosuite's
  own loop.
- `sim.render` draws with `rendering.context`.
"""

from __future__ import annotations

from functools import cache, partial
from typing import TYPE_CHECKING, Any

import numpy as np
from robosuite.environments import base
from robosuite.utils.observables import sensor

from fast_libero.clock import SamplingClock
from fast_libero.control import ArmControl, is_supported
from fast_libero.lazy import LazyImage, LazyObservation
from fast_libero.rendering.context import RenderContext
from fast_libero.rendering.stage import placement
from fast_libero.resets import ModelSnapshot


@cache
def fast(problem: type, lazy_images: bool = False) -> type:
    """Return the fast subclass of a problem class of LIBERO."""
    name = problem.__name__  # LIBERO compares it with the BDDL file's
    made = type(name, (FastProblem, problem), {"lazy_images": lazy_images, "__module__": __name__})
    base.register_env(problem)  # robosuite's metaclass has registered the subclass in its place
    return made


class FastProblem:
    """The changed methods. It stands before a problem class, which is a subclass of robosuite's MujocoEnv."""

    lazy_images = False
    _control: ArmControl | None = None

    if TYPE_CHECKING:
        # MujocoEnv's attributes
        object_property_initializers: list[Any]
        timestep: int
        cur_time: float

        def __getattr__(self, name: str) -> Any: ...

    # --- building -------------------------------------------------------------------------------------------------

    def _load_model(self) -> None:
        before = len(self.object_property_initializers)
        super()._load_model()  # type: ignore[misc]
        self._initializers = self.object_property_initializers[before:]
        self._gripper_actions = [robot.gripper.current_action for robot in self.robots]
        self._glows = {
            each.name: dict(each.object_properties["vis_site_names"]) for each in (*self.objects, *self.fixtures)
        }

    def _initialize_sim(self, xml_string: str | None = None) -> None:
        super()._initialize_sim(xml_string)  # type: ignore[misc]
        self._built = ModelSnapshot.everything(self.sim.model._model)
        self._lazy: dict[str, LazyImage] = {}
        if self.has_offscreen_renderer:
            self._context = RenderContext(self.sim, self.render_gpu_device_id)

    def _destroy_sim(self) -> None:
        if self.has_offscreen_renderer and self.sim is not None:
            self._context.free()
        self._control = None
        super()._destroy_sim()  # type: ignore[misc]

    # --- resets ---------------------------------------------------------------------------------------------------

    def reset(self) -> Any:
        """Start an episode, as MujocoEnv.reset does after building the model again."""
        if not self.hard_reset or self.deterministic_reset:
            return super().reset()  # type: ignore[misc]
        self._rebuild()
        self._reset_internal()
        self.sim.forward()
        self._obs_cache: dict[str, Any] = {}
        if self.use_camera_obs and not all(kinds is None for kinds in self.camera_segmentations):
            self.sim.model.site_size[:, :] = 1.0e-8
        self.visualize(vis_settings={name: False for name in self._visualizations})
        return self._get_observations(force_update=True)

    def _rebuild(self) -> None:
        """Leave model, simulation and objects as a new build does."""
        self._built.restore(self.sim.model._model)
        self.sim.reset()
        self.sim.forward()
        if self.has_offscreen_renderer:
            self.sim.forward()  # by the new renderer
        self.object_property_initializers += self._initializers  # the original's list is never cleared
        for robot, action in zip(self.robots, self._gripper_actions, strict=True):
            robot.gripper.current_action = action
        for name, glows in self._glows.items():
            self.get_object(name).object_properties["vis_site_names"].update(glows)

    def _reset_internal(self) -> None:
        super()._reset_internal()  # type: ignore[misc]
        self._control = ArmControl(self) if is_supported(self) else None

    # --- steps ----------------------------------------------------------------------------------------------------

    def step(self, action: Any) -> tuple[Any, float, bool, dict[str, Any]]:
        """Execute an action as LIBERO's own `step`. `action`: [7]."""
        if self._control is not None and not self._control.matches(self.robots[0]):
            self._control = None  # until the next reset: its state is now the original controller's
        if self._control is None:
            return super().step(action)  # type: ignore[misc, no-any-return]
        if self.done:
            raise ValueError("executing action in terminated episode")
        assert len(action) == self.action_dim, f"action has {len(action)} numbers, expected {self.action_dim}"
        self.timestep += 1
        self._advance(self._control, np.asarray(action, np.float64))
        self.cur_time += self.control_timestep
        reward, _, info = self._post_action(action)
        observations = self._get_observations()
        return observations, reward, self._check_success(), info

    def _advance(self, control: ArmControl, action: np.ndarray) -> None:
        clock = SamplingClock(list(self._observables.values()))
        goal, gripper = action[:6], float(action[6])
        for substep in range(int(self.control_timestep / self.model_timestep)):
            control.substep(goal if substep == 0 else None, gripper)
            if not clock.shared:
                self._update_observables()
            elif clock.tick(self.model_timestep):
                self._update_observables()
                clock.pull()
        if clock.shared:
            clock.push()
        control.write_back(self.robots[0])

    # --- observations ---------------------------------------------------------------------------------------------

    def _create_camera_sensors(self, cam_name: str, *args: Any, **kwargs: Any) -> Any:
        sensors, names = super()._create_camera_sensors(cam_name, *args, **kwargs)  # type: ignore[misc]
        size, square = kwargs["cam_w"], kwargs["cam_w"] == kwargs["cam_h"]
        if self.lazy_images and square and not kwargs["cam_d"]:
            sensors[0] = sensor(modality="image")(partial(self._note_image, names[0], cam_name, size))
        return sensors, names

    def _note_image(self, name: str, camera: str, size: int, obs_cache: dict[str, Any]) -> np.ndarray:
        """Keep what an image shows now, for `_get_observations`."""
        model, context = self.sim.model, self._context
        placed, colours = placement(self.sim.data._data), model.site_rgba.copy()
        number = model.camera_name2id(camera)

        def draw() -> np.ndarray:
            if self.sim is None or self.sim.model is not model:
                raise RuntimeError(f"{name} was not read before its environment was closed")
            now = model.site_rgba.copy()
            model.site_rgba[:] = colours
            try:
                return context.draw(size, number, placed)
            finally:
                model.site_rgba[:] = now

        self._lazy[name] = LazyImage(draw)
        return np.zeros((1, 1, 1), np.uint8)  # in the image's place among robosuite's observables

    def _get_observations(self, force_update: bool = False) -> Any:
        observations = super()._get_observations(force_update)  # type: ignore[misc]
        if not self._lazy:
            return observations
        lazy = LazyObservation(observations)
        lazy.update({name: image for name, image in self._lazy.items() if name in observations})
        return lazy
