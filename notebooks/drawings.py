"""The drawing of each lesson's one idea, as SVG: `python notebooks/drawings.py` writes `notebooks/images/ideas`.

All have one style: paper of their own, so that they can be read on a light page and on a dark one; what a model reads
and writes in blue, what is changed in orange, what is left out in grey.
"""

from __future__ import annotations

from collections.abc import Callable
from html import escape
from pathlib import Path

FOLDER = Path(__file__).parent / "images" / "ideas"
INK, GREY, BLUE, ORANGE, PAPER = "#333333", "#6f6f6f", "#1f6fb2", "#d1661b", "#fbfaf7"
PALE = {BLUE: "#dcebf7", ORANGE: "#fae4d3", GREY: "#eeeeec", INK: "#ffffff"}


class Drawing:
    """Boxes, lines and words on paper, in pixels from the upper left corner."""

    def __init__(self, width: int, height: int, title: str) -> None:
        self.width, self.height, self.title = width, height, title
        self.parts: list[str] = []

    def box(self, x: float, y: float, width: float, height: float, text: str = "", color: str = INK) -> None:
        """A rounded box with a word in its middle."""
        self.parts.append(
            f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="6" fill="{PALE[color]}" '
            f'stroke="{color}" stroke-width="1.5"/>'
        )
        self.text(x + width / 2, y + height / 2 + 5, text, color if color != GREY else INK)

    def text(self, x: float, y: float, text: str, color: str = INK, *, size: int = 14, anchor: str = "middle") -> None:
        """Words whose baseline is at y."""
        if text:
            self.parts.append(
                f'<text x="{x:g}" y="{y:g}" font-size="{size}" fill="{color}" text-anchor="{anchor}">'
                f"{escape(text)}</text>"
            )

    def line(
        self,
        *points: tuple[float, float],
        color: str = INK,
        width: float = 1.5,
        arrow: bool = False,
        dashed: bool = False,
    ) -> None:
        """A line through some points, with a head at its end where it is an arrow."""
        marks = f' marker-end="url(#head{color[1:]})"' if arrow else ""
        marks += ' stroke-dasharray="5 4"' if dashed else ""
        path = " ".join(f"{x:g},{y:g}" for x, y in points)
        self.parts.append(f'<polyline points="{path}" fill="none" stroke="{color}" stroke-width="{width:g}"{marks}/>')

    def curve(self, start: tuple[float, float], end: tuple[float, float], lift: float, color: str = BLUE) -> None:
        """An arc from one point to another, as an arrow; it is as high as `lift`."""
        middle = ((start[0] + end[0]) / 2, min(start[1], end[1]) - 2 * lift)
        self.parts.append(
            f'<path d="M{start[0]:g},{start[1]:g} Q{middle[0]:g},{middle[1]:g} {end[0]:g},{end[1]:g}" fill="none" '
            f'stroke="{color}" stroke-width="2" marker-end="url(#head{color[1:]})"/>'
        )

    def cross(self, x: float, y: float, size: float = 8) -> None:
        """What is taken out."""
        self.line((x - size, y - size), (x + size, y + size), color=ORANGE, width=3)
        self.line((x - size, y + size), (x + size, y - size), color=ORANGE, width=3)

    def svg(self) -> str:
        """The drawing as a file."""
        heads = "".join(
            f'<marker id="head{color[1:]}" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" '
            f'orient="auto"><path d="M0,0 L8,4 L0,8 z" fill="{color}"/></marker>'
            for color in (INK, GREY, BLUE, ORANGE)
        )
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {self.width} {self.height}" width="{self.width}" '
            f'height="{self.height}" role="img" font-family="Helvetica, Arial, sans-serif">\n'
            f"<title>{escape(self.title)}</title>\n<defs>{heads}</defs>\n"
            f'<rect width="{self.width}" height="{self.height}" rx="10" fill="{PAPER}"/>\n'
            + "\n".join(self.parts)
            + "\n</svg>\n"
        )


