"""Sentences from templates of our own: what a voice agent says, with numbers, times, dates, money and names written as digits and signs.

The server does not change a text unless asked, so the language model has to learn "7:30" from these characters.
"""

from __future__ import annotations

import random
from collections.abc import Callable

_NAMES = """Anna Peter Maria David Laura James Emma Daniel Sarah Michael Julia Thomas Helen Robert Nina Martin Alice George Clara Simon
Oliver Sophie Victor Diana Henry Rosa Walter Irene Frank Teresa""".split()
_PLACES = """London Paris Berlin Boston Chicago Madrid Rome Vienna Dublin Oslo Denver Seattle Toronto Sydney Lisbon Prague
Athens Geneva Houston Atlanta""".split()
_DAYS = "Monday Tuesday Wednesday Thursday Friday Saturday Sunday".split()
_MONTHS = "January February March April May June July August September October November December".split()
_THINGS = """ticket table book message order package meeting letter phone computer car bicycle train flight hotel room door window
lamp garden kitchen picture song story question answer report file list page coffee dinner bread cheese apple map key
camera jacket umbrella mirror garage station airport library museum bridge river mountain forest island""".split()
_ADJECTIVES = """small large new old green blue red quiet loud early late cheap expensive warm cold bright dark heavy light
simple difficult beautiful strange empty broken clean""".split()
_VERBS = """open close find buy sell bring carry clean repair paint read write send check change move show keep lose share
finish start cancel book order""".split()
_PERSONS = ("I", "you", "we", "they")
_OPENINGS = (
    "Well, ",
    "Of course, ",
    "By the way, ",
    "Yes, ",
    "No, ",
    "Sorry, ",
    "Please note that ",
    "Today ",
    "In the end, ",
    "Luckily, ",
)


