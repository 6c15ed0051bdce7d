"""Language models as traders in the market of a run, and what their requests cost.

``openai:MODEL`` and the like are asked by the client of API players, ``hf:MODEL`` by the run's
engines. Scripted traders are in ``rlforge.continuous.market.traders``.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping

from rlforge.continuous.config.continuous import ContinuousConfig
from rlforge.continuous.loop.answers import NotAskedError
from rlforge.continuous.loop.population import Asked, Model
from rlforge.continuous.market.trading import AgentPrompter, ChatPrompter, Question
from rlforge.engines.base import Generator
from rlforge.engines.grammars import grammar_of
from rlforge.engines.openai import ApiPlayer, ChatError, ChatTooLongError
from rlforge.league.budget import ApiSpending
from rlforge.models.load import stop_token_ids
from rlforge.record.files import RunPaths
from rlforge.record.results import ApiUsage
from rlforge.rollout.episode import seed_of
from rlforge.rollout.lineup import as_played_by, other_models
from rlforge.rollout.policies import with_own_form
from rlforge.run.lifecycle import RunContext
from rlforge.types import Completion, PolicyRef, SamplingParams, value

#: The configuration group of traders behind APIs, for messages.
_KEYS = "traders.api"


@value
class _ApiTrader:
    """A model behind an API as a trader. chat: its answer to a question."""

    name: str
    prompter: ChatPrompter
    chat: Callable[[str, Question], Asked]

    def answer(self, agent_id: str, question: Question, tick: int) -> Asked:
        return self.chat(self.name, question)


@value
class _LocalTrader:
    """Another model in the run's engines as a trader."""

    prompter: AgentPrompter
    engine: Generator
    policy: PolicyRef
    params: SamplingParams
    seed: int

    @property
    def name(self) -> str:
        return self.policy.uid

    async def answer(self, agent_id: str, question: Question, tick: int) -> Completion:
        draw = seed_of(f"{self.seed}/{tick}/{agent_id}")
        params = dataclasses.replace(self.params, seed=draw, grammar=grammar_of(question.schema))
        answer = await self.engine.generate(question.token_ids, params, self.policy)
        # Ids of another vocabulary mean nothing to those who read the decision.
        return dataclasses.replace(answer, prompt_token_ids=(), token_ids=(), logprobs=())


#: Ticks in a row in which a model has to answer before it is said to answer again: one that fails
#: now and then would be named with every tick.
_STEADY_TICKS = 3


class ModelTraders:
    """The models of ``market.traders`` by their names, and the accounts of those behind APIs."""

    def __init__(self, context: RunContext[ContinuousConfig], engine: Generator) -> None:
        config = context.config
        self._context, self._config = context, config.traders
        self._player = ApiPlayer(config.traders.api, keys=_KEYS)
        # Money stays spent, whatever window a run goes on from.
        file = RunPaths(root=context.run_dir).api
        self._spending = ApiSpending(config.traders.api, file, keys=_KEYS)
        #: Models of which it was said that they do nothing, and ticks since in which they answered.
        self._silent: dict[str, int] = {}
        #: The newest error of each since the last account.
        self._errors: dict[str, str] = {}
        self._closed = False
        template = config.traders.api.prompt_template
        chats = ChatPrompter(
            template, config.prompts, config.market, constrained=config.traders.constrained
        )
        local = _local_traders(config, engine)
        self.models: Mapping[str, Model] = {
            name: local.get(name) or _ApiTrader(name=name, prompter=chats, chat=self._chat)
            for name in config.model_traders
        }

    async def _chat(self, name: str, question: Question) -> Completion:
        if (closed := self._spending.closed) is not None:
            raise NotAskedError(closed)
        action = {"name": "action", "schema": question.schema}
        schema = {"type": "json_schema", "json_schema": action} if question.schema else None
        policy = PolicyRef(uid=name, kind="api", path_or_name=name)
        try:
            return await self._player.chat(question.messages, policy, schema)
        except ChatTooLongError as error:
            self._errors[name] = said = f"{error}; lower market.prompt_chars"
            raise ChatTooLongError(said, error.kind, error.used) from error
        except ChatError as error:
            self._errors[name] = str(error)
            raise

    def account(self) -> None:
        """Save and show what was taken since the last call, and note who went silent."""
        taken = self._player.take_usage()
        for one in taken:
            self._note(one)
        if taken:
            self._spending.spend(taken)
            self._spending.save()
            players = self._spending.players
            figures = {
                "requests": sum(one.requests for one in players),
                "cost": self._spending.cost,
            }
            self._context.actors.tracker.log_api.remote(players, figures)
        if (closed := self._spending.closed) is not None and not self._closed:
            self._closed = True
            self._context.note(f"{closed}; traders behind APIs do nothing from now on")

    def _note(self, taken: ApiUsage) -> None:
        name, silent = taken.uid, taken.failed == taken.requests
        # Requests that a signal has ended have none.
        why = self._errors.pop(name, None)
        if silent:
            if why and name not in self._silent:
                self._context.note(f"{why}; {name} does nothing where it does not answer")
            if why or name in self._silent:
                self._silent[name] = 0
        elif name in self._silent:
            self._silent[name] += 1
            if self._silent[name] == _STEADY_TICKS:
                del self._silent[name]
                self._context.note(f"{name} answers again")

    async def close(self) -> None:
        self.account()
        await self._player.close()


def _local_traders(config: ContinuousConfig, engine: Generator) -> Mapping[str, _LocalTrader]:
    """Other local models (``hf:``), each asked in its own form."""
    asked, found = config.traders, {}
    policies = other_models(config)
    played = as_played_by(config, policies)
    for policy in policies:
        own, tokens = with_own_form(played[policy.uid])
        ends = stop_token_ids(own.model, tokens)
        found[policy.uid] = _LocalTrader(
            prompter=AgentPrompter(own, config.market, tokens, constrained=asked.constrained),
            engine=engine,
            policy=policy,
            params=own.engine.sampling(ends, temperature=asked.hf.temperature),
            seed=config.seed,
        )
    return found
