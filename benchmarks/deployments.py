"""A hundred deployments while 16 clients ask without a pause: what failed, and what was wrong.

    python benchmarks/deployments.py [--deployments N] [--clients N]

``rlforge serve`` with the tiny model in a process of its own. The clients ask for greedy answers
and for drawn ones with log-probabilities, in turn; adapters with known answers are deployed one
after the other, every tenth deployment is rolled back. An answer is wrong when the text, or the
log-probability, is not that of the version it claims alone, or when that version was not live at
any time between question and answer.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import shutil
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import httpx
import torch
from common import record, spread
from served import RANDOM_ADAPTERS, ServiceProcess, drawn, expected, greedy, make_adapter, prompts

ADAPTERS, PROMPTS = 8, 32
#: Batches of other sizes round differently; adapters differ by much more.
TOLERANCE = 1e-3


class Load:
    """Clients that send requests, and a record of the answers."""

    def __init__(self, url: str, asked: list[tuple[int, ...]]) -> None:
        self.url, self.asked = url, asked
        self.answers: list[tuple[float, float, int, bool, str, str, float | None]] = []
        self.failures: list[str] = []
        self.stopped = False

    async def client(self, number: int) -> None:
        """Asks until the end, one question after the other."""
        async with httpx.AsyncClient(trust_env=False, timeout=180) as http:
            turn = 0
            while not self.stopped:
                prompt, sampled = (number + 17 * turn) % len(self.asked), turn % 2 == 1
                body = (drawn if sampled else greedy)(self.asked[prompt])
                began = time.monotonic()
                try:
                    answer = await http.post(f"{self.url}/v1/completions", json=body)
                    ended = time.monotonic()
                    if answer.status_code != 200:
                        self.failures.append(f"{answer.status_code}: {answer.text[:200]}")
                    else:
                        self._note(began, ended, prompt, sampled, answer.json())
                except httpx.HTTPError as error:
                    self.failures.append(f"{type(error).__name__}: {error}")
                turn += 1

    def _note(self, began: float, ended: float, prompt: int, sampled: bool, answer: Any) -> None:
        choice = answer["choices"][0]
        logprob = choice["logprobs"]["token_logprobs"][0] if sampled else None
        version = answer["system_fingerprint"]
        row = (began, ended, prompt, sampled, version, choice["text"], logprob)
        self.answers.append(row)


class Timeline:
    """Which versions may have been live when: a change lies between its call and its answer."""

    def __init__(self) -> None:
        self._changes: list[tuple[float, float, str]] = [(0.0, 0.0, "deploy-0")]

    def changed(self, began: float, ended: float, version: str) -> None:
        """``version`` became live between these times."""
        self._changes.append((began, ended, version))

    def may_answer(self, version: str, began: float, ended: float) -> bool:
        """Whether ``version`` can have been live at a time between ``began`` and ``ended``."""
        for index, (first, _, name) in enumerate(self._changes):
            after = self._changes[index + 1 : index + 2]
            last = after[0][1] if after else float("inf")
            if name == version and first <= ended and last >= began:
                return True
        return False


async def deploy_all(
    service: ServiceProcess, adapters: list[Path], count: int, timeline: Timeline
) -> tuple[dict[str, int], list[float]]:
    """``count`` deployments; returns which adapter each version is, and how long each took."""
    which, seconds = {}, []
    for number in range(count):
        index = number % len(adapters)
        began = time.monotonic()
        ended = await asyncio.to_thread(service.admin, "deploy", {"adapter": str(adapters[index])})
        seconds.append(time.monotonic() - began)
        if ended.get("phase") != "live":
            raise RuntimeError(f"deployment {number} did not succeed: {ended}")
        which[ended["uid"]] = index
        timeline.changed(began, time.monotonic(), ended["uid"])
        if number % 10 == 9:
            began = time.monotonic()
            back = await asyncio.to_thread(service.admin, "rollback", {})
            timeline.changed(began, time.monotonic(), back["uid"])
    return which, seconds


async def measure(
    service: ServiceProcess, adapters: list[Path], asked: list[tuple[int, ...]], arguments: Any
) -> tuple[Load, Timeline, dict[str, int], list[float], list[float]]:
    """Load alone for a while, then with deployments."""
    load, timeline = Load(service.url, asked), Timeline()
    clients = [asyncio.create_task(load.client(n)) for n in range(arguments.clients)]
    await asyncio.sleep(10)
    calm = [ended - began for began, ended, *_ in load.answers]
    which, seconds = await deploy_all(service, adapters, arguments.deployments, timeline)
    load.stopped = True
    await asyncio.gather(*clients)
    return load, timeline, which, seconds, calm


def main() -> None:
    parser = argparse.ArgumentParser(description="Deployments under load.")
    parser.add_argument("--deployments", type=int, default=100)
    parser.add_argument("--clients", type=int, default=16)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    folder = Path(tempfile.mkdtemp(prefix="deployments-"))
    service = ServiceProcess.rlforge_serve(folder / "state", *RANDOM_ADAPTERS)
    try:
        adapters = [make_adapter(folder / "adapters", seed) for seed in range(1, ADAPTERS + 1)]
        asked = prompts(PROMPTS)
        right = expected([None, *adapters], asked)
        (folder / "state").mkdir()
        service.start()
        load, timeline, which, seconds, calm = asyncio.run(
            measure(service, adapters, asked, arguments)
        )
        assert service.stop() == 130  # ended by a signal
    finally:
        service.end()
        shutil.rmtree(folder, ignore_errors=True)
    wrong_text = wrong_time = 0
    for began, ended, prompt, sampled, version, text, logprob in load.answers:
        row = right[0 if version == "deploy-0" else which[version] + 1]
        if sampled:
            assert logprob is not None
            wrong_text += abs(logprob - row[prompt][1]) > TOLERANCE
        else:
            wrong_text += text != row[prompt][0]
        wrong_time += not timeline.may_answer(version, began, ended)
    distinct = [len({row[prompt] for row in right}) for prompt in range(PROMPTS)]
    busy = [ended - began for began, ended, *_ in load.answers[len(calm) :]]
    results = {
        "model": "tiny",
        "clients": arguments.clients,
        "deployments": len(seconds),
        "answers": len(load.answers),
        "failed": len(load.failures),
        "wrong_answer": wrong_text,
        "wrong_version": wrong_time,
        "versions_that_answered": len({row[4] for row in load.answers}),
        "distinct_answers_per_prompt": statistics.mean(distinct),
        "deployment": spread(seconds),
        "latency_without_deployments": spread(calm),
        "latency_with_deployments": spread(busy),
    }
    print(json.dumps(results, indent=2))
    for failure in load.failures[:5]:
        print(failure)
    record("deployments", results)


if __name__ == "__main__":
    main()
