"""Versions are replaced while requests run, and a verified one is served after every failure."""

import asyncio
import contextlib
import dataclasses
import errno
import logging
import os
import re
import shutil
import sqlite3
from pathlib import Path

import numpy as np
import pytest

from rlforge.continuous.config.serving import AbTestConfig
from rlforge.continuous.serving.client import stage
from rlforge.continuous.serving.records import PairedOutcomes
from rlforge.errors import DeploymentError, EngineError, PolicyLoadError, RunError
from rlforge.types import PolicyRef, SamplingParams

from .conftest import until, weights_of, without_manifest

GREEDY = SamplingParams(temperature=0.0, max_tokens=6)
PROMPT = (5, 6, 7, 8)


async def _ask(service, **named):
    return await service.generate(PROMPT, GREEDY, **named)


# ---------------------------------------------------------------- replace


async def test_a_new_service_serves_the_base_model_and_owns_its_folder(opened):
    async with opened() as service:
        answer = await _ask(service)
        assert (answer.policy_uid, service.current.number) == ("deploy-0", 0)
        assert service.current.phase == "live"
        with pytest.raises(RunError, match="is in use by process"):
            async with opened():
                pass
    async with opened():
        pass


async def test_a_deployment_is_served_with_its_own_weights_and_survives_a_restart(
    opened, engine, make_adapter
):
    first, second = make_adapter(1), make_adapter(2)
    expected = []
    for path in (first, second):  # without a service
        policy = PolicyRef(uid=path.name, kind="checkpoint", path_or_name=str(path))
        expected.append((await engine.generate(PROMPT, GREEDY, policy)).token_ids)
    assert expected[0] != expected[1]
    async with opened() as service:
        for number, path in enumerate((first, second), start=1):
            deployed = await service.deploy(path)
            assert (deployed.phase, deployed.number, deployed.updates) == ("live", number, number)
            answer = await _ask(service)
            assert (answer.policy_uid, answer.policy_version) == (deployed.uid, number)
            assert answer.token_ids == expected[number - 1]
    shutil.rmtree(first.parent)  # the service has copies of its own
    async with opened() as service:
        assert service.current.uid == "deploy-2"
        assert (await _ask(service)).token_ids == expected[1]
        assert (await service.rollback()).uid == "deploy-1"
        assert (await _ask(service)).token_ids == expected[0]
    async with opened() as service:
        assert service.current.uid == "deploy-1"


async def test_requests_finish_on_the_version_they_began_with(opened, engine, adapter):
    long = SamplingParams(temperature=0.0, max_tokens=100)
    async with opened() as service:
        alone = await service.generate(PROMPT, long)
        heard = asyncio.Event()
        under_way = asyncio.create_task(
            service.generate(PROMPT, long, on_tokens=lambda tokens: heard.set())
        )
        await heard.wait()
        deployed = await service.deploy(adapter)
        assert not under_way.done() or (await under_way).policy_uid == "deploy-0"
        after = await _ask(service)
        before = await under_way
        assert before.token_ids == alone.token_ids
        assert (before.policy_uid, after.policy_uid) == ("deploy-0", deployed.uid)


async def test_a_failed_check_is_the_reason_and_the_served_version_stays(
    opened, small_model, make_adapter, tmp_path
):
    good = make_adapter(1)

    nan, lacking = (without_manifest(good, tmp_path / name) for name in ("nan", "lacking"))
    with weights_of(nan) as weights:
        weights[min(weights)].fill_(float("nan"))
    with weights_of(lacking) as weights:
        del weights[min(weights)]

    unknown = tmp_path / "unknown"  # weights of this model with an unknown model type
    shutil.copytree(small_model, unknown)
    (unknown / "config.json").write_text('{"model_type": "unheard_of"}')
    cut = make_adapter(2)
    (cut / "adapter_model.safetensors").write_bytes(b"short")
    cases = {"files: ": cut, "finite: ": nan, "fit: /": lacking, "fit: model ": unknown}
    async with opened() as service:
        kept = await service.deploy(good)
        for reason, path in cases.items():
            refused = await service.deploy(path)
            assert refused.phase == "rejected", refused
            assert refused.reason.startswith(reason), refused.reason
            assert not refused.checks[-1].passed
            assert (await _ask(service)).policy_uid == kept.uid
        missing = await service.deploy(tmp_path / "nowhere")
        assert (missing.phase, "no such directory" in missing.reason) == ("failed", True)
        phases = [d.phase for d in service.history()]
        assert phases == ["former", "live", *["rejected"] * len(cases), "failed"]


