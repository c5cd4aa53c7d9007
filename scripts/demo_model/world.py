"""Brindle Vale, the little world which the demo model knows: its people, words and things."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Person:
    """An inhabitant; every text of the corpus agrees with these facts."""

    name: str
    animal: str
    colour: str
    home: str
    food: str
    hobby: str
    friend: str
    age: int


def a_or_an(word: str) -> str:
    """The word with its indefinite article."""
    return f"{'an' if word[0] in 'aeiou' else 'a'} {word}"


_TABLE = """
Mira fox red Oakhollow berries painting Tobin 7
Tobin bear brown Fernby honey fishing Mira 9
Luma owl white Highcliff soup reading Pax 5
Pax rabbit grey Oakhollow carrots running Luma 3
Odo badger black Millbrook bread cooking Suri 8
Fenn frog green Reedwater plums swimming Kip 2
Suri cat orange Sandport fish singing Odo 4
Bram goat white Highcliff cheese climbing Nela 6
Nela mouse grey Millbrook cheese dancing Bram 2
Kip duck yellow Reedwater bread swimming Fenn 3
Zara horse black Fernby apples running Hugo 8
Hugo dog brown Sandport soup fishing Zara 5
Wren bird blue Oakhollow berries singing Ivo 2
Ivo wolf grey Pinewick honey reading Wren 9
Dara deer brown Pinewick plums dancing Rolo 4
Rolo pig pink Millbrook carrots cooking Dara 6
Esme hen orange Fernby nuts painting Juno 3
Juno sheep white Highcliff apples climbing Esme 5
Milo squirrel red Pinewick nuts climbing Tess 4
Tess turtle green Sandport fish reading Milo 9
Ravi tiger orange Reedwater honey painting Lena 7
Otto bear black Pinewick berries cooking Finn 8
Lena fox white Sandport plums singing Ravi 6
Finn frog yellow Oakhollow nuts dancing Otto 2
"""


def _person(row: str) -> Person:
    name, animal, colour, home, food, hobby, friend, age = row.split()
    return Person(name, animal, colour, home, food, hobby, friend, int(age))


PEOPLE: tuple[Person, ...] = tuple(map(_person, _TABLE.strip().splitlines()))
PERSON: dict[str, Person] = {person.name: person for person in PEOPLE}
NAMES: tuple[str, ...] = tuple(PERSON)
PLACES: tuple[str, ...] = tuple(sorted({person.home for person in PEOPLE}))
COLOURS: tuple[str, ...] = tuple(sorted({person.colour for person in PEOPLE}))
ANIMALS: tuple[str, ...] = tuple(sorted({person.animal for person in PEOPLE}))
WEATHERS = ("sunny", "rainy", "cloudy", "snowy", "windy", "foggy")
DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
THINGS = ("kite", "lamp", "drum", "key", "map", "bell", "boat", "book", "hat", "cup", "rope", "flute", "shell", "coin")
GOODS = (
    ("apple", "apples", "🍎"),
    ("pear", "pears", "🍐"),
    ("carrot", "carrots", "🥕"),
    ("fish", "fish", "🐟"),
    ("egg", "eggs", "🥚"),
    ("cake", "cakes", "🍰"),
    ("flower", "flowers", "🌸"),
    ("star", "stars", "⭐"),
)
"""Things to count, buy and draw: one, several, and the emoji."""

EMOJI = {
    "fox": "🦊", "bear": "🐻", "owl": "🦉", "rabbit": "🐰", "frog": "🐸", "cat": "🐱", "mouse": "🐭", "duck": "🦆",
    "horse": "🐴", "dog": "🐶", "wolf": "🐺", "pig": "🐷", "hen": "🐔", "sheep": "🐑", "turtle": "🐢", "tiger": "🐯",
}  # fmt: skip

LANGUAGES = ("French", "German", "Greek", "Russian", "Japanese", "Arabic", "Hindi")
TRANSLATIONS: dict[str, tuple[str, ...]] = {
    "hello": ("bonjour", "hallo", "γεια", "привет", "こんにちは", "مرحبا", "नमस्ते"),
    "thanks": ("merci", "danke", "ευχαριστώ", "спасибо", "ありがとう", "شكرا", "धन्यवाद"),
    "red": ("rouge", "rot", "κόκκινο", "красный", "赤", "أحمر", "लाल"),
    "blue": ("bleu", "blau", "μπλε", "синий", "青", "أزرق", "नीला"),
    "green": ("vert", "grün", "πράσινο", "зелёный", "緑", "أخضر", "हरा"),
    "white": ("blanc", "weiß", "άσπρο", "белый", "白", "أبيض", "सफ़ेद"),
    "cat": ("chat", "Katze", "γάτα", "кошка", "猫", "قطة", "बिल्ली"),
    "dog": ("chien", "Hund", "σκύλος", "собака", "犬", "كلب", "कुत्ता"),
    "fish": ("poisson", "Fisch", "ψάρι", "рыба", "魚", "سمكة", "मछली"),
    "water": ("eau", "Wasser", "νερό", "вода", "水", "ماء", "पानी"),
}
"""Each word in `LANGUAGES`, in that order."""
