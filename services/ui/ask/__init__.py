"""Ask a policy: a picture and an instruction in, the numbers of its action out.."""