async def test_a_version_whose_answers_cannot_be_read_is_rejected(opened, adapter, probes):
    boxed = tuple(dataclasses.replace(probe, extraction="boxed") for probe in probes)
    async with opened(asked=boxed, min_format=1.0) as service:
        refused = await service.deploy(adapter)
        assert refused.phase == "rejected"
        assert "format: 0 of 8 answers can be read; 100% must be; one that" in refused.reason


async def test_a_version_that_is_worse_on_held_out_items_or_suspect_is_not_served(opened, adapter):
    asked, draw = [], np.random.default_rng(0)

    async def worse(candidate, current):
        rewards = draw.normal(size=100)
        new = rewards - 0.5 + 0.1 * draw.normal(size=100)
        return PairedOutcomes(candidate=tuple(new), current=tuple(rewards))

    async def equal(candidate, current):
        asked.append((candidate.uid, current.uid))
        return PairedOutcomes(candidate=(1.0,) * 50, current=(1.0,) * 50)

    async def broken(candidate, current):
        raise EngineError("no answer")

    async def suspect(candidate, current):
        concerns = ("its profit falls", "it stalls")
        return PairedOutcomes(candidate=(1.0,) * 50, current=(0.0,) * 50, concerns=concerns)

    async with opened(holdout=worse) as service:
        refused = await service.deploy(adapter)
        assert refused.phase == "rejected"
        assert "holdout: mean reward -0.5" in refused.reason
        assert "a loss of 0.25 cannot be ruled out" in refused.reason
        assert "no answer" in (await service.deploy(adapter, holdout=broken)).reason
        doubted = await service.deploy(adapter, holdout=suspect)
        reason = "conduct: its profit falls; it stalls"
        assert (doubted.phase, doubted.reason) == ("rejected", reason)
        assert service.current.number == 0
        passed = await service.deploy(adapter, holdout=equal)
        assert passed.phase == "live"
        assert [check.name for check in passed.checks][-2:] == ["holdout", "conduct"]
        assert asked == [(f"candidate-{passed.number}", "deploy-0")]


async def test_a_phase_that_exceeds_timeout_s_fails_the_deployment(opened, adapter):
    async def never(candidate, current):
        await asyncio.Event().wait()
        raise AssertionError

    async with opened(timeout_s=1.0, holdout=never) as service:
        failed = await service.deploy(adapter)
        assert failed.phase == "failed"
        assert failed.reason == "not done within deployment.timeout_s=1 s"
        assert (await _ask(service)).policy_uid == "deploy-0"


async def test_where_engine_disk_or_journal_fail_the_served_version_stays(
    opened, engine, adapter, monkeypatch, tmp_path
):
    async def refuse(prompt, params, policy, *rest):
        raise PolicyLoadError("no such kernel")

    def full(source, target):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(target))

    async with opened() as service:
        with monkeypatch.context() as patched:
            patched.setattr(engine, "generate", refuse)
            refused = await service.deploy(adapter)
        assert (refused.phase, refused.reason) == ("rejected", "loads: no such kernel")
        with monkeypatch.context() as patched:
            patched.setattr(shutil, "copyfile", full)
            failed = await service.deploy(adapter)
        assert failed.phase == "failed"
        assert "no space on disk" in failed.reason
        assert (await _ask(service)).policy_uid == "deploy-0"
        file = tmp_path / "state" / "state.sqlite"
        with contextlib.closing(sqlite3.connect(file, isolation_level=None)) as database:
            database.execute(
                "CREATE TRIGGER refuse BEFORE INSERT ON deployments "
                "BEGIN SELECT RAISE(ABORT, 'refused'); END"
            )
            failed = await service.deploy(adapter)
            database.execute("DROP TRIGGER refuse")
        assert (failed.phase, failed.number) == ("failed", -1)
        assert "cannot be written: refused" in failed.reason
        assert (await _ask(service)).policy_uid == "deploy-0"
        assert (await service.deploy(adapter)).phase == "live"


