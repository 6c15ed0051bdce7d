"""The page of a service over real records: what it says, who may look, and its form."""

import asyncio
import contextlib
import re
import shutil

import httpx
import pytest
from fastapi import FastAPI
from tests import factories
from tests.harness.composed import composed
from tests.harness.pages import cells, charts, check

from rlforge.continuous.config.continuous import ContinuousConfig
from rlforge.continuous.config.serving import AbTestConfig, ServeConfig
from rlforge.continuous.decisions.store import TrajectoryStore
from rlforge.continuous.serving.client import ask_admin, running_at
from rlforge.continuous.serving.metrics import Metrics
from rlforge.continuous.serving.page import Page
from rlforge.continuous.serving.server import listen, watched
from rlforge.continuous.serving.tokens import Tokens

TOKENS = Tokens(client="for clients", admin="für Verwalter")
HERE = "http://127.0.0.1:8000"


def browser(service, **serve):
    app = FastAPI()
    Page(service, TOKENS, ServeConfig(**serve), "test").mount(app)
    return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url=HERE)


async def roll_back(http, token=TOKENS.admin, leaving="deploy-2", **headers):
    return await http.post("/watch", data={"token": token, "leaving": leaving}, headers=headers)


async def test_the_page_shows_what_is_served_the_windows_and_the_newest_decisions(run, serving):
    opened = factories.decision(7, "agent-9", None, timestamp=4e9, window_id="2099-01-01-00:00")
    with TrajectoryStore(run / "store") as store:
        store.append([opened])
    async with serving(run) as service, browser(service) as http:
        assert str((await http.get("/", follow_redirects=True)).url) == f"{HERE}/watch"
        page = (await http.get("/watch")).text
    text, _ = check(page)
    rows = cells(page)
    assert ["deploy-2", "checkpoints/step-2", "100%"] in rows
    assert [row[:2] for row in rows if "deploy-" in row[0]][1:] == [
        ["deploy-2", "live"],
        ["deploy-1", "former"],
        ["deploy-0", "former"],
    ]
    assert [row[0] for row in rows if len(row) == 11] == ["2024-11-13-10:30", "2024-11-13-10:00"]
    assert charts(page)["mean reward"]["lines"][0]["name"] == "policy"
    first = page.partition("Newest decisions")[2].partition("</li>")[0]
    assert "agent-9" in first
    assert '<span class="badge">open</span>' in first
    assert "scripted" not in page.partition("Newest decisions")[2]
    assert "Roll back to deploy-1" in text


async def test_a_page_needs_nothing_else_and_runs_no_script_of_a_model(run, serving):
    said = "<script>alert(1)</script></pre><img src=x onerror=alert(1)>\ud800"
    answer = factories.completion(said, token_ids=(9,), policy_uid="deploy-2")
    evil = factories.decision(
        8, said, timestamp=4e9, window_id="2099-01-01-00:00", completion=answer, observation=said
    )
    with TrajectoryStore(run / "store") as store:
        store.append([evil])
    async with serving(run) as service, browser(service) as http:
        answers = [await http.get("/watch") for _ in range(2)]
    page, policy = answers[0].text, answers[0].headers["content-security-policy"]
    assert "&lt;script&gt;alert(1)" in page
    assert "<script>" not in page
    assert "<img" not in page
    assert re.findall(r"<[a-z]+ [^>]*(?:src|href|style)=[^>]*>", page) == [
        '<link rel="icon" href="data:,">'
    ]
    assert policy.startswith("default-src 'none'; ")
    (nonce,) = set(re.findall(r"<(?:script|style) nonce=\"(.*?)\">", page))
    assert f"script-src 'nonce-{nonce}'" in policy
    assert "unsafe" not in policy
    assert nonce not in answers[1].text


