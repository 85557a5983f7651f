"""Exercises of the Transformer lesson."""

from __future__ import annotations

from lessons.exercises.types import Bilingual, Exercise, FunctionCall, mistake

# --- calls ----------------------------------------------------------------------------


def mask_calls() -> list[FunctionCall]:
    return [FunctionCall(f"causal_mask({size})", (size,)) for size in (4, 1, 7)]


def positions_calls() -> list[FunctionCall]:
    return [
        FunctionCall(f"positions(seq={seq}, d_model={d})", (seq, d)) for seq, d in ((6, 8), (3, 512), (9, 14), (12, 2))
    ]


def attention_calls() -> list[FunctionCall]:
    import torch

    generator = torch.Generator().manual_seed(0)

    def inputs(batch: int, h: int, queries: int, keys: int, d_k: int):
        query = 4 * torch.randn(batch, h, queries, d_k, generator=generator)
        return query, *(torch.randn(batch, h, keys, d_k, generator=generator) for _ in range(2))

    causal = torch.ones(1, 5, 5, dtype=torch.bool).tril()
    padding = torch.arange(5) < torch.tensor([3, 5])[:, None, None, None]
    hint = Bilingual("masked_fill writes a number where its mask is true; exp(-1e9) is 0.",
                     "masked_fill은 mask가 true인 곳에 숫자를 넣습니다; exp(-1e9)는 0입니다.")  # fmt: skip
    return [
        FunctionCall("attention of h = 3 heads with d_k = 64, without a mask", inputs(2, 3, 5, 5, 64)),
        FunctionCall("attention of h = 2 heads with d_k = 10, 4 queries and 7 keys", inputs(3, 2, 4, 7, 10)),
        *(
            FunctionCall(
                f"attention of h = 3 heads with d_k = 12, with {name}", (*inputs(2, 3, 5, 5, 12), mask), hint=hint
            )
            for name, mask in (("a causal mask", causal), ("padding masked", padding), ("both", causal & padding))
        ),
    ]


def shift_calls() -> list[FunctionCall]:
    batches = ([[5, 6, 7], [8]], [[9], [4, 12, 3, 10], [7, 7]], [[11, 3]], [[6], [5]])
    return [FunctionCall(f"teacher_forcing({batch})", (batch,)) for batch in batches]


def warmup_calls() -> list[FunctionCall]:
    return [
        FunctionCall(f"learning_rate(step={step}, d_model={d_model}, warmup={warmup})", (step, d_model, warmup))
        for d_model, warmup, steps in ((512, 400, (1, 100, 400, 4000)), (128, 1000, (3, 999, 1001)))
        for step in steps
    ]


def smoothing_calls() -> list[FunctionCall]:
    import torch

    generator = torch.Generator().manual_seed(1)
    scores, more_scores = torch.randn(2, 4, 9, generator=generator), torch.randn(3, 5, 13, generator=generator)
    unpadded, padded = torch.tensor([[3, 4, 5, 2], [6, 7, 8, 2]]), torch.tensor([[3, 4, 5, 2], [6, 2, 0, 0]])
    labels = torch.tensor([[12, 1, 7, 9, 2], [3, 2, 0, 0, 0], [5, 11, 2, 0, 0]])
    return [
        FunctionCall("smoothed_loss without padding, smoothing 0.1", (scores, unpadded)),
        FunctionCall("smoothed_loss with padding (0), smoothing 0.1", (scores, padded)),
        FunctionCall("smoothed_loss with padding (0), smoothing 0.3", (scores, padded, 0.3)),
        FunctionCall("smoothed_loss of 3 sentences and 13 words, smoothing 0.2", (more_scores, labels, 0.2)),
        FunctionCall("smoothed_loss of 3 sentences and 13 words, smoothing 0", (more_scores, labels, 0.0)),
    ]


def feed_forward_calls() -> list[FunctionCall]:
    import torch

    generator = torch.Generator().manual_seed(2)
    cases = ((2, 8, 20, 0.5, False), (4, 6, 15, 0.3, False), (2, 8, 20, 1.0, True), (4, 6, 15, 0.0, True))
    return [
        FunctionCall(
            f"FeedForwardBlock(d_model={d_model}, d_ff={d_ff}, dropout={dropout}) in {_mode(train)} mode",
            (torch.randn(batch, batch + 1, d_model, generator=generator),), (d_model, d_ff, dropout), train,
        )
        for batch, d_model, d_ff, dropout, train in cases
    ]  # fmt: skip


