"""Exercises of the diffusion lesson."""

from __future__ import annotations

from lessons.exercises.transformer_exercises import FIND
from lessons.exercises.types import Bilingual, Exercise, FunctionCall, mistake

# --- calls ----------------------------------------------------------------------------


def _images(count: int, channels: int, size: int):
    import torch

    generator = torch.Generator().manual_seed(0)
    return tuple(torch.randn(count, channels, size, size, generator=generator) for _ in range(3))


def _cases():
    """Return, for two schedules, their timesteps and three batches of images: x, noise and another noise."""
    from lessons.diffusion import linear_schedule

    return (
        (20, linear_schedule(20, 1e-4, 0.2), _images(3, 1, 4)),
        (11, linear_schedule(11, 0.02, 0.3), _images(2, 3, 5)),
    )


def perturb_calls() -> list[FunctionCall]:
    import torch

    (_, first, (x, noise, _)), (_, second, (y, other, _)) = _cases()
    return [
        FunctionCall(
            "perturb_input of 3 images at steps 1, 7 and 20 of 20", (x, torch.tensor([1, 7, 20]), noise, first.ab_t)
        ),
        FunctionCall("perturb_input of 2 images at steps 9 and 2 of 11", (y, torch.tensor([9, 2]), other, second.ab_t)),
    ]


def ddpm_calls() -> list[FunctionCall]:
    return [
        FunctionCall(f"denoise_add_noise at t = {t} of {timesteps}", (x, t, pred_noise, z, schedule))
        for timesteps, schedule, (x, pred_noise, z) in _cases()
        for t in (timesteps, 6, 3, 2, 1)
    ]


def ddim_calls() -> list[FunctionCall]:
    return [
        FunctionCall(f"denoise_ddim from {t} to {t_prev} of {timesteps}", (x, t, t_prev, pred_noise, schedule.ab_t))
        for timesteps, schedule, (x, pred_noise, _) in _cases()
        for t, t_prev in ((timesteps, timesteps - 1), (timesteps, 5), (8, 3), (5, 0))
    ]


def guidance_calls() -> list[FunctionCall]:
    import torch

    def call(count: int, channels: int, size: int, classes: int, guidance: float) -> FunctionCall:
        def network(x, time, context):
            if context is None:
                raise TypeError("the network got None as its context; expected a tensor")
            shift = (context @ torch.linspace(-1, 1.5, classes) + 0.3).tanh()
            return (x * time[:, :, None, None]).sin() + (x + shift[:, None, None, None]).tanh()

        context = torch.eye(classes)[-count:] * 0.8
        inputs = network, _images(count, channels, size)[0], torch.linspace(0.4, 0.9, count)[:, None], context
        return FunctionCall(f"guided_noise of {count} images with guidance {guidance}", (*inputs, guidance))

    return [call(3, 1, 4, 5, guidance) for guidance in (1.0, 0.0, 2.5)] + [call(2, 3, 6, 7, 0.3)]


# --- mistakes --------------------------------------------------------------------------------------------------

