"""The policies at a game's seats: an engine's version, a scripted player, or an API model."""

from __future__ import annotations

from collections.abc import Sequence

from rlforge.config.schema import GamesConfig
from rlforge.engines.base import Generator
from rlforge.engines.openai import ApiPlayer
from rlforge.games.base import View
from rlforge.games.players import Player, make_player
from rlforge.games.prompts import Prompter, Tokenizer
from rlforge.rollout.episode import Answer
from rlforge.types import Completion, GameSpec, PolicyRef, SamplingParams, Seat


class SeatPolicies:
    """Makes, for each game, the function that asks the policy at the seat to move."""

    def __init__(
        self,
        config: GamesConfig,
        tokenizer: Tokenizer,
        engine: Generator,
        stop_token_ids: Sequence[int],
    ) -> None:
        self._engine_config = config.engine
        self._eval_temperature = (
            config.engine.temperature
            if config.eval.temperature is None
            else config.eval.temperature
        )
        self._prompter = Prompter(tokenizer)
        self._engine = engine
        self._stop = tuple(stop_token_ids)
        self._api = ApiPlayer(config.pool.api)
        self._newest: PolicyRef | None = None

    def use_version(self, policy: PolicyRef) -> None:
        """Trained seats sample from ``policy`` from now on, also in games in progress.

        So a game that lasts longer than an update does not exceed the staleness bound; each
        completion records the version that sampled it. If a game starts with a version newer than
        ``policy``, it keeps that version: the maximum of both is used.
        """
        self._newest = policy

    def for_game(self, spec: GameSpec) -> Answer:
        """The ``Answer`` function of one game; it owns that game's scripted players."""
        players: dict[int, Player] = {}
        temperature = (
            self._eval_temperature if spec.purpose == "eval" else self._engine_config.temperature
        )

        async def answer(seat: Seat, view: View, seed: int) -> Completion:
            policy = seat.policy
            if seat.trained and self._newest is not None:
                policy = max(policy, self._newest, key=lambda each: each.version)
            if policy.kind == "scripted":
                if seat.player_id not in players:
                    name = policy.path_or_name or policy.uid
                    players[seat.player_id] = make_player(name, spec.env, seed)
                return Completion(
                    text=players[seat.player_id].act(view),
                    finish_reason="scripted",
                    policy_uid=policy.uid,
                )
            if policy.kind == "api":
                return await self._api.answer(
                    seat.prompt_template, view, policy, seat.action_extraction
                )
            _, ids = self._prompter.encode(seat.prompt_template, view, seat.action_extraction)
            params = SamplingParams(
                temperature=temperature,
                top_p=self._engine_config.top_p,
                max_tokens=self._engine_config.max_tokens,
                stop_token_ids=self._stop,
                seed=seed,
            )
            return await self._engine.generate(ids, params, policy)

        return answer
