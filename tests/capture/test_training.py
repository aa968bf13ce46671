"""Real training with tiny models on a CPU: spans and call counts against what the scripts really did."""

from __future__ import annotations

import itertools
import json
import socket
import subprocess
from collections import Counter
from pathlib import Path

import pytest

from monitor.client import Client
from tests.capture.capture_on_disk import NODE, calls, shape, spans
from tests.capture.test_original_reader import ask_the_original
from tests.capture.training import DEADLINE_SECONDS, SCRIPTS, train, training_environment, training_python
from tests.integration.daemons import daemon_child

STEPS = 6
TORCH = SCRIPTS / "train_torch.py"


def counted(folder: Path, function: str) -> dict[str, int]:
    """Span without its times -> calls of a function, for the spans that called it; equal shapes are summed."""
    found: Counter[str] = Counter()
    for span in spans(folder):
        found[shape(span)] += calls(folder, span, function)
    return {name: count for name, count in found.items() if count}


def forward(mode: str, step: int) -> str:
    return f"{mode}-{step}-stepstart_{mode}-{step}-forwardpassend"


def backward(mode: str, step: int) -> str:
    return f"{mode}-{step}-forwardpassend_{mode}-{step}-stepend"


def whole(mode: str, step: int) -> str:
    return f"{mode}-{step}-stepstart_{mode}-{step}-stepend"


def test_torch_is_cut_into_steps_and_phases(tmp_path: Path) -> None:
    train(TORCH, tmp_path, "plain")
    folder = tmp_path / NODE
    expected = {forward("train", step): 3 for step in range(STEPS)} | {forward("eval", step): 3 for step in range(2)}
    assert counted(folder, "in_forward") == expected
    assert counted(folder, "in_backward") == {backward("train", step): 5 for step in range(STEPS)}
    names = [shape(span) for span in spans(folder)]
    assert names[0] == "prestepzero-*-start_train-0-stepstart"
    assert names[-2:] == ["eval-1-forwardpassend_posthookclose-*-end", "prestepzero-*-end_posthookclose-*-end"]
    facts = json.loads((folder / spans(folder)[0].name / "phasewatch.json").read_text())
    assert set(facts["libraries"]) >= {"torch", "numpy"}


def test_the_daemon_and_the_original_answer_right_about_torch(tmp_path: Path, short_tmp_path: Path) -> None:
    base = tmp_path / "base"
    with daemon_child(short_tmp_path, base) as (_, client):
        train(TORCH, base, "plain")
        answer = client.step(1, fresh=True)
        assert count_of(client, "in_forward", start=1) == 3
        assert count_of(client, "in_backward", start=0, end=STEPS - 1) == 5 * STEPS
        assert count_of(client, "in_forward", start=0, end=1, mode="eval") == 6
        assert answer.spans == 2
        (facts,) = client.status()["captures"]
        assert "torch" in facts["libraries"]
    theirs = ask_the_original((base / NODE).parent)
    assert theirs["nodes"] == ["0-test"]
    assert theirs["train_step_1"]["in_forward"] == [3, 3]
    assert theirs["train_step_1"]["in_backward"] == [5, 5]
    assert len(theirs["spans"]) == len(spans(base / NODE))


def count_of(client: Client, function: str, **words: int | str) -> int:
    """Calls of a function in a range of steps, from the daemon."""
    start = int(words.pop("start"))
    end = words.pop("end", None)
    answer = client.step(start, None if end is None else int(end), **words)
    return sum(row.calls or 0 for row in answer.functions if row.name == function)


def test_gradients_that_are_accumulated_are_one_step(tmp_path: Path) -> None:
    train(TORCH, tmp_path, "accumulated")
    folder = tmp_path / NODE
    first = {forward("train", step): 3 for step in range(STEPS)}
    more = {f"train-{step}-forwardpassend_train-{step}-forwardpassend": 9 for step in range(STEPS)}
    assert counted(folder, "in_forward") == first | more
    assert sum(counted(folder, "in_backward").values()) == STEPS * 4 * 5


def test_without_the_optimizer_each_forward_pass_is_a_step(tmp_path: Path) -> None:
    train(TORCH, tmp_path, "without_optimizer")
    assert counted(tmp_path / NODE, "in_forward") == {forward("train", step): 3 for step in range(STEPS)}


