"""Each fault of meaning, planted into a set of another robot, is named; a healthy set gives no suspicion."""

from dataclasses import replace

import numpy as np
import pytest

from bench.parts import planted_data
from tests import data_sets
from vla_datasets import metadata, program, tables
from vla_datasets.audit import KINDS, audit
from vla_datasets.errors import DatasetError
from vla_datasets.metadata import ACTION, STATE
from vla_datasets.v3_writing import V3Writer

PLANTS = planted_data.plants(planted_data.ARM, cameras=2)
UNSEEN = "sentences, everywhere"  # nothing in the set tells
LARGE = "another's video, exchanged"  # takes 40 episodes, see ./lab bench audit_data
EPISODE = 4


@pytest.fixture(scope="module")
def arm(tmp_path_factory):
    """A healthy set and its episodes in memory."""
    dataset = planted_data.arm_set(tmp_path_factory.mktemp("sets") / "arm", 12, size=(48, 64))
    return dataset, planted_data.load(dataset)


def _without(dataset, episodes, key):
    """Return the features and episodes without a column or the videos."""
    features = {name: of for name, of in dataset.info["features"].items() if name != key and of["dtype"] != key}
    dataset = planted_data.LeRobotDataset(dataset.directory)
    dataset.info["features"] = features
    left = [
        replace(
            episode,
            columns={name: values for name, values in episode.columns.items() if name != key},
            videos={} if key == "video" else episode.videos,
        )
        for episode in episodes
    ]
    return dataset, left


def test_a_healthy_set_has_no_suspicions(arm, tmp_path, capsys):
    assert audit(arm[0].directory).notes == []
    v3 = planted_data.save(tmp_path / "v3", arm[0], arm[1], V3Writer)
    assert program.read(v3.directory, check=True) == 0
    assert "meaning of 12 episodes: no suspicions" in capsys.readouterr().out


@pytest.mark.parametrize("name", [name for name in PLANTS if name not in (UNSEEN, LARGE)])
def test_a_planted_fault_is_named(arm, tmp_path, name):
    kind, change = PLANTS[name]
    result = audit(planted_data.plant(tmp_path / "planted", *arm, change, EPISODE).directory)
    named = {episode for note in result.notes if note.kind == kind for episode in note.episodes}
    assert {note.kind for note in result.notes} == {kind} <= set(KINDS), result.lines()
    assert not named if name.endswith("all") else EPISODE in named, result.lines()


def test_next_actions_that_explain_few_numbers_are_no_delay(arm, tmp_path):
    """So it is where noise was added to recorded actions: the next ones react to it."""

    def delayed(episode):
        action = episode.columns[ACTION].copy()
        action[1:, :2] = episode.columns[ACTION][:-1, :2]
        return replace(episode, columns={**episode.columns, ACTION: action})

    planted = planted_data.save(tmp_path / "few", arm[0], [delayed(episode) for episode in arm[1]])
    assert audit(planted.directory).notes == []


def test_sentences_are_compared_with_the_simulated_tasks(arm, tmp_path):
    planted = planted_data.plant(tmp_path / "planted", *arm, PLANTS[UNSEEN][1], EPISODE)
    source = {"episodes": [{"instruction": episode.task} for episode in arm[1]]}
    metadata.write_json(planted.directory / metadata.SOURCE, source)
    result = audit(planted.directory)
    assert [note.kind for note in result.notes] == ["sentences exchanged"] * 2, result.lines()
    assert "the simulator ran 'pick up the red block'" in result.notes[0].evidence


@pytest.mark.parametrize(
    ("key", "text"),
    [("video", "about images: the set has none"), (STATE, "has no observation.state"), (ACTION, "has no action")],
)
def test_what_a_set_lacks_cannot_be_told(arm, tmp_path, key, text):
    result = audit(planted_data.save(tmp_path / "less", *_without(*arm, key)).directory)
    assert result.notes == [] and text in " ".join(result.cannot_tell), result.lines()


def test_one_episode_cannot_be_compared(arm, tmp_path):
    result = audit(planted_data.save(tmp_path / "one", arm[0], arm[1][:1]).directory)
    assert result.notes == [] and "1 is too few" in " ".join(result.cannot_tell)


def test_small_sets_of_liberos_layouts_are_read(tmp_path):
    for directory in (data_sets.lerobot(tmp_path / "small").directory, data_sets.hdf5(tmp_path / "goal")):
        assert audit(directory).episodes == 3


def test_numbers_that_are_not_finite_are_refused(arm, tmp_path):
    dataset = planted_data.save(tmp_path / "nan", arm[0], arm[1][:6])
    columns = {name: values.copy() for name, values in dataset.columns(2).items()}
    columns[ACTION][3] = np.nan
    tables.write(dataset.data_path(2), columns)
    with pytest.raises(DatasetError, match="episode 2.*--check"):
        audit(dataset.directory)
