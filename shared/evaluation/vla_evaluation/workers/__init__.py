"""The processes that run episodes, what they are told, and the supervisor that keeps them alive."""
