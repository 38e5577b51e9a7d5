"""Models: sizes, formulas, and what they refuse."""

from __future__ import annotations

import copy
import itertools
import math

import pytest
import torch
from torch import nn

from decentral.data.dataset import ImageData
from decentral.errors import ConfigError
from decentral.gradients.passes.layers import MaxPool2d
from decentral.models.convolutional import CNN, MLP, VGG11, VGG16, AlexNet, Head
from decentral.models.large import EfficientNetB0, MobileNetV2, ResNet18, ResNet50, ResNetEvoNorm, Stem, ViTL16
from decentral.models.layers.evonorm import EvoNormS0
from decentral.models.layers.statistics import recompute_batch_statistics
from decentral.models.model import ImageModel
from decentral.registry import components

# -- Architectures: sizes against the papers', initial values, and what a run relies on --------------------------------

DIGITS, CIFAR, IMAGENET = (1, 8, 8), (3, 32, 32), (3, 224, 224)
IMAGE_MODELS = {name: model for name, model in components("models").items() if issubclass(model, ImageModel)}


def build(model, shape, num_classes=10, seed=0):
    torch.manual_seed(seed)
    return model.build(ImageData(shape=shape, num_classes=num_classes))


def num_parameters(module):
    return sum(p.numel() for p in module.parameters())


def test_the_number_of_parameters_is_the_published_one():
    for model, shape, num_classes, expected in [
        (VGG11(), CIFAR, 10, 9_750_922),
        (AlexNet(), IMAGENET, 1000, 61_100_840),
        (AlexNet(), (3, 64, 64), 1000, 61_100_840),
        (ViTL16(), IMAGENET, 1000, 304_326_632),
        (ViTL16(), (3, 64, 64), 1000, 304_326_632 - 1024 * (14**2 - 4**2)),
        (VGG16(), IMAGENET, 1000, 138_357_544),
        (VGG16(), CIFAR, 10, 15_245_130),
        (VGG16(head=Head.imagenet), CIFAR, 1000, 138_357_544),
        (MobileNetV2(), IMAGENET, 1000, 3_504_872),
        (MobileNetV2(), CIFAR, 1000, 3_504_872),
        (EfficientNetB0(), IMAGENET, 1000, 5_288_548),
        (EfficientNetB0(), CIFAR, 1000, 5_288_548),
        (ResNet18(), IMAGENET, 1000, 11_689_512),
        (ResNet50(), IMAGENET, 1000, 25_557_032),
        (ResNetEvoNorm(), IMAGENET, 1000, 11_691_496),
        (ResNetEvoNorm(learn_v=False), IMAGENET, 1000, 11_689_512),
        (CNN(), DIGITS, 10, 6_090),
        (MLP(), DIGITS, 10, 64 * 64 + 64 + 64 * 64 + 64 + 64 * 10 + 10),
        (MLP(hidden=[]), DIGITS, 10, 64 * 10 + 10),
    ]:
        with torch.device("meta"):
            assert num_parameters(build(model, shape, num_classes)) == expected


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        pytest.param(name, shape, marks=[] if name in ("cnn", "mlp", "resnet18") else pytest.mark.slow)
        for name, model in IMAGE_MODELS.items()
        for shape in [(2, 5, 9), (3, 32, 40)]
        if min(shape[1:]) >= model.min_image_size
    ],
    ids=str,
)
def test_images_from_the_smallest_size_on_give_logits_and_a_gradient_to_every_parameter(name, shape):
    model = components("models")[name]()
    model.check(ImageData(shape=shape, num_classes=10))
    module = build(model, shape, num_classes=7)
    assert all(child.training for child in module.modules())
    assert {(t.device.type, t.dtype) for t in module.parameters()} == {("cpu", torch.float32)}
    logits = module(torch.randn(2, *shape))
    assert logits.shape == (2, 7)
    logits.square().sum().backward()
    for parameter_name, parameter in module.named_parameters():
        assert parameter.grad is not None and parameter.grad.isfinite().all() and parameter.grad.any(), parameter_name


@pytest.mark.parametrize("name", ["cnn", "mlp", "mobilenet_v2"])
def test_the_same_seed_gives_the_same_initial_values_and_another_seed_others(name):
    model = components("models")[name]()
    a, b, c = (build(model, CIFAR, seed=seed).state_dict() for seed in (1, 1, 2))
    assert all(torch.equal(a[key], b[key]) for key in a)
    assert not all(torch.equal(a[key], c[key]) for key in a)


