"""Mean average precision by both rules, against numbers made by hand and a slow twin."""

from fractions import Fraction

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from trainact.errors import TrActValueError
from trainact.lab.data.objects import Objects
from trainact.lab.training.detection.average_precision import (
    Detections,
    average_over_classes,
    compute_area,
    match_objects,
)

RULES = ("11-point", "all-point")


def show(*objects):
    """Return objects from rows (box, label) or (box, label, difficult)."""
    rows = [(*row, False)[:3] for row in objects]
    return Objects(
        torch.tensor([box for box, _, _ in rows], dtype=torch.float32).reshape(-1, 4),
        torch.tensor([label for _, label, _ in rows], dtype=torch.int64),
        torch.tensor([difficult for _, _, difficult in rows], dtype=torch.bool),
    )


def find(*detections):
    """Return detections from rows (box, label, score)."""
    return Detections(
        torch.tensor([box for box, _, _ in detections], dtype=torch.float32).reshape(-1, 4),
        torch.tensor([label for _, label, _ in detections], dtype=torch.int64),
        torch.tensor([score for _, _, score in detections], dtype=torch.float32),
    )


def square(left, size=10):
    return [left, 0, left + size, size]


# by hand


def test_both_rules_by_hand():
    """Five objects; right, wrong, right, wrong, wrong, right.

    precision  1    1/2  2/3  2/4  2/5  3/6
    recall     0.2  0.2  0.4  0.4  0.4  0.6

    11 points: 1 at 0, 0.1, 0.2; 2/3 at 0.3, 0.4; 1/2 at 0.5, 0.6; 0 from 0.7 on.
    All points: each right detection adds a fifth of recall, at 1, 2/3 and 1/2.
    """
    right = torch.tensor([True, False, True, False, False, True])
    assert compute_area(right, 5, "11-point") == pytest.approx((3 + 2 * 2 / 3 + 2 / 2) / 11)
    assert compute_area(right, 5, "all-point") == pytest.approx((1 + 2 / 3 + 1 / 2) / 5)


def test_precision_that_rises_later_counts_for_smaller_recalls_too():
    """Two objects; wrong, right, right: precision 0, 1/2, 2/3; the largest from any recall is 2/3."""
    right = torch.tensor([False, True, True])
    assert compute_area(right, 2, "11-point") == pytest.approx(2 / 3)
    assert compute_area(right, 2, "all-point") == pytest.approx(2 / 3)


def test_a_recall_of_exactly_a_tenth_reaches_it():
    """Three of ten objects reach 0.3, although 3 * 0.1 is more than 0.3 in floating point."""
    assert 3 * 0.1 > 3 / 10
    assert compute_area(torch.ones(3, dtype=torch.bool), 10, "11-point") == pytest.approx(4 / 11)


def test_nothing_found_is_nothing():
    nothing = torch.zeros(0, dtype=torch.bool)
    assert [compute_area(nothing, 4, rule) for rule in RULES] == [0, 0]


def test_an_image_is_matched_by_hand():
    """Objects at 0 and 100. The first find at 0 is right, the second a repetition, though it fits
    better; overlap 5/15 is too little; another class is another matter; 100 is never found."""
    true = show((square(0), 0), (square(100), 0), (square(200), 1))
    found = find(
        ([2, 0, 10, 10], 0, 0.9),  # 80 of 100
        (square(0), 0, 0.8),
        ([105, 0, 115, 10], 0, 0.7),  # 50 of 150
        (square(200), 0, 0.6),  # an object of class 1
    )
    matches = match_objects(found, true, 0)
    assert matches.objects == 2
    assert matches.correct.tolist() == [True, False, False, False]
    assert compute_area(matches.correct, 2, "all-point") == 0.5
    assert match_objects(found, true, 1)[1:] == (pytest.approx([]), 1)


