"""The practice labs: what each model comes to on held-out data when it is trained as its command trains it.

vit    the Vision Transformer on scikit-learn's digits: share of held-out digits told right, and how long it took
bert   masked words of held-out text that are told right, against always saying the most frequent word; next text
       or not; the same words by skip-gram: hidden words told by their neighbours, a probe, nearest words
gpt    perplexity on held-out text, against that of a 5-gram (interpolated Kneser-Ney) of the same tokens and text
lstm   LSTMs without and with attention and lab 1's Transformer, in equal CPU seconds: letters backwards by length,
       English to Italian, gradients over distance, time over length
forecast   a year of bicycles: the last quarter's days ahead, against last value, last week's, and a linear function
positions  small GPTs without positions, learned, sinusoidal, rotary, relative, in equal CPU seconds: longer windows
vae    a VAE and the diffusion model on digits, in equal CPU seconds: distance, sharpness; collapse, the bound's terms

    ./lab bench practice [--quick]
    ./lab bench practice --options "--only vit"
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import replace

os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # read when torch is imported: a busy machine makes threads wait

from bench.common import figure, flags
from services.ws_mdl.epochs import train_epoch
from services.ws_mdl.practice.settings import PracticeSettings
from services.ws_mdl.practice.training import Begin, PracticeRun
from vla_common.volume import Volume
from vla_modelkit.training.machine import choose_machine
from vla_modelkit.training.stopping import StopSignal

ENVIRONMENT = "ws_mdl"


def main() -> int:
    """Prints figures; returns 1 where one misses its target."""
    parser = flags(__doc__, "one epoch of each: shows that it runs")
    parser.add_argument("--only", choices=SECTIONS, help="this model alone")
    asked = parser.parse_args()
    started = time.process_time()
    met = [one for name, measure in SECTIONS.items() if asked.only in (None, name) for one in measure(asked.quick)]
    print(f"in all {time.process_time() - started:.0f} CPU s")
    return 0 if asked.quick or all(met) else 1


def learned(config: PracticeSettings, get_training: Begin, quick: bool) -> tuple[PracticeRun, float]:
    """Trains a run on two cores without keeping anything; returns it with the minutes that it took."""
    config = replace(config, device="cpu", precision="fp32", epochs=1 if quick else config.epochs)
    run = get_training(config, choose_machine("cpu", "fp32"), Volume())
    wall, cpu = time.perf_counter(), time.process_time()
    with StopSignal() as stop:
        while run.epoch < config.epochs and not stop.asked:
            train_epoch(run, stop)
    minutes = (time.perf_counter() - wall) / 60
    load = os.getloadavg()[0]
    print(f"{config.LAB}: {minutes:.1f} min, {time.process_time() - cpu:.0f} CPU s, load {load:.1f}", flush=True)
    return run, minutes


def measure_vit(quick: bool) -> list[bool]:
    """Trains the Vision Transformer with the settings of its command."""
    from services.ws_mdl.practice import vit

    run, minutes = learned(vit.Config(), vit.get_training, quick)
    return [
        figure("practice.vit_digits_accuracy", run.measure()["accuracy_percent"], "%", ">=96"),
        figure("practice.vit_digits_minutes", minutes, "min", "<=3"),
    ]


def measure_bert(quick: bool) -> list[bool]:
    """Trains the small BERT with the settings of its command."""
    from services.ws_mdl.practice import bert

    run, minutes = learned(bert.Config(), bert.get_training, quick)
    found = run.measure()
    masked, frequent = found["masked_percent"], found["most_frequent_word_percent"]
    figure("practice.bert_minutes", minutes, "min", "<=15")
    figure("practice.bert_frequent_word", frequent, "%", ">=0")
    return [
        figure("practice.bert_masked", masked, "%", ">=0"),
        figure("practice.bert_masked_gained", masked / frequent, "×", ">=2"),
        figure("practice.bert_next_text", found["next_text_percent"], "%", ">=50"),
        *measure_skipgram(run, quick),
    ]


def measure_skipgram(bert: PracticeRun, quick: bool) -> list[bool]:
    """Trains skip-gram on the words of a BERT, and asks both the same questions."""
    from bench.parts import practice_words

    run, _ = learned(practice_words.CONFIG, practice_words.get_training, quick)
    return practice_words.compared(run, bert)


def measure_forecast(quick: bool) -> list[bool]:
    """Trains the forecaster with the settings of its command, and asks those that have learned little or nothing."""
    from services.ws_mdl.practice import forecast

    run, _ = learned(forecast.Config(), forecast.get_training, quick)
    found = run.measure()
    others = {name: forecast.guess_error(guess, run.data).mean().item() for name, guess in run.guesses().items()}
    for name, error in others.items():
        print(f"  {name}: mean error {error:.1f}")
    print(f"  forecaster: mean error {found['error']:.1f}, 4 of 5 within {found['width']:.0f}")
    return [
        figure("practice.forecast_error_over_season", found["error"] / others["a season before"], "×", "<=0.85"),
        figure("practice.forecast_error_over_linear", found["error"] / others["linear"], "×", "<=1"),
        figure("practice.forecast_inside", found["inside_percent"], "%", ">=70"),
    ]


def measure_positions(quick: bool) -> list[bool]:
    """Trains GPTs that differ in how a token knows its place."""
    from bench.parts import practice_positions

    return practice_positions.measure_positions(quick)


def measure_gpt(quick: bool) -> list[bool]:
    """Trains the small GPT with the settings of its command, and counts the 5-gram."""
    from services.ws_mdl.practice import gpt

    run, minutes = learned(gpt.Config(), gpt.get_training, quick)
    found = run.measure()
    counted = gpt.figures_of(gpt.five_gram(run.data).nats(run.data.held), run.data)
    figure("practice.gpt_minutes", minutes, "min", "<=15")
    figure("practice.gpt_five_gram_perplexity", counted["perplexity"], "per token", ">=1")
    figure("practice.gpt_perplexity", found["perplexity"], "per token", ">=1")
    figure("practice.gpt_bits", found["bits_per_character"], "bit/character", ">=0")
    return [figure("practice.gpt_against_five_gram", found["perplexity"] / counted["perplexity"], "×", "<=1")]


def measure_lstm(quick: bool) -> list[bool]:
    """Trains what came before the Transformer, and it."""
    from bench.parts import practice_lstm

    return practice_lstm.measure_lstm(quick)


def measure_vae(quick: bool) -> list[bool]:
    """Trains what came before diffusion, and it."""
    from bench.parts import practice_vae

    return practice_vae.measure_vae(quick)


SECTIONS: dict[str, Callable[[bool], list[bool]]] = {
    "vit": measure_vit,
    "bert": measure_bert,
    "gpt": measure_gpt,
    "forecast": measure_forecast,
    "positions": measure_positions,
    "lstm": measure_lstm,
    "vae": measure_vae,
}

if __name__ == "__main__":
    raise SystemExit(main())
