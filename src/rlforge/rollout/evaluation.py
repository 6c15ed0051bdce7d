"""Evaluation of a policy: seat-swapped games against named opponents, and their summary."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import count

from rlforge.errors import ConfigError
from rlforge.rollout.schedule import derive_seed, line_up
from rlforge.statistics import wilson_interval
from rlforge.types import EnvSpec, EvalResult, GameRecord, GameSpec, PolicyRef, value

#: Stands for the opponent in single-player environments.
NO_OPPONENT = "none"

# UnstableBaselines plays as many.
#: Games of a version in an environment with ``eval.continuous``, or one round where that is more.
CONTINUOUS_GAMES = 32


@value
class Pairing:
    """An environment of evaluations, and its opponents; key: names them in the configuration."""

    env: EnvSpec
    opponents: tuple[PolicyRef, ...]
    key: str = "eval.opponents"

    @property
    def rivals(self) -> tuple[PolicyRef | None, ...]:
        """The opponents; None alone in single-player environments."""
        return self.opponents if self.env.num_players > 1 else (None,)

    @property
    def fewest_games(self) -> int:
        """Games of one round against each rival."""
        return self.env.num_players * len(self.rivals)


def plan_evaluation(
    pairings: Sequence[Pairing],
    policy: PolicyRef,
    games: int | None,
    *,
    step: int,
    seed: int,
    max_games: int | None = None,
    seats: Sequence[PolicyRef] | None = None,
    part: int = 0,
) -> Iterator[GameSpec]:
    """Evaluation games of ``policy`` after ``step`` updates; nothing in them is trained.

    Games come in rounds of one per seat, with the same seed and the opponent at all other seats.

    Args:
        pairings: Environments and opponents take turns, round by round.
        policy: Evaluated policy, whose seat is ``GameSpec.focus``.
        games: Per environment and opponent, rounded up to whole rounds; None: ``max_games``.
        max_games: Most per environment, divided among the opponents in whole rounds; ConfigError
            where an opponent has none. None with ``games`` None: ``CONTINUOUS_GAMES``.
        seats: Who takes each seat for ``policy``, where several policies share them.
    """
    met = [
        (pairing.env, rival, rounds)
        for pairing in pairings
        for rival, rounds in zip(pairing.rivals, _rounds(pairing, games, max_games), strict=True)
    ]
    numbers = count()
    # A resumed run may evaluate a version again with other weights: these games need other ids.
    prefix = f"eval-{part}" if part else "eval"
    for index in count():
        left = [(env, rival) for env, rival, rounds in met if index < rounds]
        if not left:
            return
        for env, rival in left:
            for focus in range(env.num_players):
                own = policy if seats is None else seats[focus]
                policies = [own if rival is None else rival] * env.num_players
                policies[focus] = own
                yield GameSpec(
                    game_id=f"{prefix}-{step}-{policy.uid}-{next(numbers):06d}",
                    env=env,
                    # One seed for every opponent, step and policy, so that results differ by the
                    # players and not by the cards dealt.
                    seed=derive_seed(seed, "eval", env.id, index),
                    purpose="eval",
                    seats=line_up(env, policies, trained_uid=None),
                    focus=focus,
                    part=part,
                )


class OpenEvaluation:
    """Games of one version, dealt one at a time until it is closed."""

    def __init__(self, games: Iterator[GameSpec], policy: PolicyRef, *, step: int) -> None:
        self.policy, self._step = policy, step
        self._games = games
        self._coming = next(games, None)
        self._closed = False
        self._under_way = 0
        self._played: list[GameRecord] = []

    def next_game(self) -> GameSpec | None:
        """The next game to play; None where there are no more."""
        spec = self._coming
        if spec is None or self._round_was_last:
            return None
        self._coming = next(self._games, None)
        self._under_way += 1
        return spec

    def close(self) -> None:
        """Begin no further round."""
        self._closed = True

    def add(self, record: GameRecord | None) -> None:
        """Count a dealt game that has ended; None: it was not admitted."""
        self._under_way -= 1
        if record is not None:
            self._played.append(dataclasses.replace(record, turns=()))

    @property
    def over(self) -> bool:
        """Whether all games are played and no more will be dealt."""
        return not self._under_way and (self._coming is None or self._round_was_last)

    def results(self) -> list[EvalResult]:
        """Results of the ended games, in the order of their dealing."""
        dealt = sorted(self._played, key=lambda record: record.spec.game_id)
        return summarise(dealt, self._step, self.policy.uid)

    @property
    def _round_was_last(self) -> bool:
        # A round that has begun is completed, so that every seat counts equally.
        return self._closed and self._coming is not None and self._coming.focus == 0


def _rounds(pairing: Pairing, games: int | None, max_games: int | None) -> Sequence[int]:
    players, rivals = pairing.env.num_players, len(pairing.rivals)
    if games is not None:
        wanted = -(-games // players)
        if max_games is None or wanted * players * rivals <= max_games:
            return [wanted] * rivals
    if max_games is None:
        max_games = max(CONTINUOUS_GAMES, pairing.fewest_games)
    if max_games < pairing.fewest_games:
        raise ConfigError(
            f"eval.max_games_per_checkpoint is {max_games}: {pairing.env.id} needs at least "
            f"{pairing.fewest_games}, one game per seat against each of {rivals} opponents"
        )
    share, extra = divmod(max_games // players, rivals)
    return [share + (index < extra) for index in range(rivals)]


def summarise(records: Sequence[GameRecord], step: int, uid: str | None = None) -> list[EvalResult]:
    """One result per environment, opponent and policy of ``records``, in order of appearance.

    Rates are over finished games; invalid_rate is the share that the policy itself ended by an
    invalid move. ci95 is Wilson's. uid: policy that all focus seats count for; None: each for its
    own.
    """
    results: dict[tuple[str, str, str], list[GameRecord]] = {}
    for record in records:
        spec, focus = record.spec, _focus(record.spec)
        key = (spec.env_id, opponent_of(spec), uid or spec.seats[focus].policy.uid)
        results.setdefault(key, []).append(record)
    return [_result(step, *key, played) for key, played in results.items()]


def opponent_of(spec: GameSpec) -> str:
    """The opponent's uid in an evaluation game."""
    others = [seat.policy.uid for seat in spec.seats if seat.player_id != spec.focus]
    return others[0] if others else NO_OPPONENT


def _focus(spec: GameSpec) -> int:
    if spec.focus is None:
        raise ValueError(f"game {spec.game_id} is not an evaluation game: it has no focus seat")
    return spec.focus


def _result(
    step: int, env_id: str, opponent: str, policy_uid: str, records: Sequence[GameRecord]
) -> EvalResult:
    finished = [(record, _focus(record.spec)) for record in records if record.error is None]
    outcomes = Counter(record.spec.env.outcome(record.rewards, focus) for record, focus in finished)
    games = len(finished)
    return EvalResult(
        step=step,
        env_id=env_id,
        opponent=opponent,
        policy_uid=policy_uid,
        games=games,
        wins=outcomes["win"],
        draws=outcomes["draw"],
        losses=outcomes["loss"],
        win_rate=outcomes["win"] / max(games, 1),
        ci95=wilson_interval(outcomes["win"], games),
        mean_reward=sum(record.rewards[focus] for record, focus in finished) / max(games, 1),
        invalid_rate=sum(record.invalid_by == focus for record, focus in finished) / max(games, 1),
        failed=len(records) - games,
    )
