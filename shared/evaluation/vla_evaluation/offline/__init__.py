"""Score a policy's actions against a recorded data set, without a simulator.

`program` is the command line, `policy_view` the data set as one policy sees it, `scores` the errors, `report` the page.
"""
