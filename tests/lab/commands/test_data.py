"""trainact data: what it prints and returns; the snippets of docs/data.md."""

import re
from pathlib import Path

import numpy as np
import scipy.io
import torch
from PIL import Image

from data_cases import write_folder
from trainact.lab.commands.cli import main
from trainact.lab.data import published
from trainact.lab.data.published import ImageCounts
from trainact.lab.models.detection.faster_rcnn import VggBackbone
from voc_cases import make_voc

PAGE = Path(__file__).parents[3] / "docs" / "data.md"


def test_all_data_sets_are_listed(capsys):
    assert main(["data"]) == 0
    shown = capsys.readouterr().out
    assert re.search(r"flowers102 +2,040 +6,149 +102 +2\n", shown)
    assert re.search(r"imagenet +1,281,167 +50,000 +1,000", shown)


def test_a_sample_is_not_as_published(real_samples, capsys):
    words = ["data", "flowers102", "--data", str(real_samples / "flowers102"), "--images", "3"]
    assert main(words) == 1
    shown = capsys.readouterr().out
    assert re.search(r"training images +612 +2,040 +differs", shown)
    assert re.search(r"classes +102 +102\n", shown)
    assert "3 images decoded, 0 damaged" in shown
    assert "flowers102 is not as published: 612 training images (published: 2,040)" in shown


def test_a_recipe_stands_for_its_data_set(tmp_path, capsys):
    make_voc(tmp_path)
    assert main(["data", "detection-voc2007", "--data", str(tmp_path), "--all-images"]) == 1
    shown = capsys.readouterr().out
    assert "training: 1 to 1 objects in an image; 6 images decoded, 0 damaged" in shown


def test_only_some_damaged_images_are_named(tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(published.PROVIDED, "imagenette", ImageCounts(8, 2, 2, 8))
    root = write_folder(tmp_path / "set", {"train/a": 4, "train/b": 4, "val/a": 1, "val/b": 1})
    words = ["data", "imagenette", "--data", str(root)]
    assert main(words) == 0
    assert capsys.readouterr().out.endswith("imagenette is as published.\n")
    for file in (root / "train").rglob("*.png"):
        file.write_bytes(b"")
    assert main(words) == 1
    shown = capsys.readouterr().out
    assert shown.count("damaged: ") == 5
    assert "and 3 more damaged images" in shown


def test_what_cannot_be_checked_says_why(tmp_path, capsys):
    for words, message in (
        (["flower102"], "unknown data set 'flower102'; did you mean 'flowers102'"),
        (["flowers102"], "flowers102 is not downloaded automatically"),
        (["imagenet", "--data", str(tmp_path)], "contains no folders"),
        (["imagenet", "--images", "-1", "--data", "x"], "--images takes a number from 0"),
        (["vgg16"], "give the file of the weights, --data vgg16-397923af.pth"),
        (["vgg16", "--data", str(tmp_path / "none.pth")], "there is no file of weights"),
    ):
        assert main(["data", *words]) == 2
        assert message in capsys.readouterr().err


def make_vgg() -> dict[str, torch.Tensor]:
    """Return weights of torchvision's names and shapes; each is one number, repeated."""
    with torch.device("meta"):
        backbone = VggBackbone()
    shapes = {f"features.{name}": p.shape for name, p in backbone.named_parameters()}
    shapes |= {"classifier.0.weight": (4096, 25088), "classifier.0.bias": (4096,)}
    shapes |= {"classifier.3.weight": (4096, 4096), "classifier.3.bias": (4096,)}
    shapes |= {"classifier.6.weight": (1000, 4096), "classifier.6.bias": (1000,)}
    return {name: torch.zeros(1).expand(shape) for name, shape in shapes.items()}


def test_the_weights_of_vgg_are_checked_by_names_and_shapes(tmp_path, capsys):
    weights, file = make_vgg(), tmp_path / "vgg16.pth"
    torch.save(weights, file)
    words = ["data", "vgg16", "--data", str(file)]
    assert main(words) == 0
    shown = capsys.readouterr().out
    assert "holds the 13 convolutions of torchvision's vgg16 and its two hidden linear" in shown
    assert "it is not torchvision's own file vgg16-397923af.pth" in shown
    torch.save({name: w for name, w in weights.items() if "features" in name}, file)
    assert main(words) == 1
    assert "the detector's box head would start from random weights" in capsys.readouterr().out
    torch.save(weights | {"features.0.weight": torch.zeros(32, 3, 3, 3)}, file)
    assert main(words) == 2
    assert "features.0.weight of" in capsys.readouterr().err


# docs/data.md


def find_snippet(start: str) -> str:
    """Return the Python snippet of the page that reads from a folder."""
    found = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.M | re.S)
    [snippet] = [text for text in found if f'Path("{start}")' in text]
    return snippet


