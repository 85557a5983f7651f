"""mini-VLA: lab 1's Transformer and lab 2's diffusion, put together to a policy that learns from demonstrations."""
