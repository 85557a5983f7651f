"""vla-eval's protocol of model servers, both ways."""
