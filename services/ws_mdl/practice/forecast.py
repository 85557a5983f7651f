"""A forecaster from lab 1's blocks: a series is a sequence of patches, and each patch predicts the next steps.

Patches as in a vision Transformer, with GPT's causal mask, so a window of n patches gives n training targets. A linear
layer maps recent values directly to the forecast, as in LSTNet (Lai et al., 2018), and the blocks predict the residual.
The outputs are quantiles: the median, and the bounds of the central 80 %. Shapes stand at the end of the line: batch
windows of steps numbers, cut into n = steps / patch tokens of d_model numbers.

    ./lab train forecast --set series=made
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F
from matplotlib.figure import Figure
from torch import Tensor, nn

from services.ws_mdl.epochs import new_run
from services.ws_mdl.practice import training
from services.ws_mdl.practice.blocks import build_positions, build_stack, initialize
from services.ws_mdl.practice.series import Series, load
from services.ws_mdl.practice.settings import Forecast as Config
from services.ws_mdl.practice.training import Figures, PracticeRun
from services.ws_mdl.transformer.dataset import causal_mask
from vla_common.volume import Volume
from vla_modelkit.training.board import Curves
from vla_modelkit.training.machine import TrainingMachine
from vla_modelkit.training.weights import State

QUANTILES = (0.1, 0.5, 0.9)
RIDGES = (1.0, 10.0, 100.0, 1000.0)  # penalties of the linear baseline

Guess = Callable[[Tensor], Tensor]  # origins int64 [n] → values [n, horizon]


class Forecaster(nn.Module):
    """Patch embedding, positions, blocks with a causal mask, and three quantiles for each of the next steps."""

    def __init__(
        self, lookback: int, patch: int, horizon: int, d_model: int = 64, N: int = 2, h: int = 4, d_ff: int = 128,
        dropout: float = 0.1, positions: str = "learned", direct: int = 336,
    ) -> None:  # fmt: skip
        super().__init__()
        self.lookback, self.patch, self.horizon, self.direct = lookback, patch, horizon, direct
        tokens = lookback // patch
        self.embed = nn.Linear(patch, d_model)
        self.positions = build_positions(positions, d_model, tokens, dropout)
        self.decoder = build_stack(d_model, N, h, d_ff, dropout, tokens, positions=positions)
        self.head = nn.Linear(d_model, horizon * len(QUANTILES))
        self.straight = nn.Linear(direct, horizon, bias=False)
        initialize(self)
        nn.init.zeros_(self.straight.weight)

    def forward(self, x: Tensor) -> Tensor:
        """Return the quantiles of the steps after each patch, float [batch, n, horizon, 3]; x [batch, steps]."""
        tokens = self.embed(x.unflatten(1, (-1, self.patch)))  # (batch, n, d_model)
        mask = causal_mask(tokens.shape[1]).to(x.device)  # (1, n, n)
        scores = self.head(self.decoder(self.positions(tokens), mask))  # (batch, n, horizon · 3)
        below, middle, above = scores.unflatten(-1, (self.horizon, len(QUANTILES))).unbind(-1)
        middle = middle + self.straight(self.recent(x))
        # ordered by construction
        return torch.stack([middle - F.softplus(below), middle, middle + F.softplus(above)], dim=-1)

    def recent(self, x: Tensor) -> Tensor:
        """Return the last `direct` steps up to each patch, float [batch, n, direct], padded with the mean, 0."""
        return F.pad(x, (self.direct - self.patch, 0)).unfold(1, self.direct, self.patch)

    @torch.inference_mode()
    def forecast(self, x: Tensor) -> Tensor:
        """Return the quantiles of the steps after windows [batch, steps], float [batch, horizon, 3]."""
        return self(x[:, -self.lookback :])[:, -1]


def pinball(quantiles: Tensor, truth: Tensor) -> Tensor:
    """Return the pinball loss of quantiles [..., 3] for the truth [...].

    Underestimation costs q per unit, overestimation 1 - q, so the loss is minimal at the true quantiles.
    """
    error = truth.unsqueeze(-1) - quantiles  # (..., 3)
    share = torch.tensor(QUANTILES, device=error.device)
    return torch.maximum(share * error, (share - 1) * error).mean()


def followers(series: Tensor, patch: int, horizon: int, lookback: int) -> Tensor:
    """Return the targets of each patch of windows [batch, lookback + horizon], float [batch, n, horizon]."""
    return series[:, patch:].unfold(1, horizon, patch)[:, : lookback // patch]


def loss_of(model: Forecaster, windows: Tensor) -> Tensor:
    """Return the pinball loss over all targets of windows [batch, lookback + horizon]."""
    quantiles = model(windows[:, : model.lookback])
    return pinball(quantiles.float(), followers(windows, model.patch, model.horizon, model.lookback))


# --- baselines: last value, last season, linear regression --------------------------------------------------


def naive(data: Series) -> Guess:
    """Return the forecast that repeats the last value."""
    return lambda origins: data.values[origins - 1, None].expand(-1, data.horizon)


def seasonal(data: Series, season: int) -> Guess:
    """Return the forecast that repeats the last season, several times if the horizon is longer."""
    ahead = torch.arange(data.horizon)
    back = season * (1 + ahead // season)
    return lambda origins: data.values[origins[:, None] + ahead - back]


def linear(data: Series) -> Guess:
    """Return the forecast by ridge regression on the same lookback, fitted to all training windows.

    It sees the series as the model does. The penalty is selected on the last tenth of the training part.
    """
    from sklearn.linear_model import Ridge  # slow import

    windows = data.x[: data.first_val].double().unfold(0, data.lookback + data.horizon, 1).numpy()
    past, future = windows[:, : data.lookback], windows[:, data.lookback :]
    fit = round(0.9 * len(windows))

    def error(ridge: float) -> float:
        tried = Ridge(ridge, solver="cholesky").fit(past[:fit], future[:fit])
        return float(abs(tried.predict(past[fit:]) - future[fit:]).mean())

    best = Ridge(min(RIDGES, key=error), solver="cholesky").fit(past, future)
    return lambda origins: data.counted(torch.from_numpy(best.predict(data.past(origins).double().numpy())))


class Training(PracticeRun):
    """A run in progress; its generator samples the data order and the windows' starts."""

    config: Config
    data: Series
    unit = "windows"

    @property
    def summary(self) -> str:
        val = len(self.data.values) - self.data.first_val
        return f"{self.data.first_val} steps for training, the following {val} held out"

    def loss(self, index: Tensor) -> Tensor:
        return loss_of(self.nn_model, self.data.windows(index, self.generator).to(self.machine.device))

    def measure(self) -> Figures:
        """Return the mean absolute error of the median, and coverage and width of the 80 % interval."""
        origins = self.data.measured_origins
        quantiles, truth = forecasts(self.averaged, self.data, origins), self.data.future(origins)
        inside = (truth >= quantiles[..., 0]) & (truth <= quantiles[..., 2])
        return {
            "error": (quantiles[..., 1] - truth).abs().mean().item(),
            "inside_percent": 100 * inside.double().mean().item(),
            "width": (quantiles[..., 2] - quantiles[..., 0]).mean().item(),
        }

    def show(self, directory: Path, curves: Curves) -> str:
        guesses = self.guesses()
        baselines = {name: guess_error(guess, self.data).mean().item() for name, guess in guesses.items()}
        curves.scalars("held out, baselines", baselines, self.global_step)
        path = self.save_figure("forecast", plot(self.averaged, self.data, guesses), directory, curves)
        return f"baselines' error: {training.format_figures(baselines)}\nforecasts: {path}"

    def guesses(self) -> dict[str, Guess]:
        """Return the baselines by name."""
        season = seasonal(self.data, self.config.season)
        return {"last value": naive(self.data), "a season before": season, "linear": linear(self.data)}

    def digest(self) -> str:
        return training.digest_of(self.data.values, str(self.data.first_val))

    def extra_state(self) -> State:
        return {**super().extra_state(), "mean": float(self.data.mean), "spread": float(self.data.spread)}


