"""The policies at a game's seats: an engine's version, another model, a scripted player, an API."""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any

from rlforge.config.schema import GamesConfig, PolicyConfig
from rlforge.engines.api_player import ApiPlayer
from rlforge.engines.base import Generator
from rlforge.games.base import View
from rlforge.games.markup import Tokenizer
from rlforge.games.players import SEARCHING, Player, make_player
from rlforge.games.prompts import Prompter
from rlforge.models.load import load_tokenizer, prompt_room, stop_token_ids
from rlforge.rollout.conversation import Conversation, conversation_in
from rlforge.rollout.episode import Answer
from rlforge.rollout.lineup import as_played_by
from rlforge.types import ApiUsage, Completion, EnvSpec, GameSpec, PolicyRef, SamplingParams, Seat


class ModelPlayers:
    """A model as a player, the run's as a rule: prompts in its templates, answers of its engine.

    prompter: writes the prompts, those of API models too.
    """

    def __init__(
        self,
        config: PolicyConfig,
        tokenizer: Tokenizer,
        engine: Generator,
        stop_token_ids: Sequence[int],
    ) -> None:
        self.prompter = Prompter(tokenizer, config.prompts)
        self._engine = engine
        self._config = config
        self._stop = tuple(stop_token_ids)
        self._numbers = itertools.count()

    @cached_property
    def _room(self) -> int:
        return prompt_room(self._config)

    def at_seat(self, seat: Seat, env: EnvSpec, temperature: float) -> ModelSeat:
        """The model at a seat of one game of ``env``. Raises ConfigError as ``prompt_room``."""
        template, extraction = seat.prompt_template, seat.action_extraction
        room = self._room if env.drops_turns else None
        chat = conversation_in(env, self.prompter, template, extraction, room)
        number = None if chat is None else next(self._numbers)
        params = self._config.engine.sampling(
            self._stop, temperature=temperature, conversation=number
        )
        return ModelSeat(self.prompter, self._engine, params, seat, chat)


class ModelSeat:
    """The model at one seat of one game.

    chat: the seat's turns so far, which each prompt continues; None: each turn is asked alone.
    """

    def __init__(
        self,
        prompter: Prompter,
        engine: Generator,
        params: SamplingParams,
        seat: Seat,
        chat: Conversation | None,
    ) -> None:
        self._prompter, self._engine, self._params = prompter, engine, params
        self._seat, self._chat = seat, chat

    async def answer(self, view: View, policy: PolicyRef, seed: int | None) -> Completion:
        """The answer of the version ``policy``; errors of ``Prompter.encode`` and the engine."""
        params = dataclasses.replace(self._params, seed=seed)
        question = None if self._chat is None else self._chat.ask(view)
        if question is None:
            template, extraction = self._seat.prompt_template, self._seat.action_extraction
            _, ids = self._prompter.encode(template, view, extraction)
        else:
            ids = question.token_ids
        answer = await self._engine.generate(ids, params, policy)
        # An answer longer than its prompt had most of the context for itself: it is too long by the
        # model's own doing, and not cut.
        most = min(params.max_tokens, len(ids))
        if answer.finish_reason == "length" and len(answer.token_ids) < most:
            answer = dataclasses.replace(answer, finish_reason="context")
        if self._chat is not None and question is not None:
            self._chat.add(question, answer)
        return answer

    def remember(self, view: View, answer: Completion) -> None:
        """The seat gave this answer before."""
        if self._chat is not None:
            self._chat.add(self._chat.ask(view), answer)


class OtherModel(ModelPlayers):
    """Another model (``hf:``) as a player, with its own tokenizer.

    config: of ``as_played_by``. engine: answers for its policy, too.
    """

    def __init__(self, config: GamesConfig, engine: Generator) -> None:
        config, tokenizer = with_own_form(config)
        super().__init__(config, tokenizer, engine, stop_token_ids(config.model, tokenizer))
        self._form = config.model.prompt_template
        self._temperature = config.pool.hf.temperature

    def seated(self, seat: Seat, env: EnvSpec) -> ModelSeat:
        """The model at a seat of one game of ``env``."""
        asked = dataclasses.replace(seat, prompt_template=self._form)
        return self.at_seat(asked, env, self._temperature)


def with_own_form(config: GamesConfig) -> tuple[GamesConfig, Any]:
    """The configuration of another model and its tokenizer.

    The prompt template is ``default`` where the configured one needs a chat template, and the
    tokenizer has none.
    """
    tokenizer, name = load_tokenizer(config.model), config.model.prompt_template
    if tokenizer.chat_template or Prompter(None, config.prompts).template(name).markup is not None:
        return config, tokenizer
    plain = dataclasses.replace(config.model, prompt_template="default")
    return dataclasses.replace(config, model=plain), tokenizer


