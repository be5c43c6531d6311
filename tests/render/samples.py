"""Reports made by hand, one per verdict, with what a real run's report has in every part."""

from harness.diagnosis.report import (
    CacheVariant,
    CodeCache,
    CodeCoverage,
    CodeRef,
    Counts,
    Environment,
    ErrorReport,
    Finding,
    LadderStep,
    Note,
    NotWatched,
    Rejection,
    Remedy,
    Report,
    SharedState,
    Stack,
    Statement,
    ThreadCoverage,
    ThreadRef,
    ThreadReport,
    Variant,
)
from harness.events.ended import Ended
from harness.events.values import ErrorLink, Frame

PID = 4242
MAIN = ThreadRef(4242, "MainThread", PID)
DRAFTERS = tuple(ThreadRef(4300 + n, f"drafter-{n}", PID) for n in range(3))
TORCH = "/venv/lib/python3.11/site-packages/torch"
CODE = CodeRef(1, "flex_attention", "/home/ada/dflash/dflash_min/attention.py", 61)


def user(file: str, line: int, function: str) -> Frame:
    return Frame(f"/home/ada/dflash/dflash_min/{file}", line, function, user=True)


def torch(file: str, line: int, function: str) -> Frame:
    return Frame(f"{TORCH}/{file}", line, function, user=False)


THREAD_BASE = (
    Frame("/usr/lib/python3.11/threading.py", 982, "run", user=False),
    Frame("/usr/lib/python3.11/threading.py", 1045, "_bootstrap_inner", user=False),
)

MISSED = (
    torch("_dynamo/eval_frame.py", 1116, "compile_wrapper"),
    torch("nn/modules/module.py", 1790, "_call_impl"),
    user("attention.py", 88, "__call__"),
    user("model.py", 141, "forward"),
    torch("utils/checkpoint.py", 496, "checkpoint"),
    torch("_dynamo/eval_frame.py", 1263, "_fn"),
    torch("nn/modules/module.py", 1779, "_wrapped_call_impl"),
    user("model.py", 203, "forward"),
    user("replica.py", 71, "train_step"),
    user("pipeline.py", 118, "_drafter_loop"),
    *THREAD_BASE,
)

TRACING = (
    torch("fx/experimental/proxy_tensor.py", 1322, "create_arg"),
    torch("fx/proxy.py", 248, "create_proxy"),
    torch("_dynamo/convert_frame.py", 1630, "_compile"),
    torch("_dynamo/eval_frame.py", 1129, "compile_wrapper"),
    user("attention.py", 88, "__call__"),
    user("model.py", 141, "forward"),
    user("replica.py", 71, "train_step"),
    *THREAD_BASE,
)

FX_MESSAGE = (
    "Detected that you are using FX to symbolically trace a dynamo-optimized function. "
    "This is not supported at the moment."
)

CHECKPOINTED = Remedy(
    "Warm up in the mode that the threads train in: gradients on, forward and backward, at two "
    "lengths, on every device.",
    "for length in (128, 160):\n"
    "    loss = step(batch(length))  # no torch.no_grad() around it\n"
    "    loss.backward()",
    "dflash_min, 3 threads, torch 2.13.0: 0 compiles after warm-up in 20 of 20 runs",
)


def _error(thread: ThreadRef, seq: int, t_s: float) -> ErrorReport:
    frames = tuple(reversed(MISSED))
    return ErrorReport(
        thread=thread,
        via="thread",
        type="RuntimeError",
        message=FX_MESSAGE,
        chain=(ErrorLink(id=1, type="RuntimeError", message=FX_MESSAGE, frames=frames),),
        t_s=t_s,
        evidence=seq,
        explained_by=("CR301",),
    )


def _drafter(number: int, ladder: tuple[LadderStep, ...]) -> ThreadReport:
    return ThreadReport(
        thread=DRAFTERS[number],
        role="workload",
        created_by=MAIN,
        creation_stack=(
            Frame("/usr/lib/python3.11/threading.py", 964, "start", user=False),
            user("pipeline.py", 76, "start"),
            user("train.py", 54, "run"),
        ),
        first_context="grad on, num_threads 2",
        config={} if number else {"recompile_limit": 64},
        compiled_calls=True,
        backwards=4,
        compiles=1,
        misses=1,
        steps=4,
        ladder=ladder,
        ended=number != 1,
    )


