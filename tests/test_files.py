"""Files: written whole or not at all, checked when read, never unpickled; and locks."""

import contextlib
import errno
import hashlib
import json
import os
import pickle
import shutil
import stat
import subprocess
import sys
import textwrap
import threading
import time
from types import SimpleNamespace

import pytest
import safetensors.torch
import torch

import posattn
from posattn import files
from posattn.errors import UsageError
from posattn.files import Damaged
from posattn.run_folder import RunFolder

TENSORS = {"a": torch.arange(6.0).reshape(2, 3), "b": torch.tensor([True, False]), "c": torch.zeros(0, 2)}


@pytest.fixture
def full_disk(tmp_path):
    """A file system of 64 KiB."""
    place = tmp_path / "small"
    place.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", place], capture_output=True)
    if mounted.returncode:
        pytest.skip("mounting is not permitted here")
    yield place
    subprocess.run(["umount", "-l", place], check=True)


def test_what_is_written_is_read_and_replaces_what_was_there(tmp_path):
    path = tmp_path / "new" / "folder" / "file"
    files.write(path, b"first")
    files.write(path, b"second")
    assert path.read_bytes() == b"second" and os.listdir(path.parent) == ["file"]


@pytest.mark.parametrize("umask", [0o022, 0o077])
def test_a_file_has_the_permissions_any_other_would(tmp_path, umask):
    before = os.umask(umask)
    try:
        files.write(tmp_path / "ours", b"")
        (tmp_path / "plain").write_bytes(b"")
    finally:
        os.umask(before)
    assert (tmp_path / "ours").stat().st_mode == (tmp_path / "plain").stat().st_mode


@pytest.mark.parametrize("call", ["replace", "fsync"])
@pytest.mark.parametrize(
    ("number", "reason"), [(errno.ENOSPC, "the disk is full"), (errno.EDQUOT, "the disk is full"), (errno.EIO, "")]
)
def test_a_failure_leaves_the_old_content_and_nothing_else(tmp_path, monkeypatch, call, number, reason):
    path = tmp_path / "file"
    path.write_bytes(b"old")

    def fail(*_):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, call, fail)
    with pytest.raises(UsageError) as refused:
        files.write(path, b"new")
    monkeypatch.undo()
    assert str(refused.value) == f"cannot write {path}: {reason or os.strerror(number)}."
    assert path.read_bytes() == b"old" and os.listdir(tmp_path) == ["file"]


def test_a_disk_that_is_really_full(full_disk):
    path = full_disk / "file"
    files.write(path, b"old")
    with pytest.raises(UsageError) as refused:
        files.write(path, bytes(100_000))
    assert str(refused.value) == f"cannot write {path}: the disk is full."
    assert path.read_bytes() == b"old" and os.listdir(full_disk) == ["file"]
    files.write(path, b"smaller")
    assert path.read_bytes() == b"smaller"


def test_a_run_on_a_full_disk_ends_in_a_sentence_and_goes_on_when_there_is_space(full_disk, tmp_path):
    config = posattn.ModelConfig(3, embed=32, width=32)  # 60 KB of weights beside the run's other files
    settings = {"samples": 20, "epochs": 2, "batch": 10, "device": "cpu"}
    with pytest.raises(UsageError, match=r"^cannot write .*: the disk is full\.$"):
        posattn.train("sum", config, out=full_disk / "run", save_every=0, **settings)
    left = sorted(os.listdir(full_disk / "run"))
    assert "run.json" in left and not [name for name in left if name.startswith(".") or name.startswith("weights")]
    subprocess.run(["mount", "-o", "remount,size=8m", full_disk], check=True)
    resumed = posattn.train("sum", config, out=full_disk / "run", **settings)
    assert torch.equal(resumed.parameters.flat, posattn.train("sum", config, **settings).parameters.flat)


