"""Edits of a model's code and of what it holds, each of which makes another run: a table."""

from __future__ import annotations

HEAD = """
import collections, dataclasses, decimal, enum, fractions, functools, datetime, math, os, pathlib, re, types
import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
torch.manual_seed(0)
"""

NET = """
class Net(nn.Module):
    def __init__(self, **held):
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4), nn.Linear(4, 3))
        self.__dict__.update(held)
    def forward(self, x):
        return self.inner(x)
"""

HELD = {
    "number": ("1.0", "2.0"),
    "sign_of_zero": ("0.0", "-0.0"),
    "kind_of_number": ("1", "1.0"),
    "truth": ("1", "True"),
    "large_number": ("10 ** 6000", "10 ** 6000 + 1"),
    "word": ("'relu'", "'tanh'"),
    "bytes": ("b'a'", "bytearray(b'a')"),
    "order_of_list": ("[1, 2]", "[2, 1]"),
    "list_or_tuple": ("[1, 2]", "(1, 2)"),
    "nested": ("{'a': [{'b': (1, 2)}]}", "{'a': [{'b': (1, 3)}]}"),
    "order_of_dict": ("{'a': 1, 'b': 2}", "{'b': 2, 'a': 1}"),
    "set": ("{'a', 'b', 'c'}", "{'a', 'b', 'd'}"),
    "frozenset": ("frozenset([(1, 'a'), (2, 'b')])", "frozenset([(1, 'b'), (2, 'a')])"),
    "set_of_functions": ("{torch.relu, torch.tanh}", "{torch.relu, torch.sigmoid}"),
    "range": ("range(3)", "range(4)"),
    "slice": ("slice(0, 3)", "slice(0, 4)"),
    "dtype": ("torch.float16", "torch.bfloat16"),
    "device": ("torch.device('cpu')", "torch.device('cuda')"),
    "size": ("torch.Size([1, 2])", "torch.Size([2, 1])"),
    "tensor": ("torch.zeros(2)", "torch.zeros(2, 1)"),
    "tensor_bfloat16": ("torch.ones(2, dtype=torch.bfloat16)", "torch.zeros(2, dtype=torch.bfloat16)"),
    "tensor_complex": ("torch.tensor([1j])", "torch.tensor([1j]).conj()"),
    "tensor_sparse": ("torch.eye(2).to_sparse()", "torch.ones(2, 2).to_sparse()"),
    "array": ("np.zeros(2)", "np.zeros(2, 'f4')"),
    "array_of_objects": ("np.array([{'a': 1}, None], object)", "np.array([{'a': 2}, None], object)"),
    "numpy_number": ("np.float32(1)", "np.float64(1)"),
    "numpy_generator": ("np.random.default_rng(0)", "np.random.default_rng(1)"),
    "torch_generator": ("torch.Generator().manual_seed(0)", "torch.Generator().manual_seed(1)"),
    "path": ("pathlib.Path('a/b')", "pathlib.Path('a/c')"),
    "pattern": ("re.compile('a')", "re.compile('a', re.I)"),
    "time": ("datetime.datetime(2020, 1, 1)", "datetime.datetime(2020, 1, 2)"),
    "decimal": ("decimal.Decimal('1.0')", "decimal.Decimal('1.1')"),
    "fraction": ("fractions.Fraction(1, 2)", "fractions.Fraction(1, 3)"),
    "deque": ("collections.deque([1, 2])", "collections.deque([1, 2], maxlen=2)"),
    "default": ("collections.defaultdict(int)", "collections.defaultdict(float)"),
    "counter": ("collections.Counter('aab')", "collections.Counter('abb')"),
    "ordered": ("collections.OrderedDict(a=1, b=2)", "collections.OrderedDict(b=2, a=1)"),
    "namespace": ("types.SimpleNamespace(scale=1)", "types.SimpleNamespace(scale=2)"),
    "partial": (
        "functools.partial(F.leaky_relu, negative_slope=0.1)",
        "functools.partial(F.leaky_relu, negative_slope=0.2)",
    ),
    "lambda": ("lambda x: x", "lambda x: 2 * x"),
    "builtin": ("torch.relu", "torch.tanh"),
    "bound_method": ("'ab'.startswith", "'ac'.startswith"),
    "library_function": ("F.relu", "F.gelu"),
    "library_class": ("nn.ReLU", "nn.GELU"),
    "unregistered_module": ("[nn.Dropout(0.1)]", "[nn.Dropout(0.2)]"),
    "library_object": ("torch.distributions.Normal(0.0, 1.0)", "torch.distributions.Normal(0.0, 2.0)"),
}
"""Attribute -> its value before and after."""

