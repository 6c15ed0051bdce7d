"""Log-prob gap: |learner - engine| log-prob of tokens, both under the version that drew them.

An update scores its tokens under its own version, so the gap of that version's tokens is free.
Where a batch has few of them, as with ``max_staleness`` above 0, some turns are scored with the
adapter of the version that drew them.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from torch import Tensor

from rlforge.errors import CheckpointError
from rlforge.learner.batching import Row, Selection, join_turns
from rlforge.learner.policy import Policy
from rlforge.learner.update_metrics import gap_metrics
from rlforge.samples import Sample
from rlforge.system.checkpoint import step_name

log = logging.getLogger(__name__)

MOST_SAMPLED = 16
"""Most turns that are scored again."""

TURNS_PER_SAMPLED = 24
"""Turns of a batch per turn that is scored again: 2 to 4 % of an update, without gradient."""


def movement(
    policy: Policy, selection: Selection, batch: Sequence[Sample], before: Tensor
) -> dict[str, float]:
    """``moved``: KL divergence from a policy before an update to the one after, in nats a token.

    Some turns of the batch are scored again, and the estimate is k3 of them
    (http://joschu.net/blog/kl-approx.html). Every rank calls it.

    Args:
        before: Log-probs [N] of the batch's tokens before the update.
    """
    if not selection.turns:
        return {}
    turns = _spread(selection.turns)
    after = _scored(policy, turns, selection, batch)
    ratio = after - _of_turns(before.cpu(), turns)
    return {"moved": float((ratio.exp() - 1 - ratio).mean())}


def _spread(turns: Sequence[Row], of: int | None = None) -> Sequence[Row]:
    """Some turns, at even distances: neighbouring ones may be of one game. of: turns of all."""
    return turns[:: -(-len(turns) // _wanted(of or len(turns)))]


def _wanted(turns: int) -> int:
    return min(MOST_SAMPLED, -(-turns // TURNS_PER_SAMPLED))


def _scored(
    policy: Policy, turns: Sequence[Row], selection: Selection, batch: Sequence[Sample]
) -> Tensor:
    """Log-probs of the tokens of ``turns``, one turn after the other."""
    policy.train(False)
    scored = policy.logprobs(join_turns(turns, batch), selection.tokens)
    policy.train()
    return _of_turns(scored.sampled.cpu(), turns)


def _of_turns(logprobs: Tensor, turns: Sequence[Row]) -> Tensor:
    return torch.cat([logprobs[turn.start :][: len(turn.answer)] for turn in turns])


class EarlierVersions:
    """Adapters of earlier versions on the host, to score the tokens that they drew.

    Every rank keeps them and calls the same methods.
    """

    def __init__(self, policy: Policy, most: int, name: str = "") -> None:
        """Keep up to ``most`` versions of the policy ``name``; above 0 it must have an adapter."""
        self._policy, self._most, self._name = policy, most, name
        self._kept: dict[int, dict[str, Tensor]] = {}

    def keep(self, version: int) -> None:
        if self._most:
            self._kept[version] = self._policy.followers.copy("cpu")
            for old in sorted(self._kept)[: -self._most]:
                del self._kept[old]

    def recall(self, saved: Callable[[str], Path | None], newest: int, current: int) -> None:
        """Read the versions up to ``newest``, without ``current``, that the run ``saved``."""
        if not self._most:
            return
        # Versions are read into the model, whose own weights are put back below.
        own = self._policy.followers.copy()
        for version in range(max(0, newest - self._most), newest + 1):
            if version == current or version in self._kept:
                continue
            if (path := saved(step_name(version, self._name))) is None:
                continue
            try:
                self._policy.load_adapter(path)
            except CheckpointError as error:
                # Training goes on, because only the gap of this version's tokens is missed.
                log.warning("the log-prob gap of %s is not measured: %s", path.name, error)
            else:
                self.keep(version)
        self._policy.followers.put(own)

    def gap(self, selection: Selection, batch: Sequence[Sample], current: int) -> dict[str, float]:
        """Gap over some turns of the newest version that is kept.

        Empty where the ``current`` version drew as many turns, or no kept version drew any.
        """
        versions = [batch[turn.sample].policy_version for turn in selection.turns]
        wanted = _wanted(len(versions))
        known = self._kept.keys() & set(versions) - {current}
        # Enough turns of the current version give a gap for free: the update scores them anyway.
        if versions.count(current) >= wanted or not known:
            return {}
        version = max(known)
        drawn = [turn for turn in selection.turns if batch[turn.sample].policy_version == version]
        turns = _spread(drawn, of=len(versions))
        with self._policy.followers.worn(self._kept[version]):
            learner = _scored(self._policy, turns, selection, batch)
        engine = torch.tensor([logprob for turn in turns for logprob in turn.behaviour])
        return gap_metrics((learner - engine).abs())
