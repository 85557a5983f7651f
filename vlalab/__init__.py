"""The host tool: creates environments from locks, runs services, starts evaluations. It never imports a service.

Its packages in layers, each importing only those before it: host, description, environments, engine, runtimes,
bundles, doctor, commands, testing, tasks.
"""