OBJECTS = {
    "dataclass": ("@dataclasses.dataclass\nclass C:\n    a: float = 1.0\nheld = C()", "held.a = 2.0"),
    "dataclass_default": (
        "@dataclasses.dataclass\nclass C:\n    a: float = 1.0\nheld = C",
        "C(2.0), setattr(C, 'a', 2)",
    ),
    "enum": ("class C(enum.Enum):\n    a = 1\n    b = 2\nheld = C.a", "held = C.b"),
    "int_enum": ("class C(enum.IntEnum):\n    a = 1\n    b = 2\nheld = C.a", "held = C.b"),
    "flag": ("class C(enum.Flag):\n    a = 1\n    b = 2\nheld = C.a", "held = C.a | C.b"),
    "slots": ("class C:\n    __slots__ = ('a',)\nheld = C()\nheld.a = 1", "held.a = 2"),
    "private": ("class C:\n    def __init__(self): self.__a = 1\nheld = C()", "held._C__a = 2"),
    "named_tuple": ("C = collections.namedtuple('C', 'a')\nheld = C(1)", "held = C(2)"),
    "own_dict": ("class C(dict): pass\nheld = C(a=1)", "held.b = 2"),
    "own_number": ("class C(float): pass\nheld = C(1)", "held = C(2)"),
    "own_text": ("class C(str): pass\nheld = C('a')", "held.b = 2"),
    "own_tensor": ("class C(torch.Tensor): pass\nheld = torch.zeros(2).as_subclass(C)", "held.tag = 1"),
    "own_array": ("class C(np.ndarray): pass\nheld = np.zeros(2).view(C)", "held.tag = 1"),
    "cycle": ("class C: pass\nheld = C()\nheld.me, held.a = held, 1", "held.a = 2"),
    "shared": ("a = [1]\nheld = [a, a]", "held = [a, [1]]"),
    "callable_object": ("class C:\n    a = 1\n    def __call__(self, x): return self.a * x\nheld = C()", "C.a = 2"),
    "omegaconf": ("import omegaconf\nheld = omegaconf.OmegaConf.create({'a': {'b': 1}})", "held.a.b = 2"),
    "closure": ("def outer(a): return lambda x: a * x\nheld = outer(1)", "held = outer(2)"),
    "default_of_function": ("def held(x, a=1): return a * x", "held.__defaults__ = (2,)"),
    "keyword_default": ("def held(x, *, a=1): return a * x", "held.__kwdefaults__ = {'a': 2}"),
    "lru_cache": ("@functools.cache\ndef held(x): return x", "@functools.cache\ndef held(x): return 2 * x"),
    "wrapped": ("@torch.no_grad()\ndef held(x): return x", "@torch.no_grad()\ndef held(x): return 2 * x"),
    "mapped": ("held = torch.vmap(lambda x: x)", "held = torch.vmap(lambda x: 2 * x)"),
    "slots_of_module": ("class C(nn.Module):\n    __slots__ = ('a',)\nheld = C()\nheld.a = 1", "held.a = 2"),
    "autograd": (
        "class C(torch.autograd.Function):\n    forward = backward = staticmethod(lambda ctx, x: x)\nheld = C",
        "C.backward = staticmethod(lambda ctx, x: 2 * x)",
    ),
    "image": ("from PIL import Image\nheld = Image.new('L', (2, 2))", "held.putpixel((0, 0), 1)"),
    "table": ("import pandas\nheld = pandas.DataFrame({'a': [1]})", "held = pandas.DataFrame({'a': [2]})"),
    "logger": ("import logging\nheld = logging.getLogger('a')", "held = logging.getLogger('b')"),
    "bound": ("class C:\n    a = 1\n    def f(self, x): return self.a * x\nc = C()\nheld = c.f", "c.a = 2"),
    "attrs": ("import attrs\n@attrs.define\nclass C:\n    a: int\nheld = C(1)", "held = C(2)"),
    "frozen_attrs": ("import attrs\n@attrs.frozen\nclass C:\n    a: int\nheld = C(1)", "held = C(2)"),
    "pydantic": ("import pydantic\nclass C(pydantic.BaseModel):\n    a: int\nheld = C(a=1)", "held = C(a=2)"),
    "class_variable": ("class C:\n    a = 1\nheld = C", "C.a = 2"),
    "base": ("class A:\n    a = 1\nclass B(A): pass\nclass C(B): pass\nheld = C()", "A.a = 2"),
    "metaclass": (
        "class M(type):\n    def __call__(c): return c.a\nclass C(metaclass=M): a = 1\nheld = C",
        "M.__call__ = None",
    ),
    "property": ("class C:\n    @property\n    def a(self): return 1\nheld = C()", "C.a = property(lambda self: 2)"),
    "memory": ("a = torch.zeros(4)\nheld = [a[:2], a[2:]]", "held[1] = a[:2]"),
    "mode": ("held = nn.Dropout()", "held.eval()"),
}
"""What makes `held`, an attribute of the module, and what is done after it."""

