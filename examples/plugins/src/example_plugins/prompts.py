"""A prompt template and an action extraction: the form of a question and of its answer."""

import re

from rlforge import Extractor, Template

SHORT = Template(
    user="Choose one of the actions.\n\nQ: {observation}\n\n{request}",
    later="Q: {observation}\n\n{request}",  # in conversations, after the first turn
    assistant="\nA:",  # the opening of every answer
)


def read_first_number(answer: str) -> str | None:
    """The first number in an answer; None, which counts as a format error, without one."""
    found = re.search(r"\d+", answer)
    return found.group() if found else None


FIRST_NUMBER = Extractor(
    read=read_first_number,
    request="Answer with the number of your action.",  # the end of every prompt
    feedback="Your last answer had no number.",  # shown before another try
)