def stream() -> Drawing:
    """Everything is added into one stream."""
    drawing = Drawing(760, 250, "Attention and MLP of each layer read the stream and add to it")
    for y, token, color in ((70, "France", GREY), (205, "is", INK)):
        drawing.text(45, y + 5, token, color)
        drawing.line((80, y), (690, y), color=BLUE, width=4, arrow=False)
    drawing.text(715, 210, "Paris", BLUE)
    drawing.text(105, 190, "embedding", GREY, size=12)
    for x, layer in ((170, "layer 0"), (430, "layer 1")):
        drawing.text(x + 95, 240, layer, GREY, size=12)
        drawing.box(x, 122, 80, 36, "attention", BLUE)
        drawing.line((x + 15, 72), (x + 15, 120), color=GREY, arrow=True)
        drawing.line((x + 30, 203), (x + 30, 160), color=GREY, arrow=True)
        drawing.line((x + 80, 140), (x + 98, 140), (x + 98, 196), color=BLUE, arrow=True)
        drawing.box(x + 125, 122, 60, 36, "MLP", BLUE)
        drawing.line((x + 140, 203), (x + 140, 160), color=GREY, arrow=True)
        drawing.line((x + 185, 140), (x + 203, 140), (x + 203, 196), color=BLUE, arrow=True)
        for plus in (x + 98, x + 203):
            drawing.box(plus - 9, 196, 18, 18, "+", BLUE)
    drawing.text(380, 32, "attention reads other tokens, the MLP its own; both add, nothing is overwritten", INK)
    return drawing


def lens() -> Drawing:
    """A layer can be read."""
    drawing = Drawing(760, 220, "The last step of the model, applied to the stream of earlier layers")
    drawing.text(55, 155, "is", INK)
    drawing.line((80, 150), (640, 150), color=BLUE, width=4)
    for x, layer, word, color in (
        (150, "layer 9", ".", GREY), (290, "layer 27", "the", GREY), (430, "layer 29", "capital", GREY),
    ):  # fmt: skip
        drawing.box(x - 36, 132, 72, 36, layer, BLUE)
        drawing.line((x + 50, 150), (x + 50, 100), color=ORANGE, arrow=True, dashed=True)
        drawing.box(x + 5, 64, 90, 34, "read out", ORANGE)
        drawing.text(x + 50, 50, word, color)
    drawing.box(545, 132, 90, 36, "read out", BLUE)
    drawing.text(690, 155, "Paris", BLUE)
    drawing.text(380, 205, "the model ends once; the lens asks at every layer what it would say if it ended there", INK)
    return drawing


def attention() -> Drawing:
    """Patterns are claims, and most of them rest on the first token."""
    drawing = Drawing(760, 210, "Most heads look at the first token; one looks at the country")
    places = dict(zip(("The", "capital", "of", "France", "is"), (100, 230, 350, 470, 620), strict=True))
    for word, x in places.items():
        drawing.text(x, 165, word, BLUE if word in ("France", "is") else INK, size=18)
    for lift, start in ((62, 620), (50, 470), (38, 350), (24, 230)):
        drawing.curve((start, 145), (105, 145), lift, GREY)
    drawing.curve((612, 145), (480, 145), 30, BLUE)
    drawing.text(550, 108, "head 23.4", BLUE)
    drawing.text(240, 60, "three heads of four", GREY)
    drawing.text(380, 198, "a head cannot look nowhere: with nothing to find it rests on the first token", INK)
    return drawing


def induction() -> Drawing:
    """Two heads make copying."""
    drawing = Drawing(760, 220, "A head writes what came before; a later head looks for it")
    words = ("seven", "button", "cloud", "paper", "seven")
    for x, word in zip((110, 250, 390, 530, 660), words, strict=True):
        drawing.text(x, 150, word, BLUE if word in ("seven", "button") else INK, size=18)
    drawing.curve((240, 130), (120, 130), 18, GREY)
    drawing.text(180, 100, "1: what came before", GREY)
    drawing.box(195, 160, 112, 26, "after seven", GREY)
    drawing.curve((655, 128), (262, 128), 48, BLUE)
    drawing.text(470, 66, "2: who stands after a seven?", BLUE)
    drawing.line((680, 145), (715, 145), color=BLUE, arrow=True)
    drawing.text(725, 175, "button", BLUE)
    drawing.text(380, 210, "the first head writes it into the key that the second head finds", INK)
    return drawing


def ablation() -> Drawing:
    """Zero, mean, resample, and what chance does."""
    drawing = Drawing(760, 230, "One part is taken out, and something else is put in its place")
    drawing.line((60, 130), (620, 130), color=BLUE, width=4)
    for x in (110, 250, 390, 530):
        drawing.box(x, 112, 80, 36, "" if x == 250 else "part", ORANGE if x == 250 else BLUE)
    drawing.cross(290, 130, 14)
    for x, name, says in (
        (130, "zero", "it never writes that"), (290, "mean", "what it writes on average"),
        (470, "resample", "what it writes for another text"),
    ):  # fmt: skip
        drawing.text(x, 55, name, ORANGE)
        drawing.text(x, 74, says, GREY, size=12)
        drawing.line((x, 82), (285, 108), color=ORANGE, arrow=True, dashed=True)
    drawing.text(690, 125, "Paris", BLUE)
    drawing.text(690, 145, "0.8 → ?", ORANGE)
    drawing.text(
        380, 200, "what falls by this was needed, if it falls more than with any other part of the same size", INK
    )
    return drawing


