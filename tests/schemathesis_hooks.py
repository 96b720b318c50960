"""What a description cannot say: a key belongs to one request, and a total is the sum of its lines."""

import itertools
import re

import schemathesis

NUMBER = itertools.count()
MOST = 10**15


@schemathesis.hook
def before_call(context, case, kwargs):
    key = (case.headers or {}).get("Idempotency-Key")
    if isinstance(key, str) and re.fullmatch(r"[!-~]{1,200}", key):
        case.headers["Idempotency-Key"] = f"{key}-{next(NUMBER)}"
    if isinstance(case.body, dict) and is_amount(case.body.get("total_minor")):
        total = sum_of(case.body.get("lines"))
        if is_amount(total):
            case.body["total_minor"] = total


def is_amount(value):
    return type(value) is int and 0 <= value <= MOST


def sum_of(lines):
    """The sum of lines that are right so far; a total that is wrong is left alone."""
    try:
        return sum(
            line["qty"] * line["unit_price_minor"] if line.get("amount_minor") is None else line["amount_minor"]
            for line in lines
        )
    except (AttributeError, KeyError, TypeError):
        return None