HELPER = """
SCALE, TABLE = 2.0, {"a": 1.0}
def helper(x, depth=1):
    return deeper(x) * SCALE * TABLE["a"]
def deeper(x):
    return x + 1
class Net(nn.Module):
    CLASS = 1
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(6, 3)
        self.register_buffer("shift", torch.zeros(3))
        self.register_buffer("hidden", torch.zeros(3), persistent=False)
        self.drop = nn.Dropout(0.1)
        self.tied = nn.Linear(6, 3)
    def forward(self, x):
        if os.environ.get("DECENTRAL_EDIT"):
            return x
        return helper(self.inner(x)) * math.pi + self.shift
    def later(self):
        from textwrap import dedent
        import numpy.linalg as alone
        return alone.norm(dedent(""))
    def unused(self):
        return [helper(x) for x in range(3)]
made = Net()
"""

CODE = {
    "constant": ("SCALE, TABLE = 2.0", "SCALE, TABLE = 3.0"),
    "table": ('{"a": 1.0}', '{"a": 2.0}'),
    "deeper_function": ("return x + 1", "return x + 2"),
    "called_function": ("deeper(x) * SCALE", "deeper(x) + SCALE"),
    "other_library_function": ("math.pi", "math.e"),
    "other_operator": ("* math.pi", "/ math.pi"),
    "class_constant": ("CLASS = 1", "CLASS = 2"),
    "dropout": ("nn.Dropout(0.1)", "nn.Dropout(0.2)"),
    "buffer": ('"shift", torch.zeros(3)', '"shift", torch.ones(3)'),
    "hidden_buffer": ('"hidden", torch.zeros(3)', '"hidden", torch.ones(3)'),
    "persistence": (", persistent=False", ""),
    "other_layer": ("self.drop = nn.Dropout(0.1)", "self.drop = nn.AlphaDropout(0.1)"),
    "name_of_layer": ("self.drop =", "self.dropped ="),
    "base_class": ("class Net(nn.Module)", "class Base(nn.Module):\n    pass\nclass Net(Base)"),
    "comprehension": ("range(3)", "range(4)"),
}
"""A piece of HELPER, and what takes its place."""