async def test_a_version_that_does_not_answer_on_the_live_route_is_rolled_back(
    opened, engine, adapter, monkeypatch
):
    async with opened() as service:
        generate = engine.generate

        async def other(prompt, params, policy, *rest):
            uid = "stranger" if policy.uid == "deploy-1" else policy.uid
            return await generate(prompt, params, dataclasses.replace(policy, uid=uid), *rest)

        with monkeypatch.context() as patched:
            patched.setattr(engine, "generate", other)
            failed = await service.deploy(adapter)
        assert failed.phase == "rolled_back"
        assert "a probe of deploy-1 was answered by stranger" in failed.reason
        assert (await _ask(service)).policy_uid == "deploy-0"
    async with opened() as service:
        assert service.current.number == 0


async def test_deployments_wait_for_each_other_and_outlive_their_caller(opened, make_adapter):
    async with opened() as service:
        paths = [make_adapter(seed) for seed in (1, 2)]
        both = [asyncio.create_task(service.deploy(path)) for path in paths]
        await asyncio.sleep(0)
        both[1].cancel()
        assert (await both[0]).phase == "live"
        await until(lambda: service.current.number == 2)


# ---------------------------------------------------------------- restarts


@pytest.fixture
def unload(config, engine, make_adapter):
    """The engine makes room for other versions than those of the service."""

    async def load_others():
        for seed in range(10, 10 + config.engine.max_loras):
            path = str(make_adapter(seed))
            await engine.load(PolicyRef(uid=f"o-{seed}", kind="checkpoint", path_or_name=path))

    return load_others


async def test_a_power_cut_in_any_phase_leaves_the_last_verified_version(
    opened, make_adapter, tmp_path
):
    cuts = {}

    def power_cut(deployment):
        phase = deployment.phase
        if deployment.number == 2 and phase != "live" and phase not in cuts:
            # The files, with the write-ahead log, as they are when the machine stops now.
            cuts[phase] = Path(shutil.copytree(tmp_path / "state", tmp_path / phase))

    async with opened(on_phase=power_cut) as service:
        await service.deploy(make_adapter(1))
        assert (await service.deploy(make_adapter(2))).phase == "live"
    assert [*cuts] == ["validating", "checkpointing", "swapping", "verifying"]
    next_one = make_adapter(3)
    for phase, cut in cuts.items():
        async with opened(cut) as service:
            assert service.current.uid == "deploy-1"
            assert (await _ask(service)).policy_uid == "deploy-1"
            left = service.history()[2]
            assert (left.phase, phase in left.reason) == ("interrupted", True)
            assert (await service.deploy(next_one)).uid == "deploy-3"


async def test_a_moved_or_copied_state_serves_its_own_copies(opened, make_adapter, tmp_path):
    async with opened() as service:
        await service.deploy(make_adapter(1))
        await service.deploy(make_adapter(2))
        expected = (await _ask(service)).token_ids
    shutil.copytree(tmp_path / "state", tmp_path / "copy")
    moved = (tmp_path / "state").rename(tmp_path / "moved")
    for folder in (tmp_path / "copy", moved):
        async with opened(folder) as service:
            assert service.current.uid == "deploy-2"
            assert service.current.path == str(folder / "versions" / "deploy-2")
            assert (await _ask(service)).token_ids == expected
            assert (await service.rollback()).uid == "deploy-1"
        shutil.rmtree(folder)


