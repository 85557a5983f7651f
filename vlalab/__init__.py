"""The host tool: makes environments from locks, runs services, starts evaluations. It never imports a service.

Its packages from the ground up, each importing only those before it: host, description, environments, engine, runtimes,
bundles, doctor, commands, testing, tasks.
"""
