"""LIBERO as a fast, exact environment: start-up, suites, init states, physics, images, privileged state."""