def test_a_limit_on_the_size_of_files(tmp_path):
    script = """
        import resource, signal, sys
        from pathlib import Path
        from posattn import files
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
        files.write(Path(sys.argv[1]), b"kept")
        try:
            files.write(Path(sys.argv[1]), bytes(5000))
        except files.UsageError as error:
            print(error)
    """
    command = [sys.executable, "-c", textwrap.dedent(script), tmp_path / "file"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.stdout == f"cannot write {tmp_path / 'file'}: File too large.\n", done.stderr
    assert (tmp_path / "file").read_bytes() == b"kept" and os.listdir(tmp_path) == ["file"]


@pytest.mark.parametrize("place", ["/dev/full", "/proc/nowhere", "file"])
def test_a_place_that_cannot_hold_files(tmp_path, monkeypatch, place):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_bytes(b"old")
    with pytest.raises(UsageError, match=rf"^cannot write {place}/folder/run.json: .+\.$"):
        files.write_json(files.Path(place) / "folder" / "run.json", {})
    assert (tmp_path / "file").read_bytes() == b"old"


def test_tensors_come_back_with_their_description(tmp_path):
    path = tmp_path / "some.safetensors"
    files.save_tensors(path, TENSORS | {"t": TENSORS["a"].T}, {"steps": 3, "loss": [0.5, None]})
    tensors, description = files.load_tensors(path)
    assert description == {"steps": 3, "loss": [0.5, None]}
    for name, value in (TENSORS | {"t": TENSORS["a"].T}).items():
        assert tensors[name].dtype == value.dtype and torch.equal(tensors[name], value)


def flip(path, position):
    content = bytearray(path.read_bytes())
    content[position] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize("suffix", [".safetensors", ".json"])
def test_every_flipped_byte_and_every_truncation_is_noticed(tmp_path, suffix):
    path = tmp_path / "some.safetensors"
    files.save_tensors(path, TENSORS, {"steps": 3})
    victim = path.with_suffix(suffix)
    whole = victim.read_bytes()
    for position in range(len(whole)):
        flip(victim, position)
        if suffix == ".safetensors" or json_value(victim) != json.loads(whole):  # a space may turn into a line's end
            with pytest.raises(Damaged, match=rf"^{victim} is damaged: .+\.$"):
                files.load_tensors(path)
        victim.write_bytes(whole)
    for length in range(0, len(whole) - 2, 7):
        victim.write_bytes(whole[:length])
        with pytest.raises(Damaged):
            files.load_tensors(path)


def json_value(path):
    try:
        return json.loads(path.read_bytes())
    except ValueError:
        return None


@pytest.mark.parametrize("suffix", [".safetensors", ".json"])
def test_a_missing_half_is_named(tmp_path, suffix):
    path = tmp_path / "some.safetensors"
    files.save_tensors(path, TENSORS, {})
    path.with_suffix(suffix).unlink()
    with pytest.raises(Damaged, match=rf"^cannot read {path.with_suffix(suffix)}: No such file"):
        files.load_tensors(path)


class Bomb:
    """Leaves a file behind when it is unpickled."""

    def __init__(self, mark):
        self.mark = mark

    def __reduce__(self):
        return (open, (str(self.mark), "w"))


@pytest.fixture(params=["torch", "torch without zip", "pickle", "pickle of protocol 0"])
def bomb(request, tmp_path):
    """A pickle, and the file that exists as soon as somebody has unpickled it."""
    path, mark = tmp_path / "bomb", tmp_path / "exploded"
    if request.param.startswith("torch"):
        torch.save(Bomb(mark), path, _use_new_zipfile_serialization=request.param == "torch")
    else:
        path.write_bytes(pickle.dumps(Bomb(mark), protocol=0 if "0" in request.param else None))
    return path, mark


def test_the_bomb_works(bomb):
    path, mark = bomb
    with contextlib.suppress(Exception):
        pickle.loads(path.read_bytes())
    with contextlib.suppress(Exception):
        torch.load(path, weights_only=False)
    assert mark.exists()


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "run"
    posattn.train("sum", posattn.ModelConfig(2, embed=4, width=4), samples=20, epochs=2, batch=10, out=folder)
    return folder


@pytest.mark.parametrize("name", ["model.pt", "model.pkl", "model.ckpt", "weights.bin", "model"])
def test_a_pickle_is_refused_as_a_run(bomb, tmp_path, name):
    path, mark = bomb
    shutil.copy(path, tmp_path / name)
    with pytest.raises(UsageError) as refused:
        posattn.load(tmp_path / name)
    protocol_0 = name == "model" and path.read_bytes()[:1] == b"c"
    assert ("is a file" if protocol_0 else "is a pickle file, which can run code when read") in str(refused.value)
    assert not mark.exists()


@pytest.mark.parametrize("sealed", [False, True])
def test_a_pickle_in_place_of_the_weights_is_not_unpickled(bomb, finished, tmp_path, sealed):
    path, mark = bomb
    folder = tmp_path / "run"
    shutil.copytree(finished, folder)
    shutil.copy(path, folder / "weights.safetensors")
    if sealed:  # whoever forges the weights can forge their checksum
        reseal(folder / "weights.safetensors")
    with pytest.raises(UsageError, match=r"weights\.safetensors is "):
        posattn.load(folder)
    assert not mark.exists()


def reseal(path):
    described = json.loads(path.with_suffix(".json").read_text())
    del described["seal"]
    described["sha256"] = hashlib.sha256(path.read_bytes()).hexdigest()
    files.write_json(path.with_suffix(".json"), described | {"seal": files._seal(described)})


@pytest.mark.parametrize("sealed", [False, True])
@pytest.mark.filterwarnings("ignore")  # a damaged checkpoint is passed over with a warning
def test_a_pickle_in_place_of_a_checkpoint_is_not_unpickled(bomb, tmp_path, sealed):
    path, mark = bomb
    folder, spec = RunFolder(tmp_path), SimpleNamespace(digest="run")
    folder.save_checkpoint(spec, 5, {"steps": torch.tensor(5)})
    (checkpoint,) = folder.checkpoints()
    shutil.copy(path, checkpoint)
    if sealed:
        reseal(checkpoint)
    try:
        assert folder.load_checkpoint(spec) is None
    except UsageError as refused:
        assert str(refused).startswith(f"{checkpoint} is ")
    assert not mark.exists()


def test_no_safetensors_file_is_taken_for_a_pickle(tmp_path):
    # A safetensors file begins with the length of its header, whose first byte may be a pickle's.
    first = set()
    for length in range(1, 300, 8):
        path = tmp_path / "some.safetensors"
        path.write_bytes(safetensors.torch.save({"x" * length: torch.zeros(1)}))
        first.add(path.read_bytes()[0])
        files.refuse_pickle(path)
    assert 0x80 in first


def test_a_lock_is_held_by_one_and_waited_for(tmp_path):
    path, order = tmp_path / "new" / "lock", []

    def wait():
        with files.lock(path, wait=True):
            order.append("second")

    with files.lock(path):
        with pytest.raises(files.InUse, match=r"^another process is using .*; wait for it or"), files.lock(path):
            pass
        other = threading.Thread(target=wait)
        other.start()
        time.sleep(0.2)
        order.append("first")
    other.join(timeout=60)
    assert order == ["first", "second"] and os.listdir(path.parent) == ["lock"]
    with files.lock(path):  # the file stays, and holds nothing
        pass


def test_a_lock_where_no_file_can_be_is_one_sentence(tmp_path):
    (tmp_path / "file").write_bytes(b"old")
    place = tmp_path / "file" / "folder"
    with pytest.raises(UsageError, match=rf"^cannot write {place}: .+\.$"), files.lock(place / "lock"):
        pass


# What a path already is stays what it is.


def test_a_link_stays_and_its_target_is_written_whole(tmp_path, monkeypatch):
    (tmp_path / "there").mkdir()
    target, link = tmp_path / "there" / "target", tmp_path / "link"
    target.write_bytes(b"old")
    link.symlink_to("there/target")
    (tmp_path / "second").symlink_to("link")
    for write in (files.write, files.output):
        write(tmp_path / "second", write.__name__.encode())
        assert link.is_symlink() and target.read_bytes() == write.__name__.encode()
    before = target.stat().st_ino
    files.write(link, b"another file in its place")
    assert target.stat().st_ino != before and os.listdir(tmp_path / "there") == ["target"]

    def fail(*_):
        raise OSError(errno.EIO, "broken")

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(UsageError, match=rf"^cannot write {link}: broken\.$"):
        files.write(link, b"lost")
    assert target.read_bytes() == b"another file in its place" and os.listdir(tmp_path / "there") == ["target"]


def test_a_link_to_nowhere_makes_its_target_and_a_loop_is_refused(tmp_path):
    (tmp_path / "link").symlink_to(tmp_path / "new" / "target")
    files.write(tmp_path / "link", b"content")
    assert (tmp_path / "link").is_symlink() and (tmp_path / "new" / "target").read_bytes() == b"content"
    (tmp_path / "loop").symlink_to("loop")
    for write in (files.write, files.output):
        with pytest.raises(UsageError, match=r"^cannot write .*loop: .+\.$"):
            write(tmp_path / "loop", b"content")
    assert (tmp_path / "loop").is_symlink()


@pytest.mark.parametrize("mode", [0o600, 0o640, 0o755])
def test_a_file_keeps_its_mode_and_owner(tmp_path, mode):
    path = tmp_path / "file"
    path.write_bytes(b"old")
    path.chmod(mode)
    with contextlib.suppress(PermissionError):
        os.chown(path, 1234, 1235)
    before = path.stat()
    files.write(path, b"new")
    after = path.stat()
    assert (after.st_mode, after.st_uid, after.st_gid) == (before.st_mode, before.st_uid, before.st_gid)
    assert path.read_bytes() == b"new"


def test_nobody_else_reads_a_private_file_while_it_is_written(tmp_path, monkeypatch):
    path, modes = tmp_path / "file", []
    path.write_bytes(b"old")
    path.chmod(0o600)

    def look(descriptor):
        modes.append(stat.S_IMODE(os.fstat(descriptor).st_mode))

    monkeypatch.setattr(os, "fsync", look)
    monkeypatch.setattr(os, "chmod", lambda *_: modes.append("later"))
    files.write(path, b"new")
    assert modes == ["later", 0o600]


def test_a_pipe_gets_the_content_and_stays(tmp_path):
    pipe, got = tmp_path / "pipe", []
    os.mkfifo(pipe)
    reader = threading.Thread(target=lambda: got.append(pipe.read_bytes()), daemon=True)
    reader.start()
    files.output(pipe, b"x" * 200_000)  # more than a pipe holds
    reader.join(timeout=60)
    assert got == [b"x" * 200_000] and stat.S_ISFIFO(pipe.stat().st_mode) and os.listdir(tmp_path) == ["pipe"]


def test_a_device_stays_a_device(null, tmp_path):
    (tmp_path / "link").symlink_to(null)
    for path in (null, tmp_path / "link"):
        files.output(path, b"content")
    assert stat.S_ISCHR(null.stat().st_mode) and sorted(os.listdir(tmp_path)) == ["link", "null"]


@pytest.mark.parametrize("into", ["pipe", "file"])
def test_what_goes_to_the_standard_output_stands_between_what_is_printed(tmp_path, into):
    script = "import sys; from posattn import files\n"
    script += "print('before'); files.output(files.Path('/dev/stdout'), b'content\\n'); print('after')"
    with (tmp_path / "file").open("w+") as file:
        where = subprocess.PIPE if into == "pipe" else file
        done = subprocess.run([sys.executable, "-c", script], stdout=where, text=True, timeout=60, check=True)
        file.seek(0)
        assert (done.stdout if into == "pipe" else file.read()) == "before\ncontent\nafter\n"
    assert os.listdir(tmp_path) == ["file"]


def test_folders_of_the_package_hold_regular_files_only(tmp_path):
    """Nobody waits for the other end of a pipe, or reads a device without end."""
    os.mkfifo(tmp_path / "pipe.json")
    (tmp_path / "endless.json").symlink_to("/dev/zero")
    (tmp_path / "folder.json").mkdir()
    for name in ("pipe", "endless", "folder"):
        path = tmp_path / f"{name}.json"
        for call in (files.read_json, files.refuse_pickle, lambda path: files.read_checked(path, "")):
            with pytest.raises(Damaged, match=rf"^cannot read {path}: .+\.$"):
                call(path)
        with pytest.raises(UsageError, match=rf"^cannot write {path}: it is not a regular file\.$"):
            files.write(path, b"content")


@pytest.mark.parametrize("depth", [500, 900, 2_000, 100_000])
def test_json_that_is_nested_too_deeply_is_damaged(tmp_path, depth):
    path = tmp_path / "deep.json"
    path.write_text('{"a":' * depth + "1" + "}" * depth)
    with pytest.raises(Damaged, match=rf"^{path} is damaged: .+\.$"):
        files.read_sealed(path)


def test_a_sealed_object_comes_back_and_an_altered_one_does_not(tmp_path):
    path = tmp_path / "some.json"
    files.write_sealed(path, {"a": 1, "b": [0.1, None]})
    assert files.read_sealed(path) == {"a": 1, "b": [0.1, None]}
    for altered in ({"a": 2}, {"seal": None}, {"seal": "0" * 64}, {"c": 1}):
        files.write_json(tmp_path / "other.json", json.loads(path.read_text()) | altered)
        with pytest.raises(Damaged, match=r"other\.json is damaged: its checksum does not match\.$"):
            files.read_sealed(tmp_path / "other.json")
    files.write_json(path, [1])
    with pytest.raises(Damaged):
        files.read_sealed(path)


def test_what_a_killed_process_left_half_written_goes_with_the_next_write(tmp_path):
    old, young, other = (tmp_path / f".{name}.partial" for name in ("a[1].csv.1f", "a[1].csv.2f", "b.csv.3f"))
    for path in (old, young, other):
        path.write_bytes(b"half")
    for path in (old, other):
        os.utime(path, (0, time.time() - 2 * 3600))
    files.write(tmp_path / "a[1].csv", b"whole")
    assert not old.exists() and young.exists() and other.exists()


def test_a_file_of_the_users_imports_what_lies_beside_it_and_its_errors_name_the_line(tmp_path, monkeypatch):
    (tmp_path / "beside_it.py").write_text("def halve(x):\n    return x / 0\n")
    path, folders = tmp_path / "own.py", list(sys.path)
    monkeypatch.delitem(sys.modules, "beside_it", raising=False)
    path.write_text("import beside_it\nNAME = beside_it.__name__\n")
    assert files.execute(path, "file")["NAME"] == "beside_it" and sys.path == folders
    path.write_text("import sys, beside_it\n\nsys.path.pop(0)\nbeside_it.halve(1)\n")
    with pytest.raises(UsageError, match=r"own\.py could not be run \(line 4\): ZeroDivisionError: division by zero\.$"):
        files.execute(path, "file")
    assert sys.path == folders
    path.write_text("\nx = = 1\n")
    with pytest.raises(UsageError, match=r"own\.py could not be run: SyntaxError: invalid syntax \(.*line 2\)\.$"):
        files.execute(path, "file")