PERTURB = (
    mistake("no roots", ("ab.sqrt() * x + (1 - ab).sqrt() * noise", "ab * x + (1 - ab) * noise"),
            en="without the square roots the variance does not stay 1: √ᾱ of the image, √(1 - ᾱ) of noise",
            ko="제곱근이 없어 분산이 1로 남지 않습니다: 이미지는 √ᾱ, noise는 √(1 - ᾱ)입니다"),
    mistake("no square root over the noise's weight", ("(1 - ab).sqrt() * noise", "(1 - ab) * noise"),
            en="the noise's weight lacks its square root: it is √(1 - ᾱ)",
            ko="noise의 계수에 제곱근이 없습니다: √(1 - ᾱ)입니다"),
    mistake("image and noise are swapped",
            ("ab.sqrt() * x + (1 - ab).sqrt() * noise", "(1 - ab).sqrt() * x + ab.sqrt() * noise"),
            en="the image grows with t and the noise fades: it must be the other way round",
            ko="t가 커질수록 이미지가 커지고 noise가 줄어듭니다: 반대입니다"),
    mistake("one step early", ("ab_t[t]", "ab_t[t - 1]"),
            en="this is the image one step before t: ab_t begins with the clean image, so its index is the step",
            ko="t보다 한 step 앞의 이미지입니다: ab_t는 깨끗한 이미지에서 시작하므로 index가 곧 step입니다"),
    mistake("ab is broadcast along the width", ("[:, None, None, None]", ""),
            en="ab has one number per image, but is broadcast along the width: add three dimensions after it",
            ko="ab는 이미지마다 숫자 하나인데 너비 방향으로 broadcast됩니다: 뒤에 크기 1인 차원이 필요합니다"),
)  # fmt: skip
LAST_STEP = mistake("noise added at t = 1", ("mean + b.sqrt() * z if t > 1 else mean", "mean + b.sqrt() * z"),
    en="the last step, t = 1, adds noise too: no later step removes it",
    ko="마지막 step인 t = 1에서도 noise를 더합니다: 그것을 지울 step이 없습니다")  # fmt: skip
DDPM = (
    LAST_STEP,
    mistake("no noise is added back", ("mean + b.sqrt() * z if t > 1 else mean", "mean"),
            en="no noise is added: the images collapse to blurs near the average",
            ko="noise를 다시 더하지 않습니다: 이미지가 평균 근처의 흐릿한 것으로 무너집니다"),
    mistake("β without its square root before z", ("b.sqrt() * z", "b * z"),
            en="z is multiplied by β, the variance; the standard deviation is its square root",
            ko="z에 분산인 β를 곱했습니다; 표준편차는 그 제곱근입니다"),
    mistake("α instead of ᾱ", ("(1 - ab).sqrt()", "(1 - a).sqrt()"),
            en="the predicted noise is divided by √(1 - α) of one step; use √(1 - ᾱ) of all steps",
            ko="예측한 noise를 한 step의 √(1 - α)로 나누었습니다; 모든 step의 √(1 - ᾱ)입니다"),
    mistake("not divided by √α", (" / a.sqrt()", ""),
            en="the result is not divided by √α, so the image fades step by step",
            ko="결과를 √α로 나누지 않아 이미지가 점점 흐려집니다"),
)  # fmt: skip
TOWARDS = "(1 - ab_prev).sqrt() * pred_noise"
DDIM = (
    mistake("not divided by √ᾱ", (" / ab.sqrt()", ""),
            en="the predicted image is not divided by √ᾱ_t: it is too pale",
            ko="예측한 이미지를 √ᾱ_t로 나누지 않았습니다: 너무 흐립니다"),
    mistake("as much noise as at t", (f"x0_pred + {TOWARDS}", "x0_pred + (1 - ab).sqrt() * pred_noise"),
            en="the noise is that of t; t_prev has √(1 - ᾱ_prev)",
            ko="t만큼의 noise를 그대로 둡니다; t_prev는 √(1 - ᾱ_prev)입니다"),
    mistake("the image's weight is missing", ("ab_prev.sqrt() * x0_pred", "x0_pred"),
            en="the predicted image is not scaled: its weight at t_prev is √ᾱ_prev",
            ko="예측한 이미지에 계수를 곱하지 않았습니다: t_prev에서 그 계수는 √ᾱ_prev입니다"),
    mistake("one step instead of t_prev", ("ab_t[t_prev]", "ab_t[t - 1]"),
            en="it goes to t - 1 and ignores t_prev: DDIM skips steps",
            ko="t_prev와 상관없이 t - 1로 갑니다: DDIM은 건너뜁니다"),
    mistake("t and t_prev are swapped", ("ab_t[t], ab_t[t_prev]", "ab_t[t_prev], ab_t[t]"),
            en="ᾱ_t and ᾱ_prev are swapped: this makes the image noisier",
            ko="ᾱ_t와 ᾱ_prev가 바뀌었습니다: 이미지가 더 noisy해집니다"),
)  # fmt: skip
GUIDED = "without + guidance * (with_context - without)"
GUIDANCE = (
    mistake("starts from the conditional prediction", (GUIDED, GUIDED.replace("without +", "with_context +")),
            en="it starts from the prediction with context (the paper's w): 1 must be plain conditional sampling",
            ko="context가 있는 예측에서 시작합니다(논문의 w): 1이 보통의 조건부 sampling이어야 합니다"),
    mistake("away from the context", ("(with_context - without)", "(without - with_context)"),
            en="it moves away from the context: the difference has the wrong sign",
            ko="context에서 멀어집니다: 차이의 부호가 반대입니다"),
    mistake("guidance is missing", (GUIDED, "with_context"),
            en="guidance changes nothing: this is the prediction with context",
            ko="guidance가 아무것도 바꾸지 않습니다: context가 있는 예측 그대로입니다"),
    mistake("ones instead of no context", ("torch.zeros_like", "torch.ones_like"),
            en="ones mean all classes at once; no context is zeros",
            ko="1은 모든 class를 뜻합니다; context 없음은 0입니다"),
    mistake("None instead of no context", ("torch.zeros_like(context)", "None"),
            en="the network multiplies its context, and None is not a tensor: no context is zeros of the same shape",
            ko="network는 context를 곱하는데 None은 tensor가 아닙니다: context 없음은 같은 모양의 0입니다"),
    mistake("the context is scaled", (GUIDED, "model(x, time, guidance * context)"),
            en="guidance multiplies the context; it must multiply the difference of the predictions: a network is "
               "not linear",
            ko="guidance를 context에 곱했습니다: network는 선형이 아니므로 두 예측의 차이에 곱합니다"),
)  # fmt: skip

