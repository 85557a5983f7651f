"""The simulator's page. The browser talks only to this site, which forwards to the service `simulator`."""
