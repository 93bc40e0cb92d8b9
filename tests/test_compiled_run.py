"""Compiled programs in folders: the network comes back as it was, and a damaged folder is refused."""

import json
import shutil

import pytest
import torch

import posattn
from posattn import UsageError, files
from posattn.compiled_run import CompiledRun, save
from posattn.compiler import PCOC, PROGRAMS, Known, Real, Whole, compile_program
from posattn.files import Damaged

pytestmark = pytest.mark.usefixtures("unchecked")


def test_a_saved_network_is_the_network(tmp_path):
    save(compile_program("bitonic-sort", 5), tmp_path / "sorter")
    x = torch.randn(20, 5, dtype=torch.float64)
    run = posattn.load(tmp_path / "sorter")
    assert (run.predict(x)[0] == compile_program("bitonic-sort", 5).model(x)).all()
    assert (run.truth(x) == x.sort(dim=-1).values).all()


def test_damaged_folders_are_refused(tmp_path):
    save(compile_program("prefix-sum", 2), tmp_path / "own")
    described = tmp_path / "own" / "program.json"
    files.write_sealed(described, files.read_sealed(described) | {"format": 99})
    with pytest.raises(Damaged, match="does not describe a compiled program"):
        posattn.load(tmp_path / "own")
    save(compile_program("prefix-sum", 2), tmp_path / "other")
    weights = tmp_path / "other" / "weights.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1])
    with pytest.raises(Damaged, match="checksum"):
        posattn.load(tmp_path / "other")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "run.json").write_text("{}")
    with pytest.raises(UsageError, match="holds a trained run"):
        save(compile_program("prefix-sum", 2), tmp_path / "run")


@pytest.fixture(scope="module")
def both(tmp_path_factory):
    """The folders of two programs of the same sizes."""
    folder = tmp_path_factory.mktemp("programs")
    for name in ("prefix-sum", "bitonic-sort"):
        save(compile_program(name, 4), folder / name)
    return folder


def unseal(folder):
    """Makes a folder what earlier versions wrote."""
    described = json.loads((folder / "program.json").read_text())
    del described["seal"], described["sha256"], described["labels"]
    (folder / "program.json").write_text(json.dumps(described, indent=2))


@pytest.mark.parametrize("older", [False, True])
@pytest.mark.parametrize("names", [("weights.safetensors", "weights.json"), ("program.json",)])
def test_weights_of_another_program_are_refused(both, tmp_path, names, older):
    for name in ("prefix-sum", "bitonic-sort"):
        shutil.copytree(both / name, tmp_path / name)
        if older:
            unseal(tmp_path / name)
    for name in names:
        shutil.copy(tmp_path / "bitonic-sort" / name, tmp_path / "prefix-sum" / name)
    with pytest.raises(Damaged, match=r"weights\.safetensors belongs to another program than .*program\.json\.$"):
        posattn.load(tmp_path / "prefix-sum")
    posattn.load(tmp_path / "bitonic-sort")


@pytest.mark.parametrize(
    "change",
    [{"program": "prefix-min"}, {"machines": 5}, {"bound": 1.0}, {"seal": None}, {"more": 1}, {"sha256": "0" * 64}],
)
def test_an_altered_description_is_refused(both, tmp_path, change):
    shutil.copytree(both / "prefix-sum", tmp_path / "own")
    described = tmp_path / "own" / "program.json"
    files.write_json(described, json.loads(described.read_text()) | change)
    with pytest.raises(Damaged, match=r"program\.json is damaged: its checksum does not match\.$"):
        posattn.load(tmp_path / "own")


@pytest.mark.parametrize("name", [name for name in PROGRAMS if name != "mixed"])
def test_every_program_that_an_earlier_version_saved_loads(tmp_path, name):
    save(compile_program(name, 2), tmp_path / "own")
    unseal(tmp_path / "own")
    assert posattn.load(tmp_path / "own").program == name
    changed = json.loads((tmp_path / "own" / "program.json").read_text()) | {"machines": 3}
    (tmp_path / "own" / "program.json").write_text(json.dumps(changed))
    with pytest.raises(Damaged):
        posattn.load(tmp_path / "own")