def block_calls() -> list[FunctionCall]:
    import torch

    generator = torch.Generator().manual_seed(3)

    def call(module: tuple, batch: int, target: int, source: int, train: bool = False) -> FunctionCall:
        d_model, h, _, dropout, decodes = module
        inputs = [torch.randn(batch, count, d_model, generator=generator) for count in (target, source)]
        causal = torch.ones(1, target, target, dtype=torch.bool).tril()
        padding = torch.arange(source)[None, None, None] < source - 1
        named = f"{target} target words and {source} source words" if decodes else f"{target} words"
        return FunctionCall(
            f"{'a decoder' if decodes else 'an encoder'}'s Block, d_model={d_model}, h={h}, dropout={dropout}, "
            f"in {_mode(train)} mode, {named}",
            (inputs[0], causal, inputs[1], padding) if decodes else (inputs[0], causal), module, train,
        )  # fmt: skip

    return [
        call((8, 2, 20, 0.5, True), 2, 4, 4),
        call((8, 2, 20, 0.5, True), 2, 4, 6),
        call((12, 3, 10, 0.3, True), 1, 5, 3),
        call((12, 3, 10, 0.3, False), 3, 5, 5),
        call((8, 2, 20, 1.0, True), 2, 4, 6, train=True),
        call((8, 2, 20, 0.0, True), 2, 4, 6, train=True),
    ]


def _mode(train: bool) -> str:
    return "train" if train else "eval"


# --- mistakes --------------------------------------------------------------------------------------------------

TRIU = "torch.triu(torch.ones(1, size, size), diagonal=1) == 0"
MASK = (
    mistake("the diagonal is masked too", ("diagonal=1", "diagonal=0"),
            en="a word cannot attend to itself here: does the diagonal belong to the mask?",
            ko="단어가 자기 자신을 볼 수 없습니다: diagonal은 가려야 할까요?"),
    mistake("the mask is inverted", ("== 0", "== 1"),
            en="it is true where a query may NOT look; the lesson's masks are true where it may",
            ko="query가 보면 안 되는 곳이 true입니다; 이 수업의 mask는 볼 수 있는 곳이 true입니다"),
    mistake("future words are visible", ("torch.triu", "torch.tril"), ("diagonal=1", "diagonal=-1"),
            en="query i sees what comes after it: rows are queries, columns are keys",
            ko="query i가 뒤에 오는 단어를 봅니다: 행은 query, 열은 key입니다"),
    mistake("no dimension for the batch", ("torch.ones(1, size, size)", "torch.ones(size, size)"),
            en="the mask has no dimension for the batch: it is shared by all sentences, so its first size is 1",
            ko="batch 차원이 없습니다: 모든 문장이 함께 쓰므로 첫 크기는 1입니다"),
    mistake("numbers instead of bool", (TRIU, "torch.tril(torch.ones(1, size, size))"),
            en="the numbers are right, but a mask must be bool: use a comparison",
            ko="숫자는 맞지만 mask는 bool이어야 합니다: 비교 연산을 쓰세요"),
)  # fmt: skip
EXPONENT = mistake("the exponent is doubled", ("two_i / d_model", "2 * two_i / d_model"),
    en="the exponent is too large by a factor of 2: two_i is already 2i",
    ko="지수가 두 배로 큽니다: two_i가 이미 2i입니다")  # fmt: skip
BATCH_ORDER = mistake("shaped for another batch order", ("pe.unsqueeze(0)", "pe.unsqueeze(1)"),
    en="the table is (seq, 1, d_model), for a batch in the second dimension; here the batch comes first",
    ko="표의 shape가 (seq, 1, d_model)입니다. batch가 둘째 차원일 때의 모양입니다; 여기서는 첫째입니다")  # fmt: skip
