"""A variational autoencoder on the diffusion lab's pictures."""
