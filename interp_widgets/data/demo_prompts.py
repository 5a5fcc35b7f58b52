"""Prompts of the demo world as rows of a data set."""

from __future__ import annotations

import random

from interp_widgets.arguments import checked
from interp_widgets.data.world import fact_prompts


@checked
def demo_prompts(n: int = 40, seed: int = 0) -> list[dict[str, str]]:
    """Facts of the demo world as rows: half of them in wordings that the demo models were trained on, half held out.

    Each row has a ``prompt`` that stops before its answer, the answer as ``target``, with its leading space, the
    ``subject`` as written in the prompt, the ``relation`` and the ``wording``, trained or held out. The same `seed`
    gives the same rows, and a larger `n` appends further rows. Raises ValueError for ``n`` out of range.

    Example:
        >>> row = demo_prompts(2)[1]
        >>> row["prompt"], row["target"], row["subject"], row["wording"]
        ('On the map, Graz is part of', ' Austria', 'Graz', 'held out')
    """
    kinds = {"trained": fact_prompts("train"), "held out": fact_prompts("held_out")}
    most = 2 * min(map(len, kinds.values()))
    if not 1 <= n <= most:
        raise ValueError(f"n must be in 1..{most}, got {n}")
    drawn = {name: random.Random(f"{seed} {name}").sample(prompts, most // 2) for name, prompts in kinds.items()}
    rows = []
    for number in range(n):
        wording = ("trained", "held out")[number % 2]
        prompt = drawn[wording][number // 2]
        start = prompt.prompt.lower().index(prompt.fact.subject.lower())
        rows.append(
            {
                "prompt": prompt.prompt, "target": f" {prompt.answer}",
                "subject": prompt.prompt[start : start + len(prompt.fact.subject)],
                "relation": prompt.fact.relation.replace("_", " "), "wording": wording,
            }
        )  # fmt: skip
    return rows
