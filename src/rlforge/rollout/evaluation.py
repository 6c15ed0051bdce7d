"""Evaluation of a policy: seat-swapped games against named opponents, and their summary."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from rlforge.errors import ConfigError
from rlforge.rollout.schedule import derive_seed, line_up
from rlforge.tracking.metrics import outcome, wilson_interval
from rlforge.types import EnvSpec, EvalResult, GameRecord, GameSpec, PolicyRef

#: Stands for the opponent in single-player environments.
NO_OPPONENT = "none"


def plan_evaluation(
    envs: Sequence[EnvSpec],
    opponents: Sequence[PolicyRef],
    policy: PolicyRef,
    games: int,
    *,
    step: int,
    seed: int,
    max_games: int | None = None,
) -> list[GameSpec]:
    """Evaluation games of ``policy`` after ``step`` updates; nothing in them is trained.

    Games come in rounds of one per seat: the same seed, with the policy at each seat once and
    the opponent at all others. ``games`` per environment and opponent is rounded up to whole
    rounds. Single-player environments are played alone, one round being one game.

    max_games: most games per environment, divided among the opponents in whole rounds; numbers of
    rounds differ by at most one.

    The r-th round of an environment has the same seed for every opponent, step and policy, so
    that results differ by the players and not by the cards dealt.
    ``GameSpec.focus`` is the seat of the policy, also where the opponent has the same uid.
    Raises ConfigError where ``max_games`` leaves an opponent without a round.
    """
    specs: list[GameSpec] = []
    for env in envs:
        rivals: Sequence[PolicyRef | None] = opponents if env.num_players > 1 else [None]
        for rival, rounds in zip(rivals, _rounds(env, len(rivals), games, max_games), strict=True):
            for round_index in range(rounds):
                for focus in range(env.num_players):
                    policies = [policy if rival is None else rival] * env.num_players
                    policies[focus] = policy
                    specs.append(
                        GameSpec(
                            game_id=f"eval-{step}-{policy.uid}-{len(specs):06d}",
                            env=env,
                            seed=derive_seed(seed, "eval", env.id, round_index),
                            purpose="eval",
                            seats=line_up(env, policies, trained_uid=None),
                            focus=focus,
                        )
                    )
    return specs


def _rounds(env: EnvSpec, rivals: int, games: int, max_games: int | None) -> list[int]:
    """Rounds against each of ``rivals`` opponents."""
    wanted = -(-games // env.num_players)
    if max_games is None or wanted * env.num_players * rivals <= max_games:
        return [wanted] * rivals
    share, extra = divmod(max_games // env.num_players, rivals)
    if not share:
        raise ConfigError(
            f"eval.max_games_per_checkpoint is {max_games}: {env.id} needs at least "
            f"{env.num_players * rivals}, one game per seat against each of {rivals} opponents"
        )
    return [share + (index < extra) for index in range(rivals)]


def summarise(records: Sequence[GameRecord], step: int) -> list[EvalResult]:
    """One result per environment, opponent and policy of ``records``, in order of appearance.

    Outcomes are the focus seat's (``rlforge.tracking.metrics.outcome``): a win is strictly the
    highest reward, a draw a shared highest one; in single-player games a win is a reward of at
    least 1.
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
        key = (spec.env_id, opponent, spec.seats[focus].policy.uid)
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
    outcomes = Counter(outcome(record.rewards, focus) for record, focus in finished)
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
