"""Flags of the scripts that course material runs, each with what `./lab` has instead (docs/handout.md)."""

FOREIGN_FLAGS = {
    "action_dim": "a policy's /v1/info states the sizes of its actions",
    "center_crop": "the profile crops where the checkpoint was trained so: ./lab eval SUITE --profile NAME",
    "data_config": "the robot is the flag --embodiment of ./lab finetune",
    "dataset_name": "the data set is the flag --dataset of ./lab finetune",
    "dataset_path": "the data set is the flag --dataset of ./lab finetune",
    "embodiment_tag": "the robot is the flag --embodiment of ./lab finetune",
    "load_in_4bit": "use --quant fp4 of ./lab up (fp4 is what load_in_4bit=True means)",
    "load_in_8bit": "use --quant int8 of ./lab up",
    "logdir": "./lab tensorboard shows logs/tensorboard on the volume",
    "model_family": "the policy is the flag --policy of ./lab eval",
    "model_path": "the model is the flag --checkpoint of ./lab up",
    "num_gpus": "use --gpus of ./lab finetune",
    "num_trials_per_task": "use --trials of ./lab eval",
    "output_dir": "results go to the volume; name them with --name of ./lab finetune",
    "pretrained_checkpoint": "the model is the flag --checkpoint of ./lab up",
    "run_id_note": "use --run-id of ./lab eval",
    "task_suite_name": "the suite is a word of its own: ./lab eval SUITE",
    "use_wandb": "./lab report and ./lab tensorboard show results; nothing is sent elsewhere",
}
