"""Classes, sizes and checksums of CIFAR-10 and CIFAR-100; nothing here needs torch."""

from dataclasses import dataclass

__all__ = ["SETS", "CifarSet"]


@dataclass(frozen=True)
class CifarSet:
    """What a complete CIFAR data set contains.

    ``sums`` are the SHA-256 of the training images, the test images (uint8 [N, 32, 32, 3]), the
    training labels and the test labels (uint8 [N]), ``batches`` those of equal parts of the
    training images in the authors' order, which the hub changes. Both are empty if unknown.
    """

    hub: str  # name on the Hugging Face hub
    classes: tuple[str, ...]  # in the order of the labels
    num_train: int = 50_000
    num_test: int = 10_000
    sums: tuple[str, ...] = ()
    batches: tuple[str, ...] = ()


NAMES = "airplane automobile bird cat deer dog frog horse ship truck"
FINE_NAMES = """
apple aquarium_fish baby bear beaver bed bee beetle bicycle bottle bowl boy bridge bus butterfly
camel can castle caterpillar cattle chair chimpanzee clock cloud cockroach couch crab crocodile
cup dinosaur dolphin elephant flatfish forest fox girl hamster house kangaroo keyboard lamp
lawn_mower leopard lion lizard lobster man maple_tree motorcycle mountain mouse mushroom
oak_tree orange orchid otter palm_tree pear pickup_truck pine_tree plain plate poppy porcupine
possum rabbit raccoon ray road rocket rose sea seal shark shrew skunk skyscraper snail snake
spider squirrel streetcar sunflower sweet_pepper table tank telephone television tiger tractor
train trout tulip turtle wardrobe whale willow_tree wolf woman worm
"""
SETS = {
    "cifar10": CifarSet(
        "uoft-cs/cifar10",
        tuple(NAMES.split()),
        sums=(
            "47af8b02cfcfb6cdf3dbbd1969ad7f1b70f4413f6f80f437b020ee4e5bc8304a",
            "f9b1e2130bab680db56eb06d886f7f1ad0f1183907ceff4659d1735c890f5b04",
            "2b7cd2f24487317614016b72ffd53071c3062f592f0eb300c18a770d41ae1253",
            "cec8a24a1e92aa2ecaa0bbd3dbfa86bf6cd8759fbd209a832824c8cf0afca9d5",
        ),
        batches=(
            "fc115a3de050d667b88cbd5b0b9612ebf996c54230fe7758f3a14bb5af9a1c27",
            "89e609b642f687bc796fa3bfa4211005582a0e8131d463d996d11ddb297d312e",
            "93a365823e61729490a8801d80864ccd0ab1e8c98f19d71af65644d1c5f1486e",
            "809eb95ecd057a36516318f5023ea619009dd70dd38193db9da43125a928e6fa",
            "d05b7d66d216d6df882cc760cdc0ff2f1f0437abf699ed16005c021ef0add9cb",
        ),
    ),
    "cifar100": CifarSet("uoft-cs/cifar100", tuple(FINE_NAMES.split())),
}
