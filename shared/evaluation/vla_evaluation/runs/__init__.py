"""Run folders on the volume: made, found, resumed, listed and removed."""
