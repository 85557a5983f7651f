"""Texts from a small grammar, with the columns of the hub data sets that they replace.

No review, headline or pair occurs twice, so test rows are never in the training set. Results on them show that the
code works; they say nothing about Korean.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

Row = dict[str, Any]

# --- reviews: id, document, label (1: liked), as in NSMC ----------------------------------------------------------

TOPICS = ("연기", "이야기", "음악", "영상", "결말", "대사", "연출", "배우", "감독", "주인공", "장면", "분위기")
LIKED = (("훌륭하", "훌륭했다"), ("재미있", "재미있었다"), ("감동적이", "감동적이었다"), ("아름답", "아름다웠다"),
         ("완벽하", "완벽했다"), ("신선하", "신선했다"))  # fmt: skip
DISLIKED = (("지루하", "지루했다"), ("어색하", "어색했다"), ("뻔하", "뻔했다"), ("실망스럽", "실망스러웠다"),
            ("엉성하", "엉성했다"), ("유치하", "유치했다"))  # fmt: skip
BEFORE = ("", "이 영화는 ", "주말에 봤는데 ", "친구와 봤는데 ", "기대하고 갔는데 ")
ADVERBS = ("", "정말 ", "생각보다 ", "솔직히 ", "처음부터 끝까지 ")
AFTER = ("", ".", "!", " ㅠㅠ", " ...")
NEGATED = 0.3  # share of negated reviews, which a bag of words cannot classify


def review(draw: random.Random) -> Row:
    """Return a movie review and its label, as in "정말 결말이 지루하지 않았다.": 1."""
    liked = draw.random() < 0.5
    negated = draw.random() < NEGATED
    stem, past = draw.choice(LIKED if liked != negated else DISLIKED)
    predicate = f"{stem}지 않았다" if negated else past
    start = f"{draw.choice(BEFORE)}{draw.choice(ADVERBS)}"
    text = f"{start}{with_subject(draw.choice(TOPICS))} {predicate}{draw.choice(AFTER)}"
    return {"document": text, "label": int(liked)}


# --- news: title, document ------------------------------------------------------------------------------------------

CITIES = ("서울", "부산", "대구", "인천", "광주", "대전", "울산", "세종", "수원", "전주", "춘천", "제주")
OFFICES = ("시청", "대학", "연구소", "병원", "박물관", "도서관", "소방서", "교육청")
THINGS = ("로봇 교실", "무료 강좌", "야간 버스", "과학 축제", "독서 모임", "자전거 길", "벼룩시장", "건강 검진")
DEEDS = ("운영", "시작", "확대", "중단", "준비", "공개")
DAYS = ("월요일", "화요일", "수요일", "목요일", "금요일")
REASONS = ("시민의 요청이 많았기 때문이다", "올해 예산이 정해졌기 때문이다", "지난해 반응이 좋았기 때문이다")


def article(draw: random.Random) -> Row:
    """Return a report of two sentences and a headline of words from the report."""
    city, office, thing, deed = (draw.choice(options) for options in (CITIES, OFFICES, THINGS, DEEDS))
    first = f"{city} {with_topic(office)} {draw.choice(DAYS)} {with_object(thing)} {deed}한다고 밝혔다."
    return {"title": f"{city} {office}, {thing} {deed}", "document": f"{first} {draw.choice(REASONS)}."}


# --- pairs: translation {en, ko} --------------------------------------------------------------------------------------

SUBJECTS = (("the student", "학생"), ("the teacher", "선생님"), ("the child", "아이"), ("my friend", "친구"),
       ("the robot", "로봇"), ("the doctor", "의사"), ("the farmer", "농부"), ("my sister", "언니"))  # fmt: skip
VERBS = (("reads", "read", "읽"), ("finds", "find", "찾"), ("hides", "hide", "숨기"), ("shows", "show", "보여주"),
        ("buys", "buy", "사"), ("throws", "throw", "던지"), ("receives", "receive", "받"))  # fmt: skip
OBJECTS = (("book", "책"), ("letter", "편지"), ("map", "지도"), ("newspaper", "신문"), ("card", "카드"),
           ("box", "상자"), ("picture", "그림"), ("toy", "장난감"))  # fmt: skip
ADJECTIVES = (("", ""), ("old ", "오래된 "), ("small ", "작은 "), ("red ", "빨간 "), ("new ", "새 "))
TIMES = (("", ""), (" today", "오늘 "), (" every day", "매일 "), (" in the morning", "아침에 "))


def pair(draw: random.Random) -> Row:
    """Return an English sentence and its Korean translation, with the verb last and negation as its suffix."""
    subject, verb, noun, adjective, time = (draw.choice(kind) for kind in (SUBJECTS, VERBS, OBJECTS, ADJECTIVES, TIMES))
    third, plain, stem = verb
    if draw.random() < NEGATED:
        predicate, korean_verb = f"does not {plain}", f"{stem}지 않는다"
    else:
        predicate, korean_verb = third, stem + "는다" if ends_closed(stem) else with_closing_n(stem) + "다"
    english = f"{subject[0]} {predicate} the {adjective[0]}{noun[0]}{time[0]}"
    korean = f"{time[1]}{with_subject(subject[1])} {adjective[1]}{with_object(noun[1])} {korean_verb}"
    return {"translation": {"en": english, "ko": korean}}


# --- drawing ----------------------------------------------------------------------------------------------------------

MAKERS: dict[str, Callable[[random.Random], Row]] = {"reviews": review, "news": article, "pairs": pair}
DISTINCT = {"reviews": "document", "news": "title", "pairs": "translation"}  # column that is unique


def rows(kind: str, count: int, seed: int = 0) -> list[Row]:
    """Return `count` different rows of a kind, or all that exist; deterministic."""
    draw, distinct = random.Random(f"{kind} {seed}"), {}
    for _ in range(20 * count):
        row = MAKERS[kind](draw)
        distinct.setdefault(str(row[DISTINCT[kind]]), row)
        if len(distinct) == count:
            break
    made = list(distinct.values())
    return [{"id": str(number), **row} for number, row in enumerate(made)] if kind == "reviews" else made


def sentences(count: int = 1500) -> Iterator[str]:
    """Yield Korean and English sentences of all kinds, to train tokenizers on."""
    for kind in MAKERS:
        for row in rows(kind, count):
            columns = row.get("translation", row)
            yield from (columns[name] for name in ("en", "ko", "document", "title") if name in columns)


# --- Korean endings ---------------------------------------------------------------------------------------------------

FIRST_SYLLABLE, FINALS = 0xAC00, 28  # Unicode's syllables: 28 finals in a row, none being the first


def ends_closed(word: str) -> bool:
    """Return whether a word's last syllable ends in a consonant: 책 does, 편지 does not."""
    return (ord(word[-1]) - FIRST_SYLLABLE) % FINALS != 0


def with_closing_n(stem: str) -> str:
    """Return a stem that ends in a vowel with ㄴ below it: 사 → 산."""
    return stem[:-1] + chr(ord(stem[-1]) + 4)


def with_subject(word: str) -> str:
    """Return a word with its subject particle: 책이, 편지가."""
    return word + ("이" if ends_closed(word) else "가")


def with_topic(word: str) -> str:
    """Return a word with its topic particle: 시청은, 연구소는."""
    return word + ("은" if ends_closed(word) else "는")


def with_object(word: str) -> str:
    """Return a word with its object particle: 책을, 편지를."""
    return word + ("을" if ends_closed(word) else "를")
