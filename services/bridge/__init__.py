"""Other projects' protocols: their policy servers behind our contract, and our policies for their clients."""
