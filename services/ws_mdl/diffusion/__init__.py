"""Lab 2: diffusion from scratch. Sampling, training, context, fast sampling."""