def forecasts(model: Forecaster, data: Series, origins: Tensor) -> Tensor:
    """Return the quantiles [n, horizon, 3] of the forecasts at each origin, in the series' unit."""
    past = data.past(origins).to(next(model.parameters()).device)
    return data.counted(torch.cat([model.forecast(part) for part in past.split(64)]).cpu())


def guess_error(guess: Guess, data: Series) -> Tensor:
    """Return the mean absolute error by steps ahead, float64 [horizon], at the origins of `measure`."""
    origins = data.measured_origins
    return (guess(origins) - data.future(origins)).abs().mean(dim=0)


def plot(model: Forecaster, data: Series, guesses: dict[str, Guess], count: int = 7) -> Figure:
    """Plot the first held-out forecasts, concatenated, and the error by steps ahead."""
    origins = data.origins(data.horizon)[:count]
    low, middle, high = forecasts(model, data, origins).flatten(0, 1).unbind(-1)
    figure = Figure(figsize=(11, 3.4), layout="constrained")
    left, right = figure.subplots(1, 2, width_ratios=(2.4, 1))
    steps = torch.arange(len(middle))
    left.fill_between(steps, low, high, alpha=0.3, label="80 % interval")
    left.plot(steps, middle, label="forecast")
    left.plot(steps, guesses["a season before"](origins).flatten(), ":", color="grey", label="a season before")
    left.plot(steps, data.future(origins).flatten(), "k.", markersize=3, label="truth")
    left.set_xlabel(f"steps; a forecast every {data.horizon}")
    forecaster = {"forecaster": lambda origins: forecasts(model, data, origins)[..., 1]}
    for name, guess in (forecaster | guesses).items():
        right.plot(torch.arange(1, data.horizon + 1), guess_error(guess, data), label=name)
    right.set(xlabel="steps ahead", title="mean error, held out")
    for axes in (left, right):
        axes.legend(fontsize=7)
    return figure


def get_training(config: Config, machine: TrainingMachine, volume: Volume) -> Training:
    """Return a run before its first batch."""
    size = {"direct": config.direct, **config.size()}
    build = lambda: Forecaster(config.lookback, config.patch, config.horizon, **size)  # noqa: E731
    return new_run(Training, config, machine, load(config, volume), build)


if __name__ == "__main__":
    training.main_of(Config, get_training, __doc__, "./lab notebook ws_mdl, and there Practice_Series")
