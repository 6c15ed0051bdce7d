"""The log-prob gap: |learner - engine| log-prob of tokens, both under the version that drew them.

An update scores its tokens under the version that it changes, so tokens drawn by that version cost
nothing more. Of a batch with few or none, as most are where ``max_staleness`` is above 0, a sample
of turns is scored with the adapter of the version that drew them.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from torch import Tensor

from rlforge.errors import CheckpointError
from rlforge.learner.batching import Selection, join_turns
from rlforge.learner.policy import Policy
from rlforge.learner.update_metrics import gap_metrics
from rlforge.samples import Sample
from rlforge.system.checkpoint import step_name

log = logging.getLogger(__name__)

MOST_SAMPLED = 16
"""Turns of a sample."""

TURNS_PER_SAMPLED = 24
"""Turns of a batch per one of its sample: without gradient that is about 1 % of the work."""


class EarlierVersions:
    """Adapters of earlier versions, on the host, to score what these versions drew.

    Every rank keeps them and calls the same methods.
    """

    def __init__(self, policy: Policy, most: int, name: str = "") -> None:
        """most: versions that are kept; above 0 the policy must have an adapter. name: of the
        policy, one of several.
        """
        self._policy, self._most, self._name = policy, most, name
        self._kept: dict[int, dict[str, Tensor]] = {}

    def keep(self, version: int) -> None:
        """Keep a copy of the current adapter as that of ``version``."""
        if self._most:
            self._kept[version] = self._policy.followers.copy("cpu")
            for old in sorted(self._kept)[: -self._most]:
                del self._kept[old]

    def recall(self, saved: Callable[[str], Path | None], newest: int, current: int) -> None:
        """Read the versions up to ``newest``, without ``current``, that the run ``saved``.

        Those that are not there or damaged are left out: only the gap of their tokens is missed.
        """
        if not self._most:
            return
        own = self._policy.followers.copy()
        for version in range(max(0, newest - self._most), newest + 1):
            if version == current or version in self._kept:
                continue
            if (path := saved(step_name(version, self._name))) is None:
                continue
            try:
                self._policy.load_adapter(path)
            except CheckpointError as error:
                log.warning("the log-prob gap of %s is not measured: %s", path.name, error)
            else:
                self.keep(version)
        self._policy.followers.put(own)

    def gap(self, selection: Selection, batch: Sequence[Sample], current: int) -> dict[str, float]:
        """The gap over a sample of the turns of the newest version that is kept.

        Empty where the ``current`` version drew as many turns, or no version that is kept did any.
        """
        versions = [batch[turn.sample].policy_version for turn in selection.turns]
        wanted = min(MOST_SAMPLED, -(-len(versions) // TURNS_PER_SAMPLED))
        known = self._kept.keys() & set(versions) - {current}
        if versions.count(current) >= wanted or not known:
            return {}
        version = max(known)
        turns = [turn for turn in selection.turns if batch[turn.sample].policy_version == version]
        turns = turns[:: -(-len(turns) // wanted)]  # evenly spread: neighbours may be of one game
        self._policy.train(False)
        with self._policy.followers.worn(self._kept[version]):
            scored = self._policy.logprobs(join_turns(turns, batch), selection.tokens)
        logprobs = scored.sampled.cpu()
        self._policy.train()
        learner = torch.cat([logprobs[turn.start :][: len(turn.answer)] for turn in turns])
        engine = torch.tensor([logprob for turn in turns for logprob in turn.behaviour])
        return gap_metrics((learner - engine).abs())
