"""The course's demo in Gradio, where that is installed: it asks a policy of the lab."""

import numpy as np
import pytest
from policies import SeeingPolicy

gradio = pytest.importorskip("gradio", reason="Gradio is in no environment of the lab: pip install gradio")


def test_the_demo_asks_the_policy_and_says_what_is_missing(serve_policy):
    from lessons.gradio_demo import page_over

    policy = SeeingPolicy()
    ask = page_over(serve_policy(policy)).fn
    rows, took = ask(np.zeros((8, 8, 3), np.uint8), "pick up the bowl", "libero_goal")
    assert np.shape(rows) == (1, 7) and took.endswith(" ms") and policy.asked[-1].instruction == "pick up the bowl"
    with pytest.raises(gradio.Error, match="image"):
        ask(None, "pick up the bowl", "libero_goal")
    with pytest.raises(gradio.Error, match="did you mean"):
        ask(np.zeros((8, 8, 3), np.uint8), "pick up the bowl", "libero_gaol")
