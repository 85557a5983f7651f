"""`--engine upstream`: Isaac-GR00T's own code behind the same contract, for comparison."""