DONE = {
    "weight": "made.inner.weight.data[0, 0] += 1",
    "frozen": "made.inner.weight.requires_grad_(False)",
    "tied": "made.tied.weight = made.inner.weight",
    "forward_hook": "made.inner.register_forward_hook(lambda m, i, o: 2 * o)",
    "other_forward_hook": "made.inner.register_forward_hook(lambda m, i, o: 3 * o)",
    "forward_hook_of_keywords": "made.inner.register_forward_hook(lambda m, i, k, o: 3 * o, with_kwargs=True)",
    "pre_hook": "made.inner.register_forward_pre_hook(lambda m, i: (2 * i[0],))",
    "backward_hook": "made.inner.register_full_backward_hook(lambda m, i, o: None)",
    "hook_of_tensor": "made.inner.weight.register_hook(lambda g: 2 * g)",
    "hook_after_gradient": "made.inner.weight.register_post_accumulate_grad_hook(lambda p: None)",
    "hook_of_state": "made.register_state_dict_post_hook(lambda *a: None)",
    "hook_before_loading": "made.register_load_state_dict_pre_hook(lambda *a: None)",
    "hook_of_all": "handle = nn.modules.module.register_module_forward_hook(lambda m, i, o: 2 * o)",
    "patched_object": "made.forward = lambda x: made.inner(x)",
    "patched_layer": "made.inner.forward = types.MethodType(lambda self, x: x[:, :3], made.inner)",
    "patched_class": "Net.forward = lambda self, x: self.inner(x)",
    "patched_base": "nn.Module.extra = lambda self: 1",
    "patched_library_class": "nn.Linear.forward = lambda self, x: x @ self.weight.T",
    "patched_with_another": "nn.Dropout.forward = nn.ReLU.forward",
    "patched_library": "F.linear = lambda x, w, b: x @ w.T",
    "global": "SCALE = 7.0",
    "item_of_global": "TABLE['a'] = 3.0",
    "function_replaced": "def deeper(x): return x",
    "precompiled": "Net.forward.__code__ = (lambda self, x: x).__code__",
    "environment": "os.environ['DECENTRAL_EDIT'] = '1'",
    "one_layer_evaluates": "made.drop.eval()",
    "pruned": "import torch.nn.utils.prune\ntorch.nn.utils.prune.l1_unstructured(made.inner, 'weight', 2)",
    "normalized": "torch.nn.utils.parametrizations.weight_norm(made.inner)",
    "class_instead": "made = Net",
    "method_instead": "made = Net().forward",
    "fixed_arguments": "made = functools.partial(nn.Linear, 6, 3)",
    "fixed_arguments_otherwise": "made = functools.partial(nn.Linear, 6, 4)",
}
"""Done after HELPER."""

UNKNOWN = {
    "file": "made.handle = open(__file__ if '__file__' in globals() else os.devnull)",
    "generator": "made.handle = (x for x in [1])",
    "socket": "import socket\nmade.handle = socket.socket()",
    "of_c": "import ctypes\nmade.handle = ctypes.pointer(ctypes.c_int(1))",
    "iterator_of_file": "made.handle = [{'a': os.scandir('.')}]",
    "script": "made.handle = torch.jit.script(nn.Linear(1, 1))",
    "by_name": "Net.forward = lambda self, x: globals()['SCALE'] * x",
    "evaluated": "Net.forward = lambda self, x: eval('SCALE') * x",
    "imported_by_name": "import importlib\nNet.forward = lambda self, x: importlib.import_module('a').b",
    "in_closure": "handle = open(os.devnull)\nNet.forward = lambda self, x: handle and x",
    "without_pickle": "class C:\n    def __init__(self): self.f = open(os.devnull)\nmade.handle = C()",
    "nested": "made.handle = []\nfor _ in range(100000): made.handle = [made.handle]",
}
"""Done after HELPER: what cannot be compared by value."""

HARMLESS = {
    "comment": "# a comment",
    "other_object": "unrelated = 1",
    "evaluates": "made.eval()",
    "other_hook_came_and_went": "made.register_forward_hook(print).remove()",
    "called": "[made(torch.zeros(2, 6)) for _ in range(20)]",
    "gradients": "made(torch.zeros(2, 6)).sum().backward()",
    "a_lock_on_a_class": "",
}
"""Done after HELPER: the same computation."""


def pairs() -> dict[str, tuple[str, str]]:
    """Edit -> the source of a module that makes `made`, before and after."""
    held = {name: tuple(f"{HEAD}{NET}made = Net(held={value})" for value in both) for name, both in HELD.items()}
    end = "\nmade = Net(held=held)"
    objects = {
        name: (f"{HEAD}{NET}{before}{end}", f"{HEAD}{NET}{before}\n{after}{end}")
        for name, (before, after) in OBJECTS.items()
    }
    code = {name: (HEAD + HELPER, HEAD + HELPER.replace(*both)) for name, both in CODE.items()}
    done = {name: (HEAD + HELPER, f"{HEAD}{HELPER}{more}") for name, more in DONE.items()}
    return {**held, **objects, **code, **done}  # type: ignore[dict-item]
