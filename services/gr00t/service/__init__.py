"""Settings, loading, the policy, and GR00T's own HTTP clients."""