POSITIONS = (
    EXPONENT,
    BATCH_ORDER,
    mistake("sine and cosine are swapped", ("torch.sin", "torch.SIN"), ("torch.cos", "torch.sin"),
            ("torch.SIN", "torch.cos"),
            en="even columns are sines, odd columns cosines; here they are swapped",
            ko="짝수 열이 sine, 홀수 열이 cosine입니다; 지금은 반대입니다"),
    mistake("sines in one half, cosines in the other", ("pe[:, 0::2]", "pe[:, : d_model // 2]"),
            ("pe[:, 1::2]", "pe[:, d_model // 2 :]"),
            en="all sines are in the left half and all cosines in the right; they must alternate, column by column",
            ko="sine이 모두 왼쪽 절반, cosine이 모두 오른쪽 절반에 있습니다; 열마다 번갈아 놓입니다"),
    mistake("positions counted from 1", ("torch.arange(seq)", "torch.arange(1, seq + 1)"),
            en="the first position is 0: the first row has sin 0 = 0 and cos 0 = 1",
            ko="첫 위치는 0입니다: 첫 행은 sin 0 = 0, cos 0 = 1입니다"),
    mistake("no dimension for the batch", ("pe.unsqueeze(0)", "pe"),
            en="the table has no dimension for the batch: one table serves all sentences, so its first size is 1",
            ko="batch 차원이 없습니다: 표 하나를 모든 문장이 쓰므로 첫 크기는 1입니다"),
)  # fmt: skip
SCALE = mistake("√d_model for √d_k", ("math.sqrt(d_k)", "math.sqrt(query.shape[1] * d_k)"),
    en="you divided by √d_model, the size of all heads together; each head has d_k numbers",
    ko="모든 head를 합친 크기인 √d_model로 나누었습니다; head마다 숫자는 d_k개입니다")  # fmt: skip
SOFTMAX_FIRST = mistake("softmax before the mask", ("if mask", "weights = torch.softmax(scores, dim=-1)\n    if mask"),
    ("scores = scores.masked_fill(mask == 0, -1e9)", "weights = weights.masked_fill(mask == 0, 0.0)"),
    ("\n    weights = torch.softmax(scores, dim=-1)  # (batch, h, queries, keys)", ""),
    en="the mask is applied after the softmax: the remaining weights no longer add up to 1",
    ko="softmax 뒤에 mask를 적용했습니다: 그러면 남은 weight의 합이 1이 아닙니다")  # fmt: skip
