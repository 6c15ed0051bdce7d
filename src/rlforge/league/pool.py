"""The model pool: the learner's versions and their opponents, ratings, and opponent sampling."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rlforge.config.pool import PoolConfig
from rlforge.errors import RunError, nearest
from rlforge.league.budget import ApiBudget
from rlforge.league.exploration import ExplorationTracker
from rlforge.league.history import History
from rlforge.league.matchmaking import Line, Matchmaking
from rlforge.league.modes import PoolView, Weights, probabilities
from rlforge.league.payoff import Results, ResultTable
from rlforge.league.ratings import BETA, RatingTable
from rlforge.league.run_ladder import run_ladder
from rlforge.record.results import LadderRow, PoolEntry, PoolSnapshot, Role
from rlforge.system.values import from_json, to_json
from rlforge.types import Checkpoint, GameRecord, GameSpec, PolicyRef

# AlphaStar's payoffs, which decay by 0.99 a game, remember about as many.
#: Latest games that tell how the learner does now against an opponent.
RECENT_GAMES = 100


class ModelPool:
    """Registers checkpoints and fixed opponents, rates them by their games, and draws opponents.

    Example:
        >>> pool = ModelPool(PoolConfig(mode="mirror"), fixed=[], seed=0)
        >>> pool.add_checkpoint(Checkpoint(uid="step-0", version=0, path=None))
        >>> [policy.uid for policy in pool.opponents(1)]
        ['step-0']
    """

    def __init__(
        self,
        cfg: PoolConfig,
        fixed: Sequence[PolicyRef],
        seed: int,
        policies: Mapping[str, Matchmaking] | None = None,
        budget: ApiBudget | None = None,
    ) -> None:
        """Register the fixed opponents: ``fixed``, or of each of several ``policies`` its own.

        The first of ``policies`` is the main one. API players are not drawn once ``budget`` is
        closed.
        """
        self._budget = budget
        self._ratings = RatingTable(cfg.rating_beta or BETA)
        self._exploration = ExplorationTracker()
        self._policies: dict[str, PolicyRef] = {}
        self._roles: dict[str, Role] = {}
        self._games: dict[str, int] = {}
        self._rated_games: Counter[str] = Counter()
        self._matches: dict[str, dict[str, int]] = {}
        self._results = ResultTable()
        alone = {"": Matchmaking(config=cfg, fixed=tuple(fixed), meets=("",))}
        self._lines = {
            name: Line(
                matchmaking,
                History(
                    matchmaking.config,
                    mu=lambda uid: self._ratings.rating(uid).mu,
                    payoffs=lambda uids: self._results.payoff_vectors(uids),
                ),
                f"pool {seed} {name}".rstrip(),
            )
            for name, matchmaking in (policies or alone).items()
        }
        self._main = next(iter(self._lines))
        for line in self._lines.values():
            for policy in line.matchmaking.fixed:
                if self._roles.get(policy.uid) != "fixed":
                    self.add_fixed(policy)

    # ------------------------------------------------------------ members

    def add_checkpoint(self, checkpoint: Checkpoint) -> None:
        """Make ``checkpoint`` the current version of its policy.

        Adding the same one again changes nothing. Raises RunError where another policy has the uid
        or the parent is unknown.
        """
        line, known = self._line(checkpoint.name), self._policies.get(checkpoint.uid)
        if known == checkpoint.policy() and checkpoint.uid in line.checkpoints:
            return
        if checkpoint.parent_uid is not None and checkpoint.parent_uid not in self._policies:
            raise RunError(
                f"checkpoint {checkpoint.uid!r} descends from {checkpoint.parent_uid!r}, which the "
                "pool does not know: register the parent first"
            )
        self._register(checkpoint.policy(), "learner", checkpoint.parent_uid)
        line.checkpoints[checkpoint.uid] = checkpoint
        for retired in line.history.add(checkpoint.uid, checkpoint.version):
            self._exploration.forget(retired)

    def add_fixed(self, policy: PolicyRef) -> None:
        """Add an opponent that may always be drawn; a guest becomes one and keeps its rating."""
        if self._roles.get(policy.uid) != "learner" and self._policies.get(policy.uid) == policy:
            self._roles[policy.uid] = "fixed"
        else:
            self._register(policy, "fixed")

    def current(self, name: str | None = None) -> Checkpoint:
        """The newest checkpoint of a policy, None: of the main one; RunError before the first."""
        line = self._line(name)
        if not line.checkpoints:
            raise RunError("the pool holds no checkpoint yet: register version 0 first")
        return line.current

    def active(self, name: str | None = None) -> list[Checkpoint]:
        """The active checkpoints of a policy, None: of the main one; the current one is first."""
        line = self._line(name)
        return [line.checkpoints[uid] for uid in line.history.uids]

    def _line(self, name: str | None) -> Line:
        return self._lines[self._main if name is None else name]

    def _all_active(self) -> set[str]:
        return {uid for line in self._lines.values() for uid in line.history.uids}

    def needed(self, games: Iterable[GameSpec]) -> set[str]:
        """Uids of checkpoints that are active, or that ``games`` in progress may still request."""
        asked, since = self._all_active(), dict.fromkeys(self._lines, math.inf)
        for spec in games:
            # An opponent plays to the end of its game, active or not. A trained seat uses the
            # newest version at each request: any since the game was scheduled.
            asked |= {seat.policy.uid for seat in spec.seats}
            for policy in (seat.policy for seat in spec.seats if seat.trained):
                since[policy.name] = min(since[policy.name], policy.version)
        return {
            checkpoint.uid
            for name, line in self._lines.items()
            for checkpoint in line.checkpoints.values()
            if checkpoint.uid in asked or checkpoint.version >= since[name]
        }

    def fixed(self, name: str | None = None) -> list[PolicyRef]:
        """A policy's fixed opponents, None: of the main one, and those that were added later."""
        others = {
            policy.uid
            for line in self._lines.values()
            if line is not self._line(name)
            for policy in line.matchmaking.fixed
        } - {policy.uid for policy in self._line(name).matchmaking.fixed}
        return [
            self._policies[uid]
            for uid, role in self._roles.items()
            if role == "fixed" and uid not in others
        ]

    def policy(self, uid: str) -> PolicyRef:
        if uid not in self._policies:
            raise RunError(f"the pool knows no policy {uid!r}{nearest(uid, self._policies)}")
        return self._policies[uid]

    def learner_results(self, opponent: str, name: str | None = None) -> Results:
        """A policy's recent games against ``opponent``, its versions taken as one player."""
        total = Results()
        for uid in reversed(self._line(name).checkpoints):
            # A version meets older ones only: results between ``opponent`` and those are from when
            # it was the learner itself.
            if uid == opponent or total.games >= RECENT_GAMES:
                break
            results = self._results.between(uid, opponent)
            total = total.plus(results) if results.games else total
        return total

    # ------------------------------------------------------------ sampling

    def weights(self, name: str | None = None, seat: int | None = None) -> Weights:
        """The probability of each opponent to be drawn next, by uid.

        name: policy that meets them, None: the main one. seat: where the opponent sits; None
        where it does not matter.
        """
        line = self._line(name)
        current, config = self.current(name).uid, line.config
        met = [self._lines[each] for each in line.matchmaking.meets]
        met = [each for each in met if each.matchmaking.takes(seat) and each.checkpoints]
        newest = tuple(each.current.uid for each in met)
        past = sorted(
            (
                each.checkpoints[uid]
                for each in met
                for uid in each.history.uids
                if uid != each.current.uid
            ),
            key=lambda checkpoint: -checkpoint.version,
        )
        view = PoolView(
            current=current,
            past=tuple(checkpoint.uid for checkpoint in past),
            newest=newest,
            fixed=tuple(policy.uid for policy in self.fixed(name)),
            lag_range=config.lags,
            temperature=line.temperature,
            include_current=config.include_current,
            weighting=config.weighting,
            power=config.power,
            mu=lambda uid: self._ratings.rating(uid).mu,
            quality=lambda uid: self._ratings.quality(current, uid),
            diversity=self._exploration.diversity,
            win_probability=lambda uid: self.learner_results(uid, name).win_probability,
            payoff=self._results.payoff,
        )
        weights = probabilities(line.mode(view), view, line.mode_name)
        if self._budget is None or self._budget.closed is None:
            return weights

        # No game with API players may begin any more, so the others share all draws.
        def others(uids: Iterable[str]) -> list[str]:
            return [uid for uid in uids if self._policies[uid].kind != "api"]

        left = {uid: weights[uid] for uid in others(weights)}
        if not any(left.values()):
            # Else a mode that draws API players only would leave no opponent.
            left = dict.fromkeys(others(view.opponents) or others(view.everyone), 1.0)
        total = sum(left.values())
        return {uid: weight / total for uid, weight in left.items()}

    def use_mode(self, mode: str) -> None:
        """Draw the main policy's opponents by ``mode`` from here on, whatever ``pool.mode`` is."""
        self._line(None).use_mode(mode)

    def games_with_past(self) -> tuple[int, float]:
        """Games between versions of the main policy so far, and the newer one's points in them."""
        games, points = 0, 0.0
        order = {uid: place for place, uid in enumerate(self._line(None).checkpoints)}
        for first, row in self._results.rows().items():
            for second, (wins, draws, losses) in row.items():
                if order.get(first, -1) > order.get(second, len(order)):
                    games += wins + draws + losses
                    points += wins + draws / 2
        return games, points

    def score(self, name: str, since: int) -> tuple[int, float]:
        """Recent games of a policy's versions from ``since`` on, and its mean score in them."""
        line, total = self._line(name), Results()
        for uid in reversed(line.checkpoints):
            if line.checkpoints[uid].version < since or total.games >= RECENT_GAMES:
                break
            for other in self._policies.keys() - line.checkpoints.keys():
                total = total.plus(self._results.between(uid, other))
        return total.games, (total.wins + total.draws / 2) / max(total.games, 1)

    def takes(self, name: str, seat: int) -> bool:
        return self._line(name).matchmaking.takes(seat)

    def limited(self, name: str) -> bool:
        """Whether a policy, or one that it meets, can take some seats only."""
        own = self._line(name).matchmaking
        met = [self._lines[each].matchmaking for each in own.meets]
        return any(each.seats is not None for each in (own, *met))

    def opponents(
        self, count: int, name: str | None = None, seat: int | None = None
    ) -> list[PolicyRef]:
        weights = self.weights(name, seat)
        drawn = self._line(name).random.choices(list(weights), list(weights.values()), k=count)
        return [self._policies[uid] for uid in drawn]

    # ------------------------------------------------------------ outcomes

    def push_outcome(self, record: GameRecord) -> None:
        """Update ratings, results and counts from a finished game; failed games are ignored.

        Raises RunError for a training game of a policy that the pool does not know.
        """
        spec = record.spec
        if record.error is not None:
            return
        for seat in spec.seats:
            if seat.policy.uid not in self._policies:
                if spec.purpose == "train":
                    raise RunError(
                        f"game {spec.game_id} was played by {seat.policy.uid!r}, which the pool "
                        "does not know: register it before it plays"
                    )
                # A guest is rated, and never drawn.
                self._register(seat.policy, "guest")
        uids = [seat.policy.uid for seat in spec.seats]
        # Evaluation games count, too: in mirror mode the learner meets others only there.
        outcome = [(seat.policy.uid, record.rewards[seat.player_id]) for seat in spec.seats]
        if self._ratings.record(outcome, spec.env.won_by):
            self._rated_games.update(set(uids))
        self._results.record(outcome, spec.env.won_by)
        for uid in dict.fromkeys(uids):
            self._games[uid] += 1
        for first, second in dict.fromkeys(itertools.permutations(uids, 2)):
            row = self._matches.setdefault(first, {})
            row[second] = row.get(second, 0) + 1
        if spec.purpose == "train":
            self._explore(record)

    def _explore(self, record: GameRecord) -> None:
        seats = record.spec.seats
        opponents = [seat.policy.uid for seat in seats if not seat.trained]
        # In self-play the learner is its own opponent.
        if not opponents:
            opponents = [seat.policy.uid for seat in seats]
        # A game may end after its opponent was retired, whose window must not be made again.
        active = self._all_active()
        self._exploration.add(
            [uid for uid in opponents if uid in active or self._roles[uid] != "learner"],
            record.spec.env_id,
            [turn.action for turn in record.turns],
        )

    # ------------------------------------------------------------ display and state

    def snapshot(self) -> PoolSnapshot:
        fixed = {uid for uid, role in self._roles.items() if role == "fixed"}
        playing = self._all_active() | fixed
        ratings, results = self._ratings.ratings(), self._results.rows()
        return PoolSnapshot(
            mode=self._line(None).mode_name,
            current=self.current().uid if self._line(None).checkpoints else None,
            entries=tuple(
                PoolEntry(
                    **to_json(policy),
                    role=self._roles[uid],
                    mu=ratings[uid].mu,
                    sigma=ratings[uid].sigma,
                    active=uid in playing,
                    games=self._games[uid],
                    rated_games=self._rated_games[uid],
                )
                for uid, policy in self._policies.items()
            ),
            matches={uid: dict(row) for uid, row in self._matches.items()},
            results=results,
            ladder=tuple(self._ladder(results)),
            unrated_out_of_range=self._ratings.out_of_range,
            exploration=self._exploration.snapshot(),
        )

    def _ladder(self, results: Mapping[str, Mapping[str, Sequence[int]]]) -> list[LadderRow]:
        # Policies of equal weights are one member. Versions come first, because the first member,
        # the start of training, is the zero of the scale.
        names: dict[tuple[str, str | None], list[str]] = {}
        versions = {uid for line in self._lines.values() for uid in line.checkpoints}
        for uid in sorted(self._policies, key=lambda uid: uid not in versions):
            policy = self._policies[uid]
            names.setdefault((policy.kind, policy.path_or_name), []).append(uid)
        return run_ladder(results, list(names.values()))

    def state_dict(self) -> dict[str, Any]:
        return {
            "lines": {name: line.state_dict() for name, line in self._lines.items()},
            "policies": to_json([*self._policies.values()]),
            "roles": dict(self._roles),
            "checkpoints": [
                to_json(checkpoint)
                for line in self._lines.values()
                for checkpoint in line.checkpoints.values()
            ],
            "games": dict(self._games),
            "rated_games": dict(self._rated_games),
            "matches": {uid: dict(row) for uid, row in self._matches.items()},
            "results": self._results.rows(),
            "ratings": self._ratings.state_dict(),
            "exploration": self._exploration.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._policies = {entry["uid"]: from_json(PolicyRef, entry) for entry in state["policies"]}
        self._roles = dict(state["roles"])
        for line in self._lines.values():
            line.checkpoints.clear()
        for checkpoint in from_json(list[Checkpoint], state["checkpoints"]):
            self._line(checkpoint.name).checkpoints[checkpoint.uid] = checkpoint
        self._games = dict(state["games"])
        self._matches = {uid: dict(row) for uid, row in state["matches"].items()}
        self._rated_games = Counter(state["rated_games"])
        self._results.load_rows(state["results"])
        self._ratings.load_state_dict(state["ratings"])
        for name, own in state["lines"].items():
            self._lines[name].load_state_dict(own)
        self._exploration.load_state_dict(state["exploration"])

    def _register(self, policy: PolicyRef, role: Role, parent: str | None = None) -> None:
        if policy.uid in self._policies:
            raise RunError(
                f"the pool has a policy {policy.uid!r} already "
                f"({self._policies[policy.uid].path_or_name}): uids must be unique"
            )
        self._policies[policy.uid] = policy
        self._roles[policy.uid] = role
        self._games[policy.uid] = 0
        self._ratings.add(policy.uid, parent)
