"""Decides whether the text after a number is a unit, or changes the number. (pure)

Nouns are an open class and cannot be listed. What can be listed are number words, and function words that connect,
compare, negate or hedge. A unit may contain a few of the function words, and no number words.
"""

from __future__ import annotations

import re

MOST_WORDS = 8

# Abbreviations. Only these may touch the number (`5km`), or have a full stop (`5 sq. ft`).
_SHORT = """
    km cm mm nm dm kg mg ml dl cl lb lbs oz ft yd yds mi hr hrs min mins sec secs ms mph kph fps rpm bpm pts pt qt pcs
    gal am pm sq cu sqft yr yrs wk wks mo mos pkg ct cts kw kwh gb mb kb tb hz khz mhz usd eur gbp cad
"""
# Words that connect, compare, negate, hedge, judge, turn the sign or make another number, and others that are not
# nouns.
_CLOSED = """
    or and but nor xor versus plus minus times over through thru till until then than between from except without
    less if unless else either neither both whereas while although though however instead rather because since so
    oder und ou not never none null nil nan maybe perhaps possibly probably likely unlikely sure unsure uncertain
    guess think approximately approx about around roughly nearly almost circa estimated wrong incorrect false
    invalid untrue error undefined infinity infinite inf unknown wait actually hmm sorry oops least most minimum
    maximum onward onwards upward upwards ish correction meant rather yes negative below under deficit debt loss
    opposite inverse reciprocal squared cubed root power powered factorial choose mod modulo base log sin cos tan
    exp sqrt double doubled triple tripled quadruple halved twice thrice repeating recurring remainder divided
    multiplied added subtracted is are was were will would should could can cannot may might must shall has have had
    does did done being been they them she him her his its our your their this that these those who whom whose which
    what when where why how out alpha beta gamma delta theta lambda sigma omega phi psi tau abc
"""
_NUMBERS = """
    fold twofold threefold fourfold tenfold
    zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen
    eighteen nineteen zeroes zeros ones twos tens half halves halve quarter quarters third thirds fourth fourths
    fifth fifths sixth sixths seventh sevenths eighth eighths ninth ninths tenth tenths twelfth twelfths twentieth
    hundredth hundredths thousandth thousandths millionth millionths dozen dozens score scores gross grand myriad
    thou mil mill mille mila mln mio mlns bln trn bn lakh lakhs lac lacs crore crores kilo mega giga permille permil
    nth point dot comma
"""
SHORT = frozenset(_SHORT.split())
_ANOTHER = frozenset(_NUMBERS.split())
_REFUSED = frozenset(_CLOSED.split()) | _ANOTHER
_SMALL = frozenset(("a", "an", "of", "in", "on", "at", "by"))
"""Short words that a unit may contain, but not end with."""
_ONE_LETTER = frozenset("mghslL")
"""Symbols of units, in a compound (`m/s`). Alone, `5 m` may be a product or millions."""
_MULTIPLIER = re.compile(
    r"[a-z]*(?:hundred|thousand|illion|millon|milliard|googol|tausend)|(?:twen|thir|fou?r|fif|six|seven|eigh|nine)ty"
)
_ROMAN = re.compile("[IVXLCDM]{2,}")
_WORD = re.compile(r"[A-Za-z]+(?:['’][A-Za-z]+|-[A-Za-z]+)*['’]?")
_AFTER = re.compile(r"\s*(?:%|°(?:\s*[CF](?![A-Za-z]))?|[$€£])")
"""Text that belongs to the number itself."""
_POWER = re.compile(r"(?<=[A-Za-z])\s*\^\s*(?:\{\s*[23]\s*\}|[23])(?![\d{^])")
_PARENTHESIS = re.compile(r"(?<=\s)\(([^()]*)\)(?=\s*\.?\s*\Z)")
_ABBREVIATED = re.compile(r"\b([ap])\.\s?(m)\.?(?![A-Za-z])|\b([A-Za-z]{2,4})\.(?=\s)")


def is_unit(rest: str) -> bool:
    """Whether `rest`, the text after a number, does not change it: nothing, `%`, `apples per day`, `km/h`, `cm^2`."""
    text = _AFTER.sub("", rest, count=1) if _AFTER.match(rest) else rest
    touches = text[:1].isalpha()
    text = re.sub(r"\s*/\s*", "/", _POWER.sub("", _PARENTHESIS.sub(r" \1 ", _ABBREVIATED.sub(_unabbreviated, text))))
    text = text.strip()
    text = text[:-1] if text.endswith(".") or (text.endswith("!") and text[-2:-1].isalpha()) else text
    is_rate = text.startswith("/")
    words = text.removeprefix("/").split()
    if len(words) > MOST_WORDS or (is_rate and not words):
        return False
    if touches and words[0].partition("/")[0].lower() not in SHORT:
        return False
    if is_rate and len(words[0]) < 3:  # `5/x` is a quotient, `5/hour` is not
        return False
    # A preposition or an article alone is not a unit, and `5 a` is a product.
    return all(_is_word(word) for word in words) and (not words or words[-1].lower() not in _SMALL - {"in"})


def is_noun(word: str) -> bool:
    """Whether a word does not turn a number into another number, or into two."""
    return all(part not in _REFUSED and not _MULTIPLIER.match(part) for part in _parts(word))


def makes_another(word: str) -> bool:
    """Whether a word after a number is a multiplier, a number itself, or a letter that may be one."""
    lower = word.lower()
    return lower in _ANOTHER or _MULTIPLIER.match(lower) is not None or (len(word) == 1 and lower not in "ai")


def is_factor(letters: str) -> bool:
    """Whether letters that touch a number are a factor of it: one, or several without a vowel (`5x`, not `5km`)."""
    return len(letters) == 1 or (letters.lower() not in SHORT and re.search("[aeiou]", letters.lower()) is None)


def _is_word(word: str) -> bool:
    first, slash, second = word.partition("/")
    if slash:
        if len(first) == len(second) == 1:
            return first in "mglL" and second in "shlL"
        return all(one in _ONE_LETTER or _is_word(one) for one in (first, second))
    if _WORD.fullmatch(word) is None or not is_noun(word):
        return False
    lower = word.lower()
    if "-" in word:  # `x-ray`, but not `a-a`, a difference of letters
        parts = word.split("-")
        return any(len(part) > 1 for part in parts) and all(_is_word(part) for part in parts)
    stem, _, ending = lower.replace("’", "'").partition("'")
    if len(ending) > 1 or (ending and len(stem) < 3):  # `dog's`, but neither `isn't` nor `x's`
        return lower == "o'clock"
    if word == "MM" or (lower not in SHORT and _ROMAN.fullmatch(word)):
        return False
    if len(word) <= 2:
        return lower in SHORT or lower in _SMALL
    # Letters without a vowel are a product.
    return lower in SHORT or re.search("[aeiou]", lower) is not None


def _parts(word: str) -> list[str]:
    lower = word.lower()
    return [lower, *re.findall("[a-z]+", lower)] if not lower.endswith("o'clock") else ["clock"]


def _unabbreviated(found: re.Match[str]) -> str:
    if found[1]:
        return f"{found[1]}m"
    return found[3] if found[3].lower() in SHORT else found[0]
