"""The lab: which services answer, what they say of themselves, and the machine beneath."""
