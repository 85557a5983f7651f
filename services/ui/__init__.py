"""The web page: a picture and an instruction in, the policy's seven numbers out."""
