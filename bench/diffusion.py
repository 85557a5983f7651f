"""The diffusion lab: training, sampling and the quality of what comes out, against the course's way.

course  the course's way, written anew in its plain form: pictures turned into tensors one by one by a data loader,
        float32 in the usual memory order, one network call per step with its batch norms
lab     services/ws_mdl/diffusion as `train` and `sample` run it

Both have the course's network (n_feat 64, 16 × 16 × 3) and batch (100), and their turns in one run. Quality is measured
afterwards on networks of half the width, trained here for a stated time on digits and on drawn sprites.

    ./lab bench diffusion [--quick]
"""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Iterator

import torch
from torch import Tensor
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset
from torchvision import transforms

from bench.common import figure, flags, interleaved, median_ms, replace_attributes
from services.ws_mdl.diffusion import samplers, score, train
from services.ws_mdl.diffusion.config import Config
from services.ws_mdl.diffusion.config import SampleRequest as Request
from services.ws_mdl.diffusion.data import load
from services.ws_mdl.diffusion.model import ContextUnet, fused_for_sampling
from services.ws_mdl.diffusion.sample import Trained, sample
from services.ws_mdl.diffusion.schedule import Schedule, linear_schedule, perturb_input
from services.ws_mdl.diffusion.sprites import make_sprites
from vla_modelkit.training.machine import Machine

ENVIRONMENT = "ws_mdl"
BATCH = 100
SAMPLES = 32  # as many as the course draws
QUALITY_SAMPLES = 500
QUALITY_SEEDS = (0, 1)  # a distance of 500 samples differs by a fifth from seed to seed
FEW_STEPS = "ddim, order 2"  # the way of sampling in 20 steps that is held against DDPM's 500
TRAIN_SECONDS = {"digits": 300.0, "sprites": 300.0}


# --- the course's way ---------------------------------------------------------------------------------------


class OneByOne(Dataset):
    """Sprites as the course's data set gives them."""

    def __init__(self, count: int):
        self.sprites, labels = make_sprites(count)
        self.labels = functional.one_hot(torch.from_numpy(labels), 5).numpy()
        self.transform = transforms.Compose([transforms.ToTensor(), transforms.Normalize((0.5,), (0.5,))])

    def __len__(self) -> int:
        return len(self.sprites)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return self.transform(self.sprites[index]), torch.tensor(self.labels[index])


class CourseTraining:
    """The course's training loop, a batch at a time."""

    def __init__(self, schedule: Schedule, device: torch.device):
        torch.manual_seed(0)
        self.schedule, self.device = schedule, device
        self.nn_model = ContextUnet(3, 64, 5, 16).to(device)
        self.optim = torch.optim.Adam(self.nn_model.parameters(), lr=1e-3)
        self.batches = self._batches()

    def _batches(self) -> Iterator[tuple[Tensor, Tensor]]:
        while True:
            yield from DataLoader(OneByOne(2000), batch_size=BATCH, shuffle=True)

    def step(self) -> None:
        self.nn_model.train()
        x, c = next(self.batches)
        self.optim.zero_grad()
        x, c = x.to(self.device), c.to(x)
        c = c * torch.bernoulli(torch.zeros(c.shape[0]) + 0.9).unsqueeze(-1).to(self.device)
        noise = torch.randn_like(x)
        t = torch.randint(1, self.schedule.timesteps + 1, (x.shape[0],)).to(self.device)
        pred_noise = self.nn_model(perturb_input(self.schedule, x, t, noise), t / self.schedule.timesteps, c)
        functional.mse_loss(pred_noise, noise).backward()
        self.optim.step()


class LabTraining:
    """The lab's training, a batch at a time."""

    def __init__(self, machine: Machine):
        self.run = train.get_training(Config(data="sprites", context=True, epochs=10_000), machine)
        index = torch.randperm(len(self.run.data.x))[:2000].to(machine.device)
        self.batches = itertools.cycle(index.split(BATCH))

    def step(self) -> None:
        train.train_step(self.run, next(self.batches))


def finished(step, device: torch.device):
    """Returns a step that has ended when it returns, on a GPU too."""

    def run() -> None:
        step()
        if device.type == "cuda":
            torch.cuda.synchronize(device)

    return run


# --- speed --------------------------------------------------------------------------------------------------


def time_training(machine: Machine, rounds: int) -> None:
    course = CourseTraining(linear_schedule().to(machine.device), machine.device)
    variants = {
        "course": finished(course.step, machine.device),
        "lab": finished(LabTraining(machine).step, machine.device),
    }
    seconds = interleaved(variants, rounds, warmup=2)
    print(f"\ntraining, batches of {BATCH}")
    for name, values in seconds.items():
        print(f"  {name:<8}{median_ms(values):9.1f} ms {1e3 * BATCH / median_ms(values):9.0f} pictures/s")
    figure(
        "diffusion_training_speedup", median_ms(seconds["course"]) / median_ms(seconds["lab"]), "x", ">=1.3", quick=True
    )


