"""Fine-tuning on a data set of demonstrations; the result is a checkpoint that is ready to serve."""
