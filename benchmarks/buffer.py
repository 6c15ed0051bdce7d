"""Add and draw at 100,000 stored turns: the step buffer against unstable-rl's, and against lists.

    python benchmarks/buffer.py [--peers PYTHON]

An ``add`` brings one game of 8 turns to a full buffer, so 8 turns are evicted; a round is ten of
them. A ``draw`` takes a batch of 384; ``draw_new_version`` also looks for stale turns, which the
others never do. All take turns; unstable-rl's buffer is in a process of its own, times itself, and
is described in ``benchmarks/contenders/unstable_buffer.py``. It samples a list and removes what it
sampled; the lists here do only that. A list finds what it removes by comparing: ``list`` holds the
same turns as our buffer, dataclasses that compare by their fields, and ``list_bare`` bare objects,
which compare by identity, the cheapest way there is.

``--peers`` names the interpreter of an environment with ``benchmarks/requirements-peers.txt``.
"""

from __future__ import annotations

import argparse
import gc
import random
import shutil
import statistics
import subprocess
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from common import record, seconds, shown, spread
from contenders import ABSENT

from rlforge.buffer import BufferSettings, Shaped, StepBuffer
from rlforge.samples import Sample

STORED, BATCH, GAME = 100_000, 384, 8
ADDS, ADDS_PER_TURN, DRAWS = 20, 10, 7
FLOOR = 100.0
Operation = Callable[[], float]
"""Does something and says how long it took, in seconds."""