DDPM_LEARNED = ("x", "pred_noise", "z")
EXERCISES = (
    Exercise("diffusion.perturb", "perturb_input", perturb_calls, PERTURB,
             Bilingual("Write the noisy image at step t: part image, part noise.",
                       "step t의 noisy 이미지를 쓰세요: 이미지와 noise를 섞은 것입니다."),
             Bilingual("Variances add up: ᾱ + (1 - ᾱ) = 1.", "분산은 더해집니다: ᾱ + (1 - ᾱ) = 1."),
             learned=("x", "noise")),
    Exercise("diffusion.ddpm", "denoise_add_noise", ddpm_calls, DDPM,
             Bilingual("Write a step of DDPM: remove predicted noise, and add new noise.",
                       "DDPM의 한 step을 쓰세요: 예측한 noise를 빼고 새 noise를 더합니다."),
             Bilingual("Algorithm 2 of Ho et al. 2020; σ² is β.", "Ho et al. 2020의 Algorithm 2; σ²은 β입니다."),
             learned=DDPM_LEARNED),
    Exercise("diffusion.ddim", "denoise_ddim", ddim_calls, DDIM,
             Bilingual("Write a step of DDIM: predict the clean image, then add the noise of t_prev.",
                       "DDIM의 한 step을 쓰세요: 깨끗한 이미지를 예측하고 t_prev만큼 noisy하게 만듭니다."),
             Bilingual("Solve perturb_input for x, with the predicted noise.", "perturb_input을 x에 대해 푸세요."),
             learned=("x", "pred_noise")),
    Exercise("diffusion.guidance", "guided_noise", guidance_calls, GUIDANCE,
             Bilingual("Write guidance: 0 is no context, 1 is plain, above 1 goes further in the same direction.",
                       "guidance를 쓰세요: 0은 context 없음, 1은 보통, 1보다 크면 같은 방향으로 더 갑니다."),
             Bilingual("No context is zeros.", "context 없음은 0입니다."), learned=("x", "context")),
    Exercise("diffusion.bug_last_step", "denoise_add_noise", ddpm_calls, DDPM, FIND,
             Bilingual("What does the last step leave behind?", "마지막 step은 무엇을 남길까요?"),
             bug=LAST_STEP.name, learned=DDPM_LEARNED),
)  # fmt: skip
