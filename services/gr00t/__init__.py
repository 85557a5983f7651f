"""GR00T N1.5 behind the contract: an engine of our own, robots as data."""
