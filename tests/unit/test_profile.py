from __future__ import annotations

import contextlib
import re
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sm120patch.errors import UsageError
from sm120patch.model import EvidenceKind, VerificationPolicy
from sm120patch.plan import Launch
from sm120patch.redaction import is_secret_name, redact_arguments, redact_environment
from sm120patch.verify.commandline import Arm, adds_nothing, arms, strip_options
from sm120patch.verify.profile import DEFAULT_WORKLOADS, Profile, load, parse
from sm120patch.verify.schedule import Schedule, estimate, schedule_for, style_for
from sm120patch.verify.template import template

FLAG = "--enable-flashinfer-allreduce-fusion"
MINIMAL = '[server]\ncommand = ["serve"]\n'


def read(text: str) -> Profile:
    return parse(text, origin="p.toml", python="/env/bin/python", prefix="/env")


def faults(text: str) -> list[str]:
    with pytest.raises(UsageError) as caught:
        read(text)
    assert caught.value.exit_code == 2 and caught.value.hint
    listed = caught.value.details["faults"]
    assert isinstance(listed, list)
    return listed


# --- reading -----------------------------------------------------------------------------------


def test_a_profile_without_workloads_measures_four():
    profile = read(MINIMAL)
    assert [(w.concurrency, w.input_len, w.output_len) for w in profile.workloads] == [
        (1, 256, 128), (64, 256, 128), (512, 256, 128), (4, 8192, 128)]  # fmt: skip
    assert profile.server.port == 30000 and profile.server.ready == "/health"


def test_every_fault_is_named_at_once_with_its_key_path():
    found = faults("""
        extra = 1
        [server]
        mode = "begin"
        command = ["serve", "x{set_args}", "{sett_args}"]
        url = "ftp://nowhere"
        ready_timeout = -3
        comand = []
        kind = "reel"
        [server.env]
        A = 1
        [workload.big]
        concurrency = 8
        prompts = 4
        output_len = 1
        [workload."no good"]
        [verify]
        blocks = true
        margin = nan
        endpoint = "grpc"
        seed = "one"
    """)
    expected = ["server.mode:", "server.command[1]:", "server.command[2]: unknown placeholder",
                "server.url:", "server.ready_timeout:", "server.kind:", "server.env.A:",
                "server.comand: unknown key; did you mean command?",
                "workload.big.prompts:", "workload.big.output_len:", "workload.no good:",
                "verify.blocks:", "verify.margin:", "verify.endpoint:", "verify.seed:",
                "extra: unknown key"]  # fmt: skip
    for start in expected:
        assert any(fault.startswith(start) for fault in found), (start, found)
    assert len(found) == len(expected)


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("", "server: is missing"),
        ("server = 3", "server: expected a table"),
        ("[server]", "server.command: is missing"),
        ("[server]\ncommand = []", "server.command: is empty"),
        ('[server]\ncommand = "serve --x"', "server.command: expected an array"),
        ('[server]\ncommand = ["{set_args}"]', "server.command[0]: expected the program"),
        ('[server]\ncommand = ["s", "{set_args}", "{set_args}"]', "given twice"),
        ('[server]\ncommand = ["s", "--key", "{api_key}"]', "server.api_key_env: is missing"),
        ('[server]\ncommand = ["s\\u0000"]', "NUL"),
        (MINIMAL + 'home = "/h\\u0000"', "home: contains a NUL byte"),
        (MINIMAL + 'user = "u\\u0000"', "user: contains a NUL byte"),
        (MINIMAL + '[server.env]\nA = "\\u0000"', "server.env.A: contains a NUL byte"),
        (MINIMAL + '[server.env]\n"A=B" = "x"', "the key 'A=B' does not match"),
        (MINIMAL + '[server.env]\n"" = "x"', "the key '' does not match"),
        (MINIMAL + "ready_timeout = " + "9" * 400, "64 bits"),
        ('[server]\nmode = "external"\ncommand = ["s"]', "server.restart_command: is missing"),
        ('[server]\ncommand = ["s"]\nrestart_command = ["r"]', "belongs to mode external"),
        ('[server]\ncommand = ["s"]\nurl = "http://x:99999"', "server.url:"),
        ('[server]\ncommand = ["s"]\nready = "health"', "server.ready:"),
        ("workload = 1\n" + MINIMAL, "workload: expected a table"),
        (MINIMAL + "[workload]\nx = 1", "workload.x: expected a table"),
        (MINIMAL + "[workload.w]\nprompts = 900000\noutput_len = 900000", "exceeds"),
        ("[server", "not TOML"),
        ("a = " + "[" * 5000, "not TOML"),
    ],
)
def test_broken_profiles(text, fault):
    assert any(fault in found for found in faults(text)), faults(text)


