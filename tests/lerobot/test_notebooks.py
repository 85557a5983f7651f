"""LeRobot's notebook runs on a drawn data set and a tiny checkpoint, and fine-tuning makes its chunks better."""

import re

from tests import notebooks


def test_the_notebook_runs_fine_tunes_and_ends_in_an_image(tmp_path):
    (path,) = notebooks.of("lerobot")
    cells = notebooks.executed(path, tmp_path)
    assert notebooks.shows_image(cells[-1])
    (printed,) = (output.text for output in cells[-1].outputs if "mean" in output.get("text", ""))
    base, tuned = (float(mean) for mean in re.findall(r"(?m)^(?:base|tuned) +mean ([\d.]+)", printed))
    assert tuned < base, "four steps are enough to take over the data set's scale"
    (record,) = tmp_path.glob("checkpoints/notebook-smolvla-notebook-cups-0-4/checkpoint.json")
    assert '"dataset": "notebook-cups"' in record.read_text()


def test_a_plot_writes_hangul(tmp_path):
    notebooks.plot_hangul(tmp_path)
