"""Fine-tuning on a data set of demonstrations; what comes out is a checkpoint that serves at once."""
