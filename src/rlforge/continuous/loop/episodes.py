"""Episodes of a user's function, whose answers become decisions with the rewards that it gives."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from rlforge.config.plugins import EPISODES
from rlforge.continuous.config.continuous import ContinuousConfig
from rlforge.continuous.decisions.records import CONTROL, Decision, WindowGrid
from rlforge.continuous.decisions.store import TrajectoryStore
from rlforge.continuous.loop.answers import Ask, Conversation, answer_decision, state_after
from rlforge.continuous.loop.simulation import Driver
from rlforge.continuous.serving.conversations import conversation_tokens, tool_calls, without_calls
from rlforge.engines.base import decoder
from rlforge.engines.grammars import grammar_of
from rlforge.errors import ConfigError, EngineDeadError, GameError, RlforgeError, RunError
from rlforge.games.encoding import text_ids
from rlforge.league.names import parse_opponent
from rlforge.models.load import stop_token_ids
from rlforge.rollout.episode import play_game, seed_of
from rlforge.rollout.lineup import env_named, form_of
from rlforge.rollout.policies import SeatPolicies
from rlforge.rollout.schedule import line_up
from rlforge.types import Completion, EnvSpec, GameSpec, PolicyRef, SamplingParams, Seat, value

log = logging.getLogger(__name__)


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


class EpisodesDriver(Driver):
    """Plays the episodes of a window when its time comes; time stands still otherwise.

    begin: where nothing is played yet. record: called with the decisions of each episode.
    """

    def __init__(
        self,
        config: ContinuousConfig,
        store: TrajectoryStore,
        tokenizer: Any,
        ask: Ask,
        begin: float,
        stop: asyncio.Event,
        record: Callable[[Sequence[Decision]], Awaitable[None]],
    ) -> None:
        super().__init__(stop)
        self._config, self._store = config, store
        self._now, self._record = begin, record
        self._model = SessionModel(config, tokenizer, ask)
        self._grid = WindowGrid(config.window.minutes)
        self._first = self._grid.span(config.continuous.start)[0]
        assert config.episodes.function is not None, "checked before the run"
        self._name, self._each = config.episodes.function, config.episodes.per_agent
        self._function = EPISODES.find(self._name)
        self._provider = config.model.label
        settings = config.continuous
        self._agents = [
            *(f"agent-{number}" for number in range(1, settings.agents + 1)),
            *(f"{CONTROL}-{number}" for number in range(1, settings.control_agents + 1)),
        ]

    async def advance_to(self, moment: float) -> None:
        while self._now < moment:
            window_id = self._grid.id_of(self._now)
            self.check_stop()
            await self.unless_stopped(self._play_window(window_id))
            self._now = self._grid.span(window_id)[1]

    async def _play_window(self, window_id: str) -> None:
        """Play the episodes that are not on record: agents at once, each one's in turn."""
        rows = await asyncio.to_thread(self._store.decisions, window_id=window_id)
        # An episode is recorded whole or not at all, so one decision shows that it is done.
        done = {decision.id.rpartition("-")[0] for decision in rows}
        failures: list[str] = []

        async def play(place: int, agent: str) -> None:
            for turn in range(self._each):
                name = f"{self._config.name}-{self._config.seed}-{window_id}-{agent}-{turn:04d}"
                if name in done:
                    continue
                try:
                    decisions = await self._episode(name, window_id, place, turn)
                # Without the engine every later episode would fail, too.
                except EngineDeadError as error:
                    raise RunError(f"the engine is gone: {error}") from error
                except RlforgeError as error:
                    failures.append(str(error))
                    log.warning("%s ends without a result: %s", name, error)
                else:
                    await self._record(decisions)

        async with asyncio.TaskGroup() as group:
            for place, agent in enumerate(self._agents):
                group.create_task(play(place, agent))
        if failures and window_id not in await asyncio.to_thread(self._store.window_ids):
            raise RunError(f"no episode of {window_id} came to its end: {failures[0]}")

    async def _episode(self, name: str, window_id: str, place: int, turn: int) -> list[Decision]:
        """The decisions of an episode; RlforgeError where it ends without a result."""
        begin, end = self._grid.span(window_id)
        # Counted from the first window, so that a resumed run goes on with the same numbers.
        passed = round((begin - self._first) / (end - begin)) * self._each + turn
        number, length = passed * len(self._agents) + place, (end - begin) / self._each
        agent, seed = self._agents[place], seed_of(f"{self._config.seed}/{number}")
        session = Session(agent, number, seed, self._model)
        with EPISODES.trial(self._name, RlforgeError):
            rewarded = session.rewarded(await self._function(session))
        decisions = []
        for index, (conversation, text, completion, reward) in enumerate(rewarded):
            decision = answer_decision(
                f"{name}-{index:04d}",
                session.agent,
                window_id,
                # Answers have no time of their own, so they are spread over the episode's.
                begin + turn * length + length * index / len(rewarded),
                CONTROL if agent.startswith(f"{CONTROL}-") else self._provider,
                conversation,
                text,
                completion,
                self._model.tokenizer,
            )
            after = state_after(decision)
            decisions.append(dataclasses.replace(decision, reward=reward, next_state=after))
        return decisions