ATTENTION = (
    SCALE,
    SOFTMAX_FIRST,
    mistake("not divided by √d_k", (" / math.sqrt(d_k)", ""),
            en="the scores are not divided by anything: sums of d_k products are too large for a softmax",
            ko="점수를 나누지 않았습니다: 곱 d_k개의 합은 softmax에 너무 큽니다"),
    mistake("d_k without its root", ("math.sqrt(d_k)", "d_k"),
            en="you divided by d_k itself; the standard deviation of a sum of d_k products is √d_k",
            ko="d_k 자체로 나누었습니다; 곱 d_k개의 합의 표준편차는 d_k의 제곱근만큼 커집니다"),
    mistake("the mask is inverted", ("mask == 0", "mask == 1"),
            en="the visible keys are masked: the mask is true where a query may look",
            ko="볼 수 있는 곳을 가렸습니다: mask가 true인 곳이 볼 수 있는 곳입니다"),
    mistake("the mask is not used", ("scores.masked_fill(mask == 0, -1e9)", "scores"),
            en="right without a mask, but with a mask nothing is masked",
            ko="mask가 없을 때는 맞지만, 있을 때 아무것도 가리지 않습니다"),
    *(
        mistake(f"softmax over the {name}", ("dim=-1", f"dim={dim}"),
                en=f"softmax runs over the {name}; each query distributes attention over the keys, the last one",
                ko=f"softmax가 {korean} 방향입니다; query마다 마지막 차원인 key들에 attention을 나눕니다")
        for name, korean, dim in (("queries", "query", -2), ("heads", "head", 1), ("batch", "batch", 0))
    ),
    mistake("scaled after the softmax", (" / math.sqrt(d_k)", ""), ("dim=-1)", "dim=-1) / math.sqrt(d_k)"),
            en="the scale is applied after the softmax: the softmax gets scores that are too large, and the "
               "weights of a query no longer add up to 1",
            ko="softmax 뒤에 나누었습니다: softmax는 이미 너무 큰 점수를 보았고, weight의 합도 1이 아닙니다"),
    mistake("masked scores are 0", ("-1e9", "0.0"),
            en="a masked score of 0 still gets weight, since exp(0) is 1: the score must be very low there",
            ko="가린 점수가 0이면 exp(0) = 1이므로 여전히 weight를 받습니다: 점수는 아주 작은 수여야 합니다"),
)  # fmt: skip
ROW = "[PAD] * (longest - 1 - len(ids))"
SHIFT = (
    mistake("nothing is shifted", ("[SOS, *ids]", "[*ids, EOS]"),
            en="the decoder input contains the words that it must predict: it must begin with [SOS]",
            ko="decoder 입력에 예측할 단어가 그대로 들어 있습니다: 입력은 [SOS]로 시작해야 합니다"),
    mistake("the label begins with [SOS]", ("[*ids, EOS]", "[SOS, *ids]"),
            en="the label begins with [SOS], which is never predicted; the first label is the first word",
            ko="label이 [SOS]로 시작합니다: [SOS]는 예측하지 않습니다; 첫 label은 첫 단어입니다"),
    mistake("no [EOS] in the label", ("[*ids, EOS]", "[*ids, PAD]"),
            en="the label does not end with [EOS]: then the model never learns to stop",
            ko="label 끝에 [EOS]가 없습니다: 모델이 멈추는 법을 배우지 못합니다"),
    mistake("the two are swapped",
            ("torch.tensor(decoder_input), torch.tensor(label)", "torch.tensor(label), torch.tensor(decoder_input)"),
            en="the results are swapped: return the decoder input first, then the label",
            ko="결과의 순서가 바뀌었습니다: 먼저 decoder 입력, 다음에 label을 돌려줍니다"),
    mistake("padding comes first", (f"[SOS, *ids] + {ROW}", f"{ROW} + [SOS, *ids]"),
            (f"[*ids, EOS] + {ROW}", f"{ROW} + [*ids, EOS]"),
            en="padding comes before the words; it belongs after them",
            ko="padding이 단어 앞에 있습니다; 뒤에 와야 합니다"),
)  # fmt: skip
WARMUP = (
    mistake("max for min", ("min(", "max("),
            en="the larger of the two is used: the rate starts far too high and keeps growing",
            ko="둘 중 큰 쪽을 골랐습니다: 처음에 너무 크고 끝없이 커집니다"),
    mistake("no warm-up", ("min(step**-0.5, step * warmup**-1.5)", "step**-0.5"),
            en="the rate falls from the first step on: the rise over `warmup` steps is missing",
            ko="첫 step부터 줄어듭니다: warmup 동안 올라가는 부분이 없습니다"),
    mistake("the warm-up's exponent", ("warmup**-1.5", "warmup**-0.5"),
            en="the rise is step · warmup^-0.5; both branches must meet at step = warmup: which exponent does that?",
            ko="상승 부분이 step · warmup^-0.5입니다; step = warmup에서 두 식이 만나려면 몇 제곱이어야 할까요?"),
    mistake("d_model's exponent", ("d_model**-0.5", "d_model**0.5"),
            en="a wider model gets a higher rate here; d_model has the exponent -0.5",
            ko="모델이 넓을수록 rate가 커집니다; d_model의 지수는 -0.5입니다"),
    mistake("d_model is left out", ("d_model**-0.5 * ", ""),
            en="the rate does not depend on d_model",
            ko="rate가 d_model과 무관합니다"),
)  # fmt: skip
SMOOTHING = (
    mistake("the weights are swapped",
            ("(1 - smoothing) * of_label + smoothing * of_all", "smoothing * of_label + (1 - smoothing) * of_all"),
            en="the label gets the weight of all words, and all words get the label's",
            ko="label의 weight와 모든 단어의 weight가 바뀌었습니다"),
    mistake("padding is counted", ("loss[label != PAD].mean()", "loss.mean()"),
            en="padding is counted: right without padding; take the mean over the real words only",
            ko="padding도 셉니다: padding이 없으면 맞습니다; 실제 단어만 평균하세요"),
    mistake("a sum over all words", ("-log_p.mean(dim=-1)", "-log_p.sum(dim=-1)"),
            en="each word gets the whole smoothing weight; spread it evenly over the vocabulary",
            ko="모든 단어가 몫 전체를 받습니다: 몫은 vocabulary에 고르게 나눕니다"),
    mistake("nothing is smoothed", ("(1 - smoothing) * of_label + smoothing * of_all", "of_label"),
            en="this is plain cross-entropy: `smoothing` changes nothing",
            ko="보통의 cross-entropy입니다: smoothing이 아무것도 바꾸지 않습니다"),
    mistake("the label keeps its full weight", ("(1 - smoothing) * of_label", "of_label"),
            en="the label keeps its full weight, so the weights add up to more than 1",
            ko="label의 weight를 줄이지 않아 합이 1을 넘습니다"),
    mistake("a sum of the losses", ("[label != PAD].mean()", "[label != PAD].sum()"),
            en="this is the sum over the words; expected their mean",
            ko="단어들의 합입니다; 평균이어야 합니다"),
)  # fmt: skip
NO_SELF = mistake("a forward without self", ("def forward(self, x: Tensor)", "def forward(x: Tensor)"),
    en="forward has no self: Python passes the module as the first argument, before x",
    ko="forward에 self가 없습니다: Python은 x보다 먼저 모듈 자신을 넘깁니다")  # fmt: skip