def time_sampling(machine: Machine, rounds: int) -> None:
    """A step of each sampler, then whole samplings: DDIM with 20 steps against DDPM with 500."""
    torch.manual_seed(0)
    schedule = linear_schedule().to(machine.device)
    plain = ContextUnet(3, 64, 5, 16).to(machine.device).eval()
    fused = fused_for_sampling(plain)
    x = torch.randn(SAMPLES, 3, 16, 16, device=machine.device)

    @torch.no_grad()
    def course() -> None:
        t = torch.tensor([0.5])[:, None, None, None].to(machine.device)
        samplers.denoise_add_noise(schedule, x, 250, plain(x, t), torch.randn_like(x))

    def lab() -> None:
        samplers.walk(fused, schedule, SAMPLES, None, [250, 249], one_step, seed=0, dtype=machine.dtype)

    def one_step(x, t, t_prev, pred_noise, z):
        return samplers.denoise_add_noise(schedule, x, t, pred_noise, z)

    variants = {"course": finished(course, machine.device), "lab": finished(lab, machine.device)}
    seconds = interleaved(variants, rounds, warmup=3)
    print(f"\nsampling, one step of {SAMPLES} pictures")
    for name, values in seconds.items():
        print(f"  {name:<8}{median_ms(values):9.1f} ms")
    figure(
        "diffusion_sampling_speedup", median_ms(seconds["course"]) / median_ms(seconds["lab"]), "x", ">=1.2", quick=True
    )
    few = {name: value for name, value in score.WAYS[FEW_STEPS].items() if name != "sampler"}
    whole = {
        "ddpm, 500 steps": lambda: samplers.sample_ddpm(fused, schedule, SAMPLES, seed=0, dtype=machine.dtype),
        "ddim, 20 steps": lambda: samplers.sample_ddim(
            fused, schedule, SAMPLES, 20, seed=0, dtype=machine.dtype, **few
        ),
    }
    seconds = interleaved(whole, 1, warmup=0)
    for name, values in seconds.items():
        print(f"  {name:<16}{values[0]:9.2f} s")
    figure(
        "diffusion_ddim_speedup", seconds["ddpm, 500 steps"][0] / seconds["ddim, 20 steps"][0], "x", ">=20", quick=True
    )


# --- quality ------------------------------------------------------------------------------------------------


def train_for(data_name: str, seconds: float, machine: Machine) -> tuple[Trained, float]:
    """Returns a run trained for that long; the rate falls to 0 over it. And how many epochs that were."""
    data = load(data_name)
    run = train.get_training(Config(data=data_name, context=True, n_feat=32, epochs=10_000, ema=0.995), machine, data)
    started, steps = time.monotonic(), 0
    while (elapsed := time.monotonic() - started) < seconds:
        # what the falling rate goes by
        replace_attributes(run, epoch=int(10_000 * elapsed / seconds))
        index = torch.randint(0, len(data.x), (BATCH,), generator=run.generator)
        train.train_step(run, index.to(machine.device))
        steps += 1
    nn_model = fused_for_sampling(run.averaged)
    trained = Trained(None, run.config, data.classes, nn_model, run.schedule, 0)
    return trained, steps * BATCH / len(data.x)


def measure_quality(data_name: str, machine: Machine) -> None:
    trained, epochs = train_for(data_name, TRAIN_SECONDS[data_name], machine)
    data = load(data_name)
    classifier, held_out = score.train_classifier(data)
    real = score.features(classifier, data.x)
    trained_for = f"trained {TRAIN_SECONDS[data_name]:.0f} s ({epochs:.0f} epochs)"
    print(f"\n{data_name}: {trained_for}, {QUALITY_SAMPLES} samples each, means of {len(QUALITY_SEEDS)} seeds")
    print(f"  classifier: {100 * held_out:.1f} % of held-out real pictures right")
    labels = torch.arange(QUALITY_SAMPLES) * len(data.classes) // QUALITY_SAMPLES
    frechet: dict[str, float] = {}
    as_asked: dict[str, float] = {}
    for way, fields in score.WAYS.items():
        context = None if fields["sampler"] == "incorrect" else "all"
        steps = 20 if fields["sampler"] == "ddim" else None
        distances, shares, started = [], [], time.perf_counter()
        for seed in QUALITY_SEEDS:
            asked = Request(**fields, steps=steps, context=context, count=QUALITY_SAMPLES, seed=seed)
            x = sample(asked, trained)[0].cpu().clamp(-1, 1)
            distances.append(score.frechet_distance(real, score.features(classifier, x)))
            shares.append(100 * score.accuracy(classifier, x, labels))
        seconds = (time.perf_counter() - started) / len(QUALITY_SEEDS)
        frechet[way], as_asked[way] = statistics.mean(distances), statistics.mean(shares)
        words = f"as asked {as_asked[way]:5.1f} %" if context else ""
        each = " ".join(f"{distance:.2f}" for distance in distances)
        print(f"  {way:<14} Fréchet {frechet[way]:8.2f} ({each})   {seconds:6.1f} s   {words}", flush=True)
    name = f"diffusion_{data_name}"
    figure(f"{name}_ddim_accuracy", min(as_asked["ddim"], as_asked[FEW_STEPS]), "%", ">=90")
    figure(f"{name}_frechet_ddim_over_ddpm", frechet[FEW_STEPS] / frechet["ddpm"], "ratio", "<=1.25")
    print(f"  first order without fresh noise: {frechet['ddim'] / frechet['ddpm']:.2f} times DDPM's")
    figure(f"{name}_frechet_incorrect_over_ddpm", frechet["incorrect"] / frechet["ddpm"], "ratio", ">=2")


def main() -> None:
    parser = flags(__doc__, "speed only, in few rounds")
    parser.add_argument("--device", default="auto")
    args = parser.parse_args()
    machine = train.machine_for(args.device)
    print(f"{machine}, {torch.get_num_threads()} threads")
    time_training(machine, 4 if args.quick else 15)
    time_sampling(machine, 10 if args.quick else 40)
    if not args.quick:
        for data_name in TRAIN_SECONDS:
            measure_quality(data_name, machine)


if __name__ == "__main__":
    main()
