"""A game of a person against policies, in the terminal."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path

from rlforge.config.compose import compose
from rlforge.config.roots import read_run
from rlforge.config.schema import GamesConfig
from rlforge.errors import ConfigError, nearest
from rlforge.games.base import View
from rlforge.games.observations import new_part, readable
from rlforge.games.registry import check_env
from rlforge.league.names import parse_opponent
from rlforge.local.policies import find_opponent, find_policy, seat_policies
from rlforge.preflight.policy import with_template
from rlforge.rollout.episode import play_game
from rlforge.rollout.lineup import check_plays, eval_envs, train_envs
from rlforge.rollout.policies import Acting
from rlforge.rollout.schedule import line_up
from rlforge.show.replay import boards
from rlforge.types import Completion, EnvSpec, GameRecord, GameSpec, PolicyRef, Seat

PERSON = PolicyRef(uid="you", kind="scripted", path_or_name="you")

_MOST_MOVES_SHOWN = 48


class Leave(Exception):  # noqa: N818 - not an error
    """The person left before the end of the game."""


class Person:
    """Shows views to a person and reads their actions.

    ask: shows a prompt and returns a line, or raises EOFError.

    Example:
        >>> person = Person(ask=lambda prompt: "4", say=print)
        >>> view = View(player_id=0, observation="Your move.", legal_actions=("[4]", "[5]"))
        >>> person.act(view)
        Your move.
        moves: [4]  [5]
        '[4]'
    """

    def __init__(self, ask: Callable[[str], str], say: Callable[[str], None]) -> None:
        self._ask, self._say = ask, say
        self._read = ""

    def act(self, view: View) -> str:
        """The person's action, in brackets or not; Leave on ``quit`` and at the end of input."""
        # A person remembers what was shown: rules and history are not repeated each turn.
        new = new_part(view.observation, self._read) if view.news is None else view.news
        self._read = view.observation
        self._say(readable(new))
        legal = view.legal_actions
        # The observations of some games list the moves already.
        if legal and not all(action in new for action in legal):
            shown = "  ".join(legal[:_MOST_MOVES_SHOWN])
            more = len(legal) - _MOST_MOVES_SHOWN
            self._say(f"moves: {shown}" + (f"  … and {more} more" if more > 0 else ""))
        while True:
            try:
                typed = self._ask(f"player {view.player_id} (you)> ").strip()
            except EOFError:
                raise Leave from None
            if typed.lower() in ("quit", "exit"):
                raise Leave
            if not legal or (view.state is not None and typed.startswith("{")):
                return typed
            for action in (typed, f"[{typed}]"):
                if action in legal:
                    return action
            self._say(f"{typed!r} is no legal move{nearest(typed, legal)}; quit leaves the game")


def seats_of(env: EnvSpec, seat: int, opponents: Sequence[PolicyRef]) -> tuple[PolicyRef, ...]:
    """The person at ``seat``, the opponents in order, the last repeated; else ConfigError."""
    if seat not in range(env.num_players):
        raise ConfigError(f"--seat {seat}: {env.id} has seats 0 to {env.num_players - 1}")
    others = env.num_players - 1
    if len(opponents) > others:
        raise ConfigError(f"{len(opponents)} opponents: {env.id} has room for {others}")
    rivals = [*opponents, *[opponents[-1]] * (others - len(opponents))] if others else []
    rivals.insert(seat, PERSON)
    return tuple(rivals)


def find_env(config: GamesConfig, env_id: str | None) -> EnvSpec:
    """The environment, by default the first; ConfigError for an unknown id."""
    known = {env.id: env for env in (*eval_envs(config), *train_envs(config))}
    if env_id is not None and env_id not in known:
        raise ConfigError(
            f"--env {env_id}: not in this configuration{nearest(env_id, known)}; there are "
            f"{', '.join(known)}"
        )
    env = known[env_id] if env_id is not None else next(iter(known.values()))
    check_env(env)
    # A person may think as long as they like.
    return dataclasses.replace(env, timeout_s=None)


def prepare(
    overrides: Sequence[str],
    config_dir: Path | None,
    run_dir: Path | None,
    checkpoint: str,
    names: Sequence[str],
) -> tuple[GamesConfig, list[PolicyRef]]:
    """The configuration to play under, and the opponents; ConfigError for none or unknown ones."""
    if run_dir is None:
        if not names:
            raise ConfigError(
                "no opponent: name a scripted player (--opponent random_legal), the untrained "
                "model (--opponent base), or a trained one (--run RUN)"
            )
        # A model without chat template could not be asked by the usual prompt.
        composed, _ = with_template(compose(overrides, config_dir))
        return composed.config, [parse_opponent(name) for name in names]
    if overrides:
        raise ConfigError("--run plays under the run's own config; give it no key=value")
    config = read_run(run_dir, GamesConfig)
    if names:
        return config, [find_opponent(run_dir, name, config) for name in names]
    return config, [find_policy(run_dir, checkpoint)[0]]


async def play(
    config: GamesConfig,
    env: EnvSpec,
    policies: Sequence[PolicyRef],
    seed: int,
    person: Person,
    say: Callable[[str], None],
) -> GameRecord:
    """Play a game of ``policies``, of which one is the person.

    Raises Leave, and ConfigError for an opponent that cannot play here.
    """
    for policy in policies:
        if policy != PERSON:
            check_plays(policy, env)
    spec = GameSpec(
        game_id="play", env=env, seed=seed, purpose="eval", seats=line_up(env, policies, None)
    )
    async with seat_policies(config, policies, say) as answers:
        own = {
            seat.player_id: Acting(seat, lambda seed: person.act)
            for seat in spec.seats
            if seat.policy == PERSON
        }
        seats = answers.for_game(spec, own)

        async def answer(seat: Seat, view: View, draw: int) -> Completion:
            completion = await seats(seat, view, draw)
            if seat.player_id not in own:  # the person knows what they typed
                say(f"player {seat.player_id} ({seat.policy.uid}): {completion.text.strip()}")
            return completion

        record = await play_game(spec, answer)
    if drawn := boards(record):
        say(f"\nFinal board:\n{drawn[-1]}\n")
    return record


def verdict(record: GameRecord) -> str:
    seats = record.spec.seats
    if record.error is not None:
        return f"the game failed: {record.error}"
    rewards = ", ".join(
        f"player {seat.player_id} ({seat.policy.uid}) {record.rewards[seat.player_id]:+zg}"
        for seat in seats
    )
    own = next((seat.player_id for seat in seats if seat.policy == PERSON), 0)
    outcome = record.spec.env.outcome(record.rewards, own)
    said = {"win": "you won", "draw": "a draw", "loss": "you lost"}[outcome]
    return f"{said} ({record.ending}): {rewards}"