def test_half_an_overlap_is_enough():
    true = show((square(0), 0))
    assert match_objects(find(([0, 0, 10, 5], 0, 1.0)), true, 0).correct.tolist() == [True]
    assert match_objects(find(([0, 0, 10, 4.9], 0, 1.0)), true, 0).correct.tolist() == [False]


def test_a_difficult_object_is_neither_found_nor_missed():
    """Two finds of a difficult object do not count; it is no object to find."""
    true = show((square(0), 0, True), (square(100), 0))
    found = find((square(0), 0, 0.9), (square(0), 0, 0.8), (square(100), 0, 0.7))
    matches = match_objects(found, true, 0)
    assert matches.objects == 1
    assert matches.correct.tolist() == [True]
    assert matches.scores.tolist() == pytest.approx([0.7])
    assert average_over_classes([found], [true], 1, "11-point") == pytest.approx(1)


def test_a_detection_belongs_to_the_object_that_it_overlaps_most():
    """It overlaps the difficult one by 90/110 and the other by 60/140: it does not count."""
    true = show(([1, 0, 11, 10], 0, True), ([4, 0, 14, 10], 0))
    assert match_objects(find((square(0), 0, 1.0)), true, 0).correct.tolist() == []


def test_classes_are_averaged_and_those_without_objects_left_out():
    """Class 0 is found, class 1 is not, class 2 has a difficult object alone, class 3 has none."""
    true = [show((square(0), 0), (square(50), 2, True)), show((square(0), 1))]
    found = [find((square(0), 0, 0.5), (square(50), 3, 0.9)), find()]
    for rule in RULES:
        assert average_over_classes(found, true, 4, rule) == 0.5


def test_scores_rank_over_all_images():
    """The wrong one in image 1 stands before the right one in image 0: precision 1/2 at recall 1."""
    true = [show((square(0), 0)), show()]
    found = [find((square(0), 0, 0.6)), find((square(0), 0, 0.7))]
    assert average_over_classes(found, true, 1, "11-point") == pytest.approx(0.5)
    swapped = [find((square(0), 0, 0.8)), found[1]]
    assert average_over_classes(swapped, true, 1, "11-point") == pytest.approx(1)


def test_what_cannot_be_judged_is_refused():
    with pytest.raises(TrActValueError, match="1 images have detections and 2 have objects"):
        average_over_classes([find()], [show(), show()], 1, "11-point")
    with pytest.raises(TrActValueError, match="no image has an object that is not difficult"):
        average_over_classes([find()], [show((square(0), 0, True))], 1, "11-point")


# a slow twin and properties


def average_slowly(found, true, num_classes, rule):
    """Return the same, one detection at a time, in fractions."""
    areas = []
    for label in range(num_classes):
        rows = [
            (score, number, box)
            for number, image in enumerate(found)
            for box, own, score in zip(*(column.tolist() for column in image), strict=True)
            if own == label
        ]
        objects = {
            (number, i): [image.boxes[i].tolist(), bool(image.difficult[i]), False]
            for number, image in enumerate(true)
            for i in range(len(image))
            if image.labels[i] == label
        }
        positives = sum(not difficult for _, difficult, _ in objects.values())
        if not positives:
            continue
        hits, seen, points = 0, 0, []
        for _, number, box in sorted(rows, key=lambda row: -row[0]):
            best, nearest = Fraction(-1), None
            for (image, i), (other, _, _) in objects.items():
                overlap = overlap_slowly(box, other)
                if image == number and overlap > best:
                    best, nearest = overlap, (image, i)
            if best >= Fraction(1, 2):
                if objects[nearest][1]:
                    continue
                hits += not objects[nearest][2]
                objects[nearest][2] = True
            seen += 1
            points.append((Fraction(hits, positives), Fraction(hits, seen)))
        areas.append(integrate_slowly(points, positives, rule))
    return float(sum(areas) / len(areas))