def patching() -> Drawing:
    """One value carries the answer."""
    drawing = Drawing(760, 240, "A value of the clean run is put into the corrupted run")
    for y, country, city in ((65, "France", "Paris"), (175, "Italy", "Rome")):
        drawing.text(95, y + 5, f"… of {country} is", INK)
        drawing.line((165, y), (600, y), color=BLUE, width=4)
        for x in (220, 330, 440, 550):
            drawing.box(x - 18, y - 16, 36, 32, "", BLUE)
        drawing.text(660, y + 5, city, BLUE if y == 65 else GREY)
    drawing.box(422, 49, 36, 32, "", ORANGE)
    drawing.box(422, 159, 36, 32, "", ORANGE)
    drawing.line((440, 82), (440, 156), color=ORANGE, width=3, arrow=True)
    drawing.text(700, 205, "→ Paris?", ORANGE)
    drawing.text(380, 225, "the two texts share all but one word: what moves the answer carried that word", INK)
    return drawing


def circuit() -> Drawing:
    """Edges, and how many random ones would do."""
    drawing = Drawing(760, 240, "A few parts keep the behaviour; as many random ones do not")
    chosen = {(150, 150), (300, 90), (450, 150), (580, 90)}
    places = [(x, y) for x in (150, 300, 450, 580) for y in (50, 90, 150, 190)]
    for first, second in zip(sorted(chosen), sorted(chosen)[1:], strict=False):
        drawing.line((first[0] + 22, first[1]), (second[0] - 24, second[1]), color=BLUE, width=2.5, arrow=True)
    for x, y in places:
        drawing.box(x - 22, y - 13, 44, 26, "", BLUE if (x, y) in chosen else GREY)
    drawing.text(70, 125, "text", INK)
    drawing.text(690, 115, "answer", BLUE)
    drawing.text(690, 135, "0.96 kept", BLUE, size=12)
    drawing.text(690, 170, "random: 0.03", GREY, size=12)
    drawing.text(380, 228, "everything else has the values of another text; what is left of the answer?", INK)
    return drawing


def steering() -> Drawing:
    """A push beside a random push."""
    drawing = Drawing(760, 240, "A push along France and a random push of the same length")
    drawing.text(85, 135, "… of Italy is", INK)
    drawing.line((150, 130), (620, 130), color=BLUE, width=4)
    for x in (200, 320, 440, 560):
        drawing.box(x - 18, 114, 36, 32, "", BLUE)
    drawing.line((260, 60), (260, 122), color=ORANGE, width=3, arrow=True)
    drawing.text(260, 48, "+ France", ORANGE)
    drawing.line((250, 196), (262, 138), color=GREY, width=3, arrow=True)
    drawing.text(260, 216, "+ random, as long", GREY)
    drawing.text(690, 60, "Paris", ORANGE)
    drawing.text(690, 135, "Rome", BLUE)
    drawing.text(690, 201, "Rome", GREY)
    drawing.line((625, 120), (655, 70), color=ORANGE, arrow=True, dashed=True)
    drawing.line((625, 140), (655, 186), color=GREY, arrow=True, dashed=True)
    drawing.text(500, 32, "and what does it do to a text about bread?", INK)
    return drawing


def ledger() -> Drawing:
    """A logit is a sum over tokens."""
    drawing = Drawing(760, 250, "One logit is a sum of what came by way of each token")
    drawing.line((80, 190), (690, 190), color=GREY)
    total = 0.0
    parts = {"t₀": 34, "t₁": 18, "t₂": 46, "t₃": -24, "t₄": 42}
    for x, (word, adds) in zip(range(120, 620, 100), parts.items(), strict=True):
        color = ORANGE if adds < 0 else BLUE
        drawing.box(x - 30, 190 - max(total, total + adds), 60, abs(adds), "", color)
        drawing.line((x + 30, 190 - total - adds), (x + 70, 190 - total - adds), color=GREY, dashed=True)
        drawing.text(x, 212, word, INK)
        total += adds
    drawing.box(590, 190 - total, 60, total, "", INK)
    drawing.text(620, 212, "the logit", INK)
    drawing.text(620, 190 - total - 12, "Paris", BLUE)
    drawing.text(210, 50, "each token adds its part, or takes some away", INK)
    drawing.text(380, 240, "the parts add up to the model's own number, or it is no decomposition", INK)
    return drawing


