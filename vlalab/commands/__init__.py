"""What a task calls: services up and down, evaluations, programs of an environment."""
