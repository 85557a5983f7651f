"""Trains a forecaster: `python -m services.ws_mdl.practice.forecast.train --series bikes`.

A run can be stopped at any time and goes on with the same command, bit for bit as if it had not been stopped.
"""

from __future__ import annotations

from pathlib import Path

import torch
from matplotlib.figure import Figure
from torch import Tensor

from services.ws_mdl.epochs import begin
from services.ws_mdl.practice import training
from services.ws_mdl.practice.forecast import baselines
from services.ws_mdl.practice.forecast.baselines import Guess
from services.ws_mdl.practice.forecast.config import Config
from services.ws_mdl.practice.forecast.data import Series, load
from services.ws_mdl.practice.forecast.model import Forecaster, loss_of
from services.ws_mdl.practice.training import Figures, PracticeRun
from services.ws_mdl.transformer.visualize import save
from vla_common import endings
from vla_common.volume import Volume, shown
from vla_modelkit.training.board import Curves
from vla_modelkit.training.machine import Machine
from vla_modelkit.training.weights import State

SHOWN = 7  # forecasts in the picture, one behind the other


class Training(PracticeRun):
    """A run in progress; its generator draws the order and where windows begin."""

    config: Config
    data: Series
    nn_model: Forecaster
    unit = "windows"

    @property
    def about(self) -> str:
        held = len(self.data.values) - self.data.first_held
        return f"{self.data.first_held} steps to learn from, the {held} behind them held out"

    def loss(self, index: Tensor) -> Tensor:
        return loss_of(self.nn_model, self.data.windows(index, self.generator).to(self.machine.device))

    def measure(self) -> Figures:
        return figures_of(self.averaged, self.data)

    def show(self, folder: Path, curves: Curves) -> str:
        others = {name: guess_error(guess, self.data).mean().item() for name, guess in self.guesses().items()}
        curves.scalars("held out, others", others, self.global_step)
        figure = plot(self.averaged, self.data, self.guesses())
        curves.writer.add_figure("forecast", figure, self.global_step)
        return "\n".join(
            [f"others' error: {training.told(others)}", f"forecasts: {shown(save(figure, folder / 'forecast.png'))}"]
        )

    def guesses(self) -> dict[str, Guess]:
        """Returns what is held against, by name."""
        data = self.data
        return {
            "last value": baselines.naive(data),
            "a season before": baselines.seasonal(data, self.config.season),
            "linear": baselines.linear(data),
        }

    def digest(self) -> str:
        return training.digest_of(self.data.values, str(self.data.first_held))

    def own_state(self) -> State:
        return {**super().own_state(), "mean": float(self.data.mean), "spread": float(self.data.spread)}


def get_model(config: Config) -> Forecaster:
    """Returns the network with fresh weights."""
    size = ("lookback", "patch", "horizon", "d_model", "N", "h", "d_ff", "dropout", "positions", "direct")
    return Forecaster(**{name: getattr(config, name) for name in size})


def get_training(config: Config, machine: Machine, volume: Volume) -> Training:
    """Returns a run before its first batch."""
    return begin(Training, config, machine, load(config, volume), lambda: get_model(config))


def model_from(state: State) -> Forecaster:
    """Returns the averaged network that a weights file holds, in eval mode."""
    model = get_model(Config.of(state["config"]))
    model.load_state_dict(state["averaged_state_dict"])
    return model.eval()


# --- measuring ----------------------------------------------------------------------------------------------


def forecasts(model: Forecaster, data: Series, origins: Tensor) -> Tensor:
    """Returns the quantiles [n, horizon, 3] of what follows the steps before each origin, in the series' own unit."""
    device = next(model.parameters()).device
    past = data.x[origins[:, None] - data.lookback + torch.arange(data.lookback)].to(device)
    return data.counted(torch.cat([model.forecast(part) for part in past.split(64)]).cpu())


def truth(data: Series, origins: Tensor) -> Tensor:
    """Returns what came, float64 [n, horizon]."""
    return data.values[origins[:, None] + torch.arange(data.horizon)]


def figures_of(model: Forecaster, data: Series) -> Figures:
    """Returns the mean error of the middle quantile, and how often the truth lies between the outer two.

    A forecast begins a quarter of the horizon after the one before.
    """
    origins = data.origins(max(1, data.horizon // 4))
    found, came = forecasts(model, data, origins), truth(data, origins)
    inside = (came >= found[..., 0]) & (came <= found[..., 2])
    return {
        "error": (found[..., 1] - came).abs().mean().item(),
        "inside_percent": 100 * inside.double().mean().item(),
        "width": (found[..., 2] - found[..., 0]).mean().item(),
    }


def guess_error(guess: Guess, data: Series) -> Tensor:
    """Returns the mean error of each step ahead, float64 [horizon], of the same forecasts as `figures_of` has."""
    origins = data.origins(max(1, data.horizon // 4))
    return (guess(origins) - truth(data, origins)).abs().mean(dim=0)


def plot(model: Forecaster, data: Series, guesses: dict[str, Guess]) -> Figure:
    """Returns the first forecasts of what is held out, one behind the other, and the error by the steps ahead."""
    origins = data.origins(data.horizon)[:SHOWN]
    found, came = forecasts(model, data, origins), truth(data, origins).flatten()
    figure = Figure(figsize=(11, 3.4), layout="constrained")
    left, right = figure.subplots(1, 2, width_ratios=(2.4, 1))
    steps = torch.arange(len(came))
    low, middle, high = found.flatten(0, 1).unbind(-1)
    left.fill_between(steps, low, high, alpha=0.3, label="4 of 5 lie here")
    left.plot(steps, middle, label="forecast")
    left.plot(steps, guesses["a season before"](origins).flatten(), ":", color="grey", label="a season before")
    left.plot(steps, came, "k.", markersize=3, label="what came")
    left.set_xlabel(f"steps; a forecast every {data.horizon}")
    left.legend(fontsize=7)
    ahead = torch.arange(1, data.horizon + 1)
    ours = guess_error(lambda origins: forecasts(model, data, origins)[..., 1], data)
    for name, error in {"forecaster": ours, **{name: guess_error(g, data) for name, g in guesses.items()}}.items():
        right.plot(ahead, error, label=name)
    right.set_xlabel("steps ahead")
    right.set_title("mean error, held out", fontsize=9)
    right.legend(fontsize=7)
    return figure


def main() -> int:
    """Trains by the command line's flags; returns the exit code."""
    return training.main_of(Config, get_training, __doc__, "./lab notebook ws_mdl, and there Practice_Series")


if __name__ == "__main__":
    endings.run(main)
