"""Its protocol, and what two policies would have published: made up, 90 % over 40 episodes each."""

from types import MappingProxyType

from vla_evaluation.profiles import Profile, PublishedResult, Reproduction

FIGURE = {"reach": 90.0}
SLOW = {"SPEED": "0.06"}

PLAIN = Profile(
    name="plain",
    source="none",
    max_steps={"reach": 60},
    trials=4,
    camera_size=96,
    image_size=96,
    published=(
        PublishedResult("Seeker", "made up", "20 per task", FIGURE, True, 20, Reproduction("seeker", "seeker")),
        PublishedResult(
            "Slow seeker", "made up", "20 per task", FIGURE, False, 20,
            Reproduction("slow-seeker", "seeker", settings=SLOW, differs="published: at full speed"),
        ),
        PublishedResult("Elsewhere", "made up", "20 per task", FIGURE, False, 20, Reproduction("elsewhere")),
    ),
)  # fmt: skip
PROFILES = MappingProxyType({"plain": PLAIN})
