"""Episodes marked as bad: kept beside the set, left out of what is learned, refused for another set of that name."""

import json

import numpy as np
import pytest

from services.libero.datasets import __main__ as program
from tests import data_sets
from vla_datasets import conversion, libero, marks
from vla_datasets.errors import DatasetError
from vla_datasets.loader import open_dataset
from vla_datasets.pages import page


@pytest.fixture(params=["lerobot", "hdf5"])
def directory(request, tmp_path):
    """A set of three episodes in either layout."""
    made = getattr(data_sets, request.param)(tmp_path / "small")
    return getattr(made, "directory", made)


def run(monkeypatch, capsys, *words):
    monkeypatch.setattr("sys.argv", ["dataset", *map(str, words)])
    status = program.main()
    return status, capsys.readouterr().out


def test_what_is_marked_is_left_out_and_statistics_are_of_the_others(directory):
    assert marks.leave_out(open_dataset(directory)) == marks.Marks() and marks.Marks().digest == ""
    assert marks.mark(open_dataset(directory), bad=[1]).bad == (1,)
    dataset = open_dataset(directory)
    kept = [episode.index for episode in dataset.episodes if episode.index != 1]
    found = marks.leave_out(dataset)
    assert [episode.index for episode in dataset.episodes] == kept and len(found.digest) == 16 and len(dataset) < 31
    rows = np.concatenate([dataset.columns(index)[libero.STATE] for index in kept])
    np.testing.assert_allclose(dataset.statistics()[libero.STATE]["max"], rows.max(0), rtol=1e-6)
    assert marks.mark(open_dataset(directory), good=[1]) == marks.Marks() and not marks.path_of(directory).exists()


def test_a_set_made_of_a_marked_one_is_without_those_episodes(directory, tmp_path):
    marks.mark(open_dataset(directory), bad=[0])
    expected = [episode.length for episode in open_dataset(directory).episodes][1:]
    assert [
        episode.length for episode in conversion.recode(open_dataset(directory), tmp_path / "again").episodes
    ] == expected


def test_marks_of_another_set_and_damaged_ones_are_refused(directory):
    marks.mark(open_dataset(directory), bad=[0])
    path = marks.path_of(directory)
    path.write_text(json.dumps({**json.loads(path.read_text()), "of": "another"}))
    with pytest.raises(DatasetError, match="has the marks of an earlier set"):
        marks.leave_out(open_dataset(directory))
    path.write_text('{"bad": "0"}')
    with pytest.raises(DatasetError, match="not a list of episodes"):
        marks.read(open_dataset(directory))


def test_every_episode_marked_and_one_that_is_missing_are_reported(directory):
    with pytest.raises(DatasetError, match="has no episode 3"):
        marks.mark(open_dataset(directory), bad=[3])
    marks.mark(open_dataset(directory), bad=range(3))
    with pytest.raises(DatasetError, match="all 3 episodes are marked"):
        marks.leave_out(open_dataset(directory))


def test_the_command_marks_reports_it_and_shows_it(directory, monkeypatch, capsys):
    status, said = run(monkeypatch, capsys, directory, "--bad", "0,2")
    assert (status, said) == (0, "marked as bad: 0, 2\n")
    assert "marked as bad: 0, 2; training leaves them out" in run(monkeypatch, capsys, directory, "--check")[1]
    html = page.render(open_dataset(directory))
    assert html.count("· marked as bad") == 2 and "(2 marked as bad)" in html
    assert run(monkeypatch, capsys, directory, "--good", "0-2")[1] == "marked as bad: none\n"
