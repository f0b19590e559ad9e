"""Folders of images: layouts, kinds of files, and what is refused."""

import os
import pickle

import pytest
import torch
from PIL import Image

from data_cases import encode, write_folder
from trainact.lab.data import DataError, ImageStream, ImageTensor, load_data
from trainact.lab.data.decoding import fit_picture
from trainact.lab.recipes.recipe import DataFields
from trainact.lab.torchvision_import import import_torchvision


def load(root, **fields):
    return load_data(DataFields(name=str(root), **fields))


def stream(root, **fields):
    data = load(root, storage="stream", **fields)
    assert isinstance(data.train, ImageStream)
    return data


@pytest.mark.parametrize("test", ["val", "valid", "validation", "test"])
def test_training_and_test_folders_are_found(tmp_path, test):
    root = write_folder(tmp_path / "Vögel", {"train/b": 3, "train/a": 2, f"{test}/a": 1})
    data = stream(root)
    assert data.name == "Vögel"
    assert data.classes == ("a", "b")
    assert data.train.items == tuple(
        f"train/{name}.png" for name in ("a/000", "a/001", "b/000", "b/001", "b/002")
    )
    assert data.train.labels.tolist() == [0, 0, 1, 1, 1]
    assert data.test.items == (f"{test}/a/000.png",)
    assert data.train.read(data.train.items[1]).getpixel((0, 0)) == (20, 1, 254)


def test_the_test_folder_goes_before_the_validation_folder_if_it_has_classes(tmp_path):
    counts = {"train/a": 2, "train/b": 2, "val/a": 1, "test/b": 1}
    assert stream(write_folder(tmp_path / "both", counts)).test.items == ("test/b/000.png",)
    counts = {"train/a": 2, "train/b": 2, "val/a": 1, "test": 3}
    assert stream(write_folder(tmp_path / "flat", counts)).test.items == ("val/a/000.png",)


@pytest.mark.parametrize("inner", ["", "train/"])
def test_without_a_test_folder_a_fifth_of_each_class_is_kept_for_testing(tmp_path, caplog, inner):
    root = write_folder(tmp_path / "set", {f"{inner}a": 50, f"{inner}b": 10, f"{inner}c": 2})
    data = stream(root)
    assert data.train.labels.bincount().tolist() == [40, 8, 1]
    assert data.test.labels.bincount().tolist() == [10, 2, 1]
    assert not set(data.train.items) & set(data.test.items)
    said = caplog.text
    assert (
        "has no test images in class folders: a fifth of each class, 13 images, is used for testing"
        in said
    )
    again = stream(root)
    assert (again.train.items, again.test.items) == (data.train.items, data.test.items)
    numbers = [int(item[-7:-4]) for item in data.test.items[:10]]
    assert numbers != list(range(10))


def test_validation_images_that_are_not_sorted_into_classes_are_refused(tmp_path):
    root = write_folder(tmp_path / "set", {"train/a": 5, "train/b": 5, "val": 6, "test": 3})
    with pytest.raises(DataError, match=r"val holds 6 images, but no class folders"):
        load(root)


def test_a_flat_test_folder_is_left_alone(tmp_path, caplog):
    root = write_folder(tmp_path / "set", {"train/a": 5, "train/b": 5, "test": 6})
    assert {item.split("/")[0] for item in stream(root).test.items} == {"train"}
    assert "has no test images in class folders" in caplog.text


def test_messages_go_to_the_given_function_alone(tmp_path, caplog, capfd):
    root = write_folder(tmp_path / "set", {"train/a": 5, "train/b": 5, "test/a": 1, "val/a": 1})
    notes = []
    load_data(DataFields(name=str(root)), notes.append)
    assert len(notes) == 2
    assert f"{root / 'test'} lacks 1 of 2 classes, such as 'b'" in notes[0]
    assert f"{root}: val is not used" in notes[1]
    assert not caplog.text
    assert not any(capfd.readouterr())


def test_archives_beside_the_folders_do_not_hide_them(tmp_path):
    root = write_folder(tmp_path / "set", {"train/a": 2, "train/b": 2, "val/a": 1})
    for name in ("ILSVRC2012_img_train.tar", "ILSVRC2012_img_val.tar"):
        (root / name).write_bytes(b"")
    assert stream(root).test.items == ("val/a/000.png",)


