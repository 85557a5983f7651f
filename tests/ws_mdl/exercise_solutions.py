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
        "an array": ("pe.unsqueeze(0)", "pe.unsqueeze(0).numpy()", "returns a ndarray"),
        "another base": ("10000", "1000", NUMBERS),
        "one fixed width": ("/ d_model)", "/ 512)", NUMBERS),
        "cosines a step further": ("cos(angle)", "cos(p / 10000 ** ((two_i + 1) / d_model))", NUMBERS),
    },
    "transformer.attention": {
        "divided by h": ("math.sqrt(d_k)", "query.shape[1]", NUMBERS),
        "divided by √h": ("math.sqrt(d_k)", "math.sqrt(query.shape[1])", NUMBERS),
        "divided by the root of keys": ("math.sqrt(d_k)", "math.sqrt(key.shape[-2])", NUMBERS),
        "softmax over the heads": ("dim=-1", "dim=1", "softmax over the heads"),
        "softmax over the batch": ("dim=-1", "dim=0", "softmax over the batch"),
        "scaled after the softmax": (
            (" / math.sqrt(d_k)", ""), ("weights @ value", "weights @ value / math.sqrt(d_k)"),
            "scaled after the softmax"),
        "masked with 0": ("-1e9", "0", "masked scores are 0"),
        "masked before scaling, with 0": (
            "scores.masked_fill(mask == 0, -1e9)", "scores * mask", "masked scores are 0"),
        "mask added": ("scores.masked_fill(mask == 0, -1e9)", "scores + mask", NUMBERS),
        "the first sentence's mask": ("mask == 0", "mask[:1] == 0", NUMBERS),
        "float64": ("weights @ value", "(weights @ value).double()", "the dtype is float64"),
        "detached": ("weights @ value", "(weights @ value).detach()", NO_GRADIENT),
        "no_grad": ("    d_k =", "    torch.set_grad_enabled(False)\n    d_k =", NO_GRADIENT),
        "numpy inside": ("weights @ value", "torch.from_numpy(weights.numpy() @ value.numpy())", NO_GRADIENT),
        "an array": ("weights @ value", "weights.numpy() @ value.numpy()", "returns a ndarray"),
        "query in place": ("    d_k =", "    query *= 1.5\n    d_k =", "argument query"),
        "weights in place": ("weights @ value", "weights.mul_(1.0) @ value", NO_GRADIENT),
        "a dict": ("return weights @ value", "return {'x': weights @ value}", "returns a dict"),
        "random": ("weights @ value", "torch.dropout(weights, 0.5, True) @ value", "different numbers each time"),
    },
    "transformer.shift": {
        "int32": (
            ("(decoder_input)", "(decoder_input, dtype=torch.int32)"), ("(label)", "(label, dtype=torch.int32)"),
            "int32"),
        "arrays": (("(decoder_input)", "(decoder_input).numpy()"), ("(label)", "(label).numpy()"), "returns a ndarray"),
        "the first is the longest": ("max(len(ids) for ids in targets)", "len(targets[0])", "the code fails"),
        "two sentences": ("ids in targets]", "ids in targets[:2]]", "the shape is (2,"),
        "words in order": (
            "    longest", "    targets = [sorted(ids) for ids in targets]\n    longest", NUMBERS),
        "label all but the first": ("return torch.tensor(decoder_input), torch.tensor(label)",
            "ids = torch.tensor(decoder_input)\n    return ids, torch.cat((ids[:, 1:], ids[:, :1] * 0), 1)",
            "no [EOS] in the label"),
        "targets changed": (
            "    longest", "    for ids in targets:\n        ids.append(PAD)\n    longest", "argument targets"),
    },
    "transformer.warmup": {
        "step + 1": ("    return", "    step += 1\n    return", "the result is "),
        "warmup 4000": ("warmup**", "4000**", "the result is "),
        "d_model 512": ("d_model**", "512**", "the result is "),
        "decay 1 / step": ("step**-0.5", "step**-1 * warmup**0.5", "the result is "),
        "rounded": ("d_model**-0.5 * min(step**-0.5, step * warmup**-1.5)",
            "round(d_model**-0.5 * min(step**-0.5, step * warmup**-1.5), 5)", "the result is "),
        "always 0": ("    return", "    return 0.0 *", "the result is "),
    },
    "transformer.smoothing": {
        "a number": ("].mean()", "].mean().item()", "returns a float"),
        "detached": ("].mean()", "].mean().detach()", NO_GRADIENT),
        "half of it detached": ("-log_p.mean(dim=-1)", "-log_p.detach().mean(dim=-1)", "gradient of scores is wrong"),
        "9 words": ("-log_p.mean(dim=-1)", "-log_p.sum(dim=-1) / 9", "the result is "),
        "always 0.1": ("    loss =", "    smoothing = 0.1\n    loss =", "the result is "),
        "the mean of means": ("loss[label != PAD].mean()",
            "((loss * (label != PAD)).sum(1) / (label != PAD).sum(1)).mean()", "the result is "),
        "[EOS] left out": ("label != PAD", "label > EOS", "the result is "),
        "scores in place": ("    log_p =", "    scores -= scores.max()\n    log_p =", "argument scores"),
    },
    "transformer.bug_self": {
        "no dropout": ("self.dropout(wide)", "wide", "dropout is missing"),
        "dropout behind both": ("self.linear_2(self.dropout(wide))", "self.dropout(self.linear_2(wide))", NUMBERS),
        "dropout always 0.1": ("nn.Dropout(dropout)", "nn.Dropout(0.1)", "different numbers each time"),
        "dropout in eval mode": ("self.dropout(wide)", "torch.dropout(wide, 0.3, True)", "different numbers each time"),
        "fixed sizes": ("nn.Linear(d_model, d_ff), nn.Linear(d_ff, d_model)", "nn.Linear(8, 20), nn.Linear(20, 8)",
            "the code fails"),
        "no bias": ("nn.Linear(d_model, d_ff)", "nn.Linear(d_model, d_ff, bias=False)", NUMBERS),
    },
    "transformer.bug_cross": {
        "2 heads": ("MultiHeadAttentionBlock(d_model, h)", "MultiHeadAttentionBlock(d_model, 2)", NUMBERS),
        "cross-attention in the encoder": (
            "MultiHeadAttentionBlock(d_model, h) if decodes else None", "MultiHeadAttentionBlock(d_model, h)",
            NUMBERS),
        "dropout always 0.1": ("ResidualConnection(d_model, dropout)", "ResidualConnection(d_model, 0.1)",
            "different numbers each time"),
        "all is dropped in the decoder": (
            "ResidualConnection(d_model, dropout)", "ResidualConnection(d_model, decodes)", NUMBERS),
        "source detached": ("(x, source, source, src_mask)", "(x, source.detach(), source.detach(), src_mask)",
            "no gradient reaches source"),
        "src_mask left out": ("source, source, src_mask", "source, source, None", NUMBERS),
        "mask left out": ("(x, x, x, mask)", "(x, x, x, None)", NUMBERS),
    },
    "diffusion.perturb": {
        "3 images": ("[:, None, None, None]", ".reshape(3, 1, 1, 1)", "the code fails"),
        "one channel": ("* noise", "* noise[:, :1]", NUMBERS),
        "t - 1 by name": ("ab_t[t]", "ab_t[t - 1]", "one step early"),
        "x in place": ("ab.sqrt() * x", "x.mul_(ab.sqrt())", "argument x"),
        "width by accident": ("[:, None, None, None]", "[:, None, None]", "the shape is"),
    },
    "diffusion.ddpm": {
        "noise at t > 2": ("t > 1", "t > 2", NUMBERS),
        "noise at t = 0 too": ("t > 1", "t > 0", "noise added at t = 1"),
        "the posterior's variance": (
            "b.sqrt() * z", "(b * (1 - schedule.ab_t[t - 1]) / (1 - ab)).sqrt() * z", NUMBERS),
        "β of another step": ("schedule.b_t[t]", "schedule.b_t[t - 1]", NUMBERS),
        "its own noise": ("b.sqrt() * z", "b.sqrt() * torch.randn_like(x)", "different numbers each time"),
        "x in place": ("    b, a", "    x /= 1.5\n    b, a", "argument x"),
        "schedule changed": ("    b, a", "    schedule.b_t[0] = 1\n    b, a", "argument schedule"),
    },
    "diffusion.ddim": {
        "always one step": ("ab_t[t_prev]", "ab_t[t - 1]", "one step instead of t_prev"),
        "always to 5": ("ab_t[t_prev]", "ab_t[5 if t_prev else 0]", NUMBERS),
        "clamped": ("ab_prev.sqrt() * x0_pred", "ab_prev.sqrt() * x0_pred.clamp(-1, 1)", NUMBERS),
        "half of it detached": (
            "(1 - ab_prev).sqrt() * pred_noise", "(1 - ab_prev).sqrt() * pred_noise.detach()", "pred_noise is wrong"),
        "float64": ("ab_t[t], ab_t[t_prev]", "ab_t[t].double().reshape(1), ab_t[t_prev]", "the dtype is float64"),
    },
    "diffusion.guidance": {
        "the context is scaled": (
            "without + guidance * (with_context - without)", "model(x, time, context * guidance)",
            "the context is scaled"),
        "None": ("torch.zeros_like(context)", "None", "None instead of no context"),
        "one class": ("torch.zeros_like(context)", "torch.zeros_like(time)", "the code fails"),
        "at most 1": ("guidance *", "min(guidance, 1) *", NUMBERS),
        "time 0 without": ("x, time, torch", "x, time * 0, torch", NUMBERS),
        "without is detached": ("+ guidance * (with_context - without)",
            "- without + without.detach() + guidance * (with_context - without)", "gradient of x is wrong"),
        "context in place": ("torch.zeros_like(context)", "context.zero_()", "argument context"),
    },
    "vla.bins": {
        "32000 fixed": ("vocabulary - tokens", "32000 - tokens", NUMBERS),
        "256 fixed": ("np.linspace(-1.0, 1.0, bins)", "np.linspace(-1.0, 1.0, 256)", NUMBERS),
        "a modulo": ("np.clip(vocabulary - tokens - 1, 0, bins - 2)", "(vocabulary - 1 - tokens) % (bins - 1)",
            "modulo instead of clip"),
        "not clipped below": (
            "np.clip(vocabulary - tokens - 1, 0, bins - 2)", "np.minimum(vocabulary - tokens - 1, bins - 2)", NUMBERS),
        "a tensor": ("return centres[np.clip(vocabulary - tokens - 1, 0, bins - 2)]",
            "return torch.tensor(centres[np.clip(vocabulary - tokens - 1, 0, bins - 2)])", "returns a Tensor"),
        "tokens in place": ("    edges", "    tokens -= 1\n    vocabulary -= 1\n    edges", "argument tokens"),
    },
    "vla.gripper": {
        "open from 0.65": ("-np.sign(2 * action[..., 6] - 1)", "-1.0 if action[6] > 0.65 else 1.0", NUMBERS),
        "closed between": ("-np.sign(2 * action[..., 6] - 1)", "-1.0 if action[6] > 0.99 else 1.0", NUMBERS),
        "the rest rounded": ("action.copy()", "action.round(1)", NUMBERS),
        "the rest is 0": ("action.copy()", "action * 0", NUMBERS),
        "float32": ("action.copy()", "action.astype(np.float32)", "the dtype is float32"),
        "text": ("return flipped", "return flipped.astype(str)", "returns a ndarray"),
        "in place": ("action.copy()", "action", "the argument is changed"),
    },
    "seeing.where": {
        "float64": ("p @ cells", "(p @ cells).double()", "the dtype is float64"),
        "detached": ("p @ cells", "p.detach() @ cells", NO_GRADIENT),
        "a sum": ("p @ cells", "p @ cells * len(cells)", NUMBERS),
        "one cell short": ("p @ cells", "p[:, 1:] @ cells[1:]", NUMBERS),
    },
    "seeing.bell": {
        "half as wide": ("width**2", "(2 * width) ** 2", NUMBERS),
        "softmax over the places": ("width**2, dim=-1", "width**2, dim=0", NUMBERS),
    },
    "seeing.ahead": {
        "one scale": ("for scale in scales", "for scale in scales[:1]", "the shape is"),
        "below each other": ("dim=-1", "dim=0", "the shape is"),
    },
    "seeing.bug_cells": {
        "one fixed size": ("side // cell", "8", "the shape is"),
        "y up": ("y.flatten()]", "-y.flatten()]", NUMBERS),
    },
}  # fmt: skip

RIGHT = {
    "transformer.mask": {
        "tril": "def causal_mask(size):\n    return torch.ones(1, size, size).tril().bool()",
        "compared indices": """
def causal_mask(size):
    place = torch.arange(size)
    return (place[None, :] <= place[:, None]).unsqueeze(0)""",
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
    },
    "seeing.where": {
        "a weighted sum": """
def where(scores, cells):
    weights = (scores - scores.logsumexp(-1, keepdim=True)).exp()
    return (weights[..., None] * cells).sum(1)
"""
    },
    "seeing.bell": {
        "by cdist": """
def bell(places, cells, width):
    weights = torch.exp(-((torch.cdist(places, cells) / width) ** 2))
    return weights / weights.sum(1, keepdim=True)
"""
    },
    "seeing.ahead": {
        "one broadcast": """
def ahead(places, hand, scales):
    scaled = (places - hand)[:, None] * torch.tensor(scales)[:, None]
    return scaled.tanh().flatten(1)
"""
    },
    "seeing.bug_cells": {
        "by two loops": """
def cell_centres(side, cell):
    at = [(2 * i + 1) * cell / side - 1 for i in range(side // cell)]
    return torch.tensor([[x, y] for y in at for x in at])
"""
    },
}
