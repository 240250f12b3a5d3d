"""From a model's name to its files."""

import shutil

import pytest

from glimpse.models import ModelError, resolve


def test_folder(tiny_checkpoint):
    folder = tiny_checkpoint("llama")
    files = resolve(str(folder))
    assert (files.folder, files.format) == (folder, "safetensors")
    assert files.weights == (folder / "model.safetensors",)


def test_sharded_folder(tiny_checkpoint):
    folder = tiny_checkpoint("llama", max_shard_size="30KB")
    files = resolve(str(folder))
    assert len(files.weights) > 1
    assert set(files.weights) == set(folder.glob("model-*.safetensors"))


def test_relative_path(tiny_checkpoint, monkeypatch):
    folder = tiny_checkpoint("llama")
    monkeypatch.chdir(folder.parent)
    assert resolve(folder.name).weights[0].is_file()


def test_gguf_file(tiny_gguf):
    path = tiny_gguf()
    files = resolve(str(path))
    assert (files.format, files.weights) == ("gguf", (path,))


def test_missing_shard_is_named(tiny_checkpoint):
    folder = tiny_checkpoint("llama", max_shard_size="30KB")
    lost = sorted(folder.glob("model-*.safetensors"))[1]
    lost.unlink()
    with pytest.raises(ModelError, match=lost.name):
        resolve(str(folder))


@pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
def test_missing_file_is_named(tiny_checkpoint, name):
    folder = tiny_checkpoint("llama")
    (folder / name).unlink()
    with pytest.raises(ModelError, match=name):
        resolve(str(folder))


def test_broken_index(tiny_checkpoint):
    folder = tiny_checkpoint("llama", max_shard_size="30KB")
    (folder / "model.safetensors.index.json").write_text('{"weight_map": {')
    with pytest.raises(ModelError, match=r"index\.json"):
        resolve(str(folder))


def test_folder_of_gguf_files_names_one(tiny_gguf):
    path = tiny_gguf()
    with pytest.raises(ModelError, match=str(path)):
        resolve(str(path.parent))


@pytest.mark.parametrize(
    "model", ["no-such-model", "./no/such/folder", "missing.gguf", "org/x.gguf"]
)
def test_unknown_name_lists_what_is_valid(model):
    with pytest.raises(
        ModelError, match=r"smollm2-135m, a model folder, a \.gguf file or a hub id"
    ):
        resolve(model)


def test_other_file(tmp_path):
    path = tmp_path / "model.bin"
    path.touch()
    with pytest.raises(ModelError, match=r"\.bin file; valid: a \.gguf file"):
        resolve(str(path))


# ------------------------------------------------------------------------------------------ hub


@pytest.fixture
def hub_cache(tmp_path, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    return tmp_path


@pytest.mark.parametrize("model", ["org/name", "org/name@main"])
def test_hub_id_in_the_hubs_cache(tiny_checkpoint, hub_cache, model):
    repo = hub_cache / "models--org--name"
    snapshot = repo / "snapshots" / ("0" * 40)
    shutil.copytree(tiny_checkpoint("llama"), snapshot)
    (repo / "refs").mkdir()
    (repo / "refs" / "main").write_text("0" * 40)
    assert resolve(model).folder == snapshot


@pytest.mark.parametrize("model", ["org/name", "org/name@v2"])
def test_hub_id_offline_is_one_clear_error(hub_cache, model):
    with pytest.raises(ModelError, match=f"'{model}'.* the hub cannot be reached") as caught:
        resolve(model)
    assert "\n" not in str(caught.value)


def test_hub_error_keeps_its_reason(monkeypatch):
    def full_disk(*args, **options):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("huggingface_hub.snapshot_download", full_disk)
    with pytest.raises(ModelError, match="No space left"):
        resolve("org/name")


def test_hub_download_takes_only_needed_files(tiny_checkpoint, monkeypatch):
    from huggingface_hub.utils import filter_repo_objects

    folder = tiny_checkpoint("llama", has_tokenizer=True)
    seen = {}

    def download(repo_id, **options):
        seen.update(options, repo_id=repo_id)
        return str(folder)

    monkeypatch.setattr("huggingface_hub.snapshot_download", download)
    resolve("org/name@abc")
    assert (seen["repo_id"], seen["revision"]) == ("org/name", "abc")
    needed = [path.name for path in folder.iterdir()]
    needed += ["model-00001-of-00002.safetensors", "model.safetensors.index.json", "merges.txt"]
    others = ["consolidated.safetensors", "pytorch_model.bin", "onnx/model.onnx", "README.md"]
    kept = filter_repo_objects([*needed, *others], allow_patterns=seen["allow_patterns"])
    assert sorted(kept) == sorted(needed)
