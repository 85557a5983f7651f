"""What does mini-VLA cost and how often does it succeed? Training's pace, an answer's time, and runs' success rates.

    ./lab bench minivla [--quick] [--options "--size small --runs learn-libero_object,learn-blind"]

Speed is that of one core, in processor time, on made-up pictures. --runs names evaluations on the volume, such as
those that `./lab learn` ended with: their rates are printed. What a core records and draws: `./lab bench record`.
"""

from __future__ import annotations

import json
import statistics
import time
from dataclasses import replace

import torch

from bench.common import figure, flags
from services.minivla import data, train
from services.minivla.config import Config
from services.minivla.data import Demonstrations, Learned, Scaling
from services.minivla.policy import MiniVLAPolicy
from services.minivla.robots import LIBERO
from services.ws_mdl.transformer.tokenization import train_tokenizer
from vla_common.volume import Volume
from vla_contract import Checkpoint
from vla_modelkit.training.machine import choose_machine

ENVIRONMENT = "ws_mdl"
SAID = "pick up the alphabet soup and place it in the basket"
STEPS = 2000


def made_up(config: Config) -> Demonstrations:
    """Returns steps of noise, of the shapes that a LIBERO data set gives."""
    tokenizer = train_tokenizer([SAID], "word", 1, 8000)
    scales = {"action": Scaling((0.0,) * 7, (1.0,) * 7), "state": Scaling((0.0,) * 8, (1.0,) * 8)}
    learned = Learned("made-up", "none", 1, "", tuple(LIBERO.cameras), **scales, tokenizer=tokenizer.to_str())
    generator = torch.Generator().manual_seed(0)
    pictures = torch.randint(0, 256, (STEPS, 2, 3, config.side, config.side), generator=generator).to(torch.uint8)
    state, action = torch.randn(STEPS, 8, generator=generator), torch.rand(STEPS, 7, generator=generator) * 2 - 1
    zeros, ends = torch.zeros(STEPS, dtype=torch.long), torch.full((STEPS,), STEPS)
    pad = tokenizer.token_to_id("[PAD]")
    return Demonstrations(learned, pictures, state, action, data.encode(tokenizer, [SAID]), zeros, ends, pad)


def pace(run: train.Training, batches: int) -> float:
    """Returns the observations that a second of this process's processor time trains on."""
    indices = torch.randint(len(run.data), (batches + 2, run.config.batch_size))
    for index in indices[:2]:
        train.train_step(run, index)
    started = time.process_time()
    for index in indices[2:]:
        train.train_step(run, index)
    return batches * run.config.batch_size / (time.process_time() - started)


def answer_ms(run: train.Training, answers: int) -> float:
    """Returns the median processor time of one answer to one observation."""
    policy = MiniVLAPolicy(run.averaged, run.config, run.data.learned, Checkpoint("minivla/made-up", ""))
    spent = []
    for number in range(answers + 2):
        observation = replace(policy.example(number % 256), step=number)
        started = time.process_time()
        policy.act([observation])
        spent.append(1e3 * (time.process_time() - started))
    return statistics.median(spent[2:])


def rate(run: str) -> None:
    """Prints a run's success rate with its Wilson interval."""
    found = json.loads((Volume().runs / run / "summary.json").read_text())
    low, high = found["wilson_95"]
    print(f"{run}: {found['successes']} of {found['episodes']} episodes, {low:.1%} to {high:.1%}")
    figure(f"minivla_success_{run}", 100 * found["success_rate"], "%", ">=70", quick=True)


def main() -> None:
    parser = flags("mini-VLA's pace.", "a few batches and answers")
    parser.add_argument("--size", default="small", choices=("tiny", "small", "base"))
    parser.add_argument("--runs", default="", help="evaluations on the volume, separated by commas")
    options = parser.parse_args()
    for run in filter(None, options.runs.split(",")):
        rate(run)
    torch.set_num_threads(1)
    for head in ("regression", "flow", "diffusion"):
        config = Config(data="made-up", size=options.size, head=head, device="cpu")
        run = train.get_training(config, choose_machine("cpu"), made_up(config))
        print(f"{options.size}, {head}, {run.machine}, {config.draws} chunks of each observation")
        figure(f"minivla_train_{head}", pace(run, 3 if options.quick else 15), "observations/s", ">=100", quick=True)
        figure(f"minivla_answer_{head}", answer_ms(run, 5 if options.quick else 50), "ms", "<=25", quick=True)


if __name__ == "__main__":
    main()
