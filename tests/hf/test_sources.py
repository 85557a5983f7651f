"""Whose model and data a lab takes, and what is said where they cannot be had; no hub is asked."""

import pytest

from services.hf import classify, sources


def test_without_a_network_auto_takes_what_is_made_here_and_says_why(volume, folders):
    found = sources.model("bert", "auto", volume, 20)
    assert found.folder == folders["bert"] and not found.real
    assert "made here" in found.said and "beomi/kcbert-base cannot be had: HF_HUB_OFFLINE is set" in found.said
    rows = sources.data("pairs", "auto", 30, volume, held=10)
    assert (len(rows.train), len(rows.test), rows.real) == (30, 10, False)
    assert "made here" in rows.said and "Helsinki-NLP/opus_books cannot be had" in rows.said


def test_a_name_without_a_network_is_one_sentence_with_the_way_out(volume):
    with pytest.raises(
        ValueError, match=r"model 'klue/bert-base' cannot be had: HF_HUB_OFFLINE is set; `--model made`"
    ):
        sources.model("bert", "klue/bert-base@main", volume)


@pytest.mark.parametrize("name", ["no spaces/please", "a/b/c", "-x/y", ""])
def test_what_is_no_name_is_refused(name, volume):
    with pytest.raises(ValueError, match=r"is no name of the hub's; expected OWNER/NAME"):
        sources.model("bert", name, volume)


def test_unknown_data_is_refused(volume):
    with pytest.raises(ValueError, match=r"data 'mine' is not known; expected auto"):
        sources.data("reviews", "mine", 10, volume)
    with pytest.raises(ValueError, match=r"more than 5000 are expected"):
        sources.data("news", "made", 1, volume, held=5000)


def test_a_push_without_a_token_is_refused_before_anything_is_trained(volume, monkeypatch):
    monkeypatch.setattr(sources, "get_token", lambda: None)
    monkeypatch.setattr(sources, "model", lambda *_: pytest.fail("nothing is loaded"))
    with pytest.raises(
        ValueError, match=r"--push me/mine needs a token .* set HF_TOKEN .* nothing was trained or sent"
    ):
        classify.run(classify.Classify(push="me/mine"), volume)
    with pytest.raises(ValueError, match=r"--push 'not a name' is no name of the hub's"):
        sources.require_push("not a name")
    monkeypatch.setattr(sources, "get_token", lambda: "hf_of_nobody")
    with pytest.raises(ValueError, match=r"--push me/mine needs the hub, and HF_HUB_OFFLINE is set"):
        sources.require_push("me/mine")
    sources.require_push(None)


def test_nothing_is_uploaded_unless_asked():
    sources.push(None, [object()])


def test_a_push_hands_model_and_tokenizer_on_as_private():
    """What the library then sends was never run: there is no hub here."""
    calls, said = [], []

    class Part:
        def push_to_hub(self, name, **options):
            calls.append((name, options))

    sources.push("me/mine", [Part(), Part()], said.append)
    assert calls == [("me/mine", {"private": True})] * 2 and "me/mine" in said[0]
