"""What travels between simulator and policy: types, their encoding, what a policy says of itself, errors."""
