"""LIBERO as a fast, exact environment: start-up, suites, init states, physics, pictures, privileged state."""
