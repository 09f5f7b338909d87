//! The limits of open files of a server and of a pod's shim, read off the processes themselves.

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// The soft and the hard limit of a process.
fn limits(pid: u32) -> Option<(String, String)> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/limits")).ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("Max open files"))?;
    let mut fields = line.split_whitespace().map(str::to_owned);
    Some((fields.next()?, fields.next()?))
}

/// Starts the program with a low soft limit and waits until its limits are as expected.
fn expect(arguments: &str, soft: &str, expected: impl Fn(&str, &str) -> bool) {
    let script = format!("ulimit -S -n {soft} && exec \"$0\" {arguments}");
    let mut child = Command::new("sh")
        .args(["-c", &script, env!("CARGO_BIN_EXE_knarr")])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let deadline = Instant::now() + Duration::from_secs(20);
    let mut last = None;
    while Instant::now() < deadline {
        last = limits(child.id()).or(last);
        if last.as_ref().is_some_and(|(soft, hard)| expected(soft, hard)) {
            break;
        }
        std::thread::yield_now();
    }
    // Ended, or to be ended.
    let _ = child.kill();
    let _ = child.wait();
    assert!(last.as_ref().is_some_and(|(soft, hard)| expected(soft, hard)), "{arguments}: {last:?}");
}

#[test]
fn a_server_raises_its_limit() {
    let folder = std::env::temp_dir().join(format!("knarr-open-files-{}", std::process::id()));
    let arguments = format!("server --disable-node --port 0 --data-dir {}", folder.display());
    expect(&arguments, "512", |soft, hard| soft == hard && soft != "512");
    let _ = std::fs::remove_dir_all(folder);
}
