"""Wrong and right solutions of the exercises.

WRONG: by exercise, edits of the lesson's code, and what the verdict names: a mistake, or part of the difference.
RIGHT: by exercise, other ways to the lesson's numbers.
"""

NUMBERS = "differ)"
NO_GRADIENT = "no gradient"

WRONG = {
    "transformer.mask": {
        "one fixed size": ("ones(1, size, size)", "ones(1, 4, 4)", "the shape is (1, 4, 4)"),
        "int32": (("torch.triu", "(torch.triu"), ("== 0", "== 0).int()"), "the dtype is int32"),
        "an array": (("torch.triu", "(torch.triu"), ("== 0", "== 0).numpy()"), "returns a ndarray"),
        "two words ahead": ("diagonal=1", "diagonal=2", NUMBERS),
    },
    "transformer.positions": {
        "float64": ("pe.unsqueeze(0)", "pe.unsqueeze(0).double()", "the dtype is float64"),
        "float16": ("pe.unsqueeze(0)", "pe.unsqueeze(0).half()", "the dtype is float16"),
        "an array": ("pe.unsqueeze(0)", "pe.unsqueeze(0).numpy()", "returns a ndarray"),
        "another base": ("10000", "1000", NUMBERS),
        "one fixed width": ("/ d_model)", "/ 512)", NUMBERS),
        "cosines a step further": ("cos(angle)", "cos(p / 10000 ** ((two_i + 1) / d_model))", NUMBERS),
    },
    "transformer.attention": {
        "divided by h": ("math.sqrt(d_k)", "query.shape[1]", NUMBERS),
        "divided by √h": ("math.sqrt(d_k)", "math.sqrt(query.shape[1])", NUMBERS),
        "divided by the root of keys": ("math.sqrt(d_k)", "math.sqrt(key.shape[-2])", NUMBERS),
        "divided by 8": ("math.sqrt(d_k)", "8", NUMBERS),
        "divided by √512": ("math.sqrt(d_k)", "math.sqrt(512)", NUMBERS),
        "d_k + 1": ("math.sqrt(d_k)", "math.sqrt(d_k + 1)", NUMBERS),
        "softmax over the heads": ("dim=-1", "dim=1", "softmax over the heads"),
        "softmax over the batch": ("dim=-1", "dim=0", "softmax over the batch"),
        "softmax over everything": (
            "torch.softmax(scores, dim=-1)", "torch.softmax(scores.flatten(1), dim=-1).view_as(scores)", NUMBERS),
        "scaled after the softmax": (
            (" / math.sqrt(d_k)", ""), ("weights @ value", "weights @ value / math.sqrt(d_k)"),
            "scaled after the softmax"),
        "masked with 0": ("-1e9", "0", "masked scores are 0"),
        "masked with -10": ("-1e9", "-10", NUMBERS),
        "masked before scaling, with 0": (
            "scores.masked_fill(mask == 0, -1e9)", "scores * mask", "masked scores are 0"),
        "mask added": ("scores.masked_fill(mask == 0, -1e9)", "scores + mask", NUMBERS),
        "the first sentence's mask": ("mask == 0", "mask[:1] == 0", NUMBERS),
        "float64": ("weights @ value", "(weights @ value).double()", "the dtype is float64"),
        "bfloat16": ("weights @ value", "(weights @ value).bfloat16()", "the dtype is bfloat16"),
        "detached": ("weights @ value", "(weights @ value).detach()", NO_GRADIENT),
        "weights detached": ("weights @ value", "weights.detach() @ value", NO_GRADIENT),
        "value.data": ("weights @ value", "weights @ value.data", NO_GRADIENT),
        "no_grad": ("    d_k =", "    torch.set_grad_enabled(False)\n    d_k =", NO_GRADIENT),
        "numpy inside": ("weights @ value", "torch.from_numpy(weights.numpy() @ value.numpy())", NO_GRADIENT),
        "an array": ("weights @ value", "weights.numpy() @ value.numpy()", "returns a ndarray"),
        "query in place": ("    d_k =", "    query *= 1.5\n    d_k =", "argument query"),
        "query and key in place": (
            ("    d_k = query.shape[-1]", "    d_k = query.shape[-1]\n    query /= 1.5\n    key.mul_(1.5)"),
            "argument query, key"),
        "weights in place": ("weights @ value", "weights.mul_(1.0) @ value", NO_GRADIENT),
        "a dict": ("return weights @ value", "return {'x': weights @ value}", "returns a dict"),
        "a generator": ("return weights @ value", "return (one for one in weights @ value)", "returns a generator"),
        "text": ("return weights @ value", "return f'{weights @ value}'", "returns a str"),
        "random": ("weights @ value", "torch.dropout(weights, 0.5, True) @ value", "different numbers each time"),
    },
    "transformer.shift": {
        "int32": (
            ("(decoder_input)", "(decoder_input, dtype=torch.int32)"), ("(label)", "(label, dtype=torch.int32)"),
            "int32"),
        "label int32": ("(label)", "(label, dtype=torch.int32)", "result 2 of 2: the dtype is int32"),
        "lists": ("torch.tensor(decoder_input), torch.tensor(label)", "decoder_input, label", "returns a list"),
        "arrays": (("(decoder_input)", "(decoder_input).numpy()"), ("(label)", "(label).numpy()"), "returns a ndarray"),
        "one fixed length": ("max(len(ids) for ids in targets) + 1", "4", "the code fails"),
        "the first is the longest": ("max(len(ids) for ids in targets)", "len(targets[0])", "the code fails"),
        "two sentences": ("ids in targets]", "ids in targets[:2]]", "the shape is (2,"),
        "words in order": (
            "    longest", "    targets = [sorted(ids) for ids in targets]\n    longest", NUMBERS),
        "sentences by length": (
            "    longest", "    targets = sorted(targets, key=len, reverse=True)\n    longest", NUMBERS),
        "label all but the first": ("return torch.tensor(decoder_input), torch.tensor(label)",
            "ids = torch.tensor(decoder_input)\n    return ids, torch.cat((ids[:, 1:], ids[:, :1] * 0), 1)",
            "no [EOS] in the label"),
        "targets changed": (
            "    longest", "    for ids in targets:\n        ids.append(PAD)\n    longest", "argument targets"),
    },
    "transformer.warmup": {
        "step + 1": ("    return", "    step += 1\n    return", "the result is "),
        "step - 1": ("    return", "    step = max(step - 1, 1)\n    return", "the result is "),
        "warmup + 1": ("warmup**", "(warmup + 1)**", "the result is "),
        "warmup 400": ("warmup**", "400**", "the result is "),
        "warmup 4000": ("warmup**", "4000**", "the result is "),
        "d_model 512": ("d_model**", "512**", "the result is "),
        "exponent -0.4": ("d_model**-0.5", "d_model**-0.4", "the result is "),
        "decay -0.6": ("step**-0.5", "step**-0.6", "the result is "),
        "decay 1 / step": ("step**-0.5", "step**-1 * warmup**0.5", "the result is "),
        "rise -1.4": ("warmup**-1.5", "warmup**-1.4", "the result is "),
        "half": ("    return", "    return 0.5 *", "the result is "),
        "rounded": ("d_model**-0.5 * min(step**-0.5, step * warmup**-1.5)",
            "round(d_model**-0.5 * min(step**-0.5, step * warmup**-1.5), 5)", "the result is "),
        "always 0": ("    return", "    return 0.0 *", "the result is "),
    },
    "transformer.smoothing": {
        "a number": ("].mean()", "].mean().item()", "returns a float"),
        "detached": ("].mean()", "].mean().detach()", NO_GRADIENT),
        "a new tensor": ("].mean()", "].mean().item() + torch.zeros(())", NO_GRADIENT),
        "numpy inside": ("-log_p.mean(dim=-1)", "-torch.from_numpy(log_p.numpy().mean(-1))", NO_GRADIENT),
        "half of it detached": ("-log_p.mean(dim=-1)", "-log_p.detach().mean(dim=-1)", "gradient of scores is wrong"),
        "no_grad": ("def smoothed", "@torch.no_grad()\ndef smoothed", NO_GRADIENT),
        "float64": ("].mean()", "].mean().double()", "the dtype is float64"),
        "9 words": ("-log_p.mean(dim=-1)", "-log_p.sum(dim=-1) / 9", "the result is "),
        "one word fewer": ("-log_p.mean(dim=-1)", "-log_p.sum(dim=-1) / (scores.shape[-1] - 1)", "the result is "),
        "always 0.1": ("    loss =", "    smoothing = 0.1\n    loss =", "the result is "),
        "the mean of means": ("loss[label != PAD].mean()",
            "((loss * (label != PAD)).sum(1) / (label != PAD).sum(1)).mean()", "the result is "),
        "[EOS] left out": ("label != PAD", "label > EOS", "the result is "),
        "softmax over the places": ("log_softmax(scores, dim=-1)", "log_softmax(scores, dim=1)", "the result is "),
        "scores in place": ("    log_p =", "    scores -= scores.max()\n    log_p =", "argument scores"),
    },
    "transformer.bug_self": {
        "no dropout": ("self.dropout(wide)", "wide", "dropout is missing"),
        "dropout behind both": ("self.linear_2(self.dropout(wide))", "self.dropout(self.linear_2(wide))", NUMBERS),
        "dropout of x": (
            ("self.linear_1(x)", "self.linear_1(self.dropout(x))"), ("self.dropout(wide)", "wide"), NUMBERS),
        "dropout always 0.1": ("nn.Dropout(dropout)", "nn.Dropout(0.1)", "different numbers each time"),
        "dropout in eval mode": ("self.dropout(wide)", "torch.dropout(wide, 0.3, True)", "different numbers each time"),
        "fixed sizes": ("nn.Linear(d_model, d_ff), nn.Linear(d_ff, d_model)", "nn.Linear(8, 20), nn.Linear(20, 8)",
            "the code fails"),
        "one batch size": ("linear_1(x)", "linear_1(x.view(2, 3, -1))", "the code fails"),
        "no bias": ("nn.Linear(d_model, d_ff)", "nn.Linear(d_model, d_ff, bias=False)", NUMBERS),
        "gelu": ("torch.relu", "nn.functional.gelu", NUMBERS),
        "detached": ("self.dropout(wide)", "self.dropout(wide.detach())", NO_GRADIENT),
        "no_grad": ("    def forward", "    @torch.no_grad()\n    def forward", NO_GRADIENT),
        "x in place": ("torch.relu(self.linear_1(x))", "torch.relu(self.linear_1(x.mul_(2)))", "argument x"),
        "float64": ("self.dropout(wide))", "self.dropout(wide)).double()", "the dtype is float64"),
    },
    "transformer.bug_cross": {
        "2 heads": ("MultiHeadAttentionBlock(d_model, h)", "MultiHeadAttentionBlock(d_model, 2)", NUMBERS),
        "cross-attention in the encoder": (
            "MultiHeadAttentionBlock(d_model, h) if decodes else None", "MultiHeadAttentionBlock(d_model, h)",
            NUMBERS),
        "three ways around": ("range(2 + decodes)", "range(3)", NUMBERS),
        "dropout always 0.1": ("ResidualConnection(d_model, dropout)", "ResidualConnection(d_model, 0.1)",
            "different numbers each time"),
        "no dropout": ("ResidualConnection(d_model, dropout)", "ResidualConnection(d_model, 0.0)", NUMBERS),
        "dropout always 0.1 within": ("d_ff, dropout)", "d_ff, 0.1)", "different numbers each time"),
        "all is dropped in the decoder": (
            "ResidualConnection(d_model, dropout)", "ResidualConnection(d_model, decodes)", NUMBERS),
        "source detached": ("(x, source, source, src_mask)", "(x, source.detach(), source.detach(), src_mask)",
            "no gradient reaches source"),
        "no_grad": ("    def forward", "    @torch.no_grad()\n    def forward", NO_GRADIENT),
        "one batch size": ("x = self.residual_connections[0](x", "x = self.residual_connections[0](x.view(2, 4, -1)",
            "the code fails"),
        "src_mask left out": ("source, source, src_mask", "source, source, None", NUMBERS),
        "mask left out": ("(x, x, x, mask)", "(x, x, x, None)", NUMBERS),
    },
    "diffusion.perturb": {
        "3 images": ("[:, None, None, None]", ".reshape(3, 1, 1, 1)", "the code fails"),
        "one channel": ("* noise", "* noise[:, :1]", NUMBERS),
        "t - 1 by name": ("ab_t[t]", "ab_t[t - 1]", "one step early"),
        "detached": ("* noise", "* noise.detach()", NO_GRADIENT),
        "no_grad": ("def perturb", "@torch.no_grad()\ndef perturb", NO_GRADIENT),
        "float64": ("ab_t[t]", "ab_t.double()[t]", "the dtype is float64"),
        "numpy inside": ("ab.sqrt() * x", "ab.sqrt() * torch.from_numpy(x.numpy())", NO_GRADIENT),
        "x in place": ("ab.sqrt() * x", "x.mul_(ab.sqrt())", "argument x"),
        "width by accident": ("[:, None, None, None]", "[:, None, None]", "the shape is"),
    },
    "diffusion.ddpm": {
        "noise at t > 2": ("t > 1", "t > 2", NUMBERS),
        "noise at t = 0 too": ("t > 1", "t > 0", "noise added at t = 1"),
        "noise at even t": ("t > 1", "t % 2 == 0", NUMBERS),
        "noise at 20 alone": ("t > 1", "t == 20", NUMBERS),
        "the posterior's variance": (
            "b.sqrt() * z", "(b * (1 - schedule.ab_t[t - 1]) / (1 - ab)).sqrt() * z", NUMBERS),
        "β of another step": ("schedule.b_t[t]", "schedule.b_t[t - 1]", NUMBERS),
        "its own noise": ("b.sqrt() * z", "b.sqrt() * torch.randn_like(x)", "different numbers each time"),
        "detached": ("* pred_noise", "* pred_noise.detach()", NO_GRADIENT),
        "no_grad": ("def denoise", "@torch.no_grad()\ndef denoise", NO_GRADIENT),
        "float64": ("if t > 1 else mean", "if t > 1 else mean.double()", "the dtype is float64"),
        "x in place": ("    b, a", "    x /= 1.5\n    b, a", "argument x"),
        "schedule changed": ("    b, a", "    schedule.b_t[0] = 1\n    b, a", "argument schedule"),
    },
    "diffusion.ddim": {
        "always one step": ("ab_t[t_prev]", "ab_t[t - 1]", "one step instead of t_prev"),
        "always to 5": ("ab_t[t_prev]", "ab_t[5 if t_prev else 0]", NUMBERS),
        "clamped": ("ab_prev.sqrt() * x0_pred", "ab_prev.sqrt() * x0_pred.clamp(-1, 1)", NUMBERS),
        "detached": ("(x -", "(x.detach() -", NO_GRADIENT),
        "half of it detached": (
            "(1 - ab_prev).sqrt() * pred_noise", "(1 - ab_prev).sqrt() * pred_noise.detach()", "pred_noise is wrong"),
        "no_grad": ("def denoise", "@torch.no_grad()\ndef denoise", NO_GRADIENT),
        "float64": ("ab_t[t], ab_t[t_prev]", "ab_t[t].double().reshape(1), ab_t[t_prev]", "the dtype is float64"),
    },
    "diffusion.guidance": {
        "the context is scaled": (
            "without + guidance * (with_context - without)", "model(x, time, context * guidance)",
            "the context is scaled"),
        "None": ("torch.zeros_like(context)", "None", "None instead of no context"),
        "one class": ("torch.zeros_like(context)", "torch.zeros_like(time)", "the code fails"),
        "3 images of 5 classes": ("torch.zeros_like(context)", "torch.zeros(3, 5)", "the code fails"),
        "at most 1": ("guidance *", "min(guidance, 1) *", NUMBERS),
        "at least 1": ("guidance *", "max(guidance, 1) *", NUMBERS),
        "another time": ("torch.zeros_like(context))", "torch.zeros_like(context)).mul(1), time * 0", "the code fails"),
        "time 0 without": ("x, time, torch", "x, time * 0, torch", NUMBERS),
        "without is detached": ("+ guidance * (with_context - without)",
            "- without + without.detach() + guidance * (with_context - without)", "gradient of x is wrong"),
        "no_grad": ("def guided", "@torch.no_grad()\ndef guided", NO_GRADIENT),
        "context in place": ("torch.zeros_like(context)", "context.zero_()", "argument context"),
        "float64": ("return without", "return without.double()", "the dtype is float64"),
    },
    "vla.bins": {
        "32000 fixed": ("vocabulary - tokens", "32000 - tokens", NUMBERS),
        "31999 - tokens": ("vocabulary - tokens - 1", "31999 - tokens", NUMBERS),
        "256 fixed": ("np.linspace(-1.0, 1.0, bins)", "np.linspace(-1.0, 1.0, 256)", NUMBERS),
        "254 fixed": ("0, bins - 2", "0, 254", "the code fails"),
        "a modulo": ("np.clip(vocabulary - tokens - 1, 0, bins - 2)", "(vocabulary - 1 - tokens) % (bins - 1)",
            "modulo instead of clip"),
        "not clipped below": (
            "np.clip(vocabulary - tokens - 1, 0, bins - 2)", "np.minimum(vocabulary - tokens - 1, bins - 2)", NUMBERS),
        "a list": ("return centres[np.clip(vocabulary - tokens - 1, 0, bins - 2)]",
            "return list(centres[np.clip(vocabulary - tokens - 1, 0, bins - 2)])", "returns a list"),
        "a tensor": ("return centres[np.clip(vocabulary - tokens - 1, 0, bins - 2)]",
            "return torch.tensor(centres[np.clip(vocabulary - tokens - 1, 0, bins - 2)])", "returns a Tensor"),
        "tokens in place": ("    edges", "    tokens -= 1\n    vocabulary -= 1\n    edges", "argument tokens"),
    },
    "vla.gripper": {
        "open from 0.65": ("-np.sign(2 * action[..., 6] - 1)", "-1.0 if action[6] > 0.65 else 1.0", NUMBERS),
        "open from 0.9": ("-np.sign(2 * action[..., 6] - 1)", "-1.0 if action[6] > 0.9 else 1.0", NUMBERS),
        "open from 0.1": ("-np.sign(2 * action[..., 6] - 1)", "-1.0 if action[6] > 0.1 else 1.0", NUMBERS),
        "closed between": ("-np.sign(2 * action[..., 6] - 1)", "-1.0 if action[6] > 0.99 else 1.0", NUMBERS),
        "the rest rounded": ("action.copy()", "action.round(1)", NUMBERS),
        "the rest clipped": ("action.copy()", "action.clip(-1, 1)", NUMBERS),
        "the rest is 0": ("action.copy()", "action * 0", NUMBERS),
        "float32": ("action.copy()", "action.astype(np.float32)", "the dtype is float32"),
        "int": ("action.copy()", "action.astype(int)", "the dtype is int64"),
        "a list": ("return flipped", "return list(flipped)", "returns a list"),
        "text": ("return flipped", "return flipped.astype(str)", "returns a ndarray"),
        "in place": ("action.copy()", "action", "the argument is changed"),
    },
}  # fmt: skip

