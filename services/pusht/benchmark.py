"""PushT: a finger pushes a T onto its outline (gym-pusht), under the protocol of LeRobot's evaluation."""

from vla_contract.protocol.parts import PUSHT_ACTION, PUSHT_STATE
from vla_evaluation.gymnasium import GymnasiumBenchmark, GymnasiumTask

# lerobot 0.6.1: envs/configs.py (PushtEnv) and configs/eval.py. The instruction is that of the data set lerobot/pusht
# (huggingface/lerobot at 02c76e3e, lerobot/common/datasets/v2/batch_convert_dataset_v1_to_v2.py); lerobot-eval sends an
# empty one.
INSTRUCTION = "Push the T-shaped block onto the T-shaped target."
SETTINGS = {"obs_type": "pixels_agent_pos", "render_mode": "rgb_array"}

BENCHMARK = GymnasiumBenchmark(
    name="PushT",
    module=__name__,
    tasks_of={"pusht": [GymnasiumTask("PushT-v0", INSTRUCTION, "gym_pusht:gym_pusht/PushT-v0", SETTINGS)]},
    horizon=300,
    images={"top": "pixels"},
    state_key="agent_pos",
    state=PUSHT_STATE,
    action=PUSHT_ACTION,
    control_hz=10,
    seed=1000,
    environment="lerobot",
    packages=("gym-pusht", "pymunk", "pygame", "gymnasium", "numpy"),
    opengl=False,
    worker_gb=0.4,
    profile="lerobot",
    source="lerobot 0.6.1, envs/configs.py and scripts/lerobot_eval.py",
)
