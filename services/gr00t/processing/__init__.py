"""Convert observations to network inputs, and network outputs to the robot's units."""