@pytest.mark.parametrize("change", [lambda w: w.mT, lambda w: w.half(), lambda w: w[..., :-1]])
def test_forged_weights_of_another_shape_or_type_are_refused(both, tmp_path, change):
    shutil.copytree(both / "prefix-sum", tmp_path / "own")
    weights = tmp_path / "own" / "weights.safetensors"
    tensors, about = files.load_tensors(weights)
    files.save_tensors(weights, {name: change(w) if w.ndim > 1 else w for name, w in tensors.items()}, about)
    described = files.read_sealed(tmp_path / "own" / "program.json")
    files.write_sealed(tmp_path / "own" / "program.json", described | {"sha256": files.sha256(weights.read_bytes())})
    with pytest.raises(Damaged, match="does not fit the network that is described beside it"):
        posattn.load(tmp_path / "own")


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.parametrize("name", ["weights.safetensors", "weights.json", "thesis.tex", ".movie.mkv.partial"])
def test_a_folder_of_somebody_elses_files_is_left_alone(tmp_path, name):
    (tmp_path / name).write_text("years of work")
    with pytest.raises(UsageError, match=r"^out is .*, which holds other files; give an empty or a new folder\.$"):
        save(compile_program("prefix-sum", 2), tmp_path)
    assert contents(tmp_path) == {name: b"years of work"}


def test_a_folder_that_another_process_saves_in_is_left_alone(tmp_path):
    with files.lock(tmp_path / "lock"), pytest.raises(files.InUse, match="another process is using"):
        save(compile_program("prefix-sum", 2), tmp_path)
    assert set(contents(tmp_path)) == {"lock"}


def test_the_same_program_compiled_otherwise_is_another(both, tmp_path):
    before = contents(both / "prefix-sum")
    assert set(before) == {"program.json", "weights.json", "weights.safetensors"}
    with pytest.raises(UsageError, match=r"prefix-sum holds prefix-sum, compiled otherwise; give another folder\.$"):
        save(compile_program("prefix-sum", 4, route="theorem"), both / "prefix-sum")
    assert contents(both / "prefix-sum") == before
    for older in (False, True):
        shutil.copytree(both / "prefix-sum", tmp_path / f"own-{older}")
        if older:
            unseal(tmp_path / f"own-{older}")
        save(compile_program("prefix-sum", 4), tmp_path / f"own-{older}")
        assert contents(tmp_path / f"own-{older}") == before


@pytest.mark.parametrize("writes", [1, 2])
def test_a_program_that_was_not_saved_to_the_end_is_saved_again(both, tmp_path, monkeypatch, writes):
    """A process is killed after so many of the three files, in the midst of the next."""
    done = []

    def write(path, content, really=files.write):
        if len(done) == writes:
            path.with_name(f".{path.name}.1f.partial").write_bytes(content[:3])
            raise KeyboardInterrupt
        done.append(path)
        really(path, content)

    with monkeypatch.context() as killed, pytest.raises(KeyboardInterrupt):
        killed.setattr(files, "write", write)
        save(compile_program("prefix-sum", 4), tmp_path / "own")
    with pytest.raises(UsageError, match=r"is not saved to the end; the same command saves it again\.$"):
        posattn.load(tmp_path / "own")
    with pytest.raises(UsageError, match="own holds prefix-sum, compiled otherwise"):
        save(compile_program("bitonic-sort", 4), tmp_path / "own")
    save(compile_program("prefix-sum", 4), tmp_path / "own")
    assert contents(tmp_path / "own") == contents(both / "prefix-sum")


@pytest.mark.parametrize("name", ["word-count", "list-ranking", "prefix-sum"])
def test_an_export_is_checked_with_inputs_that_the_program_answers(name):
    run = CompiledRun(name, compile_program(name, 3, bound=0.25).model)
    x = run.examples()
    torch.testing.assert_close(run.predict(x)[0], run.truth(x))
    assert x.shape == (100, 3, 2)[: 2 + (name == "word-count")]


def own_program(factor=2.0, bound=9.0, **changes):
    """A program of one's own: every number times ``factor``."""
    return PCOC(3, 1, (Known(-bound, bound),), (), start=lambda memory: [memory[0] * factor], **changes)


@pytest.mark.parametrize("other", [{"factor": 3.0}, {"bound": 5.0}])
def test_another_own_program_is_not_written_over(tmp_path, other):
    """Both are called 'program'; with other bounds even the weights are the same."""
    save(compile_program(own_program()), tmp_path / "own")
    before = contents(tmp_path / "own")
    with pytest.raises(UsageError, match=r"own holds program, compiled otherwise; give another folder\.$"):
        save(compile_program(own_program(**other)), tmp_path / "own")
    save(compile_program(own_program()), tmp_path / "own")
    assert contents(tmp_path / "own") == before


