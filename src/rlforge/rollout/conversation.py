"""A game as one growing conversation of a seat: messages, and the tokens that the engine saw."""

from __future__ import annotations

import dataclasses
import math

from rlforge.games.base import View
from rlforge.games.markup import Message, Prompt
from rlforge.games.observations import new_part
from rlforge.games.prompts import Prompter
from rlforge.types import Completion, EnvSpec, Form, value


@value
class Question:
    """A turn of a conversation: its messages, and their text and token ids for an engine.

    answers: answers in ``messages``; a user message follows each. since_first: these user
    messages where the turns before them are left out.
    """

    observation: str
    messages: tuple[Message, ...]
    answers: tuple[Completion, ...] = ()
    since_first: tuple[Message, ...] = ()
    prompt: Prompt = Prompt(text="", contents=())
    token_ids: tuple[int, ...] = ()


class Conversation:
    """Questions and answers of one seat in a game.

    A message holds what is new since the seat's last turn. A prompt is the tokens of the last one
    and of its answer, as the engine saw them, followed by those of the new message.

    room: tokens of a prompt above which the older half of the turns after the first is left out.

    Example:
        >>> chat = Conversation(Prompter(None), Form(template="chat", extraction="raw"))
        >>> first = chat.say(View(player_id=0, observation="Heads or tails?"))
        >>> chat.add(first, Completion(text="heads"))
        >>> later = View(player_id=0, observation="Heads or tails?\\n\\nTails it was. Again!")
        >>> [message["content"] for message in chat.say(later).messages[1:]]
        ['Heads or tails?', 'heads', 'Tails it was. Again!']
    """

    def __init__(self, prompter: Prompter, form: Form, room: int | None = None) -> None:
        self._prompter, self._form, self._room = prompter, form, room
        self._first: Question | None = None
        self._last: Question | None = None
        self._answer = Completion(text="")

    def say(self, view: View) -> Question:
        """The current question as messages."""
        first, last = self._first, self._last
        if first is None or last is None:
            messages = self._prompter.messages(self._form, view)
            return Question(observation=view.observation, messages=tuple(messages))
        said = {"role": "assistant", "content": self._answer.text}
        news = new_part(view.observation, last.observation) if view.news is None else view.news
        since_first = new_part(view.observation, first.observation)
        return Question(
            observation=view.observation,
            messages=(*last.messages, said, self._reply(view, news)),
            answers=(*last.answers, self._answer),
            since_first=(*last.since_first, self._reply(view, since_first)),
        )

    def ask(self, view: View) -> Question:
        """The current question with its tokens; ConfigError as in ``Prompter``."""
        room = math.inf if self._room is None else self._room
        whole = question = self._encoded(self.say(view))
        # The oldest message that is left is rewritten to tell all since the first turn. Where that
        # does not fit, it stays as it was, which is shorter.
        for since_first in (True, False):
            shorter = whole
            while len(question.token_ids) > room and len(shorter.answers) > 1:
                shorter = _without_older_half(shorter, since_first=since_first)
                question = self._encoded(shorter)
        return question

    def add(self, question: Question, answer: Completion) -> None:
        """Continue from ``answer``."""
        self._first = self._first or question
        self._last, self._answer = question, answer

    def _reply(self, view: View, news: str) -> Message:
        shown = dataclasses.replace(view, news=news)
        return self._prompter.reply(self._form, shown)

    def _encoded(self, question: Question) -> Question:
        messages, last = question.messages, self._last
        prompt = self._prompter.render(self._form, messages)
        text = prompt.text
        numbers = range(len(messages) - 2 * len(question.answers), len(messages), 2)
        answers = dict(zip(numbers, question.answers, strict=True))
        spans = {number: (start, end) for number, start, end in prompt.contents}
        kept: list[tuple[Completion, int, int]] = []
        for number, (start, end) in spans.items():
            if number in answers:
                # Chat templates trim answers, whose white space the engine saw, and may write an
                # answer's reasoning in front of the content.
                said = answers[number].text.strip()
                start = min(start, max(0, start + len(text[start:end].rstrip()) - len(said)))
                if text[start:end].strip() == said:
                    kept.append((answers[number], start, end))
        ids: tuple[int, ...] = ()
        place = 0
        if last is not None and kept:
            before, said = last.prompt, text[: kept[-1][1]]
            asked = before.contents[-1][2] if before.contents else 0
            # Where turns are dropped, or the template writes the history in another way, a new
            # sequence begins. Not so where a template opens only the next answer, as with an empty
            # ``<think>`` block, and leaves that out of earlier ones: the engine has seen it.
            if asked <= len(said) and before.text.startswith(said):
                ids, place = last.token_ids, kept[-1][1]
        ended = False
        # Answers keep the engine's tokens, which need not be those of their text; what is between
        # is encoded.
        for answer, start, end in [*kept, (Completion(text=""), len(text), len(text))]:
            # The tokens of the last question already hold this answer.
            if start < place:
                continue
            between = self._prompter.ids(prompt.part(place, start), begins=not place)
            # The token that ends a turn, which the engine has sampled, must not stand twice.
            closed = ended and between[:1] == ids[-1:]
            ids = (*ids, *(between[1:] if closed else between), *answer.token_ids)
            place, ended = end, answer.finish_reason == "stop"
        return dataclasses.replace(question, prompt=prompt, token_ids=ids)


def conversation_in(
    env: EnvSpec, prompter: Prompter, form: Form, room: int | None = None
) -> Conversation | None:
    """A seat's conversation in a game of ``env``; None where each turn is asked alone."""
    if env.context == "turn":
        return None
    return Conversation(prompter, form, room if env.overflow == "drop_oldest" else None)


def _without_older_half(question: Question, *, since_first: bool) -> Question:
    """``question`` without the older half of the turns after the first."""
    messages, answers = question.messages, question.answers
    # Messages before this one are the first turn, which stays.
    begin = len(messages) - 2 * len(answers) + 1
    dropped = len(answers) // 2
    left = messages[begin + 2 * dropped :]
    if since_first:
        left = (question.since_first[dropped], *left[1:])
    return dataclasses.replace(
        question,
        messages=(*messages[:begin], *left),
        answers=(*answers[:1], *answers[1 + dropped :]),
        since_first=question.since_first[dropped:],
    )
