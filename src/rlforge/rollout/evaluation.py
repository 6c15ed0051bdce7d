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

CONTINUOUS_GAMES = 32
"""Games of a version in an environment with ``eval.continuous``, as UnstableBaselines has it; where
one against each opponent from every seat are more, those."""


@value
class Pairing:
    """An environment of evaluations, and the opponents that are met in it.

    Single-player environments are played alone. key: the key of the configuration that names the
    opponents, for messages.
    """

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
    games: int,
    *,
    step: int,
    seed: int,
    max_games: int | None = None,
    seats: Sequence[PolicyRef] | None = None,
    part: int = 0,
) -> list[GameSpec]:
    """Evaluation games of ``policy`` after ``step`` updates; nothing in them is trained.

    seats: who takes each seat for it, where several policies share them; None: it takes each. part:
    see ``GameSpec``.

    Games come in rounds of one per seat: the same seed, with the policy at each seat once and
    the opponent at all others. ``games`` per environment and opponent is rounded up to whole
    rounds. Single-player environments are played alone, one round being one game. Environments
    and opponents take turns, round by round.

    max_games: most games per environment, divided among the opponents in whole rounds; numbers of
    rounds differ by at most one.

    The r-th round of an environment has the same seed for every opponent, step and policy, so
    that results differ by the players and not by the cards dealt.
    ``GameSpec.focus`` is the seat of the policy, also where the opponent has the same uid.
    Raises ConfigError where ``max_games`` leaves an opponent without a round.
    """
    return list(_deal(pairings, policy, games, step, seed, max_games, seats, part))


class OpenEvaluation:
    """The games of one version, dealt one at a time as long as there is room for them.

    They are those of ``plan_evaluation``, up to ``max_games`` per environment, None:
    ``CONTINUOUS_GAMES``. A round that has begun is completed, so that every seat counts equally.

    Example: of a version that is superseded after its first game:
        >>> env = EnvSpec(id="kuhn_poker", source="openspiel")
        >>> me, rival = (PolicyRef(uid=uid, kind="checkpoint") for uid in ("step-1", "base"))
        >>> games = OpenEvaluation([Pairing(env=env, opponents=(rival,))], me, step=1, seed=0)
        >>> first = games.next_game()
        >>> games.close()
        >>> [game and game.focus for game in (first, games.next_game(), games.next_game())]
        [0, 1, None]
    """

    def __init__(
        self,
        pairings: Sequence[Pairing],
        policy: PolicyRef,
        *,
        step: int,
        seed: int,
        max_games: int | None = None,
        seats: Sequence[PolicyRef] | None = None,
        part: int = 0,
    ) -> None:
        """Deal games as ``plan_evaluation`` plans them."""
        self.policy, self._step = policy, step
        self._games = _deal(pairings, policy, None, step, seed, max_games, seats, part)
        self._coming = next(self._games, None)
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
        """No further round begins."""
        self._closed = True

    def add(self, record: GameRecord | None) -> None:
        """A game that was dealt has ended; None: it was not admitted."""
        self._under_way -= 1
        if record is not None:
            self._played.append(dataclasses.replace(record, turns=()))

    @property
    def over(self) -> bool:
        """Whether all games are played and no more will be dealt."""
        return not self._under_way and (self._coming is None or self._round_was_last)

    def results(self) -> list[EvalResult]:
        """Results of the ended games, in the order of their dealing: see ``summarise``."""
        dealt = sorted(self._played, key=lambda record: record.spec.game_id)
        return summarise(dealt, self._step, self.policy.uid)

    @property
    def _round_was_last(self) -> bool:
        return self._closed and self._coming is not None and self._coming.focus == 0


def _deal(
    pairings: Sequence[Pairing],
    policy: PolicyRef,
    games: int | None,
    step: int,
    seed: int,
    max_games: int | None,
    seats: Sequence[PolicyRef] | None,
    part: int,
) -> Iterator[GameSpec]:
    """Round after round, until every opponent has met its ``games``; None: ``max_games``."""
    met = [
        (pairing.env, rival, rounds)
        for pairing in pairings
        for rival, rounds in zip(pairing.rivals, _rounds(pairing, games, max_games), strict=True)
    ]
    numbers = count()
    # A resumed run may evaluate a version again that has other weights now.
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
                    seed=derive_seed(seed, "eval", env.id, index),
                    purpose="eval",
                    seats=line_up(env, policies, trained_uid=None),
                    focus=focus,
                    part=part,
                )


def _rounds(pairing: Pairing, games: int | None, max_games: int | None) -> Sequence[int]:
    """Rounds against each rival."""
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

    uid: of the policy that all focus seats count for; None: each for its own.

    Outcomes are the focus seat's, by ``EnvSpec.outcome``.
    Rates are over finished games; failed ones are only counted. invalid_rate: share of games
    that the policy itself ended by an invalid move. ci95: Wilson score interval of the win rate.
    Without a finished game the rates and mean_reward are 0 and ci95 is (0, 1).
    Raises ValueError for a record without a focus seat.
    """
    results: dict[tuple[str, str, str], list[GameRecord]] = {}
    for record in records:
        spec, focus = record.spec, _focus(record.spec)
        others = [seat.policy.uid for seat in spec.seats if seat.player_id != focus]
        opponent = others[0] if others else NO_OPPONENT
        key = (spec.env_id, opponent, uid or spec.seats[focus].policy.uid)
        results.setdefault(key, []).append(record)
    return [_result(step, *key, played) for key, played in results.items()]


def _focus(spec: GameSpec) -> int:
    """The evaluated policy's player id."""
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
