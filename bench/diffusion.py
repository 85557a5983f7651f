"""The diffusion lab: training and sampling against the course's way; `./lab score diffusion` measures quality.

course  the course's way, reimplemented in its plain form: images turned into tensors one by one by a data loader,
        float32 in the usual memory order, one network call per step with its batch norms
lab     services/ws_mdl/diffusion as `train` and `sample` run it

Both have the course's network (n_feat 64, 16 × 16 × 3) and batch (100).

    ./lab bench diffusion [--quick]
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import torch
from torch import Tensor
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset
from torchvision import transforms

from bench.common import figure, flags, interleaved
from services.ws_mdl.diffusion import samplers, score, train
from services.ws_mdl.diffusion.config import Config
from services.ws_mdl.diffusion.model import ContextUnet, fused_for_sampling
from services.ws_mdl.diffusion.schedule import Schedule, linear_schedule, perturb_input
from services.ws_mdl.diffusion.sprites import make_sprites
from vla_modelkit.training.machine import TrainingMachine

ENVIRONMENT = "ws_mdl"
BATCH = 100
SAMPLES = 32  # as many as the course draws
FEW_STEPS = "ddim, order 2"  # the way of sampling in 20 steps that is held against DDPM's 500


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

    def __init__(self, machine: TrainingMachine):
        self.run = train.get_training(Config(data="sprites", context=True, epochs=10_000), machine)
        index = torch.randperm(len(self.run.data.x))[:2000].to(machine.device)
        self.batches = itertools.cycle(index.split(BATCH))

    def step(self) -> None:
        train.train_step(self.run, next(self.batches))


def finished(step, device: torch.device):
    """Return a step that has ended when it returns, on a GPU too."""

    def run() -> None:
        step()
        if device.type == "cuda":
            torch.cuda.synchronize(device)

    return run


def training(machine: TrainingMachine, rounds: int) -> None:
    """Time a training step of both."""
    course, lab = CourseTraining(linear_schedule().to(machine.device), machine.device), LabTraining(machine)
    sides = {"course": finished(course.step, machine.device), "lab": finished(lab.step, machine.device)}
    seconds = interleaved(sides, rounds, f"training, batches of {BATCH}", warmup=2)
    figure("diffusion_training_speedup", seconds.ratio("course", "lab"), "x", ">=1.3", quick=True)


def sampling(machine: TrainingMachine, rounds: int) -> None:
    """Time one step of both, then whole samplings: DDIM with 20 steps against DDPM with 500."""
    torch.manual_seed(0)
    schedule = linear_schedule().to(machine.device)
    plain = ContextUnet(3, 64, 5, 16).to(machine.device).eval()
    fused = fused_for_sampling(plain)
    x = torch.randn(SAMPLES, 3, 16, 16, device=machine.device)
    same = {"seed": 0, "dtype": machine.dtype}

    @torch.no_grad()
    def course() -> None:
        t = torch.tensor([0.5])[:, None, None, None].to(machine.device)
        samplers.denoise_add_noise(schedule, x, 250, plain(x, t), torch.randn_like(x))

    def one_step(x, t, t_prev, pred_noise, z):
        return samplers.denoise_add_noise(schedule, x, t, pred_noise, z)

    def lab() -> None:
        samplers.walk(fused, schedule, SAMPLES, None, [250, 249], one_step, **same)

    sides = {"course": finished(course, machine.device), "lab": finished(lab, machine.device)}
    seconds = interleaved(sides, rounds, f"one step of {SAMPLES} samples", warmup=3)
    figure("diffusion_sampling_speedup", seconds.ratio("course", "lab"), "x", ">=1.2", quick=True)
    options = {name: value for name, value in score.WAYS[FEW_STEPS].items() if name != "sampler"}
    full = {
        "ddpm, 500 steps": lambda: samplers.sample_ddpm(fused, schedule, SAMPLES, **same),
        "ddim, 20 steps": lambda: samplers.sample_ddim(fused, schedule, SAMPLES, 20, **same, **options),
    }
    seconds = interleaved(full, 1, f"{SAMPLES} samples", warmup=0)
    figure("diffusion_ddim_speedup", seconds.ratio(*full), "x", ">=20", quick=True)


def main() -> None:
    parser = flags(__doc__, "few rounds")
    parser.add_argument("--device", default="auto")
    args = parser.parse_args()
    machine = train.machine_for(args.device)
    print(f"{machine}, {torch.get_num_threads()} threads")
    training(machine, 4 if args.quick else 15)
    sampling(machine, 10 if args.quick else 40)


if __name__ == "__main__":
    main()
