"""With nobody else listening, torch gathers for its trace log only what the watch takes of it."""

import json

import pytest

from harness.events import schema

PROGRAM = """
import json
import logging
from torch._logging._internal import trace_structured

def gathered():
    found = []
    def say(name, metadata):
        def payload():
            found.append(f"{name}'s payload")
            return "text"
        trace_structured(
            name, lambda: found.append(name) or metadata, payload_fn=payload, expect_trace_id=False
        )
    say("graph_dump", {"name": "a graph"})
    say("compilation_metrics", {"is_forward": False})
    say("artifact", {"name": "fx_graph_cache_hit", "encoding": "json"})
    say("artifact", {"name": "recompile_reasons", "encoding": "json"})
    say("artifact", {})
    return found

class Kept(logging.Handler):
    names = ()
    def emit(self, record):
        self.names += (*record.metadata,)

fast = torch.compile(lambda x: x + 1, backend="eager", dynamic=False)

def compile_for(*sizes):
    for size in sizes:
        fast(torch.ones(size))

compile_for(2, 3)  # torch's own handler goes with the first record, where no file is wanted
log = logging.getLogger("torch.__trace")
alone = gathered()
kept = Kept()
log.addHandler(kept)
both = gathered()
compile_for(4, 5)
log.removeHandler(kept)
again = gathered()
print(json.dumps({"alone": alone, "both": both, "again": again, "kept": kept.names}))
"""

TAKEN = ["compilation_metrics", "compilation_metrics's payload"]


@pytest.fixture(scope="module")
def watched(watch):
    done = watch(PROGRAM)
    assert done.code == 0, done.err
    return done


@pytest.fixture(scope="module")
def told(watched):
    return json.loads(watched.out)


def test_alone_only_what_is_taken_is_gathered(told):
    payloads = [name for name in told["alone"] if name.endswith("payload")]
    # Of an artifact's record its name tells, so that its metadata are asked for, and no more.
    assert payloads == ["compilation_metrics's payload", "artifact's payload", "artifact's payload"]
    assert "graph_dump" not in told["alone"]
    assert told["again"] == told["alone"]


def test_another_handler_is_told_everything(told):
    payloads = [name for name in told["both"] if name.endswith("payload")]
    assert len(payloads) == 5
    assert {"dynamo_start", "dynamo_output_graph", "artifact"} <= set(told["kept"])


def test_reasons_and_metrics_arrive_either_way(watched):
    exits = [e for e in watched.of(schema.Compile) if e.edge == "exit"]
    assert [bool(e.data.reasons) for e in exits] == [False, True, True, True]
    (detail,) = watched.of(schema.CompileDetail)
    assert detail.data.metrics == detail.data.compiles == 4