async def test_the_form_goes_back_to_the_version_before(run, serving):
    async with serving(run) as service, browser(service) as http:
        done = await roll_back(http, origin=HERE)
        assert (done.status_code, done.headers["location"]) == (303, "/watch")
        assert service.current.uid == "deploy-1"
        page = (await http.get("/watch")).text
        left = next(row for row in cells(page) if row[:2] == ["deploy-2", "rolled back"])
        assert left[-1] == "rolled back on the page"
        assert TOKENS.admin not in page
        assert (await roll_back(http, leaving="deploy-1")).status_code == 303
        base = (await http.get("/watch")).text
        assert "<form" not in base  # nothing is before the base model


@pytest.mark.one_in(4)
@pytest.mark.parametrize(
    ("asked", "status", "said"),
    [
        ({"token": "wrong"}, 401, "not the administrators' token"),
        ({"token": "ключ"}, 401, "not the administrators' token"),
        ({"token": TOKENS.client}, 401, "not the administrators' token"),
        ({"token": ""}, 401, "not the administrators' token"),
        ({"origin": "http://evil.example"}, 403, "another site"),
        ({"origin": "null"}, 403, "another site"),
        ({"origin": "http://127.0.0.1:9000"}, 403, "another site"),
        ({"leaving": "deploy-1"}, 409, "deploy-2 is there by now"),
    ],
)
async def test_a_form_that_may_not_is_answered_with_a_sentence(run, serving, asked, status, said):
    async with serving(run) as service, browser(service) as http:
        answer = await roll_back(http, **asked)
        assert (answer.status_code, service.current.uid) == (status, "deploy-2")
        text, _ = check(answer.text)
        assert f"Nothing was done: {said}" in text or said in text
        assert "Roll back to deploy-1" in text
        in_url = await http.get("/watch", params={"token": TOKENS.admin, "leaving": "deploy-2"})
        assert (in_url.status_code, service.current.uid) == (200, "deploy-2")


async def test_a_version_that_cannot_be_left_is_said(run, serving):
    async with serving(run) as service, browser(service) as http:
        shutil.rmtree(run / "deployments" / "versions" / "deploy-1")
        with contextlib.suppress(OSError):
            shutil.rmtree(run / "deployments" / "versions" / "deploy-0")
        await service.rollback()
        assert service.current.uid == "deploy-0"
        answer = await roll_back(http, leaving="deploy-0")
        assert answer.status_code == 409
        assert "no version to go back to" in answer.text


async def test_a_trial_shows_its_shares_and_can_be_ended(run, serving):
    step = run / "checkpoints" / "step-1"
    async with (
        serving(run, strategy="ab_test", ab=AbTestConfig(shares=[0.25])) as service,
        browser(service) as http,
    ):
        tried = await service.deploy(step)
        assert tried.phase == "trial", tried.reason
        page = (await http.get("/watch")).text
        assert [row[::2] for row in cells(page) if row[-1].endswith("%")] == [
            ["deploy-2", "75%"],
            ["deploy-3", "25%"],
        ]
        assert "On trial: mean reward" in page
        assert "End the trial of deploy-3" in page
        assert (await roll_back(http, leaving="deploy-3")).status_code == 303
        assert (service.trial, service.current.uid) == (None, "deploy-2")


@pytest.mark.one_in(5)
@pytest.mark.parametrize(
    ("file", "said"),
    [
        ("windows.jsonl", "windows.jsonl"),
        ("summary.json", "summary.json is damaged"),
        ("progress.json", "progress.json is damaged"),
        ("store/decisions.sqlite", "decisions.sqlite"),
        ("config.yaml", "config.yaml"),
    ],
)
async def test_a_damaged_record_is_a_line_and_the_rest_is_shown(run, serving, file, said):
    async with serving(run) as service, browser(service) as http:
        await http.get("/watch")
        (run / file).write_bytes(b"\x00{ no record" * 99)
        async with browser(service) as anew:
            answer = await anew.get("/watch")
    text, _ = check(answer.text)
    assert answer.status_code == 200
    alert = answer.text.partition('<div role="alert">')[2].partition("</div>")[0]
    assert said in alert
    assert "Roll back to deploy-1" in text


