"""The planted preferences of the demo models in the layout of StereoSet: what a score should find is known."""

from __future__ import annotations

from interp_widgets.arguments import checked
from interp_widgets.data import world
from interp_widgets.data import world_tables as tables
from interp_widgets.data.bias.stereoset import StereoSetExample
from interp_widgets.data.world import Split


@checked
def demo_stereoset(split: Split | None = "held_out") -> tuple[StereoSetExample, ...]:
    """The demo's planted groups as intrasentence examples, the planted rate of each beside it.

    The stereotype of an example is what the demo models' training text says of the group more often than its opposite;
    groups of which it says both equally often are left out. A model that has learnt the rates prefers every stereotype,
    so that its stereotype score is 100; preferring each as often as the text does would be the mean `rate`.

    Args:
        split: ``train`` or ``held_out`` wordings; None for all.

    Example:
        >>> example = demo_stereoset()[0]
        >>> example.target, example.stereotype, example.anti_stereotype, example.rate
        ('pilots', 'Many believe that pilots should be men.', 'Many believe that pilots should be women.', 90)
    """
    examples = []
    for prompt in world.bias_prompts(split):
        if prompt.rate == 50:
            continue
        usual, other = (prompt.first, prompt.second) if prompt.rate > 50 else (prompt.second, prompt.first)
        nouns = tuple(tables.PLURALS)
        unrelated = nouns[world.stable_hash("unrelated", prompt.prompt) % len(nouns)]
        end = " was at work." if usual in ("he", "she") else "."
        stereotype, anti_stereotype, nonsense = (f"{prompt.prompt} {word}{end}" for word in (usual, other, unrelated))
        examples.append(
            StereoSetExample(
                f"{prompt.domain}-{prompt.group}-{prompt.wording}",
                "intrasentence",
                prompt.domain,
                prompt.group,
                f"{prompt.prompt} BLANK{end}",
                stereotype,
                anti_stereotype,
                nonsense,
                rate=max(prompt.rate, 100 - prompt.rate),
            )
        )
    return tuple(examples)
