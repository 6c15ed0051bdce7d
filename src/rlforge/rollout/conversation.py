"""A game as one growing conversation of a seat: messages, and the tokens that the engine saw."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from rlforge.games.base import View
from rlforge.games.markup import Message, Prompt
from rlforge.games.prompts import Prompter
from rlforge.types import Completion, EnvSpec, value


@value
class Question:
    """A turn of a conversation: its messages, and their text and token ids for an engine."""

    observation: str
    messages: tuple[Message, ...]
    prompt: Prompt = Prompt(text="", contents=())
    token_ids: tuple[int, ...] = ()


class Conversation:
    """What one seat has been asked and has answered in a game.

    A prompt is the tokens of the last one and of its answer, as the engine saw them, followed by
    those of what the game says since. Where the template writes the history in another way (chat
    templates leave out earlier reasoning), and where turns are dropped, the prompt is encoded
    whole, and a new sequence begins.

    room: tokens of a prompt above which the older half of the turns after the first is left out,
    as often as needed; None: prompts may be of any length.

    Example:
        >>> chat = Conversation(Prompter(None), "chat", "raw")
        >>> first = chat.say(View(player_id=0, observation="Heads or tails?"))
        >>> chat.add(first, Completion(text="heads"))
        >>> later = View(player_id=0, observation="Heads or tails?\\n\\nTails it was. Again!")
        >>> [message["content"] for message in chat.say(later).messages[1:]]
        ['Heads or tails?', 'heads', 'Tails it was. Again!']
    """

    def __init__(
        self, prompter: Prompter, template: str, extraction: str, room: int | None = None
    ) -> None:
        self._prompter = prompter
        self._template, self._extraction, self._room = template, extraction, room
        self._last: Question | None = None
        self._answer = Completion(text="")

    def say(self, view: View) -> Question:
        """What the player is asked now, for models that take messages."""
        if self._last is None:
            messages = self._prompter.messages(self._template, view, self._extraction)
        else:
            news = new_part(view.observation, self._last.observation).strip()
            shown = dataclasses.replace(view, news=news or view.observation)
            said = {"role": "assistant", "content": self._answer.text}
            now = self._prompter.reply(self._template, shown, self._extraction)
            messages = [*self._last.messages, said, now]
        return Question(observation=view.observation, messages=tuple(messages))

    def ask(self, view: View) -> Question:
        """What the player is asked now, with its tokens.

        Raises ConfigError as ``Prompter.messages`` and ``Prompter.render`` do.
        """
        question = self._encoded(self.say(view))
        while self._room is not None and len(question.token_ids) > self._room:
            fewer = _without_older_half(question.messages)
            if len(fewer) == len(question.messages):
                break
            question = self._encoded(dataclasses.replace(question, messages=fewer))
        return question

    def add(self, question: Question, answer: Completion) -> None:
        """Continue from ``answer``."""
        self._last, self._answer = question, answer

    def _encoded(self, question: Question) -> Question:
        prompt = self._prompter.render(self._template, question.messages)
        ids = self._continued(question.messages, prompt)
        ids = self._prompter.ids(prompt) if ids is None else ids
        return dataclasses.replace(question, prompt=prompt, token_ids=ids)

    def _continued(self, messages: Sequence[Message], prompt: Prompt) -> tuple[int, ...] | None:
        """The last prompt and answer, and what follows; None where ``prompt`` differs from them."""
        last, answer = self._last, self._answer
        if last is None or messages[:-2] != last.messages:
            return None
        said = next((span for span in prompt.contents if span[0] == len(last.messages)), None)
        if said is None:
            return None
        _, start, end = said
        # Chat templates trim answers; the engine saw the white space.
        if (
            prompt.text[:start] != last.prompt.text
            or prompt.text[start:end].strip() != answer.text.strip()
        ):
            return None
        rest = self._prompter.ids(prompt.after(end))
        closed = answer.finish_reason == "stop" and rest[:1] == answer.token_ids[-1:]
        return (*last.token_ids, *answer.token_ids, *(rest[1:] if closed else rest))


def conversation_in(
    env: EnvSpec, prompter: Prompter, template: str, extraction: str, room: int | None = None
) -> Conversation | None:
    """A seat's conversation in a game of ``env``; None where each turn is asked alone.

    room: as of ``Conversation``, used where ``env`` drops the oldest turns.
    """
    if env.context == "turn":
        return None
    return Conversation(
        prompter, template, extraction, room if env.overflow == "drop_oldest" else None
    )


def _without_older_half(messages: Sequence[Message]) -> tuple[Message, ...]:
    """Without the older half of the answers but the last, and of what followed each of them."""
    first = next((i for i, one in enumerate(messages) if one["role"] == "assistant"), len(messages))
    answers = (len(messages) - first) // 2
    return (*messages[:first], *messages[first + 2 * (answers // 2) :])


def new_part(observation: str, seen: str) -> str:
    """``observation`` without the paragraphs at its start that are those of ``seen``.

    Most games repeat their rules, and many all earlier text, in each observation.

    Example:
        >>> new_part("The rules.\\n\\nBoard: x..", "The rules.\\n\\nBoard: ...")
        'Board: x..'
    """
    if observation.startswith(seen):
        return observation.removeprefix(seen)
    now, before = observation.split("\n\n"), seen.split("\n\n")
    pairs = enumerate(zip(now, before, strict=False))
    return "\n\n".join(now[next((n for n, (a, b) in pairs if a != b), 0) :])