async def test_names_of_other_machines_are_refused(run, serving):
    async with serving(run) as service, browser(service) as http:
        for host in ("evil.example:8000", "127.0.0.1.evil.example", "", "[::"):
            for method in ("GET", "POST"):
                answer = await http.request(method, "/watch", headers={"host": host})
                assert answer.status_code == 403, host
        assert (await http.get("/watch", headers={"host": "localhost:1"})).status_code == 200


@pytest.mark.parametrize("serve", [{"host": "0.0.0.0"}, {"require_token": True}])
async def test_beyond_this_machine_a_browser_is_asked_for_a_token(run, serving, serve):
    async with serving(run) as service, browser(service, **serve) as http:
        for wrong in (None, ("", ""), ("me", "wrong")):
            answer = await http.get("/watch", auth=wrong)
            assert answer.status_code == 401
            assert answer.headers["www-authenticate"].startswith("Basic ")
        assert (await http.get("/watch", auth=("me", TOKENS.client))).status_code == 200
        http.auth = ("me", TOKENS.client)
        assert (await roll_back(http, token=TOKENS.client)).status_code == 401
        assert (await roll_back(http)).status_code == 303


async def test_a_service_without_a_run_shows_its_deployments(opened, tmp_path):
    async with opened(tmp_path / "alone") as service, browser(service) as http:
        page = (await http.get("/watch")).text
    assert ["deploy-0", "base model", "100%"] in cells(page)
    assert "<h2>Windows" not in page


@pytest.fixture
def watching(market, market_engine):
    def watch(service, say, **serve):
        config = factories.changed(market, serve=serve)
        return watched(service, market_engine, config, Metrics(), say)

    return watch


async def test_a_page_that_cannot_start_is_a_line(run, serving, watching):
    said = []
    with contextlib.closing(listen("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        async with serving(run) as service, watching(service, said.append, page=port):
            while not said:  # noqa: ASYNC110  # it has no event
                await asyncio.sleep(0.01)
    (line,) = said
    assert line.startswith("no page to watch it")
    assert f"serve.page={port}" in line
    async with serving(run) as service, watching(service, said.append, page=None):
        await asyncio.sleep(0.1)
    assert len(said) == 1


async def test_a_run_is_watched_and_rolled_back_at_a_free_port_of_this_machine(
    run, serving, watching
):
    said = []
    async with serving(run) as service:
        async with watching(service, said.append):
            while not said:  # noqa: ASYNC110  # it has no event
                await asyncio.sleep(0.01)
            (address,) = re.findall(r"http://127\.0\.0\.1:\d+/watch$", said[0])
            async with httpx.AsyncClient(trust_env=False) as http:
                assert "deploy-2" in (await http.get(address)).text
                token = (run / "deployments" / "admin_token").read_text()
                answer = await http.post(address, data={"token": token, "leaving": "deploy-2"})
                assert (answer.status_code, service.current.uid) == (303, "deploy-1")
                for closed in ("/v1/models", "/metrics"):
                    assert (await http.get(address.replace("/watch", closed))).status_code == 404
            # The command finds it, too.
            state = run / "deployments"
            gone = await asyncio.to_thread(ask_admin, running_at(state), state, "rollback")
            assert (gone["uid"], service.current.uid) == ("deploy-0", "deploy-0")
        assert len(said) == 1


def test_a_page_of_its_own_and_requests_are_not_both(small_market):
    from rlforge.continuous.preflight.continuous import check_continuous
    from rlforge.errors import ConfigError

    both = ("continuous.http=true", "serve.page=8001")
    with pytest.raises(ConfigError, match=re.escape("serve.page")):
        check_continuous(composed(*small_market, *both, root=ContinuousConfig), keys=False)
    check_continuous(composed(*small_market, both[1], root=ContinuousConfig), keys=False)
