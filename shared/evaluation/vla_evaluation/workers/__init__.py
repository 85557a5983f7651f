"""The processes that run episodes, their job, and the supervisor that keeps them alive."""
