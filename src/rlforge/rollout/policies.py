"""Who answers at a seat.

SeatPolicies.for_game(spec) ─▶ Seats, an AtSeat for each player ─▶ play_game
"""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any, TypeVar

from rlforge.config.pool import ApiConfig
from rlforge.config.schema import PolicyConfig
from rlforge.engines.base import Generator
from rlforge.engines.openai import ApiPlayer
from rlforge.games.base import View
from rlforge.games.markup import Tokenizer
from rlforge.games.players import SEARCHING, make_player
from rlforge.games.prompts import Prompter
from rlforge.models.load import load_tokenizer, model_positions, prompt_room, stop_token_ids
from rlforge.record.results import ApiUsage
from rlforge.rollout.conversation import Conversation, conversation_in
from rlforge.rollout.episode import AtSeat, Seats
from rlforge.rollout.lineup import as_played_by
from rlforge.types import Completion, EnvSpec, GameSpec, PolicyRef, SamplingParams, Seat, value

P = TypeVar("P", bound=PolicyConfig)

#: A player without a model: the action in a view.
Act = Callable[[View], str]


class Acting:
    """A player without a model at one seat of one game: a script, a function, a person.

    begin: makes it from the seed of its first turn. searches: its moves may take seconds.
    """

    def __init__(self, seat: Seat, begin: Callable[[int], Act], *, searches: bool = False) -> None:
        self._uid, self._begin, self._searches = seat.policy.uid, begin, searches
        self._act: Act | None = None

    async def answer(self, view: View, seed: int) -> Completion:
        """The player's action; TypeError where that is no text."""
        if self._act is None:
            self._act = self._begin(seed)
        # A search runs in a thread, so that other games go on meanwhile.
        text = await asyncio.to_thread(self._act, view) if self._searches else self._act(view)
        if not isinstance(text, str):
            raise TypeError(f"player {self._uid} answered {text!r}; an action is text")
        return Completion(text=text, finish_reason="scripted", policy_uid=self._uid)

    def remember(self, view: View, answer: Completion) -> None:
        """Do nothing: a player without a model needs its view only."""


class _Model:
    """A model as a player. newest: versions that trained seats sample from, by policy."""

    def __init__(
        self,
        config: PolicyConfig,
        tokenizer: Tokenizer,
        engine: Generator,
        stops: Sequence[int],
        newest: Mapping[str, PolicyRef],
    ) -> None:
        self.prompter = Prompter(tokenizer, config.prompts)
        self._engine, self._config, self._newest = engine, config, newest
        self._stop = tuple(stops)
        self._numbers = itertools.count()

    @cached_property
    def _room(self) -> int:
        return prompt_room(self._config)

    def at_seat(self, seat: Seat, env: EnvSpec, temperature: float) -> _ModelSeat:
        room = self._room if env.drops_turns else None
        chat = conversation_in(env, self.prompter, seat.form, room)
        number = None if chat is None else next(self._numbers)
        params = self._config.engine.sampling(
            self._stop, temperature=temperature, conversation=number
        )
        newest = self._newest if seat.trained else {}
        return _ModelSeat(
            prompter=self.prompter,
            engine=self._engine,
            params=params,
            seat=seat,
            chat=chat,
            newest=newest,
        )


@value
class _ModelSeat:
    """A model at one seat of one game; chat: None where each turn is asked alone."""

    prompter: Prompter
    engine: Generator
    params: SamplingParams
    seat: Seat
    chat: Conversation | None
    newest: Mapping[str, PolicyRef]

    async def answer(self, view: View, seed: int) -> Completion:
        policy = self.seat.policy
        policy = max(policy, self.newest.get(policy.name, policy), key=lambda each: each.version)
        params = dataclasses.replace(self.params, seed=seed)
        question = None if self.chat is None else self.chat.ask(view)
        if question is None:
            _, ids = self.prompter.encode(self.seat.form, view)
        else:
            ids = question.token_ids
        answer = await self.engine.generate(ids, params, policy)
        # The context cut an answer that is shorter than allowed; but one longer than its prompt had
        # most of the context, and is too long by the model's own doing.
        most = min(params.max_tokens, len(ids))
        if answer.finish_reason == "length" and len(answer.token_ids) < most:
            answer = dataclasses.replace(answer, finish_reason="context")
        if self.chat is not None and question is not None:
            self.chat.add(question, answer)
        return answer

    def remember(self, view: View, answer: Completion) -> None:
        if self.chat is not None:
            self.chat.add(self.chat.ask(view), answer)


