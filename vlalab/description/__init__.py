"""compose.yaml, .env and what files declare, read; and what a service gets of it: its port, GPUs, settings."""
