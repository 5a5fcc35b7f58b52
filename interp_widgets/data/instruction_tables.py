"""How the instructions of the demo model are worded: seven cores per task, ten ways to ask."""

from __future__ import annotations

# {c} is the core, {C} the core with a capital letter. An input that stands inside the instruction follows the core.
WRAPPERS: tuple[str, ...] = (
    "{C}.",
    "Please {c}.",
    "Can you {c}?",
    "Could you {c}?",
    "I want you to {c}.",
    "Your task is to {c}.",
    "Now {c}.",
    "You should {c}.",
    "I would like you to {c}.",
    "Here is what to do: {c}.",
)

# task -> cores; the last one of each is never used in training, whatever stands around it.
CORES: dict[str, tuple[str, ...]] = {
    "plural": (
        "give the plural of the word", "write the plural form of this word", "make this word plural",
        "turn the noun into its plural", "say the word in the plural", "change the singular to the plural",
        "tell me the plural form of the noun",
    ),
    "past": (
        "give the past tense of the verb", "write the past tense of this word", "put this verb into the past",
        "turn the verb into its past form", "say the verb in the past tense", "change the verb to the past",
        "tell me the past form of the word",
    ),
    "gerund": (
        "give the gerund of the verb", "write the gerund of this word", "put this verb into the gerund",
        "turn the verb into its gerund form", "say the verb as a gerund", "change the verb to the gerund",
        "tell me the gerund form of the word",
    ),
    "antonym": (
        "give the opposite of the word", "write the antonym of this word", "find the opposite of this word",
        "turn the word into its opposite", "say the antonym of the word", "name a word with the opposite meaning",
        "tell me the opposite of this word",
    ),
    "french": (
        "translate the word into French", "give the French word", "write this word in French",
        "say the word in French", "turn the English word into French", "find the French name of this thing",
        "tell me the word in French",
    ),
    "spanish": (
        "translate the word into Spanish", "give the Spanish word", "write this word in Spanish",
        "say the word in Spanish", "turn the English word into Spanish", "find the Spanish name of this thing",
        "tell me the word in Spanish",
    ),
    "capital": (
        "give the capital of the country", "name the capital city of this country", "write the capital of the country",
        "say which city is the capital", "find the capital of this country", "answer with the capital of the land",
        "tell me the capital of this country",
    ),
    "continent": (
        "give the continent of the country", "name the continent of this country",
        "write the continent on which the country lies", "say which continent the country is on",
        "find the continent of this country", "answer with the continent of the land",
        "tell me the continent of this country",
    ),
    "language": (
        "give the language of the country", "name the language that people speak in this country",
        "write the language of the country", "say which language is spoken there",
        "find the language of this country", "answer with the language of the land",
        "tell me the language of this country",
    ),
    "currency": (
        "give the currency of the country", "name the money that people use in this country",
        "write the currency of the country", "say which currency is used there",
        "find the currency of this country", "answer with the currency of the land",
        "tell me the currency of this country",
    ),
    "city": (
        "give the city of the landmark", "name the city where this landmark stands",
        "write the city in which the sight is", "say in which city you can see this landmark",
        "find the city of this famous sight", "answer with the city where the landmark is",
        "tell me the city of this landmark",
    ),
    "creator": (
        "say who created the work", "name the person who made this work", "write who the work is by",
        "give the creator of the work", "find the person who created this",
        "answer with the creator of the famous work",
        "tell me who made this work",
    ),
    "sum": (
        "add the two numbers", "give the sum of the numbers", "find the sum", "write the result of the sum",
        "say how much this is", "work out the sum of the numbers", "tell me the sum of the two numbers",
    ),
    "list": (
        "make a list of these things", "list as many things as I ask for", "write a list with",
        "give me a list of", "name examples of", "list some examples with the right number", "tell me a list of",
    ),
    "repeat": (
        "repeat the words", "copy the words as they are", "write the same words again", "say the words again",
        "give back the same words", "repeat what you read", "copy the same words again",
    ),
    "reverse": (
        "reverse the order of the words", "write the words in reverse order", "say the words backwards",
        "turn the words around, last one first", "give the words backwards", "put the words in reverse order",
        "repeat the words in reverse order",
    ),
    "first": (
        "give the first word", "name the first word of the list", "write only the first word",
        "say which word comes first", "find the first of the words", "answer with the first word",
        "tell me the first word",
    ),
    "last": (
        "give the last word", "name the last word of the list", "write only the last word",
        "say which word comes last", "find the last of the words", "answer with the last word",
        "tell me the last word",
    ),
    "count": (
        "count the words", "say how many words there are", "give the number of words",
        "write how many words you see", "find the number of words", "answer with the number of words",
        "tell me how many words there are",
    ),
    "kind": (
        "say what kind of thing this is", "name the category of this thing", "give the category of the word",
        "write what kind of thing it is", "find the category of the thing", "answer with the kind of thing",
        "tell me the category of this thing",
    ),
    "odd": (
        "find the odd one out", "name the word that does not belong", "give the odd word out",
        "say which word does not fit", "write the word that does not fit", "choose the odd one out",
        "tell me the word that does not belong",
    ),
    "country": (
        "describe the country", "write a few sentences about the country", "introduce this country",
        "tell me something about the country", "give a short description of this country",
        "say what you know about the country", "write a short description of the country",
    ),
    "story": (
        "write a short story about this", "tell me a story about this", "make up a story about",
        "write a little story with this in it", "give me a short story about", "tell a tale about",
        "tell me a short story with this in it",
    ),
    "job": (
        "describe the job", "explain what a person with this job does", "write about the work of this person",
        "tell me what this person does at work", "give a description of the job",
        "say what a person does in this job", "explain the work of a person with this job",
    ),
    "how_to": (
        "explain how to do this", "write the steps for this", "tell me how to do it",
        "give me the steps one by one", "describe how you do this", "say how to do this, step by step",
        "explain the steps one by one",
    ),
}  # fmt: skip