def test_a_link_to_nowhere_is_named(tmp_path):
    root = write_folder(tmp_path / "set", {"train/a": 2, "train/b": 2, "val/a": 1})
    (root / "train" / "a" / "lost.png").symlink_to(tmp_path / "nowhere.png")
    with pytest.raises(DataError, match=r"lost\.png cannot be read \(No such file"):
        load(root)


def test_names_with_spaces_and_letters_of_all_languages_are_read(tmp_path):
    root = tmp_path / "my images"
    write_folder(root, {"train/été à la mer": 1, "train/犬 dog": 1, "test/犬 dog": 1})
    data = load(root)
    assert data.classes == ("été à la mer", "犬 dog")
    assert len(data.train) == 2


def test_files_in_folders_of_a_class_belong_to_it_and_others_are_passed_over(tmp_path):
    root = write_folder(tmp_path / "set", {"train/a": 1, "train/a/more/deep": 1, "train/b": 1})
    write_folder(root, {"test/a": 1, "train/.hidden": 1, "train/a/.thumbs": 1})
    (root / "train" / "a" / ".DS_Store").write_text("x")
    (root / "train" / "a" / "._000.png").write_text("x")
    (root / "train" / "a" / "notes.txt").write_text("x")
    (root / "train" / "README.md").write_text("x")
    (root / "train" / "a" / "LARGE.PNG").write_bytes((root / "test/a/000.png").read_bytes())
    data = load(root)
    assert data.classes == ("a", "b")
    assert data.train.labels.tolist() == [0, 0, 0, 1]


def test_links_are_followed_but_not_in_circles(tmp_path):
    write_folder(tmp_path / "real", {"a": 2, "b": 2})
    root = tmp_path / "linked"
    (root / "train").mkdir(parents=True)
    for name in ("a", "b"):
        (root / "train" / name).symlink_to(tmp_path / "real" / name)
    (root / "test").symlink_to(tmp_path / "real")
    (tmp_path / "real" / "a" / "again").symlink_to(tmp_path / "real" / "a")
    data = load(root)
    assert len(data.train) == len(data.test) == 4


PICTURES = {
    "jpg": Image.new("L", (8, 8), 100),
    "jpeg": Image.new("CMYK", (8, 8), (0, 255, 255, 0)),
    "png": Image.new("RGBA", (8, 8), (1, 2, 3, 4)),
    "webp": Image.new("RGB", (8, 8), (9, 8, 7)),
    "bmp": Image.new("RGB", (8, 8), (9, 8, 7)),
    "ppm": Image.new("RGB", (8, 8), (9, 8, 7)),
    "tif": Image.new("RGB", (8, 8), (9, 8, 7)),
    "gif": Image.new("P", (8, 8), 0),
}


def test_all_kinds_of_images_become_rgb(tmp_path):
    root = write_folder(tmp_path / "set", {"train/a": 1, "train/b": 1, "test/a": 1})
    for kind, picture in PICTURES.items():
        options = {"lossless": True} if kind == "webp" else {}
        (root / "train" / "a" / f"kind.{kind}").write_bytes(
            encode(picture, {"jpg": "jpeg", "tif": "tiff"}.get(kind, kind), **options)
        )
    data = load(root)
    assert data.train.images.shape == (10, 3, 8, 8)
    read = {
        name: stream(root).train.read(f"train/a/kind.{name}").getpixel((3, 3)) for name in PICTURES
    }
    assert read["jpg"] == (100, 100, 100)
    assert max(abs(a - b) for a, b in zip(read["jpeg"], (255, 0, 0), strict=True)) <= 3
    assert read["png"] == (1, 2, 3)
    assert all(read[kind] == (9, 8, 7) for kind in ("webp", "bmp", "ppm", "tif"))


