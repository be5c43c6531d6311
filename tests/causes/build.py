"""Hand-made recordings: events in order, each a little later than the one before."""

import json
from pathlib import Path

PID = 4000
MAIN = PID
PROBES = (
    "threads",
    "futures",
    "workload",
    "wrapper",
    "guards",
    "eager",
    "stance",
    "compiles",
    "lock",
    "reset",
    "fx",
    "backward",
    "cuda_graphs",
    "forks",
    "autotune",
    "attention",
    "block_mask",
    "is_compiling",
    "memory",
    "invariants",
)
STEP_NS = 10_000_000


def code(number=1, name="flex_attention", *, internal=False):
    file = "/home/user/venv/torch/nn/attention/flex_attention.py"
    file = file if internal else "/home/user/project/model.py"
    return {"id": number, "name": name, "file": file, "line": 10 * number, "internal": internal}


def context(*, grad=True, inference=False, autocast=None, modes=(), **rest):
    described = {
        "grad_mode": grad,
        "inference_mode": inference,
        "autocast": {"cuda": [autocast is not None, autocast or "torch.float16"]},
        "torch_function_modes": list(modes),
        "num_threads": 2,
    }
    return {**described, **rest}


def frames(*functions, library=False):
    file = "/usr/lib/python3.11/threading.py" if library else "/home/user/project/train.py"
    return [[file, 7 + n, name, not library] for n, name in enumerate(functions)]


def fx_frames():
    return [
        *frames("loop"),
        ["/home/user/venv/torch/_dynamo/eval_frame.py", 989, "compile_wrapper", False],
    ]


FX_MESSAGE = (
    "Detected that you are using FX to symbolically trace a dynamo-optimized function. "
    "This is not supported at the moment."
)


class Script:
    """Writes a recording. Threads are named when they are started; every method adds events."""

    def __init__(self, folder: Path, *, torch="2.13.0", probes=None, detail=True, pid=PID):
        self.folder = folder
        self.pid = pid
        self.lines: list[dict] = []
        self.names = {pid: "MainThread"}
        self.t = 1_000_000_000
        self.seq = 0
        header = {
            "schema": 1,
            "harness": "0.1.0",
            "python": "3.12.1",
            "torch": torch,
            "triton": "",
            "cuda": "",
            "platform": "Linux",
            "cpus": 2,
            "argv": ["python", "train.py"],
            "started_unix": 1.0,
            "compile_detail": detail,
        }
        self.add("header", pid, header)
        for name, state in {**dict.fromkeys(PROBES, "live"), **(probes or {})}.items():
            self.add("probe", pid, {"name": name, "state": state})

    def add(self, point, tid, data=None, edge="instant", **rest):
        """Add one event and return its seq."""
        self.seq += 1
        self.t += STEP_NS
        event = {
            "point": point,
            "t_ns": self.t,
            "seq": self.seq,
            "pid": self.pid,
            "tid": tid,
            "thread": self.names.get(tid, f"thread-{tid}"),
            "edge": edge,
        }
        event |= {key: value for key, value in rest.items() if value is not None}
        if data is not None:
            event["data"] = data
        self.lines.append(event)
        return self.seq

    def thread(self, tid, name, by=MAIN):
        self.names[tid] = name
        self.add("thread_start", by, {"child_tid": tid, "name": name}, where=frames("main"))
        return tid

    def call(self, tid, of=None, ctx=None, where=None):
        """A first compiled call of a thread."""
        data = {"code": of or code(), "first": True, "context": ctx or context()}
        return self.add("wrapper", tid, data, where=where or frames("loop"))

    def miss(self, tid, of=None, ctx=None, where=None):
        data = {"code": of or code(), "context": ctx or context(), "entries": 1}
        return self.add("guard_miss", tid, data, where=where or frames("loop"))

    def wait(self, tid, owner, edge):
        return self.add("lock_wait", tid, {"lock": "compile_lock", "owner_tid": owner}, edge)

    def begin(self, tid, number, of=None, ctx=None, inputs=(), where=None, **data):
        described = {
            "code": of or code(),
            "context": ctx or context(),
            "inputs": [
                {"name": name, "shape": list(shape), "dtype": "torch.float32", "device": device}
                for name, shape, device in inputs
            ],
            "limit": 8,
            **data,
        }
        where = where or frames("loop")
        return self.add("dynamo_compile", tid, described, "enter", compile_id=number, where=where)

    def end(self, tid, number, of=None, reasons=(), digest="", **data):
        described = {"code": of or code(), "ok": True, "reasons": list(reasons), **data}
        if described["ok"]:
            described["entry"] = {"compile_id": number, "digest": digest or f"d{number}"}
        return self.add("dynamo_compile", tid, described, "exit", compile_id=number)

    def compile(self, tid, number, of=None, ctx=None, reasons=(), digest="", **rest):
        """A whole compile."""
        inputs, where = rest.pop("inputs", ()), rest.pop("where", None)
        began = self.begin(tid, number, of, ctx, inputs, where)
        self.end(tid, number, of, reasons, digest, **rest)
        return began

    def backward(self, tid):
        return self.add("backward", tid, {"count": 1}, where=frames("loop"))

    def error(self, tid, via, kind, message, number=1, where=None, future=None, links=()):
        chain = [
            {
                "id": number,
                "type": kind,
                "message": message,
                "frames": where or frames("main", "loop"),
                "relation": "self",
            },
            *links,
        ]
        data = {"via": via, "chain": chain}
        if future is not None:
            data["future"] = future
        return self.add("thread_error", tid, data)

    def finish(self, exit_code=0, *, end=True, **ended):
        """Write the files and return the folder."""
        if end:
            clear = {"fx_flag_clear": True, "busy_tids": []}
            if not any(line["point"] == "invariants" for line in self.lines):
                self.add("invariants", self.pid, clear)
            count = sum(
                line["point"] == "dynamo_compile" and line["edge"] == "exit" for line in self.lines
            )
            if not any(line["point"] == "compile_detail" for line in self.lines):
                self.add("compile_detail", self.pid, {"metrics": count, "compiles": count})
            if not any(line["point"] == "end" for line in self.lines):
                self.add("end", self.pid)
        write(self.folder, self.lines, {"exit_code": exit_code, "timeout_s": 60.0, **ended})
        return self.folder


def write(folder: Path, lines, ended=None, name="events.jsonl"):
    """Write events, and how the program ended."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text("".join(json.dumps(line) + "\n" for line in lines))
    if ended is not None:
        (folder / "ended.json").write_text(json.dumps(ended))
    return folder


def read(folder: Path):
    """The events of a recording as dicts, by file name."""
    return {
        path.name: [json.loads(line) for line in path.read_text().splitlines()]
        for path in sorted(folder.glob("*.jsonl"))
    }
