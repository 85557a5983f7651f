"""The course's labs, and the notebook and TensorBoard services they run in."""
