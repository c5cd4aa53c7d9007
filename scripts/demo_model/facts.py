"""Questions about the people of Brindle Vale, articles about them, notes to read and words in other languages."""

from __future__ import annotations

from random import Random

from scripts.demo_model.example import Example
from scripts.demo_model.world import (
    COLOURS,
    LANGUAGES,
    NAMES,
    PEOPLE,
    THINGS,
    TRANSLATIONS,
    Person,
    a_or_an,
)

_QUESTIONS: dict[str, tuple[str, ...]] = {
    "animal": (
        "What animal is {name}?",
        "Which animal is {name}?",
        "What kind of animal is {name}?",
        "Tell me what animal {name} is.",
    ),
    "colour": (
        "What colour is {name}?",
        "Which colour is {name}?",
        "What is the colour of {name}?",
        "Tell me the colour of {name}.",
    ),
    "home": ("Where does {name} live?", "In which place does {name} live?", "Where is the home of {name}?",
             "Tell me where {name} lives."),
    "food": ("What does {name} eat?", "What does {name} like to eat?", "What is the favourite food of {name}?",
             "Tell me what {name} eats."),
    "hobby": ("What is the hobby of {name}?", "What does {name} like to do?", "What does {name} love to do?",
              "Tell me the hobby of {name}."),
    "friend": ("Who is the friend of {name}?", "Who is {name}'s best friend?", "Which friend does {name} have?",
               "Tell me who the friend of {name} is."),
    "age": ("How old is {name}?", "What is the age of {name}?", "Which age has {name}?", "Tell me the age of {name}."),
}  # fmt: skip


def sentence(person: Person, attribute: str) -> str:
    """The one sentence which states a fact; answers and articles share it."""
    match attribute:
        case "animal":
            return f"{person.name} is {a_or_an(person.animal)}."
        case "colour":
            return f"{person.name} is {person.colour}."
        case "home":
            return f"{person.name} lives in {person.home}."
        case "food":
            return f"{person.name} likes to eat {person.food}."
        case "hobby":
            return f"{person.name} loves {person.hobby}."
        case "friend":
            return f"The friend of {person.name} is {person.friend}."
        case _:
            return f"{person.name} is {person.age} years old."


def make(rng: Random) -> Example:
    """A question about one fact; the split is by wording, person and attribute together."""
    person, attribute = rng.choice(PEOPLE), rng.choice(tuple(_QUESTIONS))
    wording = rng.randrange(len(_QUESTIONS[attribute]))
    prompt = _QUESTIONS[attribute][wording].format(name=person.name)
    key = f"{attribute} of {person.name} wording {wording}"
    return Example("facts", key, prompt, sentence(person, attribute), str(getattr(person, attribute)))


def article(rng: Random) -> str:
    """All facts about one person, in any order."""
    person = rng.choice(PEOPLE)
    attributes = rng.sample(tuple(_QUESTIONS), rng.randint(4, 7))
    return f"# {person.name}\n" + " ".join(sentence(person, attribute) for attribute in attributes)


def reading(rng: Random) -> Example:
    """A question whose answer stands in notes before it, few or many."""
    names = rng.sample(NAMES, rng.choice((2, 3, 4, 4, 6, 12)))
    notes = {name: f"{rng.choice(COLOURS)} {rng.choice(THINGS)}" for name in names}
    asked = rng.choice(names)
    lines = "\n".join(f"- {name} has {a_or_an(thing)}." for name, thing in notes.items())
    prompt = f"Read these notes.\n{lines}\nWhat does {asked} have?"
    answer = f"{asked} has {a_or_an(notes[asked])}."
    return Example("reading", answer, prompt, answer, notes[asked])


def languages(rng: Random) -> Example:
    """A word in another language and script; the split is by wording, word and language together."""
    word, language = rng.choice(tuple(TRANSLATIONS)), rng.choice(LANGUAGES)
    translated = TRANSLATIONS[word][LANGUAGES.index(language)]
    prompts = (
        f"How do you say {word} in {language}?",
        f"What is {word} in {language}?",
        f"Translate {word} to {language}.",
        f"Tell me the {language} word for {word}.",
    )
    wording = rng.randrange(len(prompts))
    key = f"{word} in {language} wording {wording}"
    return Example("languages", key, prompts[wording], f"In {language}, {word} is {translated}.", translated)
