"""Relations as published with Linearity of Relation Decoding (Hernandez et al. 2024): subjects and their objects."""

from __future__ import annotations

import os
from dataclasses import dataclass

from interp_widgets.arguments import checked
from interp_widgets.data.files import existing_file, parse_json, read_text
from interp_widgets.data.row_fields import part, text


@dataclass(frozen=True)
class Relation:
    """One relation, such as the gender that an occupation is associated with.

    Example:
        >>> Relation("occupation gender", "bias", ("{}s are mostly",), (("nurse", "women"),)).prompts()
        (('nurses are mostly', ' women'),)
    """

    name: str
    kind: str
    """``bias`` for the relations about stereotypes."""
    templates: tuple[str, ...]
    """Prompts that stop right before the object, with ``{}`` for the subject."""
    pairs: tuple[tuple[str, str], ...]
    """Subjects and their objects."""

    def prompts(self, template: int = 0) -> tuple[tuple[str, str], ...]:
        """Each subject's prompt, and its object with a space in front.

        >>> Relation("capital", "fact", ("{} has the capital",), (("France", "Paris"),)).prompts()
        (('France has the capital', ' Paris'),)
        """
        return tuple((self.templates[template].replace("{}", one), f" {other}") for one, other in self.pairs)


@checked
def read_relation(path: str | os.PathLike[str]) -> Relation:
    """Read one relation: a JSON object with ``name``, ``prompt_templates`` and ``samples`` of subject and object.

    Raises FileNotFoundError where there is no file, and ValueError with the sample and the field where it has another
    layout.

    Example:
        >>> import json, tempfile
        >>> path = tempfile.mkdtemp() + "/gender.json"
        >>> with open(path, "w") as file:
        ...     json.dump({"name": "occupation gender", "prompt_templates": ["{}s are mostly"],
        ...                "samples": [{"subject": "nurse", "object": "women"}]}, file)
        >>> read_relation(path).prompts()
        (('nurses are mostly', ' women'),)
    """
    content = parse_json(read_text(path, "a relation"), str(existing_file(path, "a relation")))
    templates = part(content, "prompt_templates", list, str(path))
    for number, template in enumerate(templates):
        if not isinstance(template, str) or "{}" not in template:
            raise ValueError(f"prompt_templates {number} of {path} must be text with {{}} for the subject")
    samples = part(content, "samples", list, str(path))
    if not templates or not samples:
        raise ValueError(f"{path} must hold at least one prompt_template and one sample")
    properties = content.get("properties", {})
    kind = properties.get("relation_type", "") if isinstance(properties, dict) else ""
    pairs = []
    for number, sample in enumerate(samples):
        where = f"sample {number} of {path}"
        pairs.append((text(sample, "subject", where), text(sample, "object", where)))
    return Relation(text(content, "name", str(path)), str(kind), tuple(templates), tuple(pairs))
