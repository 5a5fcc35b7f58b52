"""The word tables of the demo world: nouns, verbs, opposites, translations, categories, jobs and how-to steps."""

from __future__ import annotations


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


def _rows(text: str) -> list[tuple[str, ...]]:
    """Rows between bars, words between spaces."""
    return [_words(row) for row in text.split("|")]


_NOUNS = (
    "cat dog horse cow bird sheep rabbit lion tiger bear duck pig apple pear banana orange lemon cherry peach grape "
    "house tree book table chair door window street river mountain flower garden school king queen boy girl hand "
    "night day star boat car train bus lamp cup plate spoon knife box bag shoe shirt hat coat ring key letter bridge "
    "church city story baby lady party family mouse foot tooth child man woman leaf wolf fox brush dish watch"
)
_IRREGULAR_PLURALS = {
    "sheep": "sheep", "mouse": "mice", "foot": "feet", "tooth": "teeth", "child": "children", "man": "men",
    "woman": "women", "leaf": "leaves", "wolf": "wolves", "knife": "knives", "cherry": "cherries", "peach": "peaches",
    "city": "cities", "story": "stories", "baby": "babies", "lady": "ladies", "party": "parties",
    "family": "families", "bus": "buses", "box": "boxes", "fox": "foxes", "church": "churches", "brush": "brushes",
    "dish": "dishes", "watch": "watches",
}  # fmt: skip

PLURALS: dict[str, str] = {noun: _IRREGULAR_PLURALS.get(noun, noun + "s") for noun in _NOUNS.split()}

# verb -> past, gerund
_VERB_FORMS = (
    "go went going|see saw seeing|eat ate eating|run ran running|write wrote writing|sing sang singing|"
    "swim swam swimming|drink drank drinking|give gave giving|take took taking|make made making|"
    "come came coming|find found finding|sit sat sitting|stand stood standing|sleep slept sleeping|"
    "speak spoke speaking|buy bought buying|bring brought bringing|think thought thinking|"
    "teach taught teaching|catch caught catching|drive drove driving|ride rode riding|fly flew flying|"
    "grow grew growing|know knew knowing|throw threw throwing|break broke breaking|choose chose choosing|"
    "win won winning|lose lost losing|keep kept keeping|leave left leaving|feel felt feeling|"
    "meet met meeting|build built building|send sent sending|hear heard hearing|tell told telling|"
    "walk walked walking|talk talked talking|play played playing|work worked working|cook cooked cooking|"
    "dance danced dancing|jump jumped jumping|laugh laughed laughing|paint painted painting|"
    "clean cleaned cleaning|help helped helping|open opened opening|close closed closing|"
    "visit visited visiting|wash washed washing|wait waited waiting|learn learned learning|"
    "carry carried carrying|study studied studying|smile smiled smiling"
)
VERBS: dict[str, tuple[str, str]] = {verb: (past, gerund) for verb, past, gerund in _rows(_VERB_FORMS)}

_OPPOSITES = (
    "hot cold|big small|tall short|happy sad|fast slow|old young|rich poor|light dark|hard soft|wet dry|clean dirty|"
    "early late|full empty|good bad|high low|strong weak|loud quiet|open closed|near far|up down|left right|"
    "black white|day night|love hate|thick thin|wide narrow|deep shallow|brave timid|lazy busy|sweet sour|"
    "true false|cheap expensive|safe dangerous|smooth rough|first last|always never|before after|inside outside|"
    "friend enemy|question answer"
)
ANTONYMS: dict[str, str] = {
    **{row[0]: row[1] for row in _rows(_OPPOSITES)},
    **{row[1]: row[0] for row in _rows(_OPPOSITES)},
}

# English -> French, Spanish
_TRANSLATIONS = (
    "cat chat gato|dog chien perro|house maison casa|tree arbre árbol|book livre libro|water eau agua|bread pain pan|"
    "milk lait leche|sun soleil sol|moon lune luna|star étoile estrella|fish poisson pez|bird oiseau pájaro|"
    "horse cheval caballo|cow vache vaca|apple pomme manzana|table table mesa|chair chaise silla|door porte puerta|"
    "window fenêtre ventana|city ville ciudad|street rue calle|sea mer mar|flower fleur flor|garden jardin jardín|"
    "school école escuela|friend ami amigo|king roi rey|queen reine reina|boy garçon niño|girl fille niña|"
    "man homme hombre|woman femme mujer|hand main mano|head tête cabeza|heart coeur corazón|eye oeil ojo|"
    "night nuit noche|day jour día|red rouge rojo|blue bleu azul|green vert verde|white blanc blanco|"
    "black noir negro|one un uno|two deux dos|three trois tres|four quatre cuatro|five cinq cinco|fire feu fuego|"
    "time temps tiempo|life vie vida|cheese fromage queso|egg oeuf huevo|meat viande carne|salt sel sal|"
    "snow neige nieve|rain pluie lluvia|wind vent viento|bridge pont puente|river rivière río|key clé llave|"
    "letter lettre carta|boat bateau barco|train train tren|shoe chaussure zapato|hat chapeau sombrero|"
    "brother frère hermano|sister soeur hermana|mother mère madre|father père padre"
)
FRENCH: dict[str, str] = {}
SPANISH: dict[str, str] = {}
for _english, _french, _spanish in _rows(_TRANSLATIONS):
    FRENCH[_english] = _french
    SPANISH[_english] = _spanish

