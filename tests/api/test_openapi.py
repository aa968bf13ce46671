"""The OpenAPI document: valid, complete, and true: what it lists is accepted, and answers have the shapes it tells."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest
from openapi_schema_validator import OAS31Validator
from openapi_spec_validator import validate

import monitor
from monitor.api.openapi import openapi_document
from monitor.api.parameters import TREE_FORMATS
from monitor.api.probes import PROBES
from monitor.api.server import Server
from tests.api.test_server import ANSWERS, SPAN_NAME, FakeEngine, ask, serving_for_a_fixture
from tests.api.test_watch import watching

DOCUMENT = openapi_document()
ASKING = ("/v1/capture", "/v1/retry")
PATHS: dict[str, Any] = {path: methods for path, methods in DOCUMENT["paths"].items() if path not in (*ASKING, *PROBES)}
RANGES = {"start": "0", "end": "2", "start_mode": "train", "end_mode": "train"}
ONE_SPAN = {"job": "training", "node": "0-a", "framework": "pytorch", "profiler": "cprofile", "span": SPAN_NAME}
NEEDED = RANGES | ONE_SPAN
PHASE = {"/v1/stats/job-phases": {"job_phase": "training_loop"}, "/v1/stats/training-phases": RANGES}
NAMES = {
    "job": ["training", "other"],
    "node": ["0-a", "any"],
    "framework": ["pytorch", "tensorflow"],
    "span": [SPAN_NAME],
}


@pytest.fixture
async def server(short_tmp_path: Path) -> AsyncIterator[Server]:
    async with serving_for_a_fixture(FakeEngine(), short_tmp_path) as running:
        yield running


def parameters(path: str) -> list[dict[str, Any]]:
    """What a path takes."""
    listed: list[dict[str, Any]] = PATHS[path]["get"]["parameters"]
    return listed


def examples(parameter: dict[str, Any]) -> list[str]:
    """Texts that a parameter's schema allows."""
    schema = parameter["schema"]
    if schema["type"] == "array":
        schema = schema["items"]
    if "enum" in schema:
        return list(schema["enum"])
    match schema["type"]:
        case "boolean":
            return ["true", "false"]
        case "integer":
            return [str(schema["minimum"]), str(schema.get("maximum", 2**31 - 1))]
        case "number":
            return ["1", "1.5", "1.25e0"]
    return NAMES[parameter["name"]]


def documented() -> Iterator[tuple[str, dict[str, str]]]:
    """Every documented value of every parameter, with what else must be given."""
    for path in PATHS:
        required = {p["name"]: NEEDED[p["name"]] for p in parameters(path) if p["required"]}
        for parameter in parameters(path):
            for text in examples(parameter):
                words = required | {parameter["name"]: text}
                if parameter["name"] == "start" and "end" in required:
                    words["end"] = text
                if text in TREE_FORMATS:
                    words["profiler"] = "pyinstrument"
                if text == "pstats" and path in PHASE:
                    taken = {listed["name"] for listed in parameters(path)}
                    words |= {name: value for name, value in PHASE[path].items() if name in taken}
                if text == "documented":
                    words["end"] = "2"
                if (path, text) != ("/v1/watch", "any"):
                    yield path, words


def test_the_document_is_valid_openapi() -> None:
    validate(json.loads(json.dumps(DOCUMENT)))


def test_the_document_tells_the_version_and_every_route() -> None:
    assert DOCUMENT["openapi"] == "3.1.0"
    assert DOCUMENT["info"] == {"title": "phasewatch", "version": monitor.__version__}
    assert set(PATHS) == {target.partition("?")[0] for target, _ in ANSWERS} | {"/v1/watch", "/v1/profile"}


def test_the_one_route_that_asks_something_of_jobs_is_described() -> None:
    operation = DOCUMENT["paths"]["/v1/capture"]["post"]
    assert operation["summary"]
    assert operation["responses"].keys() == {"200", "400", "401", "403", "404", "408", "413", "503"}
    schema = operation["requestBody"]["content"]["application/json"]["schema"]
    assert DOCUMENT["components"]["schemas"][schema["$ref"].rpartition("/")[2]]["required"] == ["steps"]


@pytest.mark.parametrize("path", PROBES)
async def test_a_probe_answers_as_described(server: Server, path: str) -> None:
    responses = DOCUMENT["paths"][path]["get"]["responses"]
    status, _, body = await ask(server, path)
    assert status == 200
    check_shape(responses["200"], json.loads(body))
    assert responses.keys() == {"200", "503"}


def test_the_route_that_reads_files_again_is_described() -> None:
    assert DOCUMENT["paths"].keys() == {*PATHS, *ASKING, *PROBES}
    operation = DOCUMENT["paths"]["/v1/retry"]["post"]
    assert operation["responses"].keys() == {"200", "400", "401", "403", "404", "408", "413", "503"}
    schema = operation["requestBody"]["content"]["application/json"]["schema"]
    assert DOCUMENT["components"]["schemas"][schema["$ref"].rpartition("/")[2]]["properties"].keys() == {
        "jobs",
        "nodes",
    }


