"""The model as a policy of the contract: settings, loading, what `/v1/info` says, observations in and actions out."""