def with_own_form(config: P) -> tuple[P, Any]:
    """The configuration of another model, with the room that it has, and its tokenizer."""
    most = min(config.engine.max_model_len, model_positions(config.model))
    engine = dataclasses.replace(config.engine, max_model_len=most)
    config = dataclasses.replace(config, engine=engine)
    tokenizer, name = load_tokenizer(config.model), config.model.prompt_template
    if tokenizer.chat_template or Prompter(None, config.prompts).template(name).markup is not None:
        return config, tokenizer
    # The template needs a chat template, which the tokenizer does not have.
    plain = dataclasses.replace(config.model, prompt_template="default")
    return dataclasses.replace(config, model=plain), tokenizer


class _ApiSeat:
    def __init__(self, prompter: Prompter, api: ApiPlayer, seat: Seat, env: EnvSpec) -> None:
        self._prompter, self._api, self._seat = prompter, api, seat
        self._chat = conversation_in(env, prompter, seat.form)

    async def answer(self, view: View, seed: int) -> Completion:
        policy = self._seat.policy
        if self._chat is None:
            asked = self._prompter.messages(self._seat.form, view)
            return await self._api.chat(asked, policy)
        question = self._chat.say(view)
        answer = await self._api.chat(question.messages, policy)
        self._chat.add(question, answer)
        return answer

    def remember(self, view: View, answer: Completion) -> None:
        if self._chat is not None:
            self._chat.add(self._chat.say(view), answer)


class SeatPolicies:
    """Who answers at the seats of games, by the kind of each seat's policy."""

    def __init__(
        self,
        config: PolicyConfig,
        tokenizer: Tokenizer,
        engine: Generator,
        stops: Sequence[int],
        others: Iterable[PolicyRef] = (),
    ) -> None:
        """Load the tokenizers of ``others``, the other models (``hf:``) of the games.

        ``tokenizer`` and ``stops``, the ids that end an answer, are those of the run's model;
        ``engine`` generates for all.
        """
        self._config, games = config, config.games
        self._newest: dict[str, PolicyRef] = {}
        self._model = _Model(config, tokenizer, engine, stops, self._newest)
        self._others: dict[str, tuple[_Model, PolicyConfig]] = {}
        for uid, other in as_played_by(config, others).items():
            own, tokens = with_own_form(other)
            ends = stop_token_ids(own.model, tokens)
            self._others[uid] = _Model(own, tokens, engine, ends, {}), own
        self._api = ApiPlayer(ApiConfig() if games is None else games.pool.api)

    def use_version(self, policy: PolicyRef) -> None:
        """Trained seats of its policy sample from this version on, also in games in progress."""
        # Else games that last longer than an update could exceed the staleness bound. A game that
        # starts with a newer version keeps it.
        self._newest[policy.name] = policy

    def take_api_usage(self) -> tuple[ApiUsage, ...]:
        """Usage of each API model since the last call."""
        return self._api.take_usage()

    def for_game(self, spec: GameSpec, given: Mapping[int, AtSeat] | None = None) -> Seats:
        """Who answers in one game. given: at these seats others, as a person, by player id."""
        temperature = self._config.engine.temperature if spec.purpose == "train" else None
        at = dict(given or {})
        for seat in spec.seats:
            if seat.player_id not in at:
                at[seat.player_id] = self.at_seat(seat, spec.env, temperature)
        return Seats(at)

    def at_seat(self, seat: Seat, env: EnvSpec, temperature: float | None = None) -> AtSeat:
        """Who answers at a seat of one game; ConfigError without room for a conversation."""
        policy, name = seat.policy, seat.policy.path_or_name or seat.policy.uid
        if policy.kind == "scripted":
            searches = name.partition(":")[0] in SEARCHING
            return Acting(seat, lambda seed: make_player(name, env, seed).act, searches=searches)
        if policy.kind == "api":
            return _ApiSeat(self._model.prompter, self._api, seat, env)
        if policy.kind == "hf":
            model, own = self._others[policy.uid]
            form = dataclasses.replace(seat.form, template=own.model.prompt_template)
            asked = dataclasses.replace(seat, form=form)
            return model.at_seat(asked, env, own.other_hf.temperature)
        temperature = self._config.eval_temperature if temperature is None else temperature
        return self._model.at_seat(seat, env, temperature)