def test_a_module_that_calls_itself_is_one_forward_pass(tmp_path: Path) -> None:
    train(TORCH, tmp_path, "twice")
    assert counted(tmp_path / NODE, "in_forward") == {forward("train", step): 6 for step in range(STEPS)}


def test_a_compiled_model_is_followed(tmp_path: Path) -> None:
    train(TORCH, tmp_path, "compiled")
    expected = {backward("train", step): 5 for step in range(STEPS)}
    assert counted(tmp_path / NODE, "in_backward") == expected
    assert forward("eval", 0) in [shape(span) for span in spans(tmp_path / NODE)]


def test_compiling_after_attaching_changes_nothing_for_the_model(tmp_path: Path) -> None:
    train(TORCH, tmp_path, "compiled_later")
    assert counted(tmp_path / NODE, "in_backward") == {"prestepzero-*-start_posthookclose-*-end": 5 * STEPS}


def test_after_an_exception_in_the_forward_pass_the_profiler_is_off(tmp_path: Path) -> None:
    assert json.loads(train(TORCH, tmp_path, "broken")) == {"off": True}
    assert counted(tmp_path / NODE, "in_backward") == {backward("train", 0): 5, backward("train", 2): 5}
    assert whole("train", 1) in [shape(span) for span in spans(tmp_path / NODE)]


def test_copies_and_checkpoints_of_the_model_hold_nothing_of_ours(tmp_path: Path) -> None:
    assert json.loads(train(TORCH, tmp_path, "copied")) == {"has_ours": False}
    found = counted(tmp_path / NODE, "in_forward")
    assert {name: found[name] for name in found if name.endswith("forwardpassend")} == {
        forward("train", step): 3 for step in range(STEPS)
    }


def test_chosen_steps_only(tmp_path: Path) -> None:
    train(TORCH, tmp_path, "scheduled")
    assert counted(tmp_path / NODE, "in_forward") == {forward("train", step): 3 for step in (0, 3)}


def test_torch_under_pyinstrument(tmp_path: Path) -> None:
    train(TORCH, tmp_path, "sampled")
    names = Counter(shape(span) for span in spans(tmp_path / "framework/pytorch/pyinstrument/0-test"))
    assert [names[forward("train", step)] for step in range(STEPS)] == [1] * STEPS


def test_dataloader_workers_capture_themselves(tmp_path: Path) -> None:
    train(TORCH, tmp_path, "workers")
    assert counted(tmp_path / NODE, "in_loader") == {}
    for context in ("fork", "spawn"):
        for worker in range(2):
            folder = tmp_path / f"framework/pytorch/cprofile/0-test-{context}-worker-{worker}"
            found = counted(folder, "in_loader")
            assert found == {
                "train-0-stepstart_train-4-stepstart": 16,
                "train-4-stepstart_posthookclose-*-end": 16,
            }
            assert counted(folder, "manual_seed") == {}  # theirs ran, and before the first span


