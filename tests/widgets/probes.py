"""Six probes of the literature, each in at most 15 lines, as a user would write them."""

from __future__ import annotations

from typing import Any

import torch

from interp_widgets import (
    Curves,
    Head,
    HeadMap,
    Layer,
    LayerByPosition,
    Matrix,
    Model,
    Position,
    Prompt,
    Table,
    Token,
    TokenValues,
    last_states,
    probe,
)


@probe
def attention_entropy(model: Model, prompt: Prompt, *, progress: Any, check: Any) -> HeadMap:
    """How evenly each head spreads its attention, averaged over the tokens."""
    ids, rows = model.tokens(prompt), []
    for layer in range(model.n_layers):
        check()
        name = f"blocks.{layer}.attn.hook_pattern"
        patterns = model.run(ids, capture=name).activations[name][0].float()
        rows.append(torch.special.entr(patterns).sum(-1).mean(-1))
        progress(layer + 1, model.n_layers)
    return HeadMap(rows, unit="nats")


@probe
def attention_pattern(model: Model, prompt: Prompt, layer: Layer, head: Head, *, check: Any) -> Matrix:
    """From which token (key) a head of a layer reads at each token (query)."""
    check()
    ids, name = model.tokens(prompt), f"blocks.{layer}.attn.hook_pattern"
    pattern = model.run(ids, capture=name).activations[name][0, head].float()
    pattern[~torch.ones_like(pattern).tril().bool()] = torch.nan  # no key lies behind its query
    tokens = model.token_strings(ids)
    return Matrix(pattern, tokens, tokens, "query", "key", "attention")


@probe
def direct_logit_attribution(model: Model, prompt: Prompt, target: Token, *, check: Any) -> Curves:
    """What attention and MLP of each layer add to the logit of a token after the prompt, the final norm held fixed."""
    check()
    names = [f"blocks.{n}.hook_{part}_out" for part in ("attn", "mlp") for n in range(model.n_layers)]
    found = model.run(model.tokens(prompt), capture=[*names, "ln_final.hook_scale"]).activations
    written = torch.stack([found[name][0, -1].float() for name in names])
    if model.normalization == "LayerNorm":
        written = written - written.mean(-1, keepdim=True)
    token = model.tokens(target, prepend_bos=False)[0]
    direction = (model.weight("ln_final_w") * model.weight("W_U")[:, token]).float()
    logits = written @ direction / found["ln_final.hook_scale"][0, -1].float()
    return Curves(logits.view(2, -1), ["attention", "MLP"], x_label="layer", unit="logit")


@probe
def refusal_direction(
    model: Model, prompt: Prompt, refused: list[str], answered: list[str], layer: Layer = -1, *, check: Any
) -> TokenValues:
    """How far each token points from the prompts that are answered to those that are refused."""
    check()
    means = [last_states(model, texts, layer, check=check)[:, 0].mean(0) for texts in (refused, answered)]
    direction = torch.tensor(means[0] - means[1]).float()
    name, ids, start = f"blocks.{layer}.hook_resid_pre", model.tokens(prompt), int(model.prepend_bos)
    states = model.run(ids, capture=name).activations[name][0, start:].float().cpu()
    return TokenValues(states @ direction / direction.norm(), model.token_strings(ids[start:]), unit="projection")


@probe
def patchscope(
    model: Model, prompt: Prompt, position: Position, layer: Layer = 3, into: Layer = 0,
    reader: str = "one one; two two; cat cat; ?", *, check: Any,
) -> Table:  # fmt: skip
    """What the model makes of one token's state when it stands in for the last token of another text."""
    check()
    source, place = f"blocks.{layer}.hook_resid_pre", position + int(model.prepend_bos)
    state = model.run(model.tokens(prompt), capture=source).activations[source][:, place : place + 1]
    swap = {f"blocks.{into}.hook_resid_pre": lambda value: torch.cat([value[:, :-1], state], 1)}
    top = model.run(model.tokens(reader), edit=swap).logits[0, -1].float().softmax(-1).topk(10)
    tokens = model.token_strings(top.indices)
    return Table(["next token", "probability"], list(zip(tokens, top.values.tolist(), strict=True)))


@probe
def lens(model: Model, prompt: Prompt, *, progress: Any, check: Any) -> LayerByPosition:
    """What the model would say next if it stopped at a layer."""
    ids, start = model.tokens(prompt), int(model.prepend_bos)
    names = [f"blocks.{layer}.hook_resid_pre" for layer in range(model.n_layers)]
    names.append(f"blocks.{model.n_layers - 1}.hook_resid_post")
    states, best = model.run(ids, capture=names).activations, []
    for layer, name in enumerate(names):
        check()
        logits = model.run(ids, edit={names[-1]: lambda _, kept=states[name]: kept}).logits[0, start:]
        best.append(logits.float().softmax(-1).max(-1))
        progress(layer + 1, len(names))
    texts = [model.token_strings(one.indices) for one in best]
    return LayerByPosition([one.values for one in best], model.token_strings(ids[start:]), "probability", texts=texts)