CATEGORIES: dict[str, tuple[str, ...]] = {
    "animals": _words("cat dog horse cow bird sheep rabbit lion tiger bear duck pig"),
    "fruits": _words("apple pear banana orange lemon cherry peach grape plum melon"),
    "colours": _words("red blue green white black yellow brown purple pink grey"),
    "tools": _words("hammer saw drill shovel axe rope ladder brush wrench pliers"),
    "instruments": _words("piano violin guitar drum flute trumpet harp cello organ horn"),
    "clothes": _words("shirt hat coat shoe dress skirt scarf glove sock jacket"),
    "foods": _words("bread cheese soup rice egg meat cake salad pasta butter"),
    "vehicles": _words("car train bus boat ship plane truck bicycle tram taxi"),
    "rooms": _words("kitchen bedroom bathroom hall attic cellar office pantry lounge study"),
    "jobs": _words("baker doctor farmer pilot teacher singer judge nurse tailor cook"),
}
CATEGORY_OF: dict[str, str] = {
    "animals": "animal", "fruits": "fruit", "colours": "colour", "tools": "tool", "instruments": "instrument",
    "clothes": "garment", "foods": "food", "vehicles": "vehicle", "rooms": "room", "jobs": "job",
}  # fmt: skip

# job -> place, what they do every day, tool, who is glad of it
JOBS: dict[str, tuple[str, str, str, str]] = {
    "baker": ("bakery", "makes fresh bread", "oven", "hungry people"),
    "pilot": ("airport", "flies a plane", "map", "travellers"),
    "doctor": ("hospital", "helps the sick", "needle", "patients"),
    "nurse": ("clinic", "looks after the sick", "bandage", "patients"),
    "farmer": ("farm", "grows wheat", "tractor", "the whole village"),
    "teacher": ("school", "explains the lesson", "blackboard", "pupils"),
    "carpenter": ("workshop", "builds tables", "hammer", "families"),
    "tailor": ("shop", "sews clothes", "needle", "customers"),
    "cook": ("kitchen", "prepares warm meals", "knife", "guests"),
    "judge": ("court", "decides who is right", "book", "citizens"),
    "singer": ("theatre", "sings songs", "microphone", "listeners"),
    "librarian": ("library", "sorts the books", "ladder", "readers"),
    "plumber": ("bathroom", "repairs the pipes", "wrench", "families"),
    "miner": ("mine", "digs for coal", "lamp", "the whole town"),
    "driver": ("street", "drives a bus", "mirror", "travellers"),
    "waiter": ("restaurant", "serves the food", "plate", "guests"),
    "artist": ("studio", "paints pictures", "brush", "visitors"),
    "dancer": ("theatre", "dances to music", "mirror", "visitors"),
    "lawyer": ("office", "speaks for people", "book", "citizens"),
    "cleaner": ("hall", "washes the floor", "brush", "visitors"),
    "fisherman": ("harbour", "catches fish", "net", "hungry people"),
    "gardener": ("garden", "waters the flowers", "shovel", "neighbours"),
}

# task -> four steps and the result
HOW_TO: dict[str, tuple[str, str, str, str, str]] = {
    "make tea": ("boil some water", "put the tea in a cup", "pour in the water", "wait five minutes", "a hot drink"),
    "bake a cake": ("mix eggs and flour", "add some sugar", "fill the pan", "bake it in the oven", "a sweet cake"),
    "plant a tree": ("dig a hole", "set the tree in it", "fill in the earth", "water it well", "a young tree"),
    "wash a car": ("fill a bucket", "add some soap", "wash the doors", "dry it with a cloth", "a clean car"),
    "write a letter": ("take some paper", "write the name", "tell your story", "sign at the end", "a good letter"),
    "paint a wall": ("clean the wall", "open the paint", "dip in the brush", "paint it twice", "a bright wall"),
    "cook rice": ("wash the rice", "boil some water", "add a bit of salt", "cook it slowly", "a warm meal"),
    "make soup": ("cut the vegetables", "boil some water", "add a bit of salt", "stir it slowly", "a hot soup"),
    "clean a room": ("open the window", "pick up the toys", "sweep the floor", "wash the table", "a tidy room"),
    "catch a fish": ("take your net", "go to the river", "throw it in the water", "wait quietly", "a fresh fish"),
    "build a fire":
        ("collect dry wood", "put stones around it", "add some paper", "light it with care", "a warm fire"),
    "mail a gift":
        ("find a box", "put the gift in it", "write the address", "bring it to the station", "a happy friend"),
    "feed a dog": ("take a clean plate", "cut some meat", "fill in the water", "call the dog", "a happy dog"),
    "make a salad": ("wash the leaves", "cut the vegetables", "add some oil", "mix it well", "a fresh salad"),
}  # fmt: skip

STORY_ANIMALS: tuple[str, ...] = (*CATEGORIES["animals"], "fox", "wolf", "mouse")
STORY_PLACES: tuple[str, ...] = ("garden", "forest", "farm", "park", "village", "river", "mountain", "beach", "market")
STORY_FEELINGS: tuple[str, ...] = ("hungry", "tired", "sad", "lost", "cold", "afraid", "lonely", "ill")
STORY_GIFTS: tuple[str, ...] = ("bread", "milk", "water", "cheese", "soup", "cake", "meat", "rice")
STORY_FINDS: tuple[str, ...] = ("ring", "key", "letter", "coin", "book", "map", "box", "hat", "lamp", "boat")
NUMBER_WORDS: tuple[str, ...] = (
    "zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten",
)  # fmt: skip

TABLES: dict[str, dict[str, str]] = {
    "plural": PLURALS,
    "past": {verb: past for verb, (past, _) in VERBS.items()},
    "gerund": {verb: gerund for verb, (_, gerund) in VERBS.items()},
    "antonym": ANTONYMS,
    "French": FRENCH,
    "Spanish": SPANISH,
}
"""Word task -> its table of words and answers."""
