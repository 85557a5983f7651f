"""Ask a policy: image and instruction in, the numbers of its action out."""