class Grammar:
    """Draws sentences; the same seed gives the same ones."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._templates: tuple[tuple[int, Callable[[], str]], ...] = (
            (10, self._digits),
            (4, self._phone),
            (8, self._time),
            (7, self._date),
            (7, self._money),
            (6, self._count),
            (5, self._percent),
            (12, self._request),
            (12, self._question),
            (12, self._statement),
            (8, self._agent),
            (4, self._year),
        )

    def sentence(self) -> str:
        (template,) = self._random.choices([entry for _, entry in self._templates], [weight for weight, _ in self._templates])
        return template()

    def _pick(self, items: tuple[str, ...] | list[str]) -> str:
        return self._random.choice(items)

    def _number(self, low: int, high: int) -> str:
        return str(self._random.randint(low, high))

    def _row(self, length: int) -> str:
        return " ".join(self._number(0, 9) for _ in range(length))

    def _digits(self) -> str:
        row = self._row(self._random.randint(2, 8))
        return self._pick([f"{row}.", f"{row}.", f"{row}.", f"The code is {row}.", f"Your number is {row}.", f"Press {row} now."])

    def _phone(self) -> str:
        return self._pick(["Call me at ", "The number is ", "You can reach us at "]) + f"{self._row(3)}, {self._row(4)}."

    def _clock(self) -> str:
        return f"{self._number(1, 12)}:{self._pick(['15', '30', '45', '10', '20', '40', '50'])}"

    def _time(self) -> str:
        thing, place = self._pick(_THINGS), self._pick(_PLACES)
        return self._pick(
            [
                f"The train to {place} leaves at {self._clock()}.",
                f"It is {self._clock()} now.",
                f"We meet at {self._clock()} in front of the {thing}.",
                f"Wake me at {self._clock()}, please.",
                f"The {thing} opens at {self._number(6, 12)} and closes at {self._clock()}.",
                f"Your flight from {place} arrives at {self._clock()}.",
            ]
        )

    def _date(self) -> str:
        month, day, name = self._pick(_MONTHS), self._number(1, 28), self._pick(_NAMES)
        return self._pick(
            [
                f"{name} was born on {month} {day}.",
                f"The next meeting is on {self._pick(_DAYS)}, {month} {day}.",
                f"We will arrive in {self._pick(_PLACES)} on {month} {day}.",
                f"On {month} {day} the shop stays closed.",
            ]
        )

    def _money(self) -> str:
        thing, price = self._pick(_THINGS), self._number(2, 900)
        return self._pick(
            [
                f"The {self._pick(_ADJECTIVES)} {thing} costs ${price}.",
                f"That makes ${price}, please.",
                f"{self._pick(_NAMES)} paid {price} dollars for a {thing}.",
                f"You have ${price} left on your account.",
            ]
        )

    def _count(self) -> str:
        thing, number = self._pick(_THINGS), self._number(2, 120)
        return self._pick(
            [
                f"There are {number} people in front of the {thing}.",
                f"We walked {number} miles from {self._pick(_PLACES)} to the {thing}.",
                f"Turn left after {number} meters.",
                f"I have waited for {number} minutes.",
                f"{self._pick(_NAMES)} is {self._number(4, 90)} years old.",
            ]
        )

    def _percent(self) -> str:
        return self._pick(
            [
                f"The battery is at {self._number(1, 100)} percent.",
                f"About {self._number(2, 98)} percent of them said yes.",
                f"Tomorrow it will be {self._number(2, 35)} degrees in {self._pick(_PLACES)}.",
            ]
        )

    def _year(self) -> str:
        return self._pick(["The house was built in ", "They met in ", "The company was founded in "]) + self._number(1800, 2030) + "."

    def _request(self) -> str:
        verb, thing, adjective = self._pick(_VERBS), self._pick(_THINGS), self._pick(_ADJECTIVES)
        return self._pick(
            [
                f"Please {verb} the {adjective} {thing}.",
                f"Do not {verb} the {thing} before {self._pick(_DAYS)}.",
                f"{verb.capitalize()} the {thing}, then call {self._pick(_NAMES)}.",
                f"Tell {self._pick(_NAMES)} to {verb} the {adjective} {thing}.",
            ]
        )

    def _question(self) -> str:
        verb, thing, name = self._pick(_VERBS), self._pick(_THINGS), self._pick(_NAMES)
        return self._pick(
            [
                f"Can you {verb} the {thing} for {name}?",
                f"Where is the {self._pick(_ADJECTIVES)} {thing}?",
                f"Would you like to {verb} a {thing}?",
                f"When did {name} {verb} the {thing}?",
                f"Why is the {thing} so {self._pick(_ADJECTIVES)}?",
                f"How many days will {name} stay in {self._pick(_PLACES)}?",
                f"Is the {thing} {self._pick(_ADJECTIVES)} or {self._pick(_ADJECTIVES)}?",
            ]
        )

    def _statement(self) -> str:
        verb, thing, name = self._pick(_VERBS), self._pick(_THINGS), self._pick(_NAMES)
        other, adjective = self._pick(_THINGS), self._pick(_ADJECTIVES)
        return self._pick(
            [
                f"{name} wants to {verb} the {adjective} {thing} near the {other}.",
                f"The {thing} is {adjective}, but the {other} is {self._pick(_ADJECTIVES)}.",
                f"{self._pick(_PERSONS).capitalize()} have to {verb} the {thing} and the {other} on {self._pick(_DAYS)}.",
                f"{name} and {self._pick(_NAMES)} will {verb} a {adjective} {thing} in {self._pick(_PLACES)}.",
                f"If {name} can not {verb} the {thing}, we will {self._pick(_VERBS)} the {other}.",
            ]
        )

    def _agent(self) -> str:
        thing, name = self._pick(_THINGS), self._pick(_NAMES)
        return self._pick(_OPENINGS) + self._pick(
            [
                f"I can {self._pick(_VERBS)} the {thing} for you.",
                f"your {thing} is ready, {name}.",
                f"the {thing} will be there in {self._number(2, 59)} minutes.",
                f"I did not find a {self._pick(_ADJECTIVES)} {thing} in {self._pick(_PLACES)}.",
                f"{name} has a question about the {thing}.",
            ]
        )
