"""The page Lab: services, their details, and the machine."""
