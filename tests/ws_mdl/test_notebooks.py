"""The course's notebooks run; copies of them lie in a student's home, where nothing writes over what a student did."""

import pytest

from tests import notebooks
from vla_common.volume import Volume
from vla_notebooks import home


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A volume that the notebooks share, as a student's does: what one has trained, the next one takes."""
    return tmp_path_factory.mktemp("volume")


@pytest.mark.parametrize("path", notebooks.of("ws_mdl"), ids=notebooks.name_of)
def test_a_notebook_runs_and_shows_images(path, trained):
    cells = notebooks.executed(path, trained)
    assert sum(map(notebooks.shows_image, cells)) >= 3 and notebooks.shows_image(cells[-1])


def test_a_new_home_has_every_notebook_and_a_later_start_leaves_what_a_student_did(tmp_path):
    volume, names = Volume(tmp_path), [path.name for path in notebooks.of("ws_mdl")]
    made = home.copy_notebooks("ws_mdl", volume)
    assert [path.name for path in made] == names and made[0].parent == tmp_path / "notebooks" / "ws_mdl"
    assert [path.read_bytes() for path in made] == [path.read_bytes() for path in notebooks.of("ws_mdl")]
    made[0].write_text("mine")
    made[1].unlink()
    assert home.copy_notebooks("ws_mdl", volume) == [made[1]], "what is missing comes again"
    assert made[0].read_text() == "mine"


def test_fresh_copies_leave_the_old_ones_beside(tmp_path):
    volume = Volume(tmp_path)
    first, *_ = home.copy_notebooks("ws_mdl", volume)
    for words in ("mine", "mine again"):
        first.write_text(words)
        assert home.copy_notebooks("ws_mdl", volume, fresh=True) == [first], "one that was not changed stays"
    kept = [first.with_name(f"{first.stem}.before-{number}.ipynb").read_text() for number in (1, 2)]
    assert kept == ["mine", "mine again"]
    assert first.read_bytes() == notebooks.of("ws_mdl")[0].read_bytes()
    assert len(list(first.parent.iterdir())) == len(notebooks.of("ws_mdl")) + 2


def test_a_link_in_a_students_home_is_neither_followed_nor_lost(tmp_path):
    outside, volume = tmp_path / "outside", Volume(tmp_path / "volume")
    outside.write_text("of somebody else")
    (first, *_) = home.copy_notebooks("ws_mdl", volume)
    first.unlink()
    first.symlink_to(outside)
    assert home.copy_notebooks("ws_mdl", volume) == []
    assert home.copy_notebooks("ws_mdl", volume, fresh=True) == [first] and not first.is_symlink()
    assert outside.read_text() == "of somebody else"


def test_an_unknown_directory_is_named_with_those_there_are(tmp_path):
    with pytest.raises(ValueError, match="no notebooks for 'wsmdl'; choose one of .*ws_mdl"):
        home.copy_notebooks("wsmdl", Volume(tmp_path))
    assert not (tmp_path / "notebooks").exists()