async def test_the_base_model_takes_the_place_of_damaged_versions_only_if_asked_for(
    opened, unload, make_adapter, tmp_path
):
    async with opened() as service:
        await service.deploy(make_adapter(1))
        shutil.rmtree(tmp_path / "state" / "versions" / "deploy-1")
        await unload()
        with pytest.raises(PolicyLoadError, match=r"deploy-1.*fall_back_to_base=true"):
            await _ask(service)
        assert service.current.uid == "deploy-1"
    with pytest.raises(DeploymentError, match=r"deploy-1 cannot be served.*fall_back_to_base"):
        async with opened():
            pass
    async with opened(fall_back_to_base=True) as service:
        assert service.current.uid == "deploy-0"
        assert re.search(r"deploy-1 cannot be served: .*deploy-0 is served", service.fell_back)
    async with opened() as service:
        assert (service.current.uid, service.fell_back) == ("deploy-0", "")


async def test_a_damaged_version_is_named_at_the_start_and_the_one_before_is_served(
    opened, make_adapter, tmp_path, caplog
):
    async with opened() as service:
        for seed in (1, 2, 3):
            await service.deploy(make_adapter(seed))
    versions = tmp_path / "state" / "versions"
    file = versions / "deploy-3" / "adapter_model.safetensors"
    file.write_bytes(file.read_bytes()[:-10])
    shutil.rmtree(versions / "deploy-2")
    with caplog.at_level(logging.ERROR, logger="rlforge"):
        async with opened() as service:
            assert service.current.uid == "deploy-1"
            assert "adapter_model.safetensors is truncated" in service.history()[3].reason
    assert "deploy-3 cannot be served" in caplog.text
    assert "deploy-2 cannot be served" in caplog.text


async def test_a_version_whose_files_vanish_while_it_is_served_is_rolled_back(
    opened, unload, make_adapter, tmp_path
):
    async with opened() as service:
        await service.deploy(make_adapter(1))
        await service.deploy(make_adapter(2))
        shutil.rmtree(tmp_path / "state" / "versions" / "deploy-2")
        await unload()
        answers = await asyncio.gather(*(_ask(service) for _ in range(4)))
        assert {answer.policy_uid for answer in answers} == {"deploy-1"}
        assert service.current.uid == "deploy-1"
        with pytest.raises(EngineError, match="deploy-2"):
            await _ask(service, policy=service.history()[2].policy())


async def test_only_the_last_keep_versions_and_the_base_can_be_rolled_back_to(
    opened, make_adapter, tmp_path
):
    async with opened(keep=1) as service:
        for seed in range(1, 5):
            await service.deploy(make_adapter(seed))
        kept = {path.name for path in (tmp_path / "state" / "versions").iterdir()}
        assert kept == {"deploy-3", "deploy-4"}
        assert (await service.rollback()).uid == "deploy-3"
        assert (await service.rollback()).uid == "deploy-0"
        with pytest.raises(DeploymentError, match="no version to go back to from deploy-0"):
            await service.rollback()


async def test_a_staged_adapter_is_deployed_by_the_next_service(opened, adapter, tmp_path):
    assert adapter.path is not None
    (tmp_path / "state").mkdir()
    with pytest.raises(DeploymentError, match="no service was ever started"):
        stage(tmp_path / "state", Path(adapter.path), "replace")
    async with opened():
        with pytest.raises(RunError, match="in use"):
            stage(tmp_path / "state", Path(adapter.path), "replace")
    staged = stage(tmp_path / "state", Path(adapter.path), "replace")
    assert staged.phase == "staged"
    async with opened() as service:
        (deployed,) = await service.deploy_staged()
        assert (deployed.uid, deployed.phase) == (staged.uid, "live")
        assert await service.deploy_staged() == []


# ---------------------------------------------------------------- trials


def _ab(**settings):
    return {"strategy": "ab_test", "ab": AbTestConfig(**settings)}