def weights() -> Drawing:
    """Words without running the model."""
    drawing = Drawing(760, 250, "A direction in an MLP's weights has nearest words, and so has a random one")
    drawing.text(110, 36, "what the neurons write", INK)
    for row in range(8):
        common = row in (1, 4, 6)
        drawing.box(50, 50 + 18 * row, 120, 14, "", BLUE if common else GREY)
        if common:
            drawing.line((172, 57 + 18 * row), (278, 92), color=BLUE, width=1.5)
    drawing.box(280, 74, 150, 36, "a common direction", BLUE)
    drawing.line((432, 92), (508, 92), color=BLUE, arrow=True)
    drawing.text(515, 97, "sad, lonely, tired, lost", BLUE, anchor="start")
    drawing.box(280, 148, 150, 36, "a random direction", GREY)
    drawing.line((432, 166), (508, 166), color=GREY, arrow=True)
    drawing.text(515, 171, "some words are always nearest", GREY, anchor="start")
    drawing.text(470, 134, "nearest words", GREY, size=12)
    drawing.text(380, 238, "no text is read: the words stand in the weights. Are they nearer than chance?", INK)
    return drawing


def concept() -> Drawing:
    """Reading is not using, and a direction has opponents."""
    drawing = Drawing(760, 250, "A concept's direction tells new texts apart, and a list of words does it as well")
    for x, y in ((75, 140), (105, 165), (120, 130), (90, 175), (145, 155), (130, 185), (70, 162)):
        drawing.box(x - 5, y - 5, 10, 10, "", GREY)
    for x, y in ((235, 70), (265, 95), (280, 62), (250, 105), (300, 85), (290, 115), (230, 92)):
        drawing.box(x - 5, y - 5, 10, 10, "", BLUE)
    drawing.line((105, 159), (262, 91), color=ORANGE, width=3, arrow=True)
    drawing.text(265, 44, "texts about a colour", BLUE)
    drawing.text(105, 211, "all other texts", GREY)
    drawing.text(220, 160, "the direction", ORANGE)
    drawing.text(565, 44, "who tells new texts apart?", INK)
    for y, name, width, color in (
        (62, "the direction", 190, ORANGE), (107, "a list of words", 215, INK), (152, "shuffled labels", 100, GREY),
    ):  # fmt: skip
        drawing.text(500, y + 20, name, color if color != INK else INK, anchor="end")
        drawing.box(510, y, width, 28, "", color)
    drawing.line((610, 56), (610, 190), color=GREY, dashed=True)
    drawing.text(610, 206, "a coin", GREY, size=12)
    drawing.text(380, 238, "what can be read off a state need be no more than the words that were in the text", INK)
    return drawing


def trial() -> Drawing:
    """A map must beat chance."""
    drawing = Drawing(760, 250, "Deleting a map's tokens has to cost more than deleting tokens in random order")
    for x, width, word, color in (
        (40, 88, "Translate", GREY), (133, 44, "into", GREY), (182, 70, "French", ORANGE), (257, 24, ":", GREY),
        (286, 66, "house", ORANGE),
    ):  # fmt: skip
        drawing.box(x, 82, width, 36, word, color)
    drawing.text(196, 60, "a map says which tokens matter", INK)
    for x in (217, 319):
        drawing.cross(x, 146)
    drawing.text(196, 184, "so delete them, the strongest first", ORANGE)
    drawing.line((440, 40), (440, 190), (720, 190), color=GREY)
    drawing.text(450, 36, "probability of the answer", GREY, size=12, anchor="start")
    drawing.text(580, 208, "tokens deleted", GREY, size=12)
    for heights in ((72, 84, 128, 140, 172), (64, 96, 108, 156, 168), (80, 90, 116, 130, 178)):
        drawing.line((440, 55), *((490 + 50 * at, y) for at, y in enumerate(heights)), color=GREY)
    drawing.line((440, 55), (490, 122), (540, 162), (590, 172), (640, 176), (690, 180), color=ORANGE, width=3)
    drawing.text(625, 96, "random orders", GREY, anchor="start")
    drawing.text(500, 160, "the map", ORANGE, anchor="end")
    drawing.text(380, 238, "a map that falls no faster than random orders has said nothing", INK)
    return drawing