def test_palettes_with_transparency_and_grey_of_16_bits_are_read(tmp_path):
    root = write_folder(tmp_path / "set", {"train/a": 1, "train/b": 1, "test/a": 1})
    palette = Image.new("P", (8, 8), 1)
    palette.putpalette([0, 0, 0, 50, 60, 70])
    palette.save(root / "train/a/palette.png", transparency=b"\x00\x80")
    Image.new("I;16", (8, 8), 200 * 256 + 17).save(root / "train/a/deep.png")
    read = stream(root).train.read
    assert read("train/a/palette.png").getpixel((0, 0)) == (50, 60, 70)
    assert read("train/a/deep.png").getpixel((0, 0)) == (200, 200, 200)
    Image.new("F", (8, 8), 0.5).save(root / "train/a/float.tif")
    with pytest.raises(DataError, match=r"float\.tif has grey values of 32 bits"):
        read("train/a/float.tif")


def test_of_a_moving_picture_the_first_frame_is_taken(tmp_path):
    root = write_folder(tmp_path / "set", {"train/a": 1, "train/b": 1, "test/a": 1})
    frames = [Image.new("RGB", (8, 8), colour) for colour in ("red", "blue")]
    frames[0].save(root / "train/a/moving.gif", save_all=True, append_images=frames[1:])
    assert stream(root).train.read("train/a/moving.gif").getpixel((0, 0)) == (255, 0, 0)


# ---- sizes and memory


def test_images_of_several_sizes_need_a_size(tmp_path):
    root = write_folder(tmp_path / "set", {"train/a": 2, "train/b": 2, "test/a": 1})
    Image.new("RGB", (30, 20), "red").save(root / "train/b/wide.png")
    with pytest.raises(
        DataError,
        match=r"the first is 8 x 8 pixels, train/b/wide\.png is 30 x 20\. Set data\.image_size",
    ):
        load(root)
    data = load(root, image_size=16)
    assert isinstance(data.train, ImageTensor)
    assert data.train.images.shape == (5, 3, 16, 16)
    assert data.train.images.is_contiguous()
    assert torch.equal(data.train.images[4, :, 5, 5], torch.tensor([255, 0, 0]).byte())


def test_the_centre_is_kept_when_an_image_is_not_square(tmp_path):
    root = write_folder(tmp_path / "set", {"train/a": 1, "train/b": 1, "test/a": 1})
    wide = Image.new("RGB", (60, 20), "black")
    wide.paste("white", (20, 0, 40, 20))
    wide.save(root / "train/a/wide.png")
    wide.rotate(90, expand=True).save(root / "train/a/xhigh.png")
    data = load(root, image_size=10)
    assert data.train.images[1:3, :, 1:-1, 1:-1].min() == 255
    assert data.train.images[1:3].min() > 200  # the edges see a little of their neighbours


@pytest.mark.parametrize("size", [(37, 61), (61, 37), (50, 50), (24, 25), (7, 90), (24, 24)])
def test_images_are_cut_to_size_as_torchvision_does_it(size):
    import_torchvision()
    from torchvision.transforms.functional import center_crop, resize

    pixels = torch.randint(0, 256, (size[1], size[0], 3), dtype=torch.uint8).numpy()
    picture = Image.fromarray(pixels)
    want = center_crop(resize(picture, [24]), [24])
    assert fit_picture(picture, 24).tobytes() == want.tobytes()


def test_streams_can_be_sent_to_other_processes(tmp_path):
    data = stream(write_folder(tmp_path / "set", {"train/a": 1, "train/b": 1, "test/a": 1}))
    copy = pickle.loads(pickle.dumps(data.train))
    assert copy.read(copy.items[1]).getpixel((0, 0)) == (20, 0, 255)


# ---- what is refused