@pytest.mark.parametrize("name", ["prefix-sum", "khop"])
def test_an_own_program_of_a_known_name_is_not_taken_for_the_librarys(tmp_path, name):
    save(compile_program(own_program(name=name)), tmp_path / "own")
    run = posattn.load(tmp_path / "own")
    assert run.predict(torch.tensor([1.0, 2.0, 3.0]))[0].tolist() == [2, 4, 6]
    assert run.examples() is None
    with pytest.raises(UsageError, match=f"^{name} is not in the library, so nothing says"):
        run.truth(torch.ones(3))
    with pytest.raises(UsageError, match=f"^{name} solves none of the tasks"):
        run.evaluate([1], samples=5)


def test_an_own_program_that_an_earlier_version_saved_is_saved_again(tmp_path):
    """Earlier versions did not say that it is one's own."""
    save(compile_program(own_program()), tmp_path / "own")
    after, described = contents(tmp_path / "own"), tmp_path / "own" / "program.json"
    earlier = files.read_sealed(described)
    del earlier["own"]
    files.write_sealed(described, earlier)
    assert posattn.load(tmp_path / "own").program == "program"
    save(compile_program(own_program()), tmp_path / "own")
    assert contents(tmp_path / "own") == after


def averaged(limit):
    """A program of one's own that states a range, up to ``limit``, for one of its two inputs."""

    @posattn.program(wide=Real(-limit, limit))
    def average(me, n, wide, other):
        return (wide + other) / 2

    return average


def test_an_own_program_keeps_its_truth_where_an_input_has_its_own_range(tmp_path):
    save(compile_program(averaged(100), 2, bound=5.0), tmp_path / "own")
    run = posattn.load(tmp_path / "own")
    x = torch.tensor([[60.0, 4.0], [1.0, 2.0]])
    assert run.truth(x).tolist() == run.predict(x)[0].tolist() == [32, 1.5]
    assert run.examples()[..., 1].abs().max() <= 5 < run.examples()[..., 0].abs().max()


def test_an_own_program_of_another_range_is_another_program(tmp_path):
    save(compile_program(averaged(100), 2, bound=5.0), tmp_path / "own")
    averaged(50)
    assert posattn.load(tmp_path / "own").row is None


def test_a_broken_program_of_the_same_name_does_not_keep_a_network_from_loading(tmp_path):
    @posattn.program
    def renamed(me, n, x):
        return 2 * x

    save(compile_program(renamed, 3), tmp_path / "own")

    @posattn.program
    def renamed(me, n, x):
        return x > 0  # a comparison of reals

    run = posattn.load(tmp_path / "own")
    assert run.row is None and run.predict(torch.tensor([1.0, 2.0, 3.0]))[0].tolist() == [2, 4, 6]


def test_a_program_of_ones_own_is_tested_on_the_lengths_that_it_takes():
    @posattn.program(k=Whole(0, 9))
    def doubled(me, n, k):
        return 2 * k

    @doubled.truth
    def _(k):
        return [2 * each if len(k) < 3 else 3 * each for each in k]  # wrong for three

    run = CompiledRun("doubled", posattn.compile(doubled, machines=3, lengths=True), own=True)
    table = run.evaluate_lengths([1, 2, 3], samples=20)
    assert table["n"].tolist() == [1, 2, 3] and set(table["scale"]) == {1}
    assert table["mse"].tolist()[:2] == [0, 0] and table["relative_square"][2] == pytest.approx(1 / 9)
    with pytest.raises(UsageError, match=r"^lengths has 4; this compiled program takes lists of up to 3\.$"):
        run.evaluate_lengths([4])
    with pytest.raises(UsageError, match=r"^doubled is a program of your own, which is tested on inputs of scale 1 alone\.$"):
        run.evaluate_lengths([2], scales=[2])
    with pytest.raises(UsageError, match=r"^lengths is empty; it must have at least one value\.$"):
        run.evaluate_lengths([])


def test_a_program_for_every_length_is_tested_on_those_that_it_takes():
    shorter, one = (CompiledRun("max-subarray", posattn.compile("max-subarray", 5, lengths=every)) for every in (True, False))
    table = shorter.evaluate_lengths([1, 3, 5], scales=[1], samples=20)
    assert table["n"].tolist() == [1, 3, 5] and table["mse"].max() == 0
    assert one.evaluate_lengths([5], scales=[1], samples=20)["mse"].tolist() == [0]
    with pytest.raises(UsageError, match=r"^lengths has 6; this compiled program takes lists of up to 5\.$"):
        shorter.evaluate_lengths([6])
    with pytest.raises(UsageError, match=r"^lengths has 3; this compiled program takes lists of 5; one that is compiled with"):
        one.evaluate_lengths([3])
