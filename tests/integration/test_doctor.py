"""`lanectl doctor` against a real supervisord: each fault is found, named, and no other is."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from lanectl.adapters.procfs import boot_id, process
from lanectl.adapters.store_sql import open_store
from lanectl.core.lane import Revision, digest
from lanectl.demo.rig import Rig
from lanectl.ports import Sighting

Said = dict[str, Any]


class Report:
    """What doctor said: by check, of the lane and of the host."""

    def __init__(self, rig: Rig, *words: str) -> None:
        done = rig.run("doctor", "--json", *words)
        self.exit, self.stderr = done.returncode, done.stderr
        assert done.stdout, done.stderr
        self.document: list[Said] = json.loads(done.stdout)
        self.said = [check for entry in self.document for check in entry["checks"]]

    def of(self, code: str) -> list[Said]:
        return [check for check in self.said if check["check"] == code]

    def worst(self, code: str) -> str:
        """The severity that stands first; "" where the check said nothing."""
        return next((check["severity"] for check in self.of(code)), "")

    def with_severity(self, severity: str) -> set[str]:
        return {check["check"] for check in self.said if check["severity"] == severity}


def started(rig: Rig) -> Rig:
    rig.wait_listening()
    wait_for(lambda: rig.program()["statename"] == "RUNNING")
    return rig


def wait_for(what: Callable[[], bool], seconds: float = 8.0) -> None:
    until = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < until, "it did not come about in time"
        time.sleep(0.02)


def adopted(rig: Rig, *, quarantined: str | None = None) -> None:
    """Record the deployed launcher and the running process, as `adopt` does."""
    text = rig.launcher.read_bytes()
    sha256 = digest(text)
    store = open_store(f"sqlite:///{rig.folder}/lanectl.db")
    store.adopt(Revision("demo", sha256, "adopted", sha256, text), datetime.now(UTC))
    main = process(rig.program()["pid"])
    assert main is not None
    store.see("demo", Sighting(main.pid, main.started, boot_id(), sha256))
    store.set_quarantine("demo", quarantined)
    store.close()


@pytest.fixture(scope="module")
def shared() -> Iterator[Rig]:
    """A healthy lane, set up as doctor asks for."""
    with Rig(autorestart="true", startsecs=1, stopwaitsecs=60) as rig:
        started(rig)
        adopted(rig)
        yield rig


@pytest.fixture
def healthy(shared: Rig) -> Iterator[Rig]:
    """The same, with its files put back afterwards."""
    text = shared.launcher.read_bytes()
    info = shared.launcher.stat()
    yield shared
    shared.folder.chmod(0o700)
    shared.launcher.unlink(missing_ok=True)
    shared.write_launcher(text)
    os.utime(shared.launcher, ns=(info.st_atime_ns, info.st_mtime_ns))
    shared.write_config()


def test_healthy_lane_has_no_error_and_nothing_but_the_gpu_is_unknown(shared: Rig) -> None:
    report = Report(shared)
    assert report.exit == 0, report.stderr
    assert report.with_severity("error") == set()
    # Another lane on this machine, a test's say, may have left an engine behind just now.
    assert report.with_severity("warning") <= {"orphans"}
    unknown = [said for said in report.said if said["severity"] == "unknown"]
    assert {said["check"] for said in unknown} <= {"gpu"}, unknown
    assert [entry["lane"] for entry in report.document] == ["demo", None]
    for said in report.said:
        assert set(said) == {"check", "severity", "message", "mend", "source"}
        assert said["check"] == said["check"].lower().replace("_", "-")
        assert said["message"]
        if said["severity"] in ("error", "warning"):
            assert said["mend"], said
    asked = {
        *("stopasgroup", "killasgroup", "stopwaitsecs", "launcher-mode", "launcher-owner"),
        *("launcher-folder", "port-owner", "tool-call-flags", "version", "gpu", "log-unlinked"),
        *("store", "config-file", "supervisord", "program", "autorestart", "drift", "orphans"),
    }
    assert asked <= {said["check"] for said in report.said}
    assert Report(shared, "demo").document[0]["lane"] == "demo"


def test_text_shows_errors_first_and_counts_what_is_well(healthy: Rig) -> None:
    healthy.launcher.chmod(0o666)
    done = healthy.run("doctor")
    lines = done.stdout.splitlines()
    assert done.returncode == 6
    assert lines[0].startswith("lane demo: 2 error, ") and lines[0].endswith(" ok")
    assert lines[1].split()[:2] == ["error", "launcher-mode"]
    assert lines[2].strip() == f"-> chmod +x {healthy.launcher}"
    assert not any(line.split()[:1] == ["ok"] for line in lines)
    everything = healthy.run("doctor", "--all").stdout.splitlines()
    assert any(line.split()[:1] == ["ok"] for line in everything)


def edited(old: str, new: str) -> Callable[[Rig], None]:
    def edit(rig: Rig) -> None:
        text = rig.launcher.read_text()
        assert old in text
        rig.write_launcher(text.replace(old, new))

    return edit


def secret(mode: int) -> Callable[[Rig], None]:
    def write(rig: Rig) -> None:
        path = rig.folder / f"key-{mode:o}"
        path.write_text("secret\n")
        path.chmod(mode)
        rig.write_config(api_key_file=str(path))

    return write


def second_lane(rig: Rig) -> None:
    rig.write_config(
        extra='[lanes.twin]\nprogram = "bystander"\n'
        f'launcher = "{rig.launcher}"\nsupervisor = "{rig.supervisor}"\n'
        'api = "http://127.0.0.1:1/v1"\n'
    )


FAULTS: dict[str, tuple[Callable[[Rig], Any], str, str, str]] = {
    "no run bit": (lambda r: r.launcher.chmod(0o644), "launcher-mode", "error", "chmod +x"),
    "anyone writes": (lambda r: r.launcher.chmod(0o757), "launcher-mode", "error", "chmod o-w"),
    "group writes": (lambda r: r.launcher.chmod(0o775), "launcher-mode", "warning", "chmod g-w"),
    "open folder": (lambda r: r.folder.chmod(0o777), "launcher-folder", "error", "chmod o-w"),
    "no launcher": (lambda r: r.launcher.unlink(), "launcher", "error", "correct `launcher`"),
    "crlf": (edited("\n", "\r\n"), "launcher-crlf", "error", "sed -i"),
    "bad syntax": (edited("exec vllm", "if exec vllm"), "launcher-syntax", "error", "rollback"),
    "changed by hand": (edited("# Serves", "# serves"), "drift", "error", "--accept-drift"),
    "newer": (edited("# Serves", "# serves"), "launcher-newer", "warning", "lanectl restart"),
    "other command": (
        edited("--max-num-seqs 8", "--max-num-seqs 4"),
        "running-command",
        "error",
        "lanectl restart demo",
    ),
    "in background": (edited("exec vllm", "vllm"), "launcher-no-exec", "warning", "Put `exec`"),
    "other port": (
        edited("--port", "--port 9 --port-x"),
        "launcher-port",
        "error",
        "correct `api`",
    ),
    "open key": (secret(0o644), "secret-files", "error", "chmod 600"),
    "group's key": (secret(0o640), "secret-files", "warning", "chmod 600"),
    "no key": (
        lambda r: r.write_config(api_key_file=str(r.folder / "gone")),
        "secret-files",
        "error",
        "0600",
    ),
    "password in the configuration": (
        lambda r: r.write_config(api=f"http://me:s3cret@127.0.0.1:{r.port}/v1"),
        "config-file",
        "error",
        "chmod 600",
    ),
    "writable configuration": (lambda r: r.config.chmod(0o666), "config-file", "error", "o-w"),
    "wrong model": (lambda r: r.write_config(model="x"), "model", "error", 'model = "demo"'),
    "wrong program": (
        lambda r: r.write_config(program="lan"),
        "program",
        "error",
        "set program to one of: lane",
    ),
    "other program": (
        lambda r: r.write_config(program="bystander"),
        "runs-this-launcher",
        "error",
        "command=",
    ),
    "two lanes on one launcher": (second_lane, "lanes-apart", "error", "of its own"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_fault_is_found(healthy: Rig, fault: str) -> None:
    do, code, severity, mend = FAULTS[fault]
    do(healthy)
    report = Report(healthy)
    assert report.worst(code) == severity, report.of(code)
    assert any(mend in said["mend"] for said in report.of(code)), report.of(code)
    assert report.exit == (6 if report.with_severity("error") else 0)
    assert "s3cret" not in json.dumps(report.document)


def test_supervisor_settings_that_leave_orphans() -> None:
    with Rig(exec_launcher=False, stopasgroup=False, killasgroup=False) as rig:
        started(rig)
        report = Report(rig)
    assert report.exit == 6
    assert {"stopasgroup", "killasgroup", "launcher-no-exec"} <= report.with_severity("error")
    assert "`stopasgroup=true` into [program:lane]" in report.of("stopasgroup")[0]["mend"]
    assert report.worst("autorestart") == "warning"
    assert report.of("autorestart")[0]["source"] == "vllm#48966"


def test_arguments_shell_and_environment_that_override_the_launcher(tmp_path: Path) -> None:
    launcher = tmp_path / "serve-lane.sh"
    rig = Rig(tmp_path, env={"SEQS": "2"}, command=f"bash {launcher} 4")
    rig.write_launcher(
        rig.launcher_text(max_num_seqs=8)
        .replace("--max-num-seqs 8", '--max-num-seqs "$SEQS"')
        .replace("\n\n", '\nSEQS="${SEQS:-8}"\nX="${1:-1}"\n\n', 1)
    )
    rig.launcher.chmod(0o644)
    with rig:
        started(rig)
        report = Report(rig)
    assert report.worst("runs-this-launcher") == "ok"
    assert report.worst("launcher-mode") == "ok", "bash needs no run bit"
    assert report.worst("command-shell") == "info"
    assert report.worst("command-arguments") == "warning"
    assert (
        report.worst("environment") == "warning" and "SEQS" in report.of("environment")[0]["mend"]
    )


def test_unlinked_log() -> None:
    with Rig() as rig:
        started(rig)
        assert Report(rig).worst("log-unlinked") == "ok"
        rig.lane_log.unlink()
        report = Report(rig)
        assert report.worst("log-unlinked") == "error"
        assert "lanectl repair demo reopen-log" in report.of("log-unlinked")[0]["mend"]


def test_stopped_program_is_judged_by_its_files() -> None:
    with Rig() as rig:
        rig.write_launcher(rig.launcher_text().replace("  --tool-call-parser hermes \\\n", ""))
        # Up first: a stop in the midst of its failed first starts can take supervisord's patience.
        rig.wait_listening(30.0)
        with rig.rpc(timeout_s=30.0) as supervisord:
            supervisord.supervisor.stopProcess("lane")
        report = Report(rig)
    assert report.worst("program-state") == "warning"
    assert report.worst("port-owner") == "ok"
    assert report.worst("tool-call-flags") == "error"
    assert "--tool-call-parser" in report.of("tool-call-flags")[0]["message"]
    assert {"health", "model", "metrics", "version"} <= report.with_severity("unknown")


def test_dead_program_names_its_cause() -> None:
    with Rig(env={"STANDIN_MODE": "crash-start"}, startretries=0, startsecs=1) as rig:
        wait_for(lambda: rig.program()["statename"] == "FATAL")
        report = Report(rig)
    assert report.worst("program-state") == "error"
    assert "rror" in report.of("program-state")[0]["message"]


def test_orphan_is_proven_by_its_group_and_never_ended() -> None:
    with Rig(env={"STANDIN_MODE": "orphans-port"}, autorestart="false") as rig:
        started(rig)
        adopted(rig)
        server = rig.program()["pid"]
        engine = next(p for p in rig.alive() if p != server and os.getpgid(p) == server)
        assert Report(rig).worst("orphans") != "error"
        os.kill(server, signal.SIGKILL)
        wait_for(lambda: rig.program()["statename"] == "EXITED")
        report = Report(rig)
        assert report.worst("orphans") == "error"
        assert f"pid {engine} " in report.of("orphans")[0]["message"]
        assert "reap-orphans" in report.of("orphans")[0]["mend"]
        assert report.worst("port-owner") == "error"
        assert engine in rig.alive()


def test_supervisord_down_leaves_all_other_checks() -> None:
    with Rig() as rig:
        started(rig)
        os.kill(rig.pid, signal.SIGKILL)
        wait_for(lambda: Report(rig).worst("supervisord") == "error")
        report = Report(rig)
    assert report.exit == 6
    assert report.with_severity("error") == {"supervisord"}
    assert {"program", "stopasgroup", "autorestart", "port-owner"} <= report.with_severity(
        "unknown"
    )
    assert report.worst("health") == "ok" and report.worst("launcher-syntax") == "ok"
    assert all(said["message"] for said in report.said)


def test_nothing_readable_is_no_error_but_could_not_tell(healthy: Rig) -> None:
    link, twice = healthy.folder / "link", healthy.folder / "twice"
    for path, target in ((link, healthy.launcher), (twice, link)):
        path.unlink(missing_ok=True)
        path.symlink_to(target)
    healthy.write_config(
        launcher=str(twice), supervisor="unix:///nowhere.sock", api="http://127.0.0.1:1/v1"
    )
    assert Report(healthy).exit == 7


def test_broken_store_is_told_and_the_rest_still_checked(tmp_path: Path) -> None:
    with Rig(tmp_path) as rig:
        started(rig)
        assert Report(rig).worst("store") == "info", "none yet, and doctor makes none"
        assert not (tmp_path / "lanectl.db").exists()
        (tmp_path / "lanectl.db").write_text("no database at all, but long enough to be one" * 99)
        report = Report(rig)
    assert report.exit == 6
    assert report.with_severity("error") == {"store"}
    assert {"drift", "standing"} <= report.with_severity("unknown")
    assert report.worst("port-owner") == "ok"


def test_quarantine_and_key_refused() -> None:
    with Rig(env={"STANDIN_MODE": "unauthorized,no-metrics"}) as rig:
        started(rig)
        adopted(rig, quarantined="floods")
        report = Report(rig)
    assert report.worst("standing") == "warning"
    assert "lanectl release demo" in report.of("standing")[0]["mend"]
    assert report.worst("api-key") == "error" and "api_key_file" in report.of("api-key")[0]["mend"]
    assert report.worst("metrics") == "warning"
    assert report.worst("speculation") == "unknown"


class TwoPrograms(Rig):
    """A rig whose supervisord knows another program on the same launcher."""

    def _write_supervisor_config(self) -> Path:
        path = super()._write_supervisor_config()
        more = f"[program:twin]\ncommand={self.launcher}\nautostart=false\n"
        path.write_text(path.read_text() + more)
        return path


def test_other_program_on_the_same_launcher() -> None:
    with TwoPrograms() as rig:
        started(rig)
        report = Report(rig)
    said = report.of("shared-with-other-programs")
    assert [one["severity"] for one in said] == ["error"] and "twin" in said[0]["message"]


def test_lane_that_does_not_exist_is_a_usage_error(healthy: Rig) -> None:
    done = healthy.run("doctor", "nobody")
    assert done.returncode == 2 and "nobody" in done.stderr
