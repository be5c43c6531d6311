"""The watch changes no graph, no recompile and no result, and survives what programs do."""

import json
import os

import pytest

from harness.events import schema

PROGRAM = """
import json, warnings
import torch.fx
from torch._dynamo.utils import counters
from torch.fx._symbolic_trace import is_fx_symbolic_tracing
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

warnings.simplefilter("ignore")
torch.manual_seed(0)
results = {}
KINDS = ("stats", "frames", "graph_break", "aot_autograd", "recompiles")

def note(name, value):
    seen = {kind: dict(counters[kind]) for kind in KINDS if counters[kind]}
    results[name] = [seen, value.detach().float().sum().item()]
    counters.clear()
    torch._dynamo.reset()

def branches(x: torch.Tensor) -> torch.Tensor:
    if torch.compiler.is_compiling():
        return x + 1
    return x * 2

note("script", torch.jit.script(branches)(torch.ones(2)))

def causal(b, h, q, k):
    return q >= k

x = torch.randn(1, 1, 128, 16)
fast = torch.compile(create_block_mask, fullgraph=True, backend="eager", dynamic=False)
for size in (128, 256, 256):
    mask = fast(causal, 1, 1, size, size, device="cpu")
note("create_block_mask", mask.kv_indices)

@torch.compile(backend="eager")
def masked(q):
    mask = create_block_mask(causal, 1, 1, 128, 128, device="cpu")
    return flex_attention(q, q, q, block_mask=mask)

note("masked", masked(x))

@torch.compile(backend="eager", fullgraph=True)
def asks(x):
    by_path = torch.fx._symbolic_trace.is_fx_symbolic_tracing()
    return x + 1 if by_path or is_fx_symbolic_tracing() else x + 2

note("asks", asks(x))

class Double(torch.nn.Module):
    def forward(self, x):
        return x * 2

@torch.compile(backend="eager")
def traces(x):
    return torch.fx.symbolic_trace(Double())(x) + 1

note("traces", traces(x))
net = torch.nn.Sequential(torch.nn.Linear(16, 16), torch.nn.ReLU())

@torch.compile(backend="aot_eager")
def steps(x):
    loss = net(x).sum()
    loss.backward()
    return loss

note("steps", steps(x))

@torch.compile(backend="aot_eager")
def differentiates(x):
    return torch.autograd.grad((x * x).sum(), x)[0] + 1

note("differentiates", differentiates(x.clone().requires_grad_()))
plain = torch.compile(lambda x: x.sin(), backend="eager", dynamic=False)
for size in range(2, 14):
    out = plain(torch.ones(size))
note("limit", out)
with torch.no_grad():
    note("uncompiled flex", flex_attention(x, x, x))
note("module", torch.compile(net, backend="eager")(x))
graph = torch.fx.experimental.proxy_tensor.make_fx(lambda x: x.sin() + 1)(x)
note("make_fx", graph(x))
results["code"] = graph.code
print(json.dumps(results))
"""


@pytest.fixture(scope="module")
def both(watch, bare):
    watched = watch(PROGRAM)
    assert watched.code == 0, watched.err
    return json.loads(watched.out), json.loads(bare(PROGRAM))


def test_graphs_breaks_recompiles_and_results_are_the_same(both):
    watched, bare = both
    assert watched.keys() == bare.keys()
    for name, expected in bare.items():
        assert watched[name] == expected, name


INTERRUPTED = """
import os, signal, traceback
from _compile_race_child.probes import guards

fast = torch.compile(lambda x: x.sin(), backend="eager", dynamic=False)
for size in range(2, 14):  # past the limit: every other size misses from now on
    fast(torch.ones(size))
known, new = torch.ones(2), torch.ones(20)
record_miss = guards._record_miss

def send(number):
    # Inside dynamo's hook, the worst moment: at the next miss, and at no other.
    def record(recorder, frame):
        guards._record_miss = record_miss
        signal.raise_signal(number)
    guards._record_miss = record

@torch.compile(backend="eager", dynamic=False)
def broken(x):  # dynamo comes in from the function's own frames, too
    torch._dynamo.graph_break()
    x = x.cos()
    torch._dynamo.graph_break()
    return x.sin()

for size in range(2, 14):
    broken(torch.ones(size))

def miss_until_told(compiled):
    for _ in range(100_000):  # some seconds
        compiled(new)

send(signal.SIGINT)
try:
    miss_until_told(fast)
except KeyboardInterrupt:
    print("interrupted")

send(signal.SIGINT)
try:
    miss_until_told(broken)
except KeyboardInterrupt:
    print("interrupted among graph breaks")

send(signal.SIGINT)
try:
    try:
        raise ValueError
    except ValueError:
        miss_until_told(fast)
except KeyboardInterrupt as error:
    print("interrupted while handling", type(error.__context__).__name__)

def leave(number, frame):
    sys.exit(7)

signal.signal(signal.SIGTERM, leave)
send(signal.SIGTERM)
try:
    miss_until_told(fast)
except SystemExit as error:
    print("told to leave with", error.code)

# And at any other moment. What torch makes of it there is its own affair (an AssertionError, where
# dynamo comes upon the handler's frame, a SystemError), and so is the state that this leaves it in.
# What the watch's own code makes of it is not.
class Alarm(Exception):
    pass

package = os.path.dirname(os.path.dirname(guards.__file__))

armed, alarms = False, 0

def ring(number, frame):
    if armed:
        raise Alarm

signal.signal(signal.SIGALRM, ring)
signal.setitimer(signal.ITIMER_REAL, 0.0005, 0.0005)
while alarms < 300:
    armed = True
    try:
        fast(known)
        fast(new)
        armed = False
    except Exception as error:
        armed = False
        alarms += 1
        raised_by = traceback.extract_tb(error.__traceback__)[-1].filename
        if raised_by.startswith(package) and not isinstance(error, (Alarm, SystemError)):
            print("ours:", repr(error))
signal.setitimer(signal.ITIMER_REAL, 0)
print("still there:", torch.equal(fast(known), known.sin()))
sys.exit(7)
"""


def test_signal_handlers_that_raise_inside_dynamos_hook_do_no_harm(watch):
    watched = watch(INTERRUPTED)
    assert watched.code == 7, watched.err
    assert watched.out.splitlines() == [
        "interrupted",
        "interrupted among graph breaks",
        "interrupted while handling ValueError",
        "told to leave with 7",
        "still there: True",
    ]
    assert watched.of(schema.GuardMiss)
    assert watched.of(schema.End)


def test_a_forked_child_is_watched_afresh(watch):
    watched = watch(
        """
        import os
        fast = torch.compile(lambda x: x.sin(), backend="eager")
        for _ in range(20):
            fast(torch.ones(2))
        child = os.fork()
        if child == 0:
            fast(torch.ones(2))
            sys.exit()
        os.waitpid(child, 0)
        folder = os.path.dirname(__file__)
        (file,) = [name for name in os.listdir(folder) if name.startswith("events-")]
        print(open(os.path.join(folder, file)).read())
        """
    )
    assert watched.code == 0, watched.err
    events = [json.loads(line) for line in watched.out.splitlines() if line]
    (call,) = [event for event in events if event["point"] == "wrapper"]
    assert call["data"]["first"]
    assert call["pid"] != os.getpid()
