"""The host tool: makes environments from locks, runs services, starts evaluations. It never imports a service."""