def test_a_missing_or_binary_file_is_a_usage_error(tmp_path):
    with pytest.raises(UsageError, match="cannot read") as caught:
        load(tmp_path / "sm120patch.toml", python="p", prefix="q")
    assert "init" in (caught.value.hint or "")
    (tmp_path / "x.toml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UsageError, match="cannot read"):
        load(tmp_path / "x.toml", python="p", prefix="q")


@settings(max_examples=60, deadline=None)
@given(st.text(max_size=200))
def test_any_text_is_a_profile_or_a_usage_error(text):
    for candidate in (text, "[server]\ncommand = " + text, MINIMAL + text):
        with contextlib.suppress(UsageError):
            read(candidate)


def test_gaps_are_filled_from_the_policy_of_the_sets():
    profile = read(MINIMAL + "[workload.a]\nrepeats = 7\n[workload.b]\n[verify]\nmargin = 0.0")
    blocks, margin, workloads = profile.with_policy(VerificationPolicy(blocks=4, repeats=5))
    assert (blocks, margin, [w.repeats for w in workloads]) == (4, 0.0, [7, 5])
    own = read(MINIMAL + "[verify]\nblocks = 3")
    assert own.with_policy(VerificationPolicy())[0] == 3
    assert own.with_policy(VerificationPolicy(margin=0.1))[1] == 0.1


def test_the_digest_follows_what_shapes_the_evidence_and_nothing_else():
    base = read(MINIMAL)
    same = ('log = "/x.log"', "ready_timeout = 5", 'cwd = "/srv"')
    other = ('url = "http://127.0.0.1:1"', 'kind = "rehearsal"', 'user = "x"',
             '[server.env]\nA = "1"', "[verify]\nseed = 2",
             "[workload.w]\nconcurrency = 3")  # fmt: skip
    assert all(read(MINIMAL + line).digest == base.digest for line in same)
    assert len({base.digest, *(read(MINIMAL + line).digest for line in other)}) == 1 + len(other)
    elsewhere = parse(MINIMAL, origin="other", python="/p", prefix="/q")
    assert elsewhere.digest == base.digest


# --- template ----------------------------------------------------------------------------------


def test_the_generic_template_loads(tmp_path):
    path = tmp_path / "sm120patch.toml"
    path.write_text(template())
    profile = load(path, python="/env/bin/python", prefix="/env")
    assert profile.workloads == DEFAULT_WORKLOADS
    assert profile.server.kind is EvidenceKind.REAL
    assert profile.server.command[-1] == "{set_args}"


def test_the_template_of_a_running_server_keeps_its_words_and_drops_its_secrets():
    command = ["/opt/venv/bin/python3.11", "-m", "sglang.launch_server", "--model-path", "/m odel",
               "--api-key", "sk-topsecret-topsecret", "--admin-api-key=hunter2", "--port", "31000",
               "--json-model-override-args", '{"a": "b\\\\c"}',
               "--max-total-tokens", "5"]  # fmt: skip
    environ = {"HF_TOKEN": "hf_abcdefghijklmnopqrst", "SGLANG_NOTE": 'quo"te \\ \x7f \n ü',
               "HOME": "/root", "CUDA_VISIBLE_DEVICES": "0,1"}  # fmt: skip
    text = template(command, environ, cwd="/srv", user="sglang", home="/home/sglang")
    for secret in ("topsecret", "hunter2", "hf_abcdef"):
        assert secret not in text
    hidden = redact_arguments(command), redact_environment(environ)
    assert template(*hidden, cwd="/srv", user="sglang", home="/home/sglang") == text
    profile = read(text)
    words = profile.server.command
    assert words[0] == "{python}" and profile.server.port == 31000
    assert words[words.index("--json-model-override-args") + 1] == '{"a": "b\\\\c"}'
    assert words[words.index("--max-total-tokens") + 1] == "5"
    assert words[words.index("--api-key") + 1] == "{api_key}" and profile.server.api_key_env
    assert profile.server.env == {
        "SGLANG_NOTE": environ["SGLANG_NOTE"], "CUDA_VISIBLE_DEVICES": "0,1"}  # fmt: skip
    assert (profile.server.cwd, profile.server.user) == ("/srv", "sglang")


@settings(max_examples=60, deadline=None)
@given(
    # A word that is a placeholder of nobody's is a fault of a profile, wherever it comes from.
    st.lists(st.text(max_size=20).filter(lambda w: not re.search(r"\{[a-z_]+\}", w)), max_size=8),
    st.dictionaries(st.text(max_size=8).map("SGLANG_".__add__), st.text(max_size=20), max_size=4),
)
def test_the_template_of_any_command_line_loads(words, environ):
    profile = read(template(["python", *words], environ))
    assert profile.server.command[0] == "{python}"
    assert len(profile.server.command) == len(words) + 2


# --- arms --------------------------------------------------------------------------------------


def test_the_arms_differ_by_the_options_of_the_sets_only():
    profile = read(f"""
        [server]
        command = ["{{python}}", "-m", "x", "{FLAG}", "--port", "{{port}}", "{{set_args}}", "--end"]
        url = "http://127.0.0.1:31000"
        [server.env]
        P = "{{prefix}}/lib"
        SWITCH = "old"
    """)
    launch = Launch((FLAG,), {"SWITCH": "1"}, {FLAG: 0}, ("OTHER",))
    both = arms(profile, launch)
    common = ("/env/bin/python", "-m", "x", "--port", "31000")
    assert both.baseline.argv == (*common, "--end")
    assert both.patched.argv == (*common, FLAG, "--end")
    assert both.baseline.env == {"P": "/env/lib"}
    assert both.patched.env == {"P": "/env/lib", "SWITCH": "1"}
    assert set(both.baseline.unset) == {"SWITCH", "OTHER"}
    assert both.patched.unset == ("OTHER",)
    assert both.of(Arm.PATCHED) is both.patched


def test_what_other_sets_on_disk_need_goes_to_both_arms():
    profile = read('[server]\ncommand = ["serve", "--other", "--flag", "{set_args}"]')
    base = Launch(("--other",), {"O": "1"}, {"--other": 0})
    launch = Launch(("--flag",), {"F": "1"}, {"--flag": 0})
    both = arms(profile, launch, base)
    assert both.baseline.argv == ("serve", "--other") and both.baseline.env == {"O": "1"}
    assert both.patched.argv == ("serve", "--other", "--flag")
    assert both.patched.env == {"O": "1", "F": "1"}
    assert not adds_nothing(launch, base) and not adds_nothing(Launch(), base)
    assert adds_nothing(base, base)
    assert arms(profile, base, base).patched == arms(profile, base, base).baseline


def test_without_a_placeholder_the_options_go_to_the_end():
    both = arms(read(MINIMAL), Launch(("--a", "1")))
    assert both.baseline.argv == ("serve",) and both.patched.argv == ("serve", "--a", "1")


def test_home_and_workspace_reach_the_server():
    profile = read(MINIMAL + 'home = "/h"\nworkspace = "/w"')
    env = arms(profile, Launch()).baseline.env
    assert env == {"HOME": "/h", "FLASHINFER_WORKSPACE_BASE": "/w"}


def test_an_external_server_gets_options_and_variables_through_its_command():
    text = '[server]\nmode = "external"\nrestart_command = ["restart", "{set_env}", "{set_args}"]'
    both = arms(read(text), Launch(("--a",), {"X": "1"}))
    assert both.baseline.argv == ("restart",)
    assert both.patched.argv == ("restart", "X=1", "--a") and both.patched.env == {}


def test_an_external_server_that_cannot_get_the_options_is_refused():
    text = '[server]\nmode = "external"\nrestart_command = ["restart"]'
    arms(read(text), Launch())
    with pytest.raises(UsageError, match="set_args") as caught:
        arms(read(text), Launch(("--a",), {"X": "1"}))
    assert "{set_env}" in caught.value.message


@pytest.mark.parametrize(
    ("command", "kept"),
    [
        ("a --flag b", "a b"),
        ("a --two 1 2 b", "a b"),
        ("a --one=5 b", "a b"),
        ("a --one 5 b", "a b"),
        ("a --one --other b", "a --other b"),
        ("a --one", "a"),
        ("a --two 1 {set_args} b", "a {set_args} b"),
        ("a --flagged --onerous=5", "a --flagged --onerous=5"),
        ("--flag --flag x", "x"),
    ],
)
def test_options_are_stripped_with_their_values(command, kept):
    strip = {"--flag": 0, "--one": 1, "--two": 2}
    assert list(strip_options(command.split(), strip)) == kept.split()


@pytest.mark.parametrize(
    ("name", "secret"),
    [("--api-key", True), ("HF_TOKEN", True), ("AWS_SECRET_ACCESS_KEY", True),
     ("DB_PASSWORD", True),
     ("--max-total-tokens", False), ("--tokenizer-path", False), ("--ssl-keyfile", False),
     ("SGLANG_PORT", False)],
)  # fmt: skip
def test_names_of_secrets(name, secret):
    assert is_secret_name(name) is secret


def test_shown_command_lines_hide_secrets():
    shown = redact_arguments(["s", "--api-key", "abc", "--token=def", "http://u:p@host/", "--n",
                    "5", "hf_abcdefghijklmnopqrstuv", "--api-key", "{api_key}"])  # fmt: skip
    joined = " ".join(shown)
    assert not any(word in joined for word in ("abc", "def", "u:p"))
    assert shown[-1] == "{api_key}" and "--n 5" in joined
    profile = read(MINIMAL + '[server.env]\nMY_TOKEN = "abc"')
    assert "abc" not in arms(profile, Launch()).baseline.shown


def test_the_interpreter_of_the_tool_is_a_placeholder_too():
    profile = read('[server]\ncommand = ["{tool_python}"]')
    assert arms(profile, Launch()).baseline.argv == (sys.executable,)


# --- schedule ----------------------------------------------------------------------------------


def letters(schedule: Schedule) -> str:
    return "".join({Arm.BASELINE: "A", Arm.PATCHED: "B"}[arm] for arm in schedule.order)


def test_the_order_alternates_so_that_a_drift_hits_both_arms():
    assert [letters(Schedule(1, n, False)) for n in (1, 2, 3)] == ["AB", "ABBA", "ABBAAB"]
    assert letters(Schedule(1, 2, False, "ABAB")) == "ABAB"
    assert letters(Schedule(1, 2, True)) == "AABBA", "the baseline against itself comes first"


def test_a_dear_restart_swaps_less_often():
    assert style_for(ready=180, measuring=400) == "ABBA"
    assert style_for(ready=20, measuring=400) == "ABAB"


def test_pairs_are_complete_without_the_null_run():
    schedule = Schedule(2, 3, True)
    pairs = [schedule.pairs(schedule.order[:n]) for n in range(8)]
    assert pairs == [0, 0, 0, 1, 1, 2, 2, 3]
    assert [schedule.look(n, 1).number for n in range(4)] == [0, 0, 1, 2]
    assert schedule.look(3, 4).looks == 2 and schedule.look(3, 4).workloads == 4


def test_the_schedule_is_made_from_profile_and_policy():
    policy = VerificationPolicy(blocks=2)
    plain = schedule_for(read(MINIMAL), policy, known=False)
    assert (plain.least, plain.most, plain.null) == (2, 10, True)
    assert not schedule_for(read(MINIMAL), policy, known=True).null
    asked = read(MINIMAL + "[verify]\nblocks = 1\nnull_run = true")
    assert schedule_for(asked, policy, known=True) == Schedule(1, 1, True)


def test_the_estimate_grows_with_starts_and_is_short_for_a_simulated_server():
    policy = VerificationPolicy()
    real = estimate(read(MINIMAL), policy, 4)
    assert real > 600
    assert estimate(read(MINIMAL), policy, 8) == pytest.approx(2 * real)
    assert estimate(read(MINIMAL + 'kind = "simulated"'), policy, 4) < 120


def test_noise_belongs_to_server_client_and_load():
    base = read(MINIMAL + "[workload.a]\n")
    key = base.noise_key(base.workloads[0])
    same = read(MINIMAL + "[workload.b]\nrepeats = 9\n[verify]\nblocks = 3\nseed = 5")
    assert same.noise_key(same.workloads[0]) == key, "its name and how often it runs do not matter"
    for other in (
        MINIMAL + "[workload.a]\nconcurrency = 2",
        MINIMAL + "[server.env]\nX = '1'\n[workload.a]\n",
        MINIMAL + '[workload.a]\n[verify]\nendpoint = "openai"',
        MINIMAL + '[workload.a]\n[driver]\nkind = "bench_serving"',
    ):
        profile = read(other)
        assert profile.noise_key(profile.workloads[0]) != key, other