FEED_FORWARD = (
    NO_SELF,
    mistake("dropout is missing", ("self.dropout(wide)", "wide"),
            en="nothing is dropped in train mode: self.dropout belongs between the two layers",
            ko="train mode에서 아무것도 drop하지 않습니다: self.dropout은 두 linear 사이에 있어야 합니다"),
    mistake("no super().__init__()", ("        super().__init__()\n", ""),
            en="nn.Module is not initialised: call its __init__ before adding anything to the module",
            ko="nn.Module이 초기화되지 않았습니다: 무엇을 넣기 전에 부모의 __init__을 호출하세요"),
    mistake("no activation", ("torch.relu(self.linear_1(x))", "self.linear_1(x)"),
            en="two linear layers without an activation between them are one linear layer",
            ko="사이에 activation이 없는 linear 두 개는 linear 하나와 같습니다"),
    mistake("the activation comes last", ("torch.relu(self.linear_1(x))", "self.linear_1(x)"),
            ("self.linear_2(self.dropout(wide))", "torch.relu(self.linear_2(self.dropout(wide)))"),
            en="relu comes after the second layer; it belongs between the two",
            ko="relu가 둘째 linear 뒤에 있습니다; 둘 사이에 있어야 합니다"),
    mistake("a residual connection inside",
            ("self.linear_2(self.dropout(wide))", "x + self.linear_2(self.dropout(wide))"),
            en="x is added here; ResidualConnection does that",
            ko="여기서 x를 더했습니다; 그것은 ResidualConnection의 일입니다"),
)  # fmt: skip
CROSS = mistake("K and V from the wrong side",
    ("self.cross_attention_block(x, source, source, src_mask)", "self.cross_attention_block(x, x, x, src_mask)"),
    en="K and V come from the target: in cross-attention Q comes from the target, K and V from the source",
    ko="K와 V를 target에서 가져왔습니다: cross-attention에서 Q는 target, K와 V는 source에서 옵니다")  # fmt: skip
BLOCK = (
    CROSS,
    mistake("Q from the source",
            ("self.cross_attention_block(x, source, source", "self.cross_attention_block(source, x, x"),
            en="Q comes from the source, K and V from the target: it must be the other way round",
            ko="Q를 source에서, K와 V를 target에서 가져왔습니다: 반대여야 합니다"),
    mistake("V from the target",
            ("self.cross_attention_block(x, source, source", "self.cross_attention_block(x, source, x"),
            en="V comes from the target: values come from the same side as the keys",
            ko="V를 target에서 가져왔습니다: 값은 key와 같은 쪽에서 옵니다"),
    mistake("the target's mask for the source", ("source, source, src_mask", "source, source, mask"),
            en="cross-attention uses the target's mask; src_mask hides the source's padding",
            ko="cross-attention에 target의 mask를 썼습니다; source의 padding은 src_mask가 가립니다"),
    mistake("no cross-attention", ("if source is not None", "if False"),
            en="the source is never used",
            ko="source를 쓰지 않습니다"),
)  # fmt: skip

# --- exercises ----------------------------------------------------------------------------------------------

QKV = ("query", "key", "value")

FIND = Bilingual("The code below has one common bug. Find and fix it.",
                 "아래 코드에는 흔히 보이는 버그가 하나 있습니다. 찾아서 고치세요.")  # fmt: skip

