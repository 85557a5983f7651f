"""Ask a policy what it would have done in a recorded data set: no simulator, any policy, any data set.

`program` is the command line, `policy_view` the data set as one policy sees it, `scores` the errors, `report` the page.
"""
