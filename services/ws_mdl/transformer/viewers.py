"""Viewers for notebooks: attention, candidates for the next token, and the tree of a beam search."""

from __future__ import annotations

from typing import NamedTuple

import torch
from ipywidgets import Dropdown, IntSlider, VBox

from services.ws_mdl.transformer.dataset import Special, padding_mask
from services.ws_mdl.transformer.decode import NextWord, TrainedTransformer, beam_search, encode_sources
from services.ws_mdl.transformer.visualize import View
from vla_notebooks import drawing
from vla_notebooks.viewer import viewer


def attention(view: View) -> VBox:
    """Return an attention viewer: lines between words, with sliders for kind, layer and head."""
    kinds, (layers, heads) = view.kinds(), view.maps.cross.shape[:2]

    def draw(kind: str, layer: int, head: int) -> str:
        weights, left, right = kinds[kind]
        selected = range(heads) if head < 0 else [head]
        colours = [drawing.COLOURS[index % len(drawing.COLOURS)] for index in selected]
        label = f"{kind} attention, layer {layer}: words on the left attend to words on the right"
        lines = drawing.lines_between(weights[layer][list(selected)].numpy(), left, right, colours, label)
        return drawing.titled(label, drawing.legend([f"head {index}" for index in selected], colours) + lines)

    return viewer(
        draw,
        kind=Dropdown(options=list(kinds)),
        layer=IntSlider(min=0, max=layers - 1, value=layers - 1),
        head=Dropdown(options=[("all", -1), *((str(head), head) for head in range(heads))]),
    )


@torch.inference_mode()
def candidates(run: TrainedTransformer, sentence: str, count: int = 8) -> list[list[tuple[str, float]]]:
    """Return the most likely next tokens with probabilities at each step of greedy search, up to [EOS]."""
    source, special = _encoded(run, sentence), Special.of(run.tokenizer_tgt)
    mask = padding_mask(source, Special.of(run.tokenizer_src).pad)
    next_word = NextWord(run.model, source, mask, special, use_cache=False)
    tokens, steps = torch.tensor([[special.sos]], device=source.device), []
    while tokens.shape[1] < min(run.config.seq, 3 * source.shape[1]) and special.eos not in tokens[0]:
        best = next_word.logits(tokens).softmax(dim=-1)[0].topk(count)
        names = [run.tokenizer_tgt.id_to_token(token_id) for token_id in best.indices.tolist()]
        steps.append(list(zip(names, best.values.tolist(), strict=True)))
        tokens = torch.cat([tokens, best.indices[None, :1]], dim=1)
    return steps


def next_token(run: TrainedTransformer, sentence: str) -> VBox:
    """Return a bar chart of the next token, with a slider for the step."""
    steps = candidates(run, sentence)

    def draw(step: int) -> str:
        before = " ".join(rows[0][0] for rows in steps[:step]) or "[SOS]"
        return drawing.titled(f"{sentence} → {before} …", drawing.bars(steps[step], "most likely next tokens", 0))

    return viewer(draw, step=IntSlider(min=0, max=len(steps) - 1))


class Node(NamedTuple):
    """A hypothesis of a beam search step. parent: its index in the step before."""

    parent: int
    word: str
    total: float  # log probability of all tokens so far
    ended: bool  # the translation had ended before


def beam_steps(run: TrainedTransformer, sentence: str, beam: int) -> tuple[list[list[Node]], list[int]]:
    """Return the hypotheses of each step, and the winner's index in each."""
    source, special = _encoded(run, sentence), Special.of(run.tokenizer_tgt)
    steps: list[list[Node]] = []

    def watch(parent: torch.Tensor, word: torch.Tensor, total: torch.Tensor) -> None:
        rows = zip(parent[0].tolist(), word[0].tolist(), total[0].tolist(), strict=True)
        steps.append([Node(p, run.tokenizer_tgt.id_to_token(w), t, w == special.pad) for p, w, t in rows])

    mask = padding_mask(source, Special.of(run.tokenizer_src).pad)
    max_len = min(run.config.seq, 3 * source.shape[1])
    (ids,) = beam_search(run.model, source, mask, special, max_len, beam, watch=watch)
    expected = [run.tokenizer_tgt.id_to_token(token_id) for token_id in ids]
    for rank in range(beam):
        path = [rank]
        for nodes in reversed(steps[1:]):
            path.append(nodes[path[-1]].parent)
        path.reverse()
        nodes = [nodes[rank] for nodes, rank in zip(steps, path, strict=True)]
        if [node.word for node in nodes if not node.ended and node.word != "[EOS]"] == expected:
            return steps, path
    raise AssertionError("the winner must be among the last step's hypotheses")


def tree(steps: list[list[Node]], winner: list[int]) -> str:
    """Draw the tree: a row per step, the winner's tokens in bold."""
    across, down = 88, 40
    parts = []
    for row, nodes in enumerate(steps):
        for rank, node in enumerate(nodes):
            if node.ended or node.total == float("-inf"):
                continue
            node_xy, parent_xy = (across * (rank + 0.5), down * (row + 1)), (across * (node.parent + 0.5), down * row)
            wins = winner[row] == rank
            if row:
                start, end = (parent_xy[0], parent_xy[1] + 10), (node_xy[0], node_xy[1] - 10)
                parts.append(drawing.line(start, end, drawing.COLOURS[3 if wins else 7], 3 if wins else 1.5))
            parts.append(drawing.text(*node_xy, drawing.shortened(node.word, 10), "middle", bold=wins))
    label = f"beam search: {len(steps)} steps, beam {len(steps[0])}"
    return drawing.svg(across * len(steps[0]), down * (len(steps) + 1), parts, label)


def beam_tree(run: TrainedTransformer, sentence: str) -> VBox:
    """Return a viewer of the beam search tree, with a slider for the beam width."""
    return viewer(lambda beam: tree(*beam_steps(run, sentence, beam)), beam=IntSlider(min=1, max=4, value=3))


def _encoded(run: TrainedTransformer, sentence: str) -> torch.Tensor:
    device = next(run.model.parameters()).device
    return encode_sources([sentence], run.tokenizer_src, run.config.seq).to(device)
