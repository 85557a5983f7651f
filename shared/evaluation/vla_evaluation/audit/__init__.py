"""Find which convention of a served policy is wrong, from its answers to recorded moments.

`moments` are the recordings as one policy sees them, `asking` counts the requests, `scoring` compares answers with
what was done. `serving`, `inputs` and `outputs` are the checks, `changes` and `findings` their hypotheses and advice.
`program` is the command line and its page.
"""