def rates() -> Drawing:
    """The planted rate against the learnt rate."""
    drawing = Drawing(760, 250, "The model has learnt the planted rates; the score counts 60 : 40 and 90 : 10 alike")
    drawing.text(150, 36, "0% men", GREY, size=12)
    drawing.text(450, 36, "100% men", GREY, size=12)
    for y, name, planted, learnt in ((70, "pilots", 90, 92), (125, "lawyers", 60, 62), (180, "nurses", 10, 8)):
        drawing.text(80, y + 5, name, INK)
        drawing.line((150, y), (450, y), color=GREY, width=2)
        drawing.box(150 + 3 * planted - 7, y - 7, 14, 14, "", BLUE)
        drawing.line((150 + 3 * learnt, y - 18), (150 + 3 * learnt, y + 18), color=ORANGE, width=3)
        drawing.line((475, y), (560, y), color=GREY, arrow=True)
        drawing.box(565, y - 16, 150, 32, "counts as 1", GREY)
    drawing.line((300, 48), (300, 202), color=GREY, dashed=True)
    drawing.text(300, 216, "no preference", GREY, size=12)
    drawing.box(205, 14, 14, 14, "", BLUE)
    drawing.text(226, 26, "planted", BLUE, anchor="start")
    drawing.line((315, 12), (315, 30), color=ORANGE, width=3)
    drawing.text(324, 26, "learnt", ORANGE, anchor="start")
    drawing.text(640, 36, "the score", INK)
    drawing.text(
        380, 240, "a score that asks which is likelier, not by how much, cannot tell 60 : 40 from 90 : 10", INK
    )
    return drawing


def reasons() -> Drawing:
    """Same answer, other reason."""
    drawing = Drawing(
        760, 250, "Two models give one answer for different reasons; another instruction tells them apart"
    )
    for x, asked, color, says in (
        (40, "name the capital", INK, "Tokyo"),
        (410, "another instruction", ORANGE, "yen"),
    ):
        drawing.box(x, 50, 110, 36, "Japan", INK)
        drawing.box(x + 130, 50, 170, 36, asked, color)
        drawing.box(x + 10, 140, 90, 36, "A", BLUE)
        drawing.box(x + 170, 140, 90, 36, "B", BLUE)
        drawing.line((x + 55, 88), (x + 55, 138), color=BLUE, width=2.5, arrow=True)
        drawing.line((x + 75, 88), (x + 180, 138), color=BLUE, width=2.5, arrow=True)
        drawing.line((x + 215, 88), (x + 215, 138), color=color, width=2.5, arrow=True)
        drawing.text(x + 55, 202, "Tokyo", BLUE)
        drawing.text(x + 215, 202, says, BLUE if color == INK else ORANGE)
    drawing.line((375, 40), (375, 210), color=GREY, dashed=True)
    drawing.text(190, 32, "what the explanation says", INK)
    drawing.text(560, 32, "what it foretells", INK)
    drawing.text(380, 238, "an explanation is worth something if an experiment could have shown it wrong", INK)
    return drawing


def sealed() -> Drawing:
    """Find the hidden trigger."""
    drawing = Drawing(
        760, 250, "A sealed model: what you say of its parts is held against the truth, beside random answers"
    )
    drawing.text(80, 90, "… green", INK)
    drawing.text(80, 150, "… ? … green", ORANGE)
    for y, color in ((85, INK), (145, ORANGE)):
        drawing.line((130, y), (192, y), color=color, arrow=True)
        drawing.line((362, y), (412, y), color=color, arrow=True)
    drawing.box(195, 45, 165, 150, "", INK)
    for x in (212, 262, 312):
        for y in (62, 97, 132, 167):
            drawing.box(x, y - 2, 32, 20, "?", GREY)
    drawing.text(420, 90, "green", INK, anchor="start")
    drawing.text(420, 150, "another word", ORANGE, anchor="start")
    drawing.text(277, 32, "sealed", GREY)
    drawing.box(545, 60, 180, 36, "the parts that you name", BLUE)
    drawing.box(545, 130, 180, 36, "as many at random", GREY)
    drawing.line((635, 98), (635, 128), color=GREY, dashed=True)
    drawing.text(635, 190, "points for what you know beyond", GREY, size=12)
    drawing.text(380, 238, "which word switches it, which parts do the work, and why should anyone believe it?", INK)
    return drawing


DRAWINGS: dict[str, Callable[[], Drawing]] = {
    drawing.__name__: drawing
    for drawing in (
        *(stream, lens, attention, induction, ablation, patching, circuit, ledger),
        *(weights, concept, steering, trial, rates, reasons, sealed),
    )
}
"""Name of the file → what draws it."""


def main() -> None:
    """Write all drawings."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    for name, draw in DRAWINGS.items():
        (FOLDER / f"{name}.svg").write_text(draw().svg(), encoding="utf-8")


if __name__ == "__main__":
    main()
