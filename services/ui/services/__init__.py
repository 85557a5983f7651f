"""The page Services: services, their details, and the machine."""