class Peer:
    """unstable-rl's buffer. ``version`` is None when its packages are not installed."""

    def __init__(self, python: str) -> None:
        self._process = subprocess.Popen(
            [python, "-m", "contenders.unstable_buffer", str(STORED)],
            cwd=Path(__file__).parent,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdout is not None
        self.version = self._process.stdout.readline().strip() or None
        if self.version is None:
            _, errors = self._process.communicate()
            if self._process.returncode != ABSENT:
                raise SystemExit(f"unstable-rl failed:\n{errors[-2000:]}")

    def ask(self, order: str) -> float:
        """The answer to ``order``."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(order + "\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        if not answer:
            raise SystemExit(f"unstable-rl failed:\n{self._process.communicate()[1][-2000:]}")
        return float(answer)

    def close(self) -> None:
        """Ends the process."""
        self._process.communicate()


class NaiveBuffer:
    """A plain list of items that can be compared."""

    def __init__(self, max_size: int, seed: int) -> None:
        self.turns: list[object] = []
        self._max_size = max_size
        self._random = random.Random(seed)

    def add(self, turns: Sequence[object]) -> None:
        self.turns.extend(turns)
        for turn in self._random.sample(self.turns, max(0, len(self.turns) - self._max_size)):
            self.turns.remove(turn)

    def draw(self, n: int) -> list[object]:
        batch = self._random.sample(self.turns, n)
        for turn in batch:
            self.turns.remove(turn)
        return batch


def make_game(number: int, version: int, turns: int = GAME) -> Shaped:
    """A game with one seat to learn from, of as many turns as asked for."""
    episode = tuple(
        Sample(
            origin=f"game-{number}",
            env_id="SimpleTak-v0-train",
            turn_index=index,
            last_turn=index == turns - 1,
            observation="board",
            action="[4]",
            prompt_token_ids=(1, 2, 3),
            token_ids=(4, 5),
            logprobs=(-0.1, -0.2),
            raw_reward=1.0,
            reward=1.0,
            policy_uid="checkpoint",
            policy_version=version,
        )
        for index in range(turns)
    )
    return Shaped([episode])


def bare(game: Shaped) -> list[object]:
    """As many objects without fields as the game has turns."""
    return [object() for _ in game.episodes[0]]


def measure(peer: Peer | None) -> dict[str, dict[str, dict[str, Any]]]:
    """Seconds per operation by contender, by operation; without unstable-rl where it is None."""
    ours = StepBuffer(
        BufferSettings(
            max_size=STORED, max_staleness=10**9, batch_size=BATCH, batch_delay=1.0, seed=0
        )
    )
    same, objects = NaiveBuffer(STORED, seed=0), NaiveBuffer(STORED, seed=0)

    def asked(order: str) -> dict[str, Operation]:
        return {} if peer is None else {"unstable_rl": partial(peer.ask, order)}

    def adds(number: int, turns: int = GAME) -> dict[str, Operation]:
        games = [make_game(number, ours.version, turns) for _ in range(2)]
        objects_of_it, listed = bare(games[0]), games[1].episodes[0]
        return {
            "rlforge": partial(seconds, lambda: ours.add(games[:1])),
            **asked(f"add {turns}"),
            "list": partial(seconds, lambda: same.add(listed)),
            "list_bare": partial(seconds, lambda: objects.add(objects_of_it)),
        }

    def draws(version: int) -> dict[str, Operation]:
        return {
            "rlforge": partial(seconds, lambda: ours.draw(BATCH, version)),
            **asked(f"draw {BATCH}"),
            "list": partial(seconds, lambda: same.draw(BATCH)),
            "list_bare": partial(seconds, lambda: objects.draw(BATCH)),
        }

    for number in range(STORED // GAME):
        take_turns(adds(number))
    gc.freeze()
    times = {
        "add": [
            take_turns(*(adds(STORED + turn * ADDS_PER_TURN + i) for i in range(ADDS_PER_TURN)))
            for turn in range(ADDS)
        ]
    }
    for name, newer in (("draw", 0), ("draw_new_version", 1)):
        times[name] = []
        for number in range(DRAWS):
            times[name].append(take_turns(draws(ours.version + newer)))
            take_turns(adds(-number, turns=BATCH))
            assert ours.size() == len(same.turns) == len(objects.turns) == STORED
            assert peer is None or peer.ask("size") == STORED
    return {
        name: {who: spread([turn[who] for turn in turns]) for who in turns[0]}
        for name, turns in times.items()
    }


def take_turns(*work: dict[str, Operation]) -> dict[str, float]:
    """Mean seconds of each contender's operations, which it does one after the other."""
    return {who: statistics.mean(each[who]() for each in work) for who in work[0]}


def main() -> None:
    parser = argparse.ArgumentParser(description="Add and draw, and peers'.")
    parser.add_argument("--peers", default=sys.executable, metavar="PYTHON")
    peers = parser.parse_args().peers
    if shutil.which(peers) is None:
        parser.error(f"--peers {peers}: no such interpreter")
    peer = Peer(peers)
    if peer.version is None:
        print("absent: unstable-rl; to install: benchmarks/requirements-peers.txt")
    operations = measure(peer if peer.version else None)
    peer.close()
    print(f"{'operation':18}" + "".join(f"{who + ' ms':>30}" for who in operations["add"]))
    for name, by_who in operations.items():
        cells = [shown(values, scale=1e3, digits=3) for values in by_who.values()]
        print(f"{name:18}" + "".join(f"{cell:>30}" for cell in cells))
    speedups = {
        name: {
            who: values["median_s"] / by_who["rlforge"]["median_s"]
            for who, values in by_who.items()
            if who != "rlforge"
        }
        for name, by_who in operations.items()
    }
    for name, by_list in speedups.items():
        print(f"{name}: " + ", ".join(f"{s:.0f} times as fast as {w}" for w, s in by_list.items()))
    record(
        "buffer",
        {
            "peers": {"unstable-rl": peer.version or "absent"},
            "stored_steps": STORED,
            "batch": BATCH,
            "steps_per_add": GAME,
            "operations": operations,
            "speedups": speedups,
        },
    )
    if min(speedups[name]["list"] for name in ("add", "draw")) < FLOOR:
        raise SystemExit(f"add or draw is less than {FLOOR:.0f} times as fast")


if __name__ == "__main__":
    main()
