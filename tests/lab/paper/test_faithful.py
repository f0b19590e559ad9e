"""Only runs that follow their recipe are compared with the paper."""

from comparison_records import judge_by_precision, make_record
from result_folders import make_faithful
from trainact.lab.paper.faithful import (
    describe_deviations,
    describe_tuned,
    find_faithful,
    list_deviations,
)

VIT = "cifar10-vit"


def test_a_run_that_follows_its_recipe_has_no_deviation():
    record = make_faithful(VIT, make_record("tract-0.1", 200, 0, 80))
    record["recipe"]["run"]["precision"] = "bf16"
    assert list_deviations(VIT, record) == []
    assert find_faithful(VIT, [record]) == [record]
    assert describe_deviations(VIT, [record]) == ""


def test_deviations_are_fields_with_both_values():
    record = make_faithful(VIT, make_record("tract-0.1", 200, 0, 80))
    record["recipe"]["data"]["train_images"] = 500
    record["data"]["train_images"] = 500
    found = [("data.train_images", 500, 0), ("training images", 500, 50000)]
    assert list_deviations(VIT, record) == found
    assert find_faithful(VIT, [record]) == []


def test_a_run_that_the_recipe_does_not_have_is_a_deviation():
    record = make_faithful(VIT, make_record("tract-0.1", 200, 0, 80)) | {"budget": 7}
    (found,) = list_deviations(VIT, record)
    assert (found.field, found.other) == ("run", "one of the recipe")
    assert found.value.endswith("tract-0.1, 7 epochs")


def test_the_sentence_names_three_deviations_at_most():
    record = make_faithful(VIT, make_record("plain", 200, 0, 80))
    whole = make_faithful(VIT, make_record("plain", 200, 1, 80))
    fields = {"lr": 5.0, "momentum": 0.5, "weight_decay": 0.5, "label_smoothing": 0.5}
    record["recipe"]["optimizer"] |= fields
    sentence = describe_deviations(VIT, [record, whole])
    assert sentence.startswith(f"1 of 2 runs do not follow the recipe {VIT} and are not compared")
    assert "optimizer.label_smoothing 0.5 (expected: 0.1); optimizer.lr 5.0" in sentence
    assert sentence.endswith(", and 1 more.")


def test_a_private_experiment_has_no_deviations():
    assert list_deviations("mine", make_record("plain", 2, 0, 60)) == []


def test_the_weights_file_of_a_detector_may_be_anywhere():
    name = "detection-voc2007"
    record = judge_by_precision(make_record("plain", 14, 0, 60), [0.6] * 14)
    record = make_faithful(name, record)
    record["recipe"]["model"]["arguments"] = {"weights": "vgg16.safetensors"}
    assert list_deviations(name, record) == []
    record["recipe"]["model"]["arguments"] |= {"width": 8}
    assert list_deviations(name, record) == [("model.arguments.width", 8, None)]


SGD = "cifar100-resnet18-sgd"


def make_tuning(chosen, tried=(0.1, 0.09, 0.08, 0.07), name=SGD, budget=100):
    rows = [{"budget": budget, "field": "optimizer.lr", "value": value} for value in tried]
    return {
        "experiment": name,
        "tried": rows,
        "chosen": {str(budget): {"optimizer.lr": chosen}},
    }


def make_tuned(rate, budget=100):
    record = make_faithful(SGD, make_record("tract-0.1", budget, 0, 70))
    record["recipe"]["optimizer"]["lr"] = rate
    return record


def test_a_run_with_the_rate_that_tune_chose_is_compared_with_the_paper():
    record, tuning = make_tuned(0.09), make_tuning(0.09)
    assert list_deviations(SGD, record) == [("optimizer.lr", 0.09, 0.08)]
    assert list_deviations(SGD, record, tuning) == []
    assert find_faithful(SGD, [record], tuning) == [record]
    assert describe_deviations(SGD, [record], tuning) == ""
    sentence = "trainact tune chose optimizer.lr 0.09 (recipe: 0.08) at 100 epochs."
    assert describe_tuned(SGD, [record, make_tuned(0.08)], tuning) == sentence
    assert describe_tuned(SGD, [make_tuned(0.08)], tuning) == ""
    assert describe_tuned("mine", [record], tuning) == ""


def test_another_rate_than_the_chosen_one_is_a_deviation():
    for record, tuning in (
        (make_tuned(0.1), make_tuning(0.09)),  # not the chosen one
        (make_tuned(0.09, budget=200), make_tuning(0.09)),  # chosen for another budget
        (make_tuned(0.09), make_tuning(0.09, tried=(0.1, 0.09))),  # not all of the grid was tried
        (make_tuned(0.09), make_tuning(0.09, name="cifar10-resnet18-sgd")),
    ):
        assert [d.field for d in list_deviations(SGD, record, tuning)] == ["optimizer.lr"]
        assert describe_tuned(SGD, [record], tuning) == ""


def test_tuning_excuses_no_other_field():
    record = make_tuned(0.09)
    record["recipe"]["optimizer"]["momentum"] = 0.5
    found = list_deviations(SGD, record, make_tuning(0.09))
    assert found == [("optimizer.momentum", 0.5, 0.9)]