RIGHT = {
    "transformer.mask": {
        "tril": "def causal_mask(size):\n    return torch.ones(1, size, size).tril().bool()",
        "compared indices": """
def causal_mask(size):
    place = torch.arange(size)
    return (place[None, :] <= place[:, None]).unsqueeze(0)""",
        "loops": """
def causal_mask(size):
    return torch.tensor([[[j <= i for j in range(size)] for i in range(size)]])""",
        "-inf": """
def causal_mask(size):
    return torch.full((size, size), float("-inf")).triu(1).isinf().logical_not()[None]""",
    },
    "transformer.positions": {
        "exp of a logarithm": """
def positions(seq, d_model):
    pe = torch.empty(1, seq, d_model)
    rate = torch.exp(torch.arange(0, d_model, 2) * (-math.log(10000.0) / d_model))
    pe[0, :, ::2] = torch.sin(torch.arange(seq)[:, None] * rate)
    pe[0, :, 1::2] = torch.cos(torch.arange(seq)[:, None] * rate)
    return pe""",
        "stacked": """
def positions(seq, d_model):
    angle = torch.outer(torch.arange(seq).float(), 10000.0 ** (-torch.arange(0, d_model, 2) / d_model))
    return torch.stack((angle.sin(), angle.cos()), dim=-1).flatten(1)[None]""",
        "loops of math": """
def positions(seq, d_model):
    def number(p, i):
        angle = p / 10000 ** (i // 2 * 2 / d_model)
        return math.cos(angle) if i % 2 else math.sin(angle)
    return torch.tensor([[[number(p, i) for i in range(d_model)] for p in range(seq)]])""",
        "numpy": """
def positions(seq, d_model):
    import numpy as np
    i = np.arange(d_model)
    angle = np.arange(seq)[:, None] / np.power(10000, 2 * (i // 2) / d_model)
    return torch.from_numpy(np.where(i % 2 == 0, np.sin(angle), np.cos(angle))).float()[None]""",
    },
    "transformer.attention": {
        "einsum": """
def attention(query, key, value, mask=None):
    scores = torch.einsum("bhqd,bhkd->bhqk", query, key) * query.size(-1) ** -0.5
    if mask is not None:
        scores = torch.where(mask, scores, torch.tensor(float("-inf")))
    return torch.einsum("bhqk,bhkd->bhqd", scores.softmax(-1), value)""",
        "F.scaled_dot_product_attention": """
def attention(query, key, value, mask=None):
    return nn.functional.scaled_dot_product_attention(query, key, value, attn_mask=mask)""",
        "query scaled first": """
def attention(query, key, value, mask=None):
    scores = (query / query.shape[-1] ** 0.5).matmul(key.mT)
    if mask is not None:
        scores = scores + torch.zeros(mask.shape).masked_fill(~mask, -1e4)
    return torch.matmul(nn.Softmax(dim=3)(scores), value)""",
        "softmax by hand": """
def attention(query, key, value, mask=None):
    scores = query @ key.transpose(2, 3) / math.sqrt(query.shape[-1])
    weights = (scores - scores.max(dim=-1, keepdim=True).values.detach()).exp()
    if mask is not None:
        weights = weights * mask
    return weights / weights.sum(-1, keepdim=True) @ value""",
        "weights of 0 that are shared out again": """
def attention(query, key, value, mask=None):
    weights = (query @ key.transpose(-2, -1) / math.sqrt(query.shape[-1])).double().softmax(-1)
    if mask is not None:
        weights = weights * mask
    return (weights / weights.sum(-1, keepdim=True)).to(value.dtype) @ value""",
        "loops into zeros": """
def attention(query, key, value, mask=None):
    batch, h, queries, d_k = query.shape
    keys = key.shape[2]
    out = torch.zeros(batch, h, queries, d_k)
    seen = torch.ones(batch, h, queries, keys).bool() if mask is None else mask.expand(batch, h, queries, keys)
    for b in range(batch):
        for i in range(h):
            for q in range(queries):
                kept = seen[b, i, q]
                weights = torch.softmax(key[b, i][kept] @ query[b, i, q] / d_k**0.5, dim=0)
                out[b, i, q] = weights @ value[b, i][kept]
    return out""",
        "in place on its own scores": """
def attention(query, key, value, mask=None):
    scores = torch.matmul(query, key.transpose(-1, -2))
    scores /= math.sqrt(key.shape[-1])
    if mask is not None:
        scores.masked_fill_(mask.logical_not(), torch.finfo(scores.dtype).min)
    return torch.softmax(scores, -1).matmul(value)""",
        "bmm": """
def attention(query, key, value, mask=None):
    batch, h, queries, d_k = query.shape
    scores = torch.bmm(query.flatten(0, 1), key.flatten(0, 1).transpose(1, 2)).view(batch, h, queries, -1)
    scores = scores.mul(d_k**-0.5)
    scores = scores if mask is None else scores.masked_fill(mask == False, -1e20)
    return torch.bmm(scores.softmax(-1).flatten(0, 1), value.flatten(0, 1)).view(batch, h, queries, d_k)""",
    },
    "transformer.shift": {
        "pad_sequence": """
def teacher_forcing(targets):
    pad = lambda rows: nn.utils.rnn.pad_sequence([torch.tensor(row) for row in rows], True, PAD)
    return pad([[SOS] + words for words in targets]), pad([words + [EOS] for words in targets])""",
        "filled in": """
def teacher_forcing(targets):
    given = torch.full((len(targets), 1 + max(map(len, targets))), PAD)
    label = given.clone()
    given[:, 0] = SOS
    for row, words in enumerate(targets):
        given[row, 1 : 1 + len(words)] = torch.tensor(words)
        label[row, : len(words)] = torch.tensor(words)
        label[row, len(words)] = EOS
    return given, label""",
        "one table, two cuts": """
def teacher_forcing(targets):
    n = max(len(words) for words in targets) + 2
    whole = torch.LongTensor([[SOS] + words + [EOS] + [PAD] * (n - 2 - len(words)) for words in targets])
    given = whole[:, :-1].clone()
    given[given == EOS] = PAD
    return [given, whole[:, 1:]]""",
    },
    "transformer.warmup": {
        "if": """
def learning_rate(step, d_model, warmup):
    peak = 1 / math.sqrt(d_model * warmup)
    return peak * step / warmup if step < warmup else peak * math.sqrt(warmup / step)""",
        "a tensor": """
def learning_rate(step, d_model, warmup):
    step, warmup = torch.tensor(float(step)), torch.tensor(float(warmup))
    return d_model**-0.5 * torch.minimum(step.rsqrt(), step * warmup**-1.5)""",
        "numpy": """
def learning_rate(step, d_model, warmup):
    import numpy as np
    return np.minimum(np.float64(step) ** -0.5, step / warmup / np.sqrt(warmup)) / np.sqrt(d_model)""",
        "pow": """
def learning_rate(step, d_model, warmup):
    return pow(d_model, -1 / 2) * sorted((pow(step, -1 / 2), step * pow(warmup, -3 / 2)))[0]""",
    },
    "transformer.smoothing": {
        "cross_entropy": """
def smoothed_loss(scores, label, smoothing=0.1):
    return nn.functional.cross_entropy(
        scores.flatten(0, 1), label.flatten(), ignore_index=PAD, label_smoothing=smoothing)""",
        "a distribution": """
def smoothed_loss(scores, label, smoothing=0.1):
    count = scores.shape[-1]
    target = nn.functional.one_hot(label, count) * (1 - smoothing) + smoothing / count
    real = (label != PAD).float()
    return ((-target * scores.log_softmax(-1)).sum(-1) * real).sum() / real.sum()""",
        "logsumexp and loops": """
def smoothed_loss(scores, label, smoothing=0.1):
    losses = []
    for row, ids in zip(scores, label):
        for s, word in zip(row, ids):
            if word != 0:
                losses.append(s.logsumexp(0) - (1 - smoothing) * s[word] - smoothing * s.mean())
    return torch.stack(losses).mean()""",
        "kl_div": """
def smoothed_loss(scores, label, smoothing=0.1):
    real = label.ne(PAD)
    log_p, target = scores[real].log_softmax(-1), torch.full_like(scores[real], smoothing / scores.size(-1))
    target.scatter_add_(1, label[real][:, None], torch.full((int(real.sum()), 1), 1 - smoothing))
    entropy = -(target * target.clamp_min(1e-30).log()).sum(-1).mean()
    return nn.functional.kl_div(log_p, target, reduction="batchmean") + entropy""",
    },
    "transformer.bug_self": {
        "Sequential": """
class FeedForwardBlock(nn.Module):
    def __init__(self, d_model, d_ff, dropout):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(d_model, d_ff), nn.ReLU(), nn.Dropout(dropout), nn.Linear(d_ff, d_model))

    def forward(self, x):
        return self.net(x)""",
        "layers in another order": """
class FeedForwardBlock(nn.Module):
    def __init__(self, d_model, d_ff, dropout):
        nn.Module.__init__(self)
        self.linear_2, self.linear_1 = nn.Linear(d_ff, d_model), nn.Linear(d_model, d_ff)
        self.p = dropout

    def forward(self, x):
        hidden = self.linear_1(x).clamp(min=0)
        return self.linear_2(nn.functional.dropout(hidden, self.p, self.training))""",
        "dropout before relu": """
class FeedForwardBlock(nn.Module):
    def __init__(self, d_model, d_ff, dropout):
        super(FeedForwardBlock, self).__init__()
        self.up, self.down, self.drop = nn.Linear(d_model, d_ff), nn.Linear(d_ff, d_model), nn.Dropout(p=dropout)

    def forward(this, x):
        return this.down(nn.functional.relu(this.drop(this.up(x)), inplace=True))""",
    },
    "transformer.bug_cross": {
        "written out": """
class Block(nn.Module):
    def __init__(self, d_model, h, d_ff, dropout, decodes):
        super().__init__()
        around = [ResidualConnection(d_model, dropout) for _ in range(3 if decodes else 2)]
        self.residual_connections = nn.ModuleList(around)
        self.feed_forward_block = FeedForwardBlock(d_model, d_ff, dropout)
        if decodes:
            self.cross_attention_block = MultiHeadAttentionBlock(d_model, h)
        self.self_attention_block = MultiHeadAttentionBlock(d_model, h)

    def forward(self, x, mask, source=None, src_mask=None):
        first, *cross, last = self.residual_connections
        x = first(x, lambda y: self.self_attention_block(q=y, k=y, v=y, mask=mask))
        for around in cross:
            around_source = lambda y: self.cross_attention_block(q=y, k=source, v=source, mask=src_mask)
            x = x + around.dropout(around_source(around.norm(x)))
        return last(x, self.feed_forward_block)""",
    },
    "diffusion.perturb": {
        "view": """
def perturb_input(x, t, noise, ab_t):
    a = ab_t[t].view(-1, 1, 1, 1)
    return torch.sqrt(a) * x + torch.sqrt(1.0 - a) * noise""",
        "one image at a time": """
def perturb_input(x, t, noise, ab_t):
    kept = [ab_t[i].item() for i in t]
    return torch.stack([a**0.5 * image + (1 - a) ** 0.5 * n for a, image, n in zip(kept, x, noise)])""",
        "einsum": """
def perturb_input(x, t, noise, ab_t):
    kept = ab_t.index_select(0, t)
    return torch.einsum("n,nchw->nchw", kept**0.5, x) + torch.einsum("n,nchw->nchw", (1 - kept) ** 0.5, noise)""",
        "into zeros": """
def perturb_input(x, t, noise, ab_t):
    out = torch.zeros(x.shape)
    for i in range(len(x)):
        out[i] = x[i] * ab_t[t[i]].sqrt() + noise[i] * (1 - ab_t[t[i]]).sqrt()
    return out""",
    },
    "diffusion.ddpm": {
        "plain numbers": """
def denoise_add_noise(x, t, pred_noise, z, schedule):
    b, a, ab = (float(s[t]) for s in schedule)
    out = (x - pred_noise * ((1 - a) / math.sqrt(1 - ab))) / math.sqrt(a)
    if t != 1:
        out = out + math.sqrt(b) * z
    return out""",
        "by the clean image": """
def denoise_add_noise(x, t, pred_noise, z, schedule):
    b, a, ab, before = schedule.b_t[t], schedule.a_t[t], schedule.ab_t[t], schedule.ab_t[t - 1]
    clean = (x - (1 - ab).sqrt() * pred_noise) / ab.sqrt()
    mean = before.sqrt() * b / (1 - ab) * clean + a.sqrt() * (1 - before) / (1 - ab) * x
    return mean + b.sqrt() * z * (t > 1)""",
        "where": """
def denoise_add_noise(x, t, pred_noise, z, schedule):
    b, a, ab = schedule
    mean = a[t].rsqrt() * x - b[t] / torch.sqrt((1 - ab[t]) * a[t]) * pred_noise
    return torch.where(torch.tensor(t > 1), mean + b[t] ** 0.5 * z, mean)""",
    },
    "diffusion.ddim": {
        "gathered": """
def denoise_ddim(x, t, t_prev, pred_noise, ab_t):
    ratio = (ab_t[t_prev] / ab_t[t]).sqrt()
    return ratio * x + ((1 - ab_t[t_prev]).sqrt() - ratio * (1 - ab_t[t]).sqrt()) * pred_noise""",
        "the end apart": """
def denoise_ddim(x, t, t_prev, pred_noise, ab_t):
    now, then = ab_t[t].item(), ab_t[t_prev].item()
    clean = (x - (1 - now) ** 0.5 * pred_noise) * now**-0.5
    if t_prev == 0:
        return clean
    return math.sqrt(then) * clean + math.sqrt(1 - then) * pred_noise""",
    },
    "diffusion.guidance": {
        "a weighted mean": """
def guided_noise(model, x, time, context, guidance):
    return guidance * model(x, time, context) + (1 - guidance) * model(x, time, context * 0)""",
        "one batch": """
def guided_noise(model, x, time, context, guidance):
    both = model(torch.cat((x, x)), torch.cat((time, time)), torch.cat((context, torch.zeros(context.shape))))
    given, free = both.chunk(2)
    return torch.lerp(free, given, guidance)""",
        "keywords, and the plain case apart": """
def guided_noise(model, x, time, context, guidance):
    conditional = model(x, time=time, context=context)
    if guidance == 1:
        return conditional
    free = model(x, time=time, context=torch.full_like(context, 0))
    return conditional + (guidance - 1) * (conditional - free)""",
    },
    "vla.bins": {
        "a formula": """
def action_bins(tokens, vocabulary=32000, bins=256):
    index = np.minimum(np.maximum(vocabulary - 1 - tokens, 0), bins - 2)
    return -1 + (2 * index + 1) / (bins - 1)""",
        "a loop": """
def action_bins(tokens, vocabulary=32000, bins=256):
    edges = np.linspace(-1, 1, bins)
    out = []
    for token in tokens:
        i = min(max(vocabulary - int(token) - 1, 0), bins - 2)
        out.append((edges[i] + edges[i + 1]) / 2)
    return np.array(out)""",
        "upstream": """
def action_bins(tokens, vocabulary=32000, bins=256):
    edges = np.linspace(-1, 1, bins)
    centers = (edges[:-1] + edges[1:]) / 2.0
    return np.take(centers, np.clip(vocabulary - tokens - 1, a_min=0, a_max=centers.shape[0] - 1))""",
        "where": """
def action_bins(tokens, vocabulary=32000, bins=256):
    half = 1 / (bins - 1)
    k = vocabulary - tokens - 1
    k = np.where(k < 0, 0, np.where(k > bins - 2, bins - 2, k))
    return np.linspace(-1 + half, 1 - half, bins - 1)[k]""",
    },
    "vla.gripper": {
        "where": """
def gripper_flip(action):
    out = np.array(action)
    out[6] = np.where(out[6] > 0.5, -1, 1)
    return out""",
        "concatenated": """
def gripper_flip(action):
    return np.concatenate((action[..., :6], np.sign(0.5 - action[..., 6:])), axis=-1)""",
        "a list": """
def gripper_flip(action):
    *hand, grip = action.tolist()
    return np.array(hand + [1.0 - 2.0 * round(grip)])""",
    },
}
