"""The notebooks as they are stored: no outputs, one form, two languages, and a size for tests that says so itself."""

import json
import re

import pytest

from vlalab.description import manifests
from vlalab.host import paths

FOUND = sorted(paths.ROOT.glob("services/*/notebooks/*.ipynb"))
NAMES = {
    "ws_mdl": [
        "L1_Sampling",
        "L2_Training",
        "L3_Context",
        "L4_FastSampling",
        "MNIST",
        "Practice_Attention",
        "Practice_Before",
        "Practice_Series",
        "Practice_SmallThings",
        "Tformer_Tutorial",
    ],
    "libero": ["01_LIBERO", "02_OpenVLA_on_LIBERO"],
    "openvla": ["01_Action_Tokens"],
    "hf": ["1_Tokens_and_Classification", "2_Generation_and_Translation"],
    "gr00t": ["0_load_dataset", "1_inference", "2_finetuning"],
    "lerobot": ["01_From_Recording_to_SmolVLA"],
}


def test_the_notebooks_are_those_of_the_course_and_each_directory_has_a_service():
    found = {directory: sorted(path.stem for path in FOUND if path.parts[-3] == directory) for directory in NAMES}
    assert found == NAMES
    assert {path.parts[-3] for path in FOUND} == set(manifests.notebooks())


@pytest.mark.parametrize("path", FOUND, ids=lambda path: path.stem)
def test_a_notebook_is_stored_without_outputs_and_in_one_form(path):
    """To be read in a diff: JSON with one line per line, ids that count, nothing of whoever ran it last."""
    text = path.read_text(encoding="utf-8")
    notebook = json.loads(text)
    assert text == json.dumps(notebook, indent=1, ensure_ascii=False, sort_keys=True) + "\n"
    for number, cell in enumerate(notebook["cells"], 1):
        assert (cell["id"], cell["metadata"]) == (f"cell-{number:02d}", {})
        if cell["cell_type"] == "code":
            assert (cell["outputs"], cell["execution_count"]) == ([], None)


@pytest.mark.parametrize("path", FOUND, ids=lambda path: path.stem)
def test_a_notebook_speaks_two_languages_and_says_how_it_is_tested(path):
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    words = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "markdown"]
    code = "\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "code")
    assert re.search("[a-z]{4}", words[0]) and re.search("[가-힣]{2}", words[0])
    assert 'SMALL = os.environ.get("VLALAB_SMALL") == "1"' in code
    assert len(cells) <= 25 and max(map(len, code.splitlines())) <= 140


@pytest.mark.parametrize("path", FOUND, ids=lambda path: path.stem)
def test_the_first_cell_says_how_long_it_takes_and_how_to_stop_a_cell(path):
    first, *_ = json.loads(path.read_text(encoding="utf-8"))["cells"]
    english, korean = "".join(first["source"]).split("\n\n")[-2:]
    (minutes,) = re.findall(r"about (\d+) minutes? on two free cores, without a GPU", english)
    assert 1 <= int(minutes) <= 10 and f"core 두 개로 약 {minutes}분" in korean
    assert "■" in english and "■" in korean and "Ctrl-C" in english and "Ctrl-C" in korean