EXERCISES = (
    Exercise("transformer.mask", "causal_mask", mask_calls, MASK,
             Bilingual("Write the causal mask: no word of the translation may look at the words after it.",
                       "번역의 단어가 뒤의 단어를 보지 못하게 하는 mask를 쓰세요."),
             Bilingual("torch.triu and torch.tril keep one corner of a matrix.",
                       "torch.triu와 torch.tril은 행렬의 한 귀퉁이를 남깁니다.")),
    Exercise("transformer.positions", "positions", positions_calls, POSITIONS,
             Bilingual("Write the table of positions: sines and cosines of decreasing frequency.",
                       "위치의 표를 쓰세요: 점점 느려지는 파동의 sine과 cosine입니다."),
             Bilingual("pe[:, 0::2] is every other column, beginning with the first.",
                       "pe[:, 0::2]는 첫 열부터 하나씩 건너뛴 열입니다.")),
    Exercise("transformer.attention", "attention", attention_calls, ATTENTION,
             Bilingual("Write scaled attention: scores, mask, softmax, values.",
                       "scaled attention을 쓰세요: 점수, mask, softmax, value."),
             Bilingual("d_k is the last size of query; key.transpose(-2, -1) turns keys into columns.",
                       "d_k는 query의 마지막 크기입니다; key.transpose(-2, -1)은 key를 열로 바꿉니다."),
             learned=QKV),
    Exercise("transformer.shift", "teacher_forcing", shift_calls, SHIFT,
             Bilingual("Write the decoder input and the label: the same words, shifted by one position.",
                       "decoder의 입력과 label을 쓰세요: 같은 단어가 한 자리 어긋나 있습니다."),
             Bilingual("Pad each row with PAD to the length of the longest row, then call torch.tensor.",
                       "각 행의 단어 뒤를 PAD로 가장 긴 행까지 채운 뒤 torch.tensor로 만드세요.")),
    Exercise("transformer.warmup", "learning_rate", warmup_calls, WARMUP,
             Bilingual("Write the paper's schedule (section 5.3): up for `warmup` steps, then down with the root.",
                       "논문의 schedule(5.3절)을 쓰세요: warmup 동안 오르고, 그 뒤 제곱근으로 줄어듭니다."),
             Bilingual("It is the smaller of two curves.", "두 곡선 중 작은 쪽입니다.")),
    Exercise("transformer.smoothing", "smoothed_loss", smoothing_calls, SMOOTHING,
             Bilingual("Write cross-entropy with label smoothing, averaged over the real words only.",
                       "label smoothing이 있는 cross-entropy를 쓰세요. 실제 단어에 대해서만 평균합니다."),
             Bilingual("gather(-1, label[:, :, None]) takes the label's value from each row.",
                       "gather(-1, label[:, :, None])는 각 행에서 label의 값을 꺼냅니다."),
             learned=("scores",)),
    Exercise("transformer.bug_self", "FeedForwardBlock", feed_forward_calls, FEED_FORWARD, FIND,
             Bilingual("Which argument does Python pass to a method first?",
                       "Python은 메서드를 호출할 때 첫 인자로 무엇을 넘길까요?"),
             bug=NO_SELF.name, learned=("x",)),
    Exercise("transformer.bug_batch", "positions", positions_calls, POSITIONS, FIND,
             Bilingual("Which dimension of x is the batch?", "x의 어느 차원이 batch일까요?"), bug=BATCH_ORDER.name),
    Exercise("transformer.bug_exponent", "positions", positions_calls, POSITIONS, FIND,
             Bilingual("What is two_i for the last pair of columns?", "마지막 두 열에서 two_i는 얼마일까요?"),
             bug=EXPONENT.name),
    Exercise("transformer.bug_cross", "Block", block_calls, BLOCK, FIND,
             Bilingual("Which side gives Q in cross-attention, and which K and V?",
                       "cross-attention에서 Q는 어느 쪽에서, K와 V는 어느 쪽에서 올까요?"),
             bug=CROSS.name, learned=("x", "source")),
    Exercise("transformer.bug_scale", "attention", attention_calls, ATTENTION, FIND,
             Bilingual("How many products are added up in a score?", "점수 하나는 곱 몇 개의 합일까요?"),
             bug=SCALE.name, learned=QKV),
    Exercise("transformer.bug_softmax", "attention", attention_calls, ATTENTION, FIND,
             Bilingual("What do the weights of a query add up to?", "query 하나의 weight를 모두 더하면 얼마일까요?"),
             bug=SOFTMAX_FIRST.name, learned=QKV),
)  # fmt: skip