def damage(root, count):
    for number in range(count):
        file = root / f"train/a/{number:03}.png"
        content = file.read_bytes()
        file.write_bytes([content[: len(content) // 2], b"", b"no image", content[:60]][number % 4])


def test_damaged_images_are_all_found_and_the_first_five_named(tmp_path):
    root = write_folder(tmp_path / "set", {"train/a": 9, "train/b": 1, "test/a": 1}, size=32)
    damage(root, 7)
    (root / "test/a/000.png").write_bytes(b"")
    with pytest.raises(DataError) as caught:
        load(root)
    lines = str(caught.value).splitlines()
    assert lines[0] == "8 of 11 images cannot be read:"
    assert [line.split("train/a/")[1][:7] for line in lines[1:6]] == [
        f"{number:03}.png" for number in range(5)
    ]
    assert "cannot be read as an image" in lines[1]
    assert "is empty (0 bytes). Delete or replace it" in lines[2]
    assert "is not an image that PIL can read" in lines[3]
    assert lines[6:] == ["  and 3 more"]


def test_a_stream_names_the_damaged_image_when_it_is_read(tmp_path):
    root = write_folder(tmp_path / "set", {"train/a": 2, "train/b": 1, "test/a": 1}, size=32)
    damage(root, 1)
    train = stream(root).train
    with pytest.raises(
        DataError, match=r"train/a/000\.png cannot be read as an image.*Delete or replace it"
    ):
        train.read(train.items[0])
    (root / "train/a/001.png").unlink()
    with pytest.raises(DataError, match=r"train/a/001\.png cannot be read \(No such file"):
        train.read(train.items[1])


def test_a_jpeg_that_is_cut_short_is_refused(tmp_path):
    root = write_folder(tmp_path / "set", {"train/a": 1, "train/b": 1, "test/a": 1}, 64, "jpg")
    content = (root / "train/a/000.jpg").read_bytes()
    (root / "train/a/000.jpg").write_bytes(content[:-40])
    with pytest.raises(DataError, match=r"000\.jpg cannot be read.*truncated"):
        load(root)


def test_an_empty_class_is_named(tmp_path):
    root = write_folder(tmp_path / "set", {"train/a": 2, "train/b": 0, "test/a": 1})
    with pytest.raises(DataError, match=r"the class folder .*train/b contains no image"):
        load(root)


def test_a_test_class_without_training_images_is_named(tmp_path):
    root = write_folder(tmp_path / "set", {"train/a": 2, "train/b": 1, "test/a": 1, "test/c": 1})
    with pytest.raises(DataError, match="has the class 'c', which has no training images"):
        load(root)


def test_a_training_class_without_test_images_is_reported(tmp_path, caplog):
    root = write_folder(tmp_path / "set", {"train/a": 2, "train/b": 1, "test/a": 1})
    load(root)
    assert "lacks 1 of 2 classes, such as 'b': they are trained on, but not" in caplog.text


def test_one_class_is_refused(tmp_path):
    with pytest.raises(DataError, match="has 1 class; a classifier needs at least two"):
        load(write_folder(tmp_path / "set", {"train/a": 2, "test/a": 1}))


def test_folders_without_classes_are_refused(tmp_path):
    root = write_folder(tmp_path / "set", {"val/a": 2})
    with pytest.raises(DataError, match="has val, but no folder 'train'"):
        load(root)
    root = write_folder(tmp_path / "flat", {".": 2})
    with pytest.raises(
        DataError, match=r"contains no folders\. Images must be in one folder per class"
    ):
        load(root)


# ---- real samples


@pytest.mark.parametrize(
    ("name", "classes", "train", "test"),
    [
        ("imagenette", 10, 1500, 500),
        ("flowers102", 102, 612, 301),
        ("stanford_cars", 196, 784, 391),
    ],
)
def test_the_real_samples_are_read(real_samples, name, classes, train, test):
    data = stream(real_samples / name)
    assert (len(data.classes), len(data.train), len(data.test)) == (classes, train, test)
    few = load(real_samples / name, image_size=48, train_images=2 * classes, test_images=30)
    assert few.train.images.shape == (2 * classes, 3, 48, 48)
    assert few.train.labels.bincount().tolist() == [2] * classes
    assert few.train.images.float().std() > 30
    assert os.fspath(real_samples) not in data.train.items[0]


def test_an_image_too_narrow_to_be_scaled_is_refused(tmp_path):
    root = write_folder(tmp_path / "set", {"train/a": 2, "train/b": 2, "test/a": 1, "test/b": 1})
    Image.new("RGB", (1, 20_000)).save(root / "train" / "a" / "000.png")
    with pytest.raises(
        DataError, match=r"a/000.png cannot be read .*1 x 20000 pixels are too narrow"
    ):
        load(root, image_size=128, storage="memory")