def write_pictures(folder: Path, names: list[str]) -> None:
    folder.mkdir(parents=True)
    for number, name in enumerate(names):
        Image.new("RGB", (8, 8), (number, 0, 0)).save(folder / name)


def test_the_snippet_sorts_the_flowers(tmp_path, monkeypatch, capsys):
    """Numbers begin with 1; training and validation images are trained on."""
    monkeypatch.chdir(tmp_path)
    source = tmp_path / "flowers102-original"
    write_pictures(source / "jpg", [f"image_{number:05d}.jpg" for number in range(1, 9)])
    labels = np.array([[1, 2, 1, 2, 1, 2, 1, 2]], dtype=np.uint8)
    scipy.io.savemat(source / "imagelabels.mat", {"labels": labels})
    sets = {"trnid": [[1, 2]], "valid": [[4, 3]], "tstid": [[8, 7, 6, 5]]}
    sets = {key: np.array(value, dtype=np.uint16) for key, value in sets.items()}
    scipy.io.savemat(source / "setid.mat", sets)
    exec(compile(find_snippet("flowers102-original"), "data.md", "exec"), {})
    files = sorted(str(p.relative_to("flowers102")) for p in Path("flowers102").rglob("*.jpg"))
    assert files == [
        *("test/001/image_00005.jpg", "test/001/image_00007.jpg"),
        *("test/002/image_00006.jpg", "test/002/image_00008.jpg"),
        *("train/001/image_00001.jpg", "train/001/image_00003.jpg"),
        *("train/002/image_00002.jpg", "train/002/image_00004.jpg"),
    ]
    monkeypatch.setitem(published.PROVIDED, "flowers102", ImageCounts(4, 4, 2, 224))
    assert main(["data", "flowers102", "--data", "flowers102"]) == 0


def test_the_snippet_sorts_the_cars(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    source = tmp_path / "cars-original"
    kind = [("bbox_x1", "O"), ("class", "O"), ("fname", "O")]
    for part, file in (
        ("train", "devkit/cars_train_annos.mat"), ("test", "cars_test_annos_withlabels.mat")
    ):  # fmt: skip
        names = [f"{number:05d}.jpg" for number in (1, 2, 3)]
        write_pictures(source / f"cars_{part}", names)
        rows = [(5, label, name) for label, name in zip((14, 3, 196), names, strict=True)]
        (source / file).parent.mkdir(exist_ok=True)
        scipy.io.savemat(source / file, {"annotations": np.array([rows], dtype=kind)})
    exec(compile(find_snippet("cars-original"), "data.md", "exec"), {})
    files = sorted(
        str(p.relative_to("stanford_cars")) for p in Path("stanford_cars").rglob("*.jpg")
    )
    names = ("003/00002.jpg", "014/00001.jpg", "196/00003.jpg")
    assert files == [f"{part}/{name}" for part in ("test", "train") for name in names]


def test_the_page_names_every_data_set_and_no_command_that_fails():
    text = PAGE.read_text()
    for name in ("imagenet", "imagenette", "flowers102", "stanford_cars", "voc2007", "cifar10"):
        assert f"trainact data {name} --data" in text
    for line in re.findall(r'^    python -c "(.*)"$', text, re.M):
        compile(line, "data.md", "exec")
    assert "vgg16-397923af.pth" in text
