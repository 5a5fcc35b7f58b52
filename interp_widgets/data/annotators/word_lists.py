"""The word lists that the rule-based annotator knows: topics, grammar, parts of speech, affixes. All in lower case."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass

from interp_widgets.data import world_tables as t


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


SUFFIXES = _words(
    "s ed er en ly al ic or ing est ful ous ive ity ism ist ize ise ish ian ese ion able ible less ness ment tion sion "
    "ance ence ship hood ology ward wise"
)
PREFIXES = _words(
    "un re in im de co ex dis non sub pre mis over post anti auto semi fore under inter trans super micro multi photo "
    "tele hyper bio geo"
)
CLASS_SUFFIXES: dict[str, tuple[str, ...]] = {
    "nouns": _words("tion sion ness ment ity ance ence ship hood ism ology"),
    "adjectives": _words("able ible ful less ous ive ical ish"),
    "adverbs": ("ly",),
    "verbs": _words("ize ise ify ing ed"),
}
"""Endings that make a word of several syllables a certain part of speech."""


@dataclass(frozen=True)
class WordList:
    """Words of one kind, their name, and the tasks that need them."""

    name: str
    words: frozenset[str]
    scenarios: tuple[str, ...] = ()


_CODE = """
api array arrays async await backend binary bool boolean bug byte cache callback char class cli client clone cmd code
compile compiler config const constructor cpu css cuda data database debug def deprecated docker dom elif enum env error
exception exec float frontend func function functions git github gpu gui hash header html http https identifier import
instance int integer interface iterator java javascript json kernel keyword lambda lib library linux list localhost
login loop malloc matlab method mysql namespace node npm null object objects parameter param parse parser password php
pip plugin pointer python query ram regex return repo runtime script server shell software sql src stack static str
string struct syntax terminal thread tuple typescript ubuntu undefined url username utf variable variables vector void
whitespace widget windows xml yaml
"""
_MATH = """
addition algebra algorithm angle arithmetic average axis calculate calculus circle coefficient cosine cube decimal
denominator derivative diagonal diameter divide divided division equal equals equation exponent factor factorial formula
fraction geometry graph hypotenuse inequality infinity integral logarithm mathematics matrix maximum mean median minimum
minus multiplication multiply numerator percent percentage perimeter plus polynomial power prime probability product
proof quadratic quotient radius ratio remainder root sine square subtract subtraction sum tangent theorem times triangle
variance volume
"""
_WRITING = """
author biography chapter character dialogue diary draft editor email essay fable fairy fiction genre headline journal
letter literature lyrics metaphor myth narrative narrator newspaper novel paragraph plot poem poems poet poetry prose
publisher quote rhyme script sentence song sonnet stanza story storyteller stories summary tale tales title verse writer
writers
"""
_FEELINGS = """
afraid angry anxious ashamed bored brave calm cheerful confused curious delighted depressed disappointed excited
frightened glad grateful guilty happy hopeful hurt jealous joyful lonely love nervous proud sad scared shocked shy
surprised tired upset worried
"""
_NUMBERS = """
zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen eighteen
nineteen twenty thirty forty fifty sixty seventy eighty ninety hundred thousand million billion dozen first second third
fourth fifth sixth seventh eighth ninth tenth half quarter
"""
_MONTHS = "january february march april may june july august september october november december"
_DAYS = "monday tuesday wednesday thursday friday saturday sunday"
_BODY = """
arm arms back blood body bone brain chest chin ear ears elbow eye eyes face finger fingers foot feet hair hand hands
head heart knee leg legs lip lips lung mouth muscle neck nose shoulder skin stomach throat thumb toe tongue tooth teeth
"""
_FAMILY = """
aunt baby brother child children cousin dad daughter family father grandfather grandmother husband mother mum mom nephew
niece parent parents sister son twin uncle wife
"""
_NATURE = """
beach cloud coast desert earth field flower forest garden grass hill ice island lake leaf moon mountain ocean rain river
rock sand sea sky snow star stone storm sun tree valley volcano water wave wind
"""
_MEDICAL = """
allergy antibiotic artery asthma cancer clinic diabetes diagnosis disease doctor dose drug fever hospital infection
insulin medicine nurse patient pharmacy pill surgeon surgery symptom therapy tumor vaccine virus
"""
_FRENCH = """
le la les un une des du au aux et ou mais donc car je tu il elle nous vous ils elles est sont avec pour dans sur sous
pas plus très bien jour nuit maison homme femme enfant monde pays ville rue mer bonjour merci oui non aussi être avoir
faire
"""
_SPANISH = """
el la los las un una unos unas y o pero porque yo tú él ella nosotros ellos es son con para por en sobre muy bien día
noche casa hombre mujer niño mundo país ciudad calle mar hola gracias sí no también ser estar tener hacer
"""
_GERMAN = """
der die das ein eine einen und oder aber ich du er sie wir ihr ist sind mit für auf unter nicht sehr gut tag nacht haus
mann frau kind welt land stadt strasse straße meer danke ja nein auch sein haben werden
"""
_SHARED = frozenset("un a no non plus son sur car est bien pour pays mar die war am land kind tag gut son es sin con")
"""Spellings that are English words, or words of several of these languages' lists."""

