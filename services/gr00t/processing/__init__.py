"""From an observation to what the network takes, and from its output to the robot's numbers."""
