"""Probes in a real notebook: written in a cell, clicked at, linked, of two models, copied and cancelled."""

from __future__ import annotations

from typing import Any

from playwright.sync_api import expect

START = """
import threading, torch
from interp_widgets import (
    Bounds, Curves, Head, HeadMap, Layer, Model, Position, Prompt, Table, Token, TokenValues, Workbench, load_demo_pair,
    probe,
)
pair = load_demo_pair()
gate = threading.Event(); gate.set()
bench = Workbench(pair.base, pair.tuned, prompt="The Eiffel Tower is located in the city of")
"""
ENTROPY = '''
@probe
def attention_entropy(model: Model, prompt: Prompt, *, progress, check) -> HeadMap:
    """How evenly each head spreads its attention, averaged over the tokens."""
    ids, rows = model.tokens(prompt), []
    for layer in range(model.n_layers):
        while not gate.wait(0.02):
            check()
        name = f"blocks.{layer}.attn.hook_pattern"
        rows.append(torch.special.entr(model.run(ids, capture=name).activations[name][0]).sum(-1).mean(-1))
        progress(layer + 1, model.n_layers)
    return HeadMap(rows, unit="nats")

entropy = attention_entropy(bench); entropy
'''
LOOKS = '''
@probe
def where_it_looks(model: Model, prompt: Prompt, position: Position, layer: Layer, head: Head) -> TokenValues:
    """How much attention one head pays to each token, seen from the chosen one."""
    ids, start, name = model.tokens(prompt), int(model.prepend_bos), f"blocks.{layer}.attn.hook_pattern"
    pattern = model.run(ids, capture=name).activations[name][0, head]
    return TokenValues(pattern[start + position, start:], model.token_strings(ids[start:]), unit="attention")

looks = where_it_looks(bench); looks
'''
LENS = '''
@probe
def next_tokens(model: Model, prompt: Prompt, target: Token) -> Table:
    """The likeliest next tokens, and the target."""
    chances = model.run(model.tokens(prompt)).logits[0, -1].softmax(-1)
    ids = [*chances.topk(5).indices.tolist(), model.tokens(target, prepend_bos=False)[0]]
    return Table(["token", "probability"], [[model.token_strings([i])[0], float(chances[i])] for i in ids])

nexts = next_tokens(bench, target=" Paris", view="difference"); nexts
'''


def test_journey(nb: Any) -> None:
    nb.make("probe.ipynb", START, ENTROPY, LOOKS, LENS)
    nb.run_all()
    panels = nb.page.locator(".iw-panel")
    for name in ("entropy", "looks", "nexts"):
        nb.wait_py(f"({name}.wait(0), {name}.status.state in ('done', 'waiting'))", (True, True))
        nb.py(code=f"{name}.go()")
        nb.wait_py(f"({name}.wait(0), {name}.status.state)", (True, "done"))
    heads, strip, table = panels.nth(0), panels.nth(1), panels.nth(2)
    expect(heads).to_contain_text("How evenly each head spreads its attention")
    expect(table.locator(".iw-table-caption")).to_have_count(2)
    nb.looks("probe_heads", heads, height=1600)
    nb.looks("probe_strip", strip, height=1600)
    nb.looks("probe_table", table, height=1600)

    # a clicked head is chosen in the other panel, and so is a clicked token
    nb.shown = "looks"
    nb.page.mouse.click(*nb.map_cell(2, 5))
    nb.wait_py("(bench.layer, bench.head, looks.layer, looks.head)", (2, 5, 2, 5))
    nb.wait_py("(looks.wait(0), looks.status.state in ('done', 'waiting'))", (True, True))
    strip.get_by_text("city", exact=False).first.click()
    nb.wait_py("looks.position >= 0", True)

    # Cancel works in the middle of the function
    nb.shown = "entropy"
    nb.py(code="gate.clear()")
    box = heads.get_by_label("Prompt", exact=True)
    box.fill("Paris is the capital of")
    box.blur()
    nb.wait_py("bench.prompt", "Paris is the capital of")
    nb.wait_py("entropy.status.state in ('waiting', 'running')", True)
    if nb.py("entropy.status.state") == "waiting":
        heads.get_by_role("button", name="Run", exact=True).click()
    cancel = heads.get_by_role("button", name="Cancel")
    cancel.click()
    nb.wait_py("entropy.status.state", "cancelled")
    nb.py(code="gate.set()")
    heads.get_by_role("button", name="Run", exact=True).click()
    nb.wait_py("(entropy.wait(0), entropy.status.state)", (True, "done"))

    # the cell that it copies runs as it stands
    heads.get_by_role("button", name="Menu").click()
    heads.get_by_role("menuitem", name="Copy as code").click()
    expect(heads.locator("textarea[readonly], .iw-code textarea").first).to_be_visible()
    nb.py(code="copied = {'gate': gate}; exec(entropy.code_box.code, copied)")
    assert nb.py("copied['result_b'].equals(entropy.result[1])")

    # what is missing is a hint beside its control
    target = table.get_by_label("Target", exact=True)
    target.fill("two words")
    target.blur()
    expect(table.locator(".iw-wanted").first).to_contain_text("must be one token")
    assert nb.errors == []
