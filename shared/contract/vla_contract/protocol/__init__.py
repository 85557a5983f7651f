"""The messages between simulator and policy: types, encoding, policy descriptions, errors."""
