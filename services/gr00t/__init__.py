"""GR00T N1.5 behind the contract: upstream's policy, its embodiments as data, and its HTTP clients' form of `/act`."""