THREADS = (
    ThreadReport(
        thread=MAIN,
        role="main",
        first_context="grad off, num_threads 2",
        compiled_calls=True,
        compiles=2,
        ladder=(
            LadderStep(0.9, "phase", "warmup", 2.1, evidence=20),
            LadderStep(1.0, "dynamo compile", "`flex_attention` 0/0", 0.8, evidence=21),
            LadderStep(2.0, "dynamo compile", "`flex_attention` 0/1", 0.7, evidence=29),
        ),
        ended=True,
    ),
    _drafter(
        0,
        (
            LadderStep(3.1, "first compiled call", "grad on", evidence=40),
            LadderStep(3.1, "guard miss", "GLOBAL_STATE changed: grad_mode ", evidence=41),
            LadderStep(3.2, "dynamo compile", "`flex_attention` 0/2", 0.9, evidence=44),
        ),
    ),
    _drafter(
        1,
        (
            LadderStep(3.1, "guard miss", "GLOBAL_STATE changed: grad_mode ", evidence=42),
            LadderStep(3.12, "waits for compile_lock", "", 1.0, evidence=45),
            LadderStep(4.12, "dynamo compile", "`flex_attention` 0/3", open=True, evidence=48),
        ),
    ),
    _drafter(2, (LadderStep(3.1, "guard miss", "", evidence=43),)),
)

ENVIRONMENT = Environment(
    torch="2.13.0+cpu",
    python="3.11.9",
    platform="Linux-6.8-x86_64",
    cpus=2,
    harness="0.1.0",
    argv=("python", "-m", "dflash_min.train", "--warmup", "no_grad", "--out", "my runs"),
    cache_state="cold",
    cache_dir="/tmp/cache",
    started_unix=1764446400.0,
    processes=(PID,),
    env={"OMP_NUM_THREADS": "2"},
)

ENDED = Ended(
    exit_code=1,
    wall_s=9.4,
    started="2025-11-29T20:00:00+00:00",
    command=["python", "-m", "dflash_min.train"],
    stderr_tail="ExceptionGroup: 2 threads failed (2 sub-exceptions)\n",
    timeout_s=120.0,
    parent_version="0.1.0",
)

ROOT = Finding(
    code="CR101",
    title="grad-mode",
    root=True,
    pid=PID,
    statements=(
        Statement(
            "All 3 drafter threads missed every entry of `flex_attention`: the warm-up compiled "
            "them with gradients off, the threads call with gradients on.",
            "observed",
            (41, 42, 43),
        ),
        Statement(
            "The guard that failed is `GLOBAL_STATE changed: grad_mode `.", "observed", (44,)
        ),
        Statement("Later hits of these threads were on the entries that they made.", "inferred"),
        Statement("Whether the fourth thread would miss is not known: it made no call.", "unknown"),
    ),
    remedy=CHECKPOINTED,
    evidence=(41, 42, 43, 44),
    threads=DRAFTERS,
    stacks=(
        Stack(DRAFTERS[0], "missed its guards", MISSED, (41,)),
        Stack(MAIN, "had compiled it in the warm-up", MISSED[2:4] + MISSED[7:8], (21,)),
    ),
)

STAMPEDE = Finding(
    code="CR303",
    title="compile-stampede",
    root=False,
    pid=PID,
    statements=(
        Statement(
            "3 threads compiled `flex_attention` one after another behind `compile_lock`; "
            "3 entries have the same guards.",
            "observed",
            (44, 45, 48),
        ),
        Statement("The first compile made the other two needless.", "inferred", (44,)),
    ),
    remedy=Remedy("It goes with its cause, CR101."),
    follows_from=("CR101",),
    threads=DRAFTERS,
)

CRASH = Finding(
    code="CR301",
    title="fx-flag-seen-by-another-thread",
    root=False,
    pid=PID,
    statements=(
        Statement(
            "drafter-1 raised because it saw the FX-tracing flag that drafter-0 had set.",
            "observed",
            (50,),
        ),
    ),
    remedy=Remedy("Upgrade to torch 2.14, where the flag is thread-local."),
    follows_from=("CR303", "CR101"),
    threads=(DRAFTERS[0], DRAFTERS[1]),
    stacks=(
        Stack(DRAFTERS[0], "was tracing", TRACING, (46,)),
        Stack(DRAFTERS[1], "read the flag and raised", MISSED, (50,)),
    ),
    shared_state=SharedState(
        "torch.fx._symbolic_trace._is_fx_tracing_flag",
        "drafter-0, in `_make_fx`",
        "drafter-1, in `compile_wrapper`",
    ),
)

COVERAGE = CodeCoverage(
    code=CODE,
    pid=PID,
    warmup=(
        Variant("0/0", MAIN, "grad off", "q [1, 8, 128, 16] float32 cpu", True, 21),
        Variant("0/1", MAIN, "grad off", "q [1, 8, 160, 16] float32 cpu", True, 29),
    ),
    threads=(
        ThreadCoverage(MAIN, "warm-up", "observed", "grad off"),
        *(
            ThreadCoverage(
                thread,
                "uncovered",
                "observed",
                "grad on",
                differs=("gradients off there, on here",),
                misses=1,
                compiles=1,
                reasons=("0/0: GLOBAL_STATE changed: grad_mode ",),
                evidence=(41 + n,),
            )
            for n, thread in enumerate(DRAFTERS)
        ),
    ),
)