def test_vgg11_convolutions_start_at_a_variance_of_two_over_the_outgoing_connections_and_a_bias_of_zero():
    convolutions = [m for m in build(VGG11(), CIFAR).modules() if isinstance(m, nn.Conv2d)]
    assert [m.out_channels for m in convolutions] == [64, 128, 256, 256, 512, 512, 512, 512]
    for m in convolutions:
        expected = (2 / (3 * 3 * m.out_channels)) ** 0.5
        tolerance = 5 / (2 * m.weight.numel()) ** 0.5  # five standard errors of a standard deviation
        assert m.weight.std().item() == pytest.approx(expected, rel=tolerance)
        assert m.bias is not None and not m.bias.any()


@pytest.mark.parametrize("learn_v", [True, False])
def test_evonorm_is_the_formula_of_its_paper(learn_v):
    layer = EvoNormS0(12, groups=4, learn_v=learn_v).double()
    generator = torch.Generator().manual_seed(0)
    for parameter in layer.parameters():
        nn.init.normal_(parameter, generator=generator)
    x = torch.randn(2, 12, 3, 5, dtype=torch.float64, generator=generator) + 1
    expected = torch.empty_like(x)
    for image in range(2):
        for channel in range(12):
            first = channel // 3 * 3
            group = x[image, first : first + 3]
            variance = (group - group.mean()).square().mean()
            v = 1.0 if layer.v is None else layer.v[channel]
            z = x[image, channel]
            expected[image, channel] = layer.gamma[channel] * z / (1 + torch.exp(-v * z)) / (variance + 1e-5).sqrt()
            expected[image, channel] += layer.beta[channel]
    torch.testing.assert_close(layer(x), expected, rtol=1e-12, atol=1e-12)
    assert torch.autograd.gradcheck(layer, x[:1, :, :2, :2].clone().requires_grad_())


@pytest.mark.parametrize(
    ("model", "shape", "words"),
    [
        (
            VGG11(),
            DIGITS,
            ["model=vgg11", "data=", "8 x 8", "32 x 32", "(model=cnn, efficientnet_b0, mlp, ", "data.image_size=32"],
        ),
        (VGG11(), (3, 40, 31), ["model=vgg11", "40 x 31"]),
        (MobileNetV2(), (3, 7, 9), ["model=mobilenet_v2", "8 x 8"]),
        (CNN(), (1, 3, 3), ["model=cnn", "3 x 3", "4 x 4", "(model=mlp)", "data.image_size=4"]),
        (ViTL16(), (3, 64, 72), ["model=vit_l_16", "16 x 16", "64 x 72", "data.image_size=224"]),
        (ResNet50(), (1, 7, 7), ["model=resnet50", "8 x 8", "data.image_size=8"]),
        (ResNet18(stem=Stem.imagenet), (1, 28, 28), ["model=resnet18", "model.stem=imagenet", "28 x 28", "cifar"]),
    ],
)
def test_images_too_small_for_a_model_are_refused_with_what_would_work(model, shape, words):
    with pytest.raises(ConfigError) as error:
        model.check(ImageData(shape=shape, num_classes=10))
    message = str(error.value)
    assert [word for word in words if word not in message] == []
    assert message.count("\n") == 0 and message.endswith(".")


def with_statistics():
    torch.manual_seed(0)
    return nn.Sequential(nn.BatchNorm2d(3, momentum=0.3), nn.Dropout(0.5), nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4))


def test_recomputed_statistics_are_the_mean_over_batches_of_the_mean_and_the_unbiased_variance():
    module, batches = with_statistics(), [torch.randn(8, 3, 6, 6) * (b + 1) + b for b in range(3)]
    module(batches[0] * 100)  # statistics of something else, to be forgotten
    assert recompute_batch_statistics(module, iter(batches)) == 24
    normalize = copy.deepcopy(module[0]).train()  # what the second layer sees, without dropout
    for layer, inputs in ((module[0], batches), (module[3], [module[2](normalize(x)).detach() for x in batches])):
        mean = torch.stack([x.mean((0, 2, 3)) for x in inputs]).mean(0)
        variance = torch.stack([x.transpose(0, 1).flatten(1).var(1, correction=1) for x in inputs]).mean(0)
        torch.testing.assert_close(layer.running_mean, mean)
        torch.testing.assert_close(layer.running_var, variance)


def test_pooling_without_gradients_gives_the_numbers_of_pooling_with_them():
    for dtype, size, format, shape in itertools.product(
        [torch.float32, torch.bfloat16], [1, 2, 4], [torch.contiguous_format, torch.channels_last], [(8, 12), (9, 7)]
    ):
        images = torch.randn(3, 5, *shape).to(dtype, memory_format=format)
        images[0, 0, 0, 0] = math.nan
        pooled = MaxPool2d(size)
        with torch.no_grad():
            found = pooled(images)
        torch.testing.assert_close(found, pooled(images.requires_grad_()).detach(), rtol=0, atol=0, equal_nan=True)
