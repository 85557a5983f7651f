"""mini-VLA: lab 1's Transformer and lab 2's diffusion combined in a policy that learns from demonstrations."""
