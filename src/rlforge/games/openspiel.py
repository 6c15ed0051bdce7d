"""OpenSpiel games behind the ``Game`` protocol."""

from __future__ import annotations

import contextlib
import functools
import math
import re
from collections.abc import Iterator, Mapping, Sequence

import pyspiel

from rlforge.errors import ConfigError, GameError, counted, nearest
from rlforge.games.base import TurnGame, View
from rlforge.games.board import Hand, grid_board, hand_board, state_board
from rlforge.games.grids import LINE_LENGTHS, Grid, grid_of
from rlforge.games.openspiel_rules import introduction
from rlforge.types import Actions, EndReason, EnvSpec

#: Random ends of a game by which its teams are known.
_ENDINGS = 16


class OpenSpielGame(TurnGame):
    """One play of an OpenSpiel game."""

    def __init__(self, env: EnvSpec, seed: int) -> None:
        super().__init__(env, seed)
        self._game = load_game(env.id)
        self._errors = 0
        self._feedback = ""
        with self._foreign("new_initial_state"):
            self._state = self._game.new_initial_state()
            self._settle_chance(self._state)

    @property
    def accepted(self) -> bool:
        return not self._feedback

    def step(self, action: str) -> None:
        player = self.view().player_id
        bracketed = re.search(r"\[[^\[\]]*\]", action)
        token = bracketed.group() if bracketed else ""
        known = action_numbers(self._state, self._spec.actions)
        self._view = None
        self._turn += 1
        if token in known:
            self._errors = 0
            self._feedback = ""
            with self._foreign("step"):
                self._state.apply_action(known[token])
                self._settle_chance(self._state)
        else:
            self._errors += 1
            given = token or "no action in brackets"
            self._feedback = f"Your last action was not accepted: {given}. Try another action."
            if self._errors > self._spec.error_allowance:
                self._finish(self._forfeited(player), "invalid_move", player)
                return
        if self._state.is_terminal():
            self._finish(dict(enumerate(self._state.returns())), "finished", None)
        elif self._out_of_turns:
            self._finish(dict.fromkeys(range(self._game.num_players()), 0.0), "turn_limit", None)

    def _look(self) -> View:
        with self._foreign("view"):
            view = view_of(self._state, self._feedback, self._spec.actions)
            if not view.legal_actions:
                # To OpenSpiel the game goes on, but no answer could ever continue it.
                raise ValueError("there is no action to choose")
            return view

    @contextlib.contextmanager
    def _foreign(self, what: str) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            # Whatever OpenSpiel raises fails this game only, not the run.
            text = " ".join(str(error).split())[:200]
            raise GameError(
                f"{self._spec.id}: {what} failed in turn {self._turn}: "
                f"{type(error).__name__}: {text}"
            ) from error

    def _finish(
        self, rewards: Mapping[int, float], reason: EndReason, invalid_by: int | None
    ) -> None:
        if not all(math.isfinite(reward) for reward in rewards.values()):
            raise GameError(f"{self._spec.id}: rewards {rewards} are not finite")
        super()._finish(rewards, reason, invalid_by)

    def _forfeited(self, player: int) -> dict[int, float]:
        # The player's team gets the game's least utility, so that forfeiting never pays.
        worst, players = self._game.min_utility(), range(self._game.num_players())
        with self._foreign("forfeit"):
            team = self._team(player)
        zero_sum = self._game.get_type().utility == pyspiel.GameType.Utility.ZERO_SUM
        rest = len(players) - len(team)
        others = -worst * len(team) / rest if zero_sum and rest else 0.0
        return {one: worst if one in team else others for one in players}

    def _team(self, player: int) -> set[int]:
        """The players who win and lose with ``player``, itself included."""
        team = set(range(self._game.num_players()))
        if self._spec.won_by == "all":
            return team
        returns: list[list[float]] = []
        for _ in range(_ENDINGS if self._spec.won_by == "team" else 0):
            state = self._state.clone()
            while not state.is_terminal():
                state.apply_action(self._random.choice(state.legal_actions()))
                self._settle_chance(state)
            returns.append(state.returns())
        # OpenSpiel does not name teams, and roles make some during a game. Mates have the same
        # returns in every ending, so random endings show them.
        telling = [each for each in returns if len(set(each)) > 1]
        if not telling:
            return {player}
        return {one for one in team if all(each[one] == each[player] for each in telling)}

    def _settle_chance(self, state: pyspiel.State) -> None:
        while state.is_chance_node():
            outcomes, chances = zip(*state.chance_outcomes(), strict=True)
            state.apply_action(self._random.choices(outcomes, chances)[0])


