"""What LeRobot's configuration files do not state about their policy types."""

from __future__ import annotations

# Fields that later or earlier versions write and that do not change what a model computes.
IGNORED_FIELDS = frozenset({"push_to_hub", "repo_id", "private", "tags", "license", "pretrained_revision", "use_peft"})

# Field of a config or processor → a file that its repository has in the cache once it is downloaded.
REPOSITORY_FIELDS = {
    "vlm_model_name": ("config.json",),
    "tokenizer_name": ("tokenizer_config.json", "tokenizer.json"),
    "vision_encoder_name": ("config.json",),
    "text_encoder_name": ("config.json",),
    "base_model_path": ("config.json",),
    "action_tokenizer_name": ("processor_config.json", "tokenizer.json"),
}

# Types whose backbone runs code from its repository.
REMOTE_CODE = frozenset({"molmoact2"})

# Types whose actions are poses; all others answer the differences or targets of their data set.
ABSOLUTE_POSES = frozenset({"xvla"})

# Types that draw noise: their observations are computed one by one, each from its own seed.
STOCHASTIC = frozenset(
    "diffusion eo1 evo1 fastwam groot lingbot_va molmoact2 multi_task_dit pi0 pi05 smolvla tdmpc vla_jepa vqbet wall_x xvla".split()
)
