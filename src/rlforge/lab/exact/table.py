"""A language model's policy as a table: the probability of every action at every decision."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from rlforge.config.schema import PolicyConfig
from rlforge.errors import ConfigError, RunError
from rlforge.games.orientation import shown
from rlforge.games.prompts import Prompter
from rlforge.lab.exact.tree import ExactGame, Table, exact_game
from rlforge.record.results import ExactResult
from rlforge.rollout.legal import LegalTokens
from rlforge.types import EnvSpec, PolicyRef, value


@value
class Answer:
    """An answer that is a legal action and nothing else, and the prompt it is given to."""

    prompt: tuple[int, ...]
    tokens: tuple[int, ...]


@value
class Played:
    """A policy in a game."""

    table: Table
    illegal: float  #: as in ``ExactResult``
    illegal_most: float


def measured_game(env: EnvSpec) -> ExactGame:
    """The tree of ``env``; ConfigError where there is none, or no table can stand for it."""
    if env.source != "openspiel":
        raise ConfigError(
            f"env {env.id!r} is a game of {env.source}: exact measures are for games of OpenSpiel, "
            "as env openspiel_tictactoe; rlforge exploit RUN --learn trains a best response"
        )
    if env.context == "conversation":
        raise ConfigError(
            f"env {env.id!r}: a policy that remembers its answers (env.context=conversation) is no "
            "table of decisions; measure a run with env.context=turn"
        )
    return exact_game(env.id, env.actions)


class Questions:
    """The prompts of all decisions of a game, and the answers to them that are legal."""

    check = staticmethod(measured_game)

    def __init__(self, env: EnvSpec, config: PolicyConfig, tokenizer: Any) -> None:
        self.game = measured_game(env)
        prompter, legal = Prompter(tokenizer, config.prompts), LegalTokens(config.model, tokenizer)
        #: All answers, in order of decisions and actions.
        self.answers: list[Answer] = []
        #: Of each answer the key of its decision, and its action.
        self.owners: list[tuple[str, str]] = []
        for decision in self.game.decisions:
            asked = shown(env, decision.view)
            _, prompt = prompter.encode(env.form, asked.view)
            for action in decision.view.legal_actions or ():
                for tokens in legal.answers(env.form.extraction, asked.said(action)):
                    self.answers.append(Answer(prompt=prompt, tokens=tokens))
                    self.owners.append((decision.key, action))

    def table(self, logprobs: Sequence[float]) -> Played:
        """Read a policy off the log-probs of ``answers``.

        Raises RunError where no legal answer of a decision has a probability above 0.
        """
        mass: dict[str, dict[str, float]] = {}
        for (key, action), logprob in zip(self.owners, logprobs, strict=True):
            row = mass.setdefault(key, {})
            row[action] = row.get(action, 0.0) + math.exp(logprob)
        totals = {key: sum(row.values()) for key, row in mass.items()}
        if silent := [key for key, total in totals.items() if total == 0.0]:
            raise RunError(
                f"env {self.game.name!r}: the policy gives no legal action alone at "
                f"{len(silent)} of {len(totals)} decisions, so that it has no exact measure; play "
                "it instead, with rlforge eval"
            )
        # Illegal answers are left out: an action has its answers' share of all legal ones.
        table = {
            key: {action: one / totals[key] for action, one in row.items()}
            for key, row in mass.items()
        }
        illegal = [max(0.0, 1.0 - total) for total in totals.values()]
        return Played(table=table, illegal=sum(illegal) / len(illegal), illegal_most=max(illegal))

    def measure(self, played: Played, policy: PolicyRef) -> ExactResult:
        found = self.game.exploitability(played.table)
        return ExactResult(
            step=policy.version,
            policy_uid=policy.uid,
            env_id=self.game.name,
            nash_conv=found.nash_conv,
            values=found.values,
            gains=found.gains,
            decisions=len(played.table),
            illegal=played.illegal,
            illegal_most=played.illegal_most,
        )