async def test_a_trial_splits_users_and_promotes_the_better_version(opened, adapter):
    settings = _ab(shares=[0.5], max_outcomes=500)
    async with opened(**settings) as service:
        tried = await service.deploy(adapter)
        assert tried.phase == "trial"
        assert [d.uid for d in service.served()] == ["deploy-0", "deploy-1"]
        uids = {user: service.route(user).uid for user in map(str, range(40))}
        assert set(uids.values()) == {"deploy-0", "deploy-1"}
        for user, uid in uids.items():
            assert (await _ask(service, user=user)).policy_uid == uid
        draw = np.random.default_rng(0)
        number = 0
        while service.trial is not None:
            uid = service.route(str(number)).uid
            reward = float(draw.uniform() < (0.9 if uid == "deploy-1" else 0.3))
            assert await service.record_outcome(reward, uid=uid, key=f"answer-{number}")
            number += 1
        assert service.current.uid == "deploy-1"
        assert service.current.phase == "live"
        assert service.current.checks[-1].name == "trial"
        assert not await service.record_outcome(1.0, uid="deploy-1")  # nothing is on trial


async def test_a_worse_version_is_rolled_back_at_the_end_of_its_trial(opened, adapter):
    async with opened(**_ab(shares=[0.5])) as service:
        await service.deploy(adapter)
        for number in range(200):
            if service.trial is None:
                break
            await service.record_outcome(float(number % 3 == 0), uid="deploy-1")
            await service.record_outcome(float(number % 3 != 0), uid="deploy-0")
        assert service.current.uid == "deploy-0"
        assert service.history()[1].phase == "rolled_back"
        assert "trial: mean reward 0.3" in service.history()[1].reason


async def test_a_trial_goes_on_after_a_restart_with_all_its_outcomes(opened, adapter):
    settings = _ab(shares=[0.2, 0.8], step_outcomes=20)
    async with opened(**settings) as service:
        await service.deploy(adapter)
        for number in range(30):
            uid = f"deploy-{number % 2}"
            assert await service.record_outcome(number / 30, uid=uid, key=str(number))
            assert not await service.record_outcome(number / 30, uid=uid, key=str(number))
        for _ in range(5):
            await service.record_outcome(0.5, uid="deploy-1")
        before = (service.trial.share, str(service.trial), service.route("a user").uid)
        assert before[0] == 0.8
    async with opened(**settings) as service:
        after = (service.trial.share, str(service.trial), service.route("a user").uid)
        assert after == before


async def test_during_a_trial_other_deployments_and_odd_rewards_fail_and_a_rollback_ends_it(
    opened, make_adapter
):
    async with opened(**_ab()) as service:
        await service.deploy(make_adapter(1))
        second = await service.deploy(make_adapter(2))
        assert (second.phase, "deploy-1 is on trial" in second.reason) == ("failed", True)
        for reward in (float("nan"), float("inf"), 1.001, -1e200):
            with pytest.raises(ValueError, match=r"must be a number in \[-1, 1\], not"):
                await service.record_outcome(reward, uid="deploy-1")
        assert not await service.record_outcome(1.0, uid="deploy-7")
        assert (await service.rollback("enough")).uid == "deploy-0"
        assert service.trial is None
        assert service.history()[1].reason == "trial: enough"


async def test_outcomes_on_record_outside_of_the_bounds_are_left_out_of_a_trial(
    opened, adapter, caplog
):
    """As an earlier release took them: their squares are no numbers any more."""
    settings = _ab(shares=[0.5], max_outcomes=30)
    async with opened(rewards=(-1e300, 1e300), **settings) as service:
        await service.deploy(adapter)
        for reward in (0.5, 1e200, -1e200, 0.25):
            assert await service.record_outcome(reward, uid="deploy-1")
    async with opened(**settings) as service:
        assert "goes on without 2 of 4 outcomes: their rewards lie outside of [-1, 1]" in (
            caplog.text
        )
        arm = service.trial.test.arms["new"]
        assert (arm.count, arm.total) == (2, 0.75)
        for number in range(28):
            await service.record_outcome(number / 28, uid=f"deploy-{number % 2}")
        assert service.trial is None
