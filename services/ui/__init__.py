"""The web page: a picture and an instruction in, the numbers of the policy's action out."""