make = OpenSpielGame


def env_ids() -> list[str]:
    return sorted(pyspiel.registered_names())


def check(env: EnvSpec) -> None:
    """Raise ConfigError when the game cannot be rendered, or has other seats."""
    players = load_game(env.id).num_players()
    if players != env.num_players:
        raise ConfigError(
            f"env {env.id!r} is for {counted(players, 'player')}, "
            f"not {env.num_players}; set num_players"
        )
    try:
        OpenSpielGame(env, seed=0).view()
    except GameError as error:
        raise ConfigError(f"env {env.id!r} cannot be played: {error}") from error


def state_after(name: str, history: Sequence[int]) -> pyspiel.State:
    """The state of a game after the actions of ``View.history``."""
    state = load_game(name).new_initial_state()
    for action in history:
        state.apply_action(action)
    return state


@functools.lru_cache(maxsize=64)
def load_game(name: str) -> pyspiel.Game:
    """The game, turn-based; ConfigError if it cannot be played."""
    short_name = name.split("(", maxsplit=1)[0]
    if short_name not in pyspiel.registered_names():
        raise ConfigError(f"env {name!r} is not an OpenSpiel game{nearest(short_name, env_ids())}")
    try:
        game = pyspiel.load_game(name)
    except (pyspiel.SpielError, IndexError) as error:
        reason = " ".join(str(error).split())
        raise ConfigError(
            f"env {name!r} does not load: {reason}; give its parameters as in "
            f"'kuhn_poker(players=3)'"
        ) from error
    kind = game.get_type()
    if kind.dynamics == pyspiel.GameType.Dynamics.MEAN_FIELD:
        raise ConfigError(f"env {name!r} is a mean-field game without seats; choose another one")
    if kind.chance_mode == pyspiel.GameType.ChanceMode.SAMPLED_STOCHASTIC:
        raise ConfigError(
            f"env {name!r} draws its own chance and cannot follow a seed; choose another one"
        )
    if kind.dynamics == pyspiel.GameType.Dynamics.SIMULTANEOUS:
        # A ``Game`` asks one player at a time; OpenSpiel then hides moves until all have answered.
        game = pyspiel.convert_to_turn_based(game)
        kind = game.get_type()
    if not (
        kind.information == pyspiel.GameType.Information.PERFECT_INFORMATION
        or kind.provides_information_state_string
        or kind.provides_observation_string
    ):
        raise ConfigError(f"env {name!r} cannot show a player its view; choose another one")
    return game


def view_of(state: pyspiel.State, feedback: str = "", actions: Actions = "words") -> View:
    """The view of the player to move. feedback: on an action that was not accepted."""
    player = state.current_player()
    grid, shown = _grid(state, player), _hand(state, player) or _known(state, player)
    legal = tuple(action_numbers(state, actions))
    if grid is not None:
        board = grid_board(grid)
    elif isinstance(shown, Hand):
        board = hand_board(shown, legal)
    else:
        board = state_board(state.get_game().get_type().short_name, shown, legal)
    return View(
        player_id=player,
        observation=_observation(state, player, shown, legal, feedback),
        legal_actions=legal,
        board=board,
        retry=bool(feedback),
        grid=grid,
        history=tuple(state.history()),
    )


def _observation(
    state: pyspiel.State, player: int, shown: Hand | str, legal: tuple[str, ...], feedback: str
) -> str:
    if isinstance(shown, Hand):
        bets = [", ".join(bets) or "none" for bets in shown.rounds]
        situation = f"Your card: {shown.card}.\nBets so far: {bets[0]}."
        if shown.public is not None:
            situation += f"\nPublic card: {shown.public}.\nBets since it was shown: {bets[1]}."
    else:
        situation = f"Current state:\n{shown}"
    name, rules = introduction(str(state.get_game()))
    paragraphs = [
        f"You are player {player} of {state.num_players()} in {name}.\n{rules}",
        situation.rstrip(),
        feedback,
        f"Your available actions are: {', '.join(_listed(state, legal))}",
    ]
    return "\n\n".join(paragraph for paragraph in paragraphs if paragraph)


#: Games whose information state is a list of numbers; their observation is the board or the cards.
_OBSERVED = ("battleship", "blackjack", "oshi_zumo", "solitaire")


