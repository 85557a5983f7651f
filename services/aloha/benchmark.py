"""ALOHA: two arms insert a peg or hand over a cube (gym-aloha), under the protocol of LeRobot's evaluation."""

from vla_contract.protocol.parts import ALOHA_JOINTS
from vla_evaluation.gymnasium import GymnasiumBenchmark, GymnasiumTask

# lerobot 0.6.1: envs/configs.py (AlohaEnv) and configs/eval.py. The instructions are those of the data sets
# lerobot/aloha_sim_*_human (huggingface/lerobot at 02c76e3e, lerobot/common/datasets/v2/
# batch_convert_dataset_v1_to_v2.py); lerobot-eval sends "insertion" and "transfer_cube".
INSERTION = GymnasiumTask(
    "AlohaInsertion-v0", "Insert the peg into the socket.", "services.aloha.env:AlohaInsertion-v0"
)
TRANSFER = GymnasiumTask(
    "AlohaTransferCube-v0",
    "Pick up the cube with the right arm and transfer it to the left arm.",
    "services.aloha.env:AlohaTransferCube-v0",
)

BENCHMARK = GymnasiumBenchmark(
    name="ALOHA",
    module=__name__,
    tasks_of={"aloha_insertion": [INSERTION], "aloha_transfer_cube": [TRANSFER]},
    horizon=400,
    images={"top": "pixels/top"},
    state_key="agent_pos",
    state=ALOHA_JOINTS,
    action=ALOHA_JOINTS,
    control_hz=50,
    seed=1000,
    environment="lerobot",
    packages=("gym-aloha", "dm-control", "mujoco", "gymnasium", "numpy"),
    worker_gb=0.6,
    profile="lerobot",
    source="lerobot 0.6.1, envs/configs.py and scripts/lerobot_eval.py",
)
