"""The forecaster: nobody looks ahead, quantiles that are what they are called, and guesses that need no network."""

import numpy as np
import pytest
import torch

from services.ws_mdl.practice import forecast
from services.ws_mdl.practice.forecast import Config, Forecaster, loss_of, pinball
from services.ws_mdl.practice.series import DIRECTORY, Series, by_hour, load, made
from tests.ws_mdl.practice import stirred
from vla_common.volume import Volume

CONTEXT, PATCH, HORIZON = 32, 4, 6


def model(**changes) -> Forecaster:
    size = {"d_model": 16, "N": 2, "h": 2, "d_ff": 24, "dropout": 0.0, "direct": 16, **changes}
    return stirred(Forecaster(CONTEXT, PATCH, HORIZON, **size))


def series(steps: int = 400) -> Series:
    return Series(made(steps), first_val=300, horizon=HORIZON, lookback=CONTEXT)


@torch.no_grad()
@pytest.mark.parametrize("positions", ["learned", "sinusoidal", "rotary", "relative", "none"])
@pytest.mark.parametrize("direct", [4, 16, 32])
def test_nobody_looks_ahead(positions, direct):
    ours, x = model(positions=positions, direct=direct), torch.randn(3, CONTEXT)
    changed = x.clone()
    changed[:, 12:] += 1.0  # from the fourth patch on
    before, after = ours(x), ours(changed)
    assert before.shape == (3, CONTEXT // PATCH, HORIZON, 3)
    torch.testing.assert_close(before[:, :3], after[:, :3])
    assert not torch.isclose(before[:, 3:], after[:, 3:]).all(-1).all(-1).any(), "each patch sees itself"


@torch.no_grad()
def test_quantiles_do_not_cross_and_a_forecast_is_the_last_patchs():
    ours, x = model(), 3 * torch.randn(8, CONTEXT + 5)
    low, middle, high = ours(x[:, 5:]).unbind(-1)
    assert (low <= middle).all() and (middle <= high).all()
    torch.testing.assert_close(ours.forecast(x), ours(x[:, 5:])[:, -1])


def test_the_cost_is_least_at_the_quantiles():
    torch.manual_seed(0)
    truth = torch.randn(20_000)
    right = torch.tensor([-1.2816, 0.0, 1.2816])  # of a normal distribution
    best = pinball(right.expand(len(truth), 3), truth)
    for other in (right + 0.2, right - 0.2, 1.3 * right + 0.01, torch.zeros(3)):
        assert pinball(other.expand(len(truth), 3), truth) > best
    errors = [(q, truth.numpy() - value) for q, value in zip((0.1, 0.5, 0.9), right.tolist(), strict=True)]
    by_hand = np.mean([np.maximum(q * error, (q - 1) * error) for q, error in errors])
    assert best.item() == pytest.approx(by_hand, rel=1e-5)


def test_a_batch_has_a_cost_with_gradients_for_every_weight():
    ours = model().train()
    loss_of(ours, torch.randn(4, CONTEXT + HORIZON)).backward()
    assert all(parameter.grad is not None and parameter.grad.any() for parameter in ours.parameters())


def test_guesses_that_learn_nothing():
    found, origins = series(), torch.tensor([300, 310])
    last = forecast.naive(found)(origins)
    assert last.shape == (2, HORIZON) and (last == found.values[[299, 309], None]).all()
    before = forecast.seasonal(found, 24)(origins)
    assert torch.equal(before[0], found.values[276:282])
    short = forecast.seasonal(found, 4)(origins)  # of a shorter season the last whole one comes again
    assert torch.equal(short[0], found.values[[296, 297, 298, 299, 296, 297]])
    assert forecast.guess_error(lambda origins: found.future(origins), found).sum() == 0


def test_the_linear_guess_beats_the_last_value():
    found = series()
    error, stays = (
        forecast.guess_error(guess, found).mean() for guess in (forecast.linear(found), forecast.naive(found))
    )
    assert error < 0.7 * stays


def test_no_guess_sees_what_it_is_requested():
    found, origins = series(), torch.tensor([340])
    later = Series(found.values.clone(), found.first_val, HORIZON, CONTEXT)
    later.values[340:] = 0.0
    for make in (forecast.naive, lambda one: forecast.seasonal(one, 24), forecast.linear):
        assert torch.equal(make(found)(origins), make(later)(origins))
    ours = model()
    assert torch.equal(forecast.forecasts(ours, found, origins), forecast.forecasts(ours, later, origins))


def test_values_come_back_and_only_what_is_learned_from_sets_the_scale():
    found = series()
    torch.testing.assert_close(found.counted(found.x), found.values, rtol=1e-4, atol=1e-4)
    learned = found.x[:300]
    assert abs(learned.mean()) < 1e-5 and abs(learned.std() - 1) < 1e-3
    louder = Series(torch.cat([found.values[:300], 9 * found.values[300:]]), 300, HORIZON, CONTEXT)
    assert torch.equal(louder.x[:300], learned)


def test_windows_are_of_what_is_learned_from_and_forecasts_of_what_is_held_out():
    found = series()
    windows = found.windows(torch.arange(len(found)), torch.Generator().manual_seed(0))
    rows = found.x[:300].unfold(0, CONTEXT + HORIZON, 1)
    assert windows.shape == (len(found), CONTEXT + HORIZON)
    assert all((rows == window).all(1).any() for window in windows)
    assert found.origins(HORIZON)[0] == 300 and found.origins(HORIZON)[-1] + HORIZON <= 400


def test_an_hour_without_a_row_is_one_in_which_nobody_rode():
    hours = by_hour('"day","hr","bikers"\n1,"0",16\n1,"2",3\n365,"23",31\n')
    assert len(hours) == 8760 and hours[:4].tolist() == [16, 0, 3, 0] and hours[-1] == 31


@pytest.mark.parametrize(
    ("holds", "says"),
    [
        ("1\ntwo\n3", "could not convert string to float: 'two'; expected a number in each line"),
        ("1\n-2", "has numbers below 0"),
        ("1\nnan", "has numbers below 0, or none that are finite"),
        ("1\n" * 40, r"has 30 steps .* 10 held out; expected more than 192 and at least 24"),
        (None, "not found; known: bikes, made, or a file"),
    ],
)
def test_a_series_that_cannot_be_read_says_why(tmp_path, volume, holds, says):
    path = tmp_path / "series.csv"
    if holds is not None:
        path.write_text(holds)
    with pytest.raises(ValueError, match=says):
        load(Config(series=str(path), season=168, lookback=168, direct=168), volume)


def test_without_an_index_the_bicycles_say_what_to_do_instead(volume, monkeypatch):
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", "")
    with pytest.raises(ValueError, match=r"could not be downloaded(?s:.*)--set series=made"):
        load(Config(), volume)
    assert not (volume.datasets / DIRECTORY / "Bikeshare.csv").exists()


@pytest.mark.outside
def test_the_bicycles_are_a_year_of_hours():
    try:
        found = load(Config(), Volume())
    except (ValueError, OSError) as error:
        pytest.skip(f"the series is not here and cannot be downloaded: {str(error).splitlines()[0]}")
    assert len(found.values) == 8760 and int(found.values.sum()) == 1_243_103 and (found.values == 0).sum() == 115


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"lookback": 100}, "lookback 100 is not a multiple of patch 8"),
        ({"direct": 4}, "direct is 4; expected from patch 8 to lookback"),
    ],
)
def test_settings_that_do_not_fit_are_refused(wrong, says):
    with pytest.raises(ValueError, match=says):
        Config(**wrong)