def overlap_slowly(a, b):
    a, b = ([Fraction(v) for v in box] for box in (a, b))
    shared = max(min(a[2], b[2]) - max(a[0], b[0]), 0) * max(min(a[3], b[3]) - max(a[1], b[1]), 0)
    return shared / (sum((v[2] - v[0]) * (v[3] - v[1]) for v in (a, b)) - shared)


def integrate_slowly(points, positives, rule):
    steps = 10 if rule == "11-point" else positives
    heights = [
        max((p for r, p in points if r >= Fraction(step, steps)), default=Fraction(0))
        for step in range(steps + 1)
    ]
    return sum(heights) / 11 if rule == "11-point" else sum(heights[1:]) / positives


def boxes():
    place = st.integers(0, 12)
    return st.tuples(place, place, st.integers(1, 8), st.integers(1, 8)).map(
        lambda v: [v[0], v[1], v[0] + v[2], v[1] + v[3]]
    )


def worlds():
    """Two images, two classes; at least one object to find; scores that are all different."""
    objects = st.lists(st.tuples(boxes(), st.integers(0, 1), st.booleans()), max_size=5)
    detections = st.lists(st.tuples(boxes(), st.integers(0, 1)), max_size=7)
    return st.tuples(objects, objects, detections, detections, st.permutations(range(14))).map(make)


def make(drawn):
    first, second, one, two, ranks = drawn
    true = [show(*first, ([0, 0, 5, 5], 0, False)), show(*second)]
    scores = [rank / 16 for rank in ranks]
    found = [[(*d, scores.pop()) for d in part] for part in (one, two)]
    return [find(*part) for part in found], true


@settings(max_examples=80)
@given(worlds(), st.sampled_from(RULES))
def test_average_precision_agrees_with_its_slow_twin(world, rule):
    found, true = world
    expected = average_slowly(found, true, 2, rule)
    assert average_over_classes(found, true, 2, rule) == pytest.approx(expected, abs=1e-12)


@settings(max_examples=50)
@given(worlds(), st.sampled_from(RULES), st.randoms())
def test_the_order_in_which_detections_come_does_not_matter(world, rule, luck):
    found, true = world
    shuffled = []
    for image in found:
        order = list(range(len(image.scores)))
        luck.shuffle(order)
        shuffled.append(Detections(*(column[order] for column in image)))
    before = average_over_classes(found, true, 2, rule)
    assert average_over_classes(shuffled, true, 2, rule) == before
    assert average_over_classes(shuffled[::-1], true[::-1], 2, rule) == before


@settings(max_examples=50)
@given(worlds(), st.sampled_from(RULES), boxes(), st.integers(0, 1))
def test_a_worse_false_detection_changes_nothing_and_a_better_one_does_not_raise_it(
    world, rule, box, label
):
    found, true = world
    before = average_over_classes(found, true, 2, rule)
    far = [value + 1000 for value in box]  # overlaps nothing
    for score, check in ((-1.0, "same"), (2.0, "not more")):
        added = find((far, label, score))
        more = [Detections(*map(torch.cat, zip(found[0], added, strict=True))), found[1]]
        after = average_over_classes(more, true, 2, rule)
        assert after == before if check == "same" else after <= before


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("seed", range(3))
def test_the_objects_themselves_are_a_perfect_answer(rule, seed):
    generator = torch.Generator().manual_seed(seed)
    true = []
    for _ in range(4):
        labels = torch.randint(0, 3, (6,), generator=generator)
        rows = [(square(20 * i), int(label), i == 5) for i, label in enumerate(labels)]
        true.append(show(*rows))
    found = [Detections(t.boxes, t.labels, torch.rand(6, generator=generator)) for t in true]
    assert average_over_classes(found, true, 3, rule) == pytest.approx(1)


@settings(max_examples=40)
@given(worlds(), st.sampled_from(RULES))
def test_it_is_between_nothing_and_all(world, rule):
    assert 0 <= average_over_classes(*world, 2, rule) <= 1
