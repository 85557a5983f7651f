"""The simulator's page: a browser talks to this site alone, which asks the service `simulator`."""
