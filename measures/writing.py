"""What can be counted of texts that a model wrote, held against the validation documents.

No figure says that a text makes sense; each says when writing gets worse in one way.
"""

import re
from collections.abc import Iterable
from typing import NamedTuple

from measures.copied import missing_from, stretches

# The protagonists of the stories in data/corpus, as its README lists them.
NAMES = (
    "민지", "준호", "수아", "지우", "서연", "도윤", "하늘이", "보리", "나비", "토끼", "곰", "여우", "다람쥐", "거북이",
    "참새", "오리", "개구리", "할머니", "할아버지", "쥐", "병아리", "양", "부엉이", "까치", "달팽이",
)  # fmt: skip
NAME = rf"(?<![가-힣])({'|'.join(NAMES)}|하늘(?=아))"  # 하늘이 is called 하늘아
PARTICLES = "가|은|는|을|를|의|에게|에게서|한테|께서|께|와|과|도|만|랑|하고|네|들|처럼|보다|부터|까지"
MENTION = re.compile(rf"{NAME}(?:(?:이?(?:{PARTICLES}|야)?)|아)(?![가-힣])")
CALL = re.compile(rf"(?:^|[,.!?…]\s*){NAME}(?:아|야)(?=[,.!?…]|$)")  # 곰아, but not 나는 토끼야
SPOKEN = re.compile(rf"[\"“]([^\"“”]*)[\"”]\s*(?:하고|라고)\s+{NAME}(?:이?가|이?는|이|은|께서|께서는)(?![가-힣])")
SENTENCE_END = re.compile(r"(?<=[.!?…])[\"”]?\s+(?!하고\s|라고\s)")  # a quote and who speaks it are one sentence


class Text(NamedTuple):
    """One text to be counted."""

    text: str
    ended: bool  # by itself, not for want of tokens


def compared(
    written: list[Text], validation: list[Text], train: Iterable[str], names: bool
) -> dict[str, dict[str, float | None]]:
    """Return each figure as {"model": of what was written, "validation": of the validation documents}.

    train: the training documents, read three times. names: whether the texts are about the protagonists of the stories;
    otherwise the last three figures are left out. A figure is None where there is nothing to count.
    """
    both = [*written, *validation]
    unknown = missing_from(train, {part for each in both for part in eojeol(each.text)}, eojeol)
    new_sentences = missing_from(train, {part for each in both for part in sentences(each.text)}, sentences)
    new_stretches = missing_from(train, {part for each in both for part in stretches(each.text)}, stretches)
    as_many = min(len(written), len(validation)) or len(written)

    def figures(texts: list[Text]) -> dict[str, float | None]:
        words = [word for each in texts for word in eojeol(each.text)]
        of_each = [sentences(each.text) for each in texts]
        all_sentences = [sentence for own in of_each for sentence in own]
        all_stretches = [stretch for each in texts for stretch in stretches(each.text)]
        openings = [" ".join(each.text.split()[:3]) for each in texts[:as_many]]  # the more texts, the fewer differ
        found = {
            "unknown_eojeol": share(sum(word in unknown for word in words), len(words)),
            "copied_sentences": share(sum(part not in new_sentences for part in all_sentences), len(all_sentences)),
            "copied_stretches": share(sum(part not in new_stretches for part in all_stretches), len(all_stretches)),
            "repeated_sentences": share(sum(len(own) - len(set(own)) for own in of_each), len(all_sentences)),
            "ended": share(sum(each.ended and closed(each.text) for each in texts), len(texts)),
            "distinct_openings": share(len(set(openings)), len(openings)),
        }
        return found | (of_names([each.text for each in texts]) if names else {})

    model, held_out = figures(written), figures(validation)
    return {name: {"model": model[name], "validation": held_out[name]} for name in model}


def of_names(texts: list[str]) -> dict[str, float | None]:
    """Return the figures on the protagonists: who is called by whom, how many there are, how late they come."""
    answered = [(speaker, called) for text in texts for speaker, called in calls(text)]
    first = [(start, len(text)) for text in texts for start in first_mentions(text).values()]
    return {
        "self_addressed": share(sum(speaker in called for speaker, called in answered), len(answered)),
        "names": share(len(first), len(texts)),
        "late_names": share(sum(start > length / 3 for start, length in first), len(first)),
    }


def calls(text: str) -> list[tuple[str, set[str]]]:
    """Return for each quote that names its speaker and calls someone who speaks, and whom the quote calls."""
    quotes = [(full(match[2]), {full(name) for name in CALL.findall(match[1])}) for match in SPOKEN.finditer(text)]
    return [(speaker, called) for speaker, called in quotes if called]


def first_mentions(text: str) -> dict[str, int]:
    """Return where in `text` each name first stands."""
    return {full(match[1]): match.start() for match in reversed(list(MENTION.finditer(text)))}


def full(name: str) -> str:
    """Return a name as the list has it."""
    return "하늘이" if name == "하늘" else name


def eojeol(text: str) -> list[str]:
    """Return what lies between spaces, without the punctuation around it."""
    return [word for part in text.split() if (word := part.strip("\"'“”‘’.,!?…~()"))]


def sentences(text: str) -> list[str]:
    """Return the sentences of `text`, without quotation marks around them."""
    return [sentence for part in SENTENCE_END.split(text) if (sentence := part.strip().strip('"“”'))]


def closed(text: str) -> bool:
    """Whether every quote in `text` is closed."""
    return text.count('"') % 2 == 0 and text.count("“") == text.count("”")


def share(count: int, total: int) -> float | None:
    """Return count / total, None where there is nothing to count."""
    return count / total if total else None