_GRAMMAR = {
    "pronouns": """i me my mine myself you your yours yourself he him his himself she her hers herself it its itself we
        us our ours ourselves they them their theirs themselves who whom whose someone anyone everyone nobody something
        anything everything nothing""",
    "prepositions": """about above across after against along among around as at before behind below beneath beside
        between beyond by despite during for from in inside into near of off on onto out outside over past since
        through throughout till to toward towards under until up upon with within without""",
    "conjunctions and question words": """and but or nor so yet because although though while whereas unless if whether
        when whenever where wherever why how that than what which""",
    "determiners": """a an the this that these those some any each every either neither no all both few many much
        several other another such""",
    "auxiliary verbs": """am is are was were be been being have has had having do does did doing will would shall should
        can could may might must ought""",
}
_VERBS = """
accept achieve add agree allow appear apply argue arrive ask assess avoid become begin believe belong bring build buy
carry choose clarify collect compare complain compose consider continue convince create decide define deliver deny
depend describe destroy develop disagree discover discuss divide eat edit enjoy ensure establish evaluate examine exist
expect explain explore extract fall feel find forget forgive generate get give go grow happen hear hide hold identify
imagine improve include increase inform introduce invite involve join keep kill know laugh learn leave lend let listen
live lose maintain make manage meet obtain occur offer organize participate perform prefer prepare prevent produce
promote protect prove provide pull realize receive recognize reduce refer refuse reject rely remain remember remove
repair replace represent require rescue reveal rewrite say see seem sell send serve share sing sit solve speak spend
stand stay suggest summarize suppose survive teach tell think throw translate try understand wait want wash win wish
write
"""
_NOT_VERBS = """
saw drink ride walk talk play work cook dance jump laugh visit wash smile clean close open left felt fly wait study cut
run help grown building meeting feeling painting
"""
_ADJECTIVES = """
able angry bad beautiful best better big black blue brave bright broken busy careful cheap clean clear clever cold
common cool dangerous dark dead deep different difficult dirty dry dull early easy empty expensive famous fast fat final
fine first flat foreign free fresh full funny general gentle good great green grey happy hard healthy heavy high hot
huge hungry important kind large last late lazy long loud low lucky main modern narrow new nice old open poor possible
pretty proud public quick quiet rare ready real red rich right rough round sad safe serious sharp short sick simple slow
small smart smooth soft sour special strange strong sweet tall thick thin tiny tired true ugly weak wet white whole wide
wild wise wrong young
"""


_NOT_ADJECTIVES = "up down day night love hate friend enemy question answer inside outside before after"


def _set(text: str) -> frozenset[str]:
    return frozenset(text.split())


def _lower(words: Mapping[str, object] | list[str]) -> frozenset[str]:
    return frozenset(word.lower() for word in words if word and " " not in word)


@functools.cache
def topics() -> tuple[WordList, ...]:
    """Lists of words that share a topic, the narrower before the wider."""
    countries = t.COUNTRIES
    columns = [[row[i] for row in countries] for i in range(5)]
    cities = [*columns[1], *t.LANDMARKS_BY_CITY]
    return (
        WordList("months and days of the week", _set(_MONTHS) | _set(_DAYS)),
        WordList("number words", _set(_NUMBERS), ("math",)),
        WordList("mathematical terms", _set(_MATH), ("math",)),
        WordList("programming terms", _set(_CODE), ("coding",)),
        WordList("French words", (_set(_FRENCH) | _lower(list(t.FRENCH.values()))) - _SHARED - {"table", "train"},
                 ("translation",)),
        WordList("Spanish words", (_set(_SPANISH) | _lower(list(t.SPANISH.values()))) - _SHARED - {"mesa", "sombrero"},
                 ("translation",)),
        WordList("German words", _set(_GERMAN) - _SHARED, ("translation",)),
        WordList("French and Spanish words",
                 (_lower(list(t.FRENCH.values())) | _lower(list(t.SPANISH.values()))) - _SHARED - {"table", "train"},
                 ("translation",)),
        WordList("languages and peoples", _lower(columns[2]), ("translation",)),
        WordList("countries", _lower(columns[0])),
        WordList("currencies", _lower(columns[4])),
        WordList("cities", _lower(cities)),
        WordList("first names", _lower([*t.WOMEN, *t.MEN])),
        WordList("words about texts and stories", _set(_WRITING), ("writing",)),
        WordList("feelings", _set(_FEELINGS), ("writing",)),
        WordList("medical terms", _set(_MEDICAL)),
        WordList("parts of the body", _set(_BODY)),
        WordList("family members", _set(_FAMILY)),
        *(WordList(name, _plurals(words)) for name, words in t.CATEGORIES.items() if name != "jobs"),
        WordList("jobs", _plurals((*t.CATEGORIES["jobs"], *t.JOBS))),
        WordList("places in a town", _plurals(t.IOI_PLACES)),
        WordList("nature", _set(_NATURE)),
    )  # fmt: skip


def _plurals(words: tuple[str, ...]) -> frozenset[str]:
    return frozenset(words) | {t.PLURALS.get(word, word + "s") for word in words}


@functools.cache
def grammar() -> tuple[WordList, ...]:
    """The closed classes of function words, and all of them together."""
    each = [WordList(name, _set(text)) for name, text in _GRAMMAR.items()]
    return (*each, WordList("function words", frozenset[str]().union(*(kind.words for kind in each))))


@functools.cache
def parts_of_speech() -> dict[str, frozenset[str]]:
    """Words that are mostly one part of speech; words that are often two of them are left out."""
    forms = {form for verb, (past, gerund) in t.VERBS.items() for form in (verb, past, gerund)}
    verbs = (_set(_VERBS) | forms) - _set(_NOT_VERBS)
    return {"verbs": verbs, "adjectives": (_set(_ADJECTIVES) | frozenset(t.ANTONYMS)) - verbs - _set(_NOT_ADJECTIVES)}