def test_every_parameter_and_every_answer_is_described() -> None:
    for path, methods in PATHS.items():
        assert methods.keys() == {"get"}
        operation = methods["get"]
        assert operation["summary"]
        assert operation["responses"].keys() == {"200", "400", "401", "403", "404", "413", "503"}
        for parameter in parameters(path):
            assert parameter["in"] == "query"
            assert parameter["description"].endswith("."), parameter


def test_only_what_must_be_given_is_required() -> None:
    required = {path: [p["name"] for p in parameters(path) if p["required"]] for path in PATHS}
    assert {path: names for path, names in required.items() if names} == {
        "/v1/profile": ["job", "framework", "profiler", "node", "span"],
        "/v1/stats/step": ["start"],
        "/v1/stats/time": ["start", "end"],
        "/v1/stats/modes": ["start_mode", "end_mode"],
    }


async def test_the_server_serves_the_document(server: Server) -> None:
    status, headers, body = await ask(server, "/v1/openapi.json")
    assert (status, headers["content-type"]) == (200, "application/json; charset=utf-8")
    assert json.loads(body) == json.loads(json.dumps(DOCUMENT))


@pytest.mark.parametrize("path", [path for path in PATHS if path != "/v1/watch"])
async def test_every_documented_value_is_accepted(server: Server, path: str) -> None:
    for words in [{}] if not parameters(path) else [words for wanted, words in documented() if wanted == path]:
        status, _, body = await ask(server, f"{path}?{urlencode(words)}")
        assert status == 200, (path, words, body)


async def test_every_documented_value_of_watch_is_accepted(server: Server) -> None:
    for words in [words for path, words in documented() if path == "/v1/watch"]:
        async with watching(server, f"?{urlencode(words)}") as reader:
            assert b"200 OK" in reader.headers


@pytest.mark.parametrize("path", PATHS)
async def test_a_value_outside_its_schema_is_refused(server: Server, path: str) -> None:
    required = {p["name"]: NEEDED[p["name"]] for p in parameters(path) if p["required"]}
    for parameter in parameters(path):
        schema = parameter["schema"].get("items", parameter["schema"])
        outside = "" if schema["type"] == "string" else "nonsense"
        status, _, body = await ask(server, f"{path}?{urlencode(required | {parameter['name']: outside})}")
        assert status == 400, (path, parameter["name"])
        assert json.loads(body)["error"]["parameter"] == parameter["name"]


@pytest.mark.parametrize("path", PATHS)
async def test_what_is_left_out_is_refused_where_it_is_required(server: Server, path: str) -> None:
    required = {p["name"]: NEEDED[p["name"]] for p in parameters(path) if p["required"]}
    for name in required:
        words = {other: text for other, text in required.items() if other != name}
        status, _, body = await ask(server, f"{path}?{urlencode(words)}")
        assert (status, json.loads(body)["error"]["parameter"]) == (400, name)


@pytest.mark.parametrize("target", [target for target, _ in ANSWERS] + ["/v1/stats/step?start=1&callers=true"])
@pytest.mark.parametrize("profiler", ["cprofile", "pyinstrument"])
async def test_answers_have_the_documented_shape(server: Server, target: str, profiler: str) -> None:
    path, _, query = target.partition("?")
    if profiler == "pyinstrument" and "profiler" in {p["name"] for p in parameters(path)}:
        kept = [word for word in query.split("&") if word and "profiler" not in word]
        query = "&".join([*kept, f"profiler={profiler}"])
    status, _, body = await ask(server, f"{path}?{query}")
    assert status == 200
    check_shape(PATHS[path]["get"]["responses"]["200"], json.loads(body))


@pytest.mark.parametrize(
    "target",
    [
        "/v1/stats/step?start=1&format=profiles",
        "/v1/stats/step?start=1&format=tree&profiler=pyinstrument",
        "/v1/stats/training-phases?format=tree&profiler=pyinstrument",
        "/v1/stats/job-phases?format=tree&profiler=pyinstrument",
    ],
)
async def test_other_json_formats_have_a_documented_shape(server: Server, target: str) -> None:
    status, headers, body = await ask(server, target)
    assert (status, headers["content-type"]) == (200, "application/json")
    check_shape(PATHS[target.partition("?")[0]]["get"]["responses"]["200"], json.loads(body))


@pytest.mark.parametrize("target", ["/v1/jobs?x=1", "/v1/nodes?node=x", "/v1/stats/step"])
async def test_errors_have_the_documented_shape(server: Server, target: str) -> None:
    status, _, body = await ask(server, target)
    check_shape(PATHS[target.partition("?")[0]]["get"]["responses"][str(status)], json.loads(body))


def check_shape(response: dict[str, Any], content: object) -> None:
    """Hold an answer against its schema, and against one that allows no further fields."""
    schema = response["content"]["application/json"]["schema"]
    components = json.loads(json.dumps(DOCUMENT["components"]))
    for component in components["schemas"].values():
        component["additionalProperties"] = False
    OAS31Validator({**schema, "components": components}).validate(content)
