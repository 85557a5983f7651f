"""JSON of a client, as values that can be printed, compared, and written as JSON again."""

import json
from typing import Any

MAX_DEPTH = 32
MAX_DIGITS = 40  # of an integer


def load_json(body: bytes) -> Any:
    """Return the value of a JSON body.

    Raises ValueError for other text, NaN and infinite numbers, half of a surrogate pair, integers of more
    than MAX_DIGITS digits, and values nested deeper than MAX_DEPTH levels.
    """

    def parse_int(digits: str) -> int:
        if len(digits) > MAX_DIGITS:
            raise ValueError(f"an integer has {len(digits)} digits; expected at most {MAX_DIGITS}")
        return int(digits)

    try:
        value = json.loads(body, parse_int=parse_int)
        check_depth(value)
        json.dumps(value, ensure_ascii=False, allow_nan=False).encode()
    except UnicodeError as error:
        raise ValueError("the body is not Unicode text: it has half of a surrogate pair, or is not UTF-8") from error
    except RecursionError as error:
        raise ValueError(f"the body is nested deeper than {MAX_DEPTH} levels") from error
    except ValueError as error:
        raise ValueError(f"the body is not valid JSON: {error}") from error
    return value


def check_depth(value: object, depth: int = 0) -> None:
    """Raise RecursionError for dicts and lists that are nested deeper than MAX_DEPTH levels."""
    if depth > MAX_DEPTH:
        raise RecursionError
    for item in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        check_depth(item, depth + 1)