def test_two_processes_are_two_nodes_however_they_share_the_model(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = str(taken.getsockname()[1])
    command = [training_python(), str(TORCH), str(tmp_path), "distributed"]
    children = [
        subprocess.Popen(
            command,
            env=training_environment(RANK=rank, WORLD_SIZE="2", MASTER_ADDR="127.0.0.1", MASTER_PORT=port),
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in ("0", "1")
    ]
    try:
        printed = [child.communicate(timeout=DEADLINE_SECONDS)[0] for child in children]
    finally:
        for child in children:
            child.kill()
    host = socket.gethostname().replace("_", "-")
    answers = [json.loads(text.splitlines()[-1]) for text in printed]
    assert [answer["node"] for answer in answers] == [f"0-{host}", f"1-{host}"]
    assert answers[0]["wrappers"] == ["ddp", "fully_shard", "fsdp"]
    for wrapper, rank in itertools.product(answers[0]["wrappers"], range(2)):
        folder = tmp_path / wrapper / f"framework/pytorch/cprofile/{rank}-{host}"
        assert counted(folder, "in_forward") == {forward("train", step): 3 for step in range(STEPS)}
        assert counted(folder, "in_backward") == {backward("train", step): 5 for step in range(STEPS)}
        facts = json.loads((folder / spans(folder)[3].name / "phasewatch.json").read_text())
        assert (facts["rank"], facts["world_size"]) == (rank, 2)
    theirs = ask_the_original(tmp_path / "fsdp/framework/pytorch/cprofile")
    assert sorted(theirs["nodes"]) == [f"0-{host}", f"1-{host}"]


def test_keras_tells_fit_evaluate_and_predict_apart(tmp_path: Path) -> None:
    train(SCRIPTS / "train_keras.py", tmp_path)
    folder = tmp_path / NODE
    found = counted(folder, "in_layer")
    batches = {"train": 2 * 5, "eval": 2 * 2 + 5, "predict": 3}
    expected = {whole(mode, step): 2 for mode, count in batches.items() for step in range(count)}
    # Keras builds the model before its first batch, by calling it.
    assert {name: count for name, count in found.items() if not name.startswith("prestepzero")} == expected
    theirs = ask_the_original(folder.parent)
    assert theirs["train_step_1"]["in_layer"] == [2, 2]


def test_lightning_tells_fit_test_and_predict_apart(tmp_path: Path) -> None:
    train(SCRIPTS / "train_lightning.py", tmp_path)
    folder = tmp_path / NODE
    expected = {forward("train", step): 2 for step in range(10)}
    expected |= {whole("eval", step): 1 for step in range(15)} | {whole("predict", step): 1 for step in range(5)}
    assert counted(folder, "in_forward") == expected
    assert counted(folder, "in_optimizer") == {backward("train", step): 1 for step in range(10)}
    theirs = ask_the_original(folder.parent)
    assert theirs["train_step_1"]["in_forward"] == [2, 2]


def test_transformers_steps_are_the_optimizers(tmp_path: Path) -> None:
    train(SCRIPTS / "train_transformers.py", tmp_path / "base")
    folder = tmp_path / "base" / NODE
    found = Counter(shape(span) for span in spans(folder))
    for step in range(4):
        assert found[forward("train", step)] == found[backward("train", step)] == 1
        assert found[f"train-{step}-forwardpassend_train-{step}-forwardpassend"] == 1
        assert found[forward("eval", step)] == found[backward("eval", step)] == 1
    assert sum(counted(folder, "in_collator").values()) == 8 + 4
    optimizer = "step"
    assert all(counted(folder, optimizer).get(backward("train", step), 0) >= 1 for step in range(4))


@pytest.mark.parametrize("ending", [0, 3])
def test_a_script_that_is_not_changed_is_followed_and_ends_as_it_does(tmp_path: Path, ending: int) -> None:
    script = SCRIPTS / "unchanged_torch.py"
    options = ["--base", str(tmp_path), "--node", "0-test", "--every", "2"]
    printed = train("-m", "monitor.capture", *options, script, "5", str(ending), ending=ending)
    assert printed == f"['{script}', '5', '{ending}'] __main__ unchanged_torch.py\n"
    assert counted(tmp_path / NODE, "in_forward") == {forward("train", step): 1 for step in (0, 2, 4)}


def test_an_unchanged_keras_script_is_followed(tmp_path: Path) -> None:
    options = ["--base", str(tmp_path), "--node", "0-test", "--modes", "train"]
    train("-m", "monitor.capture", *options, SCRIPTS / "unchanged_keras.py")
    names = [shape(span) for span in spans(tmp_path / NODE)]
    assert [name for name in names if name.endswith("stepend")] == [whole("train", step) for step in range(6)]


def test_a_missing_framework_is_named_with_what_to_install(tmp_path: Path) -> None:
    for name, package in (("torch", "PyTorch"), ("keras", "Keras 3"), ("lightning", "Lightning")):
        script = "import sys; sys.modules.update(dict.fromkeys(('torch', 'keras', 'lightning', 'pytorch_lightning')))\n"
        script += f"import monitor.capture.{name}"
        done = subprocess.run(
            [training_python(), "-c", script],
            env=training_environment(),
            capture_output=True,
            text=True,
            timeout=DEADLINE_SECONDS,
            check=False,
        )
        assert f"needs {package}" in done.stderr
        assert f"pip install 'phasewatch[{name}]'" in done.stderr
