"""What the page may ask of this machine, answered on a socket: to look, to start and to stop, by the lab's commands."""
