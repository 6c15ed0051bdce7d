"""Requests of a user's function to the model in one episode."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from rlforge.continuous.config.continuous import ContinuousConfig
from rlforge.continuous.loop.answers import Ask, Conversation
from rlforge.continuous.serving.conversations import conversation_tokens, tool_calls, without_calls
from rlforge.engines.base import decoder
from rlforge.engines.grammars import grammar_of
from rlforge.errors import ConfigError, GameError
from rlforge.games.encoding import text_ids
from rlforge.league.names import parse_opponent
from rlforge.models.load import stop_token_ids
from rlforge.rollout.episode import play_game, seed_of
from rlforge.rollout.lineup import env_named, form_of
from rlforge.rollout.policies import SeatPolicies
from rlforge.rollout.schedule import line_up
from rlforge.types import Completion, EnvSpec, GameSpec, PolicyRef, SamplingParams, Seat, value


@value
class Answer:
    """An answer of the model; ``tool_calls`` in OpenAI's form, with arguments as an object.

    They are written ``<tool_call>{"name": …, "arguments": …}</tool_call>``, as Hermes and Qwen do.

    Example:
        >>> Answer(text="4").message
        {'role': 'assistant', 'content': '4'}
    """

    text: str
    tool_calls: tuple[Mapping[str, Any], ...] = ()

    @property
    def message(self) -> dict[str, Any]:
        """The message to append to the conversation."""
        if not self.tool_calls:
            return {"role": "assistant", "content": self.text}
        said = without_calls(self.text)
        return {"role": "assistant", "content": said, "tool_calls": list(self.tool_calls)}


class SessionModel:
    """The model as all sessions ask it, and as seats of games do."""

    def __init__(self, config: ContinuousConfig, tokenizer: Any, ask: Ask) -> None:
        self.model, self.tokenizer, self.ask = config.model, tokenizer, ask
        self.text_of = decoder(tokenizer)
        stops = stop_token_ids(config.model, tokenizer)
        #: Who answers in games, the model at its seats.
        self.seats = SeatPolicies(config, tokenizer, self, stops)

    async def generate(
        self, prompt_token_ids: Sequence[int], params: SamplingParams, policy: PolicyRef
    ) -> Completion:
        assert params.seed is not None, "games draw by seed"
        return await self.ask(policy.uid, tuple(prompt_token_ids), params.seed)


class Session:
    """One episode of one agent: asks the model, and takes the rewards.

    agent: its name, ``agent-3``, or of the task where an episode sets it: advantages relative to
    the agent's mean compare decisions of one name. number: index of the episode over all agents and
    windows. seed: seed of its random choices.

    Example: an episode that rewards short answers.
        >>> async def brief(session):
        ...     asked = [{"role": "user", "content": f"What is {session.number} + 1?"}]
        ...     answer = await session.chat(asked)
        ...     return 1.0 if len(answer.text) < 8 else 0.0
    """

    def __init__(self, agent: str, number: int, seed: int, model: SessionModel) -> None:
        self.agent, self.number, self.seed = agent, number, seed
        self._asked_as, self._model = agent, model
        self._answers: list[tuple[Conversation, str, Completion]] = []
        self._rewards: dict[int, float] = {}

    async def chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None = None,
        *,
        schema: Mapping[str, Any] | None = None,
    ) -> Answer:
        """The model's next message of a conversation, by its chat template.

        Raises EngineError for a conversation beyond ``engine.max_model_len``, or an invalid schema.

        Args:
            messages: In OpenAI's form; results of tools have the role ``tool``.
            tools: In OpenAI's form.
            schema: JSON schema that the message must follow.
        """
        messages = [dict(message) for message in messages]
        tokens = conversation_tokens(self._model.tokenizer, messages, tools)
        text = await self._answer(messages, tokens, grammar_of(schema))
        return Answer(text=text, tool_calls=tool_calls(text) if tools else ())

    async def complete(self, prompt: str) -> str:
        """The model's continuation of a text."""
        return await self._answer(prompt, text_ids(self._model.tokenizer, prompt))

    async def play(self, env: str | EnvSpec, *opponents: str) -> float:
        """Play a game, and return the reward of the model's seat; each answer gets its seat's.

        env: an option of the group ``env``, or an ``EnvSpec``. opponents: scripted players by seat,
        the last one at all that are left; without any, the model has all seats. Raises ConfigError
        for a game or player that cannot be, GameError for a game that fails.
        """
        env = env_named(env) if isinstance(env, str) else env
        # The model is asked as it is trained, with its own template and extraction.
        env = dataclasses.replace(env, form=form_of(self._model.model))
        # The seat changes with the episode, so that the model learns every one.
        own = self.number % env.num_players if opponents else 0
        seats = self._line_up(env, opponents, own)
        name = f"episode {self.number}"
        spec = GameSpec(game_id=name, env=env, seed=self.seed, purpose="train", seats=seats)
        record = await play_game(spec, self._model.seats.for_game(spec))
        if record.error is not None:
            raise GameError(record.error)
        for turn in record.turns:
            # A scripted player's turns are no decisions of the model.
            if seats[turn.player_id].trained:
                self._answers.append((turn.observation, turn.completion.text, turn.completion))
                self.reward(record.rewards[turn.player_id])
        return record.rewards[own]

    def _line_up(self, env: EnvSpec, opponents: Sequence[str], own: int) -> tuple[Seat, ...]:
        me = PolicyRef(uid=self._asked_as, kind="checkpoint")
        others = [parse_opponent(name) for name in opponents]
        if wrong := [one.uid for one in others if one.kind != "scripted"]:
            raise ConfigError(f"opponent {wrong[0]}: an episode is played with scripted players")
        others += [others[-1] if others else me] * env.num_players
        policies = others[: env.num_players - 1]
        policies.insert(own, me)
        return line_up(env, policies, trained_uid=me.uid)

    def reward(self, reward: float) -> None:
        """Reward the last answer, instead of the number that the function returns."""
        if not self._answers:
            raise ValueError("there is no answer yet to give a reward to")
        self._rewards[len(self._answers) - 1] = float(reward)

    def rewarded(self, returned: float | None) -> list[tuple[Conversation, str, Completion, float]]:
        """All answers with their rewards, or ``returned``; ValueError for one without."""
        found = []
        for number, (conversation, text, completion) in enumerate(self._answers):
            reward = self._rewards.get(number, returned)
            if reward is None:
                raise ValueError(
                    f"answer {number + 1} of {len(self._answers)} has no reward: return a number, "
                    "or call session.reward after each answer"
                )
            found.append((conversation, text, completion, float(reward)))
        return found

    async def _answer(
        self, conversation: Conversation, tokens: tuple[int, ...], grammar: str | None = None
    ) -> str:
        # Seeded by place: answers of an episode differ, and a repeated episode gets the same ones.
        draw = seed_of(f"{self.seed}/{len(self._answers)}")
        completion = await self._model.ask(self._asked_as, tokens, draw, grammar)
        text = self._model.text_of(completion.token_ids)
        self._answers.append((conversation, text, completion))
        return text