def _known(state: pyspiel.State, player: int) -> str:
    game = state.get_game()
    kind = game.get_type()
    name = game.get_parameters().get("game", {}).get("name", kind.short_name)
    if kind.information == pyspiel.GameType.Information.PERFECT_INFORMATION:
        text = str(state)
    elif name == "coop_box_pushing":
        # A player's own observation is one word, so players see the state, without its first line,
        # which holds hidden moves.
        text = str(state).partition("\n")[2]
    elif kind.provides_information_state_string and name not in _OBSERVED:
        text = state.information_state_string(player)
    else:
        text = state.observation_string(player)
    return re.sub(r"\x1b\[[0-9;]*m", "", text)


def _listed(state: pyspiel.State, legal: tuple[str, ...]) -> Iterator[str]:
    on_a_board = state.get_game().get_type().short_name == "tic_tac_toe"
    for token, action in zip(legal, state.legal_actions(), strict=True):
        if on_a_board or not token[1:-1].isdigit():
            yield token
            continue
        name = state.action_to_string(state.current_player(), action)
        words = " ".join(re.sub(r"[\[\]]", " ", name).split())
        # A number alone says nothing, so OpenSpiel's name follows: ``[3] (P0 Bid: 4)``.
        yield token if token == f"[{words}]" else f"{token} ({words})"


def action_numbers(state: pyspiel.State, actions: Actions) -> dict[str, int]:
    """Each legal action in text form, and OpenSpiel's number for it."""
    name, legal = state.get_game().get_type().short_name, state.legal_actions()
    # Grids, and poker in words, have the actions of their TextArena counterparts, so that one
    # prompt format serves both.
    if name == "connect_four":
        return {f"[col {action}]": action for action in legal}
    if actions == "numbers" or name == "tic_tac_toe":
        return {f"[{action}]": action for action in legal}
    if name == "kuhn_poker":
        faces_bet = any(entry.action == 1 for entry in _bets(state))
        words = ("[fold]", "[call]") if faces_bet else ("[check]", "[bet]")
        return {words[action]: action for action in legal}
    if name == "leduc_poker":
        return {("[fold]", "[call]", "[raise]")[action]: action for action in legal}
    player = state.current_player()
    named = {f"[{state.action_to_string(player, action)}]": action for action in legal}
    if len(named) == len(legal) and all(re.fullmatch(r"\[[^\[\]\n]+\]", text) for text in named):
        return named
    return {f"[{action}]": action for action in legal}


def _bets(state: pyspiel.State) -> list[pyspiel.PlayerAction]:
    return [entry for entry in state.full_history() if entry.player >= 0]


def _hand(state: pyspiel.State, player: int) -> Hand | None:
    game = state.get_game()
    name, players = game.get_type().short_name, game.num_players()
    # OpenSpiel numbers cards from the lowest rank: J, Q, K for two players, lower ranks for more.
    ranks = "23456789TJQKA"[-(players + 2) : -1]
    if name == "kuhn_poker":
        dealt = [entry.action for entry in state.full_history() if entry.player < 0]
        bets: list[str] = []
        for entry in _bets(state):
            bets.append((("fold", "call") if "bet" in bets else ("check", "bet"))[entry.action])
        return Hand(game="kuhn", card=ranks[dealt[player]], public=None, rounds=(tuple(bets),))
    # With ``suit_isomorphism`` cards have other numbers, which would be read as wrong ranks.
    if name == "leduc_poker" and not game.get_parameters().get("suit_isomorphism"):
        cards: list[str] = []
        rounds: list[list[str]] = [[]]
        for entry in state.full_history():
            if entry.player >= 0:
                rounds[-1].append(("fold", "call", "raise")[entry.action])
                continue
            cards.append(ranks[entry.action // 2])
            if len(cards) > players:
                rounds.append([])
        return Hand(
            game="leduc",
            card=cards[player],
            public=cards[players] if len(cards) > players else None,
            rounds=tuple(map(tuple, rounds)),
        )
    return None


def _grid(state: pyspiel.State, player: int) -> Grid | None:
    game = state.get_game()
    name, rows = game.get_type().short_name, str(state).split()
    if name == "tic_tac_toe":
        return grid_of("tictactoe", rows, "xo", player)
    # ``Grid`` knows lines of four only and would see wins where there are none.
    if name == "connect_four" and game.get_parameters()["x_in_row"] == LINE_LENGTHS["connectfour"]:
        return grid_of("connectfour", rows, "xo", player)
    return None