CACHE = CodeCache(
    code=CODE,
    pid=PID,
    entries=(
        CacheVariant(0, "0/0", "grad off", "q [1, 8, 128, 16] float32 cpu", MAIN, ("GLOBAL",)),
        CacheVariant(1, "0/2", "grad on", "q dynamic", DRAFTERS[0], ("GLOBAL", "a || b")),
        CacheVariant(2, "0/3", "grad on", "q dynamic", DRAFTERS[1], ("GLOBAL", "a || b"), 1),
    ),
    rejections=(
        Rejection(DRAFTERS[0], "GLOBAL_STATE changed: grad_mode ", "0/0", "observed", (41,)),
        Rejection(DRAFTERS[1], "expected device index \x00, actual \x01", None, "inferred", (42,)),
    ),
    complete=True,
)

FOUND = Report(
    verdict="found",
    exit_code=1,
    headline=(
        "All 3 drafter threads recompiled `flex_attention` after warm-up: it was warmed with "
        "gradients off and is trained with them on (guard GLOBAL_STATE grad_mode). It was "
        "compiled 3 times, one after another behind dynamo's compile lock."
    ),
    findings=(ROOT, STAMPEDE, CRASH),
    notes=(
        Note("`score_mod` was compiled by drafter-0 alone at first use.", code="CR201", pid=PID),
    ),
    counts=Counts(
        compiles=5,
        compiles_after_warmup=3,
        threads_with_compiled_calls=4,
        threads_with_backward=3,
        thread_errors=2,
    ),
    coverage=(COVERAGE,),
    caches=(CACHE,),
    errors=(_error(DRAFTERS[1], 50, 3.4), _error(DRAFTERS[2], 52, 3.5)),
    threads=THREADS,
    environment=ENVIRONMENT,
    not_watched=(
        NotWatched("triton", "idle", "triton was never imported", ("CR311",), decisive=False),
    ),
    ended=ENDED,
    replay="python -m harness.run --threads 3 --warmup no_grad --seed 0",
)

CLEAN = Report(
    verdict="clean",
    exit_code=0,
    headline="3 threads ran `flex_attention` on what the warm-up compiled; 0 compiled after it.",
    counts=Counts(compiles=2, threads_with_compiled_calls=4, threads_with_backward=4),
    coverage=(
        CodeCoverage(
            code=CODE,
            pid=PID,
            warmup=(
                Variant("0/0", MAIN, "grad on", "q [1, 8, 128, 16] float32 cpu", True, 21),
                Variant("0/1", MAIN, "grad on", "q [1, 8, s0, 16] float32 cpu", True, 29),
            ),
            threads=(
                ThreadCoverage(MAIN, "warm-up", "observed", "grad on"),
                *(ThreadCoverage(t, "covered", "inferred", "grad on") for t in DRAFTERS),
            ),
        ),
    ),
    threads=(
        ThreadReport(MAIN, "main", first_context="grad on", compiled_calls=True, ended=True),
        *(
            ThreadReport(
                t,
                "workload",
                created_by=MAIN,
                first_context="grad on",
                compiled_calls=True,
                backwards=4,
                steps=4,
                ended=True,
            )
            for t in DRAFTERS
        ),
    ),
    environment=ENVIRONMENT,
    ended=Ended(exit_code=0, wall_s=7.9, timeout_s=120.0),
    replay="python -m harness.run --threads 3 --warmup grad --seed 0",
)

INCOMPLETE = Report(
    verdict="incomplete",
    exit_code=4,
    headline="The run reached its time limit of 30 s, so what it had not done by then is unknown.",
    counts=Counts(compiles=2, threads_with_compiled_calls=1),
    environment=ENVIRONMENT,
    not_watched=(
        NotWatched("the program's end", "not reached", "the time limit came first", ("CR302",)),
        NotWatched("lock", "missing", "convert_frame has no compile_lock", ("CR303", "CR307")),
    ),
    ended=Ended(
        exit_code=None,
        signal=9,
        signal_name="SIGKILL",
        deadline_hit=True,
        idle_at_deadline=True,
        wall_s=30.2,
        timeout_s=30.0,
        stacks="Thread 4300 (idle): drafter-0\n    wait (threading.py:327)\n",
    ),
    replay="python -m harness.watch --timeout 30 -- train.py",
)

FAILED = Report(
    verdict="failed",
    exit_code=3,
    headline="The watch stopped in the child: `OSError: [Errno 28] No space left on device`.",
    ended=Ended(exit_code=0, wall_s=2.0, disk_full=True, child_failure="OSError: [Errno 28]"),
)

NOTHING_RAN = Report(
    verdict="nothing ran",
    exit_code=5,
    headline="No thread called compiled code, so there is nothing to judge.",
    threads=(ThreadReport(MAIN, "main", ended=True),),
    environment=Environment(torch="2.13.0", python="3.11.9"),
    ended=Ended(exit_code=0, wall_s=1.0),
    replay="python -m harness.watch -- hello.py",
)

SAMPLES = {
    "found": FOUND,
    "clean": CLEAN,
    "incomplete": INCOMPLETE,
    "failed": FAILED,
    "nothing ran": NOTHING_RAN,
}