class ApiSeat:
    """A model behind an API at one seat of one game of ``env``."""

    def __init__(self, prompter: Prompter, api: ApiPlayer, seat: Seat, env: EnvSpec) -> None:
        self._prompter, self._api, self._seat = prompter, api, seat
        template, extraction = seat.prompt_template, seat.action_extraction
        self._chat = conversation_in(env, prompter, template, extraction)

    async def answer(self, view: View) -> Completion:
        """Its answer; errors of ``Prompter.messages`` and ``ApiPlayer.chat``."""
        seat = self._seat
        template, extraction = seat.prompt_template, seat.action_extraction
        if self._chat is None:
            asked = self._prompter.messages(template, view, extraction)
            return await self._api.chat(asked, seat.policy)
        question = self._chat.say(view)
        answer = await self._api.chat(question.messages, seat.policy)
        self._chat.add(question, answer)
        return answer

    def remember(self, view: View, answer: Completion) -> None:
        """The seat gave this answer before."""
        if self._chat is not None:
            self._chat.add(self._chat.say(view), answer)


class SeatPolicies:
    """Makes, for each game, the function that asks the policy at the seat to move."""

    def __init__(
        self,
        config: GamesConfig,
        tokenizer: Tokenizer,
        engine: Generator,
        stop_token_ids: Sequence[int],
        others: Iterable[PolicyRef] = (),
    ) -> None:
        """others: the other models (``hf:``) that games may have; their tokenizers are loaded."""
        self._temperature = {"train": config.engine.temperature, "eval": config.eval_temperature}
        self._models = ModelPlayers(config, tokenizer, engine, stop_token_ids)
        self._others = {
            uid: OtherModel(own, engine) for uid, own in as_played_by(config, others).items()
        }
        self._api = ApiPlayer(config.pool.api)
        self._newest: dict[str, PolicyRef] = {}

    def use_version(self, policy: PolicyRef) -> None:
        """Trained seats of its policy sample from this version on, also in games in progress.

        So a game that lasts longer than an update does not exceed the staleness bound; each
        completion records the version that sampled it. If a game starts with a version newer than
        ``policy``, it keeps that version: the maximum of both is used.
        """
        self._newest[policy.name] = policy

    def take_api_usage(self) -> tuple[ApiUsage, ...]:
        """Usage of each API model since the last call."""
        return self._api.take_usage()

    def for_game(self, spec: GameSpec) -> Answer:
        """The ``Answer`` function of one game; it owns what that game's players remember."""
        temperature = self._temperature[spec.purpose]
        return _Players(spec, self._models, self._others, self._api, temperature, self._newest)


class _Players:
    """The players of one game of ``spec``; called, the one at a seat answers.

    newest: by name of a policy, the version from which trained seats of it sample.
    """

    def __init__(
        self,
        spec: GameSpec,
        models: ModelPlayers,
        others: Mapping[str, OtherModel],
        api: ApiPlayer,
        temperature: float,
        newest: Mapping[str, PolicyRef],
    ) -> None:
        self._env, self._newest = spec.env, newest
        self._scripted: dict[int, Player] = {}
        self._models: dict[int, ModelSeat] = {}
        self._apis: dict[int, ApiSeat] = {}
        for seat in spec.seats:
            if seat.policy.kind == "checkpoint":
                self._models[seat.player_id] = models.at_seat(seat, spec.env, temperature)
            elif seat.policy.kind == "hf":
                self._models[seat.player_id] = others[seat.policy.uid].seated(seat, spec.env)
            elif seat.policy.kind == "api":
                self._apis[seat.player_id] = ApiSeat(models.prompter, api, seat, spec.env)

    async def __call__(self, seat: Seat, view: View, seed: int) -> Completion:
        policy = seat.policy
        if policy.kind == "scripted":
            name = policy.path_or_name or policy.uid
            if seat.player_id not in self._scripted:
                self._scripted[seat.player_id] = make_player(name, self._env, seed)
            act = self._scripted[seat.player_id].act
            if name.partition(":")[0] in SEARCHING:  # other games go on meanwhile
                text = await asyncio.to_thread(act, view)
            else:
                text = act(view)
            return Completion(text=text, finish_reason="scripted", policy_uid=policy.uid)
        if policy.kind == "api":
            return await self._apis[seat.player_id].answer(view)
        if seat.trained and (newest := self._newest.get(policy.name)) is not None:
            policy = max(policy, newest, key=lambda each: each.version)
        return await self._models[seat.player_id].answer(view, policy, seed)

    def remember(self, seat: Seat, view: View, completion: Completion) -> None:
        """The seat gave this answer before."""
        for asked in (self._models, self._apis):
            if seat.player_id in asked:
                asked[seat.player_id].remember(view, completion)
