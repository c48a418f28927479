"""Units of numbers in text: of money, percent, and others."""

from __future__ import annotations

import re
from collections.abc import Iterable

_SIGNS = {"$": "USD", "€": "EUR", "£": "GBP", "¥": "JPY", "₹": "INR"}
_MONEY = re.compile(r"%|[$€£¥₹]|[^\W\d_]{2,}")
_AFTER = re.compile(r"[-+\u2212]?[\d.,'\u2019\u00a0\u2009\u202f ]*\d\s?((?:[^\W\d_]|[°%‰\u2032\u2033])[^\d\s,;:]{0,7})")


def money_of(texts: Iterable[str]) -> list[str]:
    """Return the currencies and the percent sign in texts that are numbers as people write them; a sign is its currency.

    >>> money_of(["$5", "5.50", "(7 USD)", "1e3"]), money_of(["EUR 5", "CHF5", "3%"])
    (['USD'], ['EUR', 'CHF', '%'])
    """
    return list(dict.fromkeys(_SIGNS.get(unit, unit) for text in texts for unit in _MONEY.findall(text)))


def unit_of(texts: Iterable[str]) -> str | None:
    """Return the one unit that stands after each of some numbers in text; None if they are something else.

    >>> unit_of(["71.2 kg", "80kg"]), unit_of(["5,3 km/h", "1.200 km/h"]), unit_of(["5 g", "5 kg"]), unit_of(["5 kg", "heavy"])
    ('kg', 'km/h', None, None)
    """
    units: set[str | None] = set()
    for text in texts:
        units.add(found[1] if (found := _AFTER.fullmatch(text)) else None)
        if len(units) > 1:
            return None
    return units.pop() if units else None
