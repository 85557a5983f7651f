"""Images for policies, and videos."""
