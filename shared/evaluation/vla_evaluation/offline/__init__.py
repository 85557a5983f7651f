"""Score a policy's actions against a recorded data set, without a simulator.

`program` is the command line and its page, `policy_view` the data set as one policy sees it, `scores` the errors.
"""
