//! The limits that a server sets for its own process, read from the process.

use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Returns the soft and the hard limit of a process's open files.
fn open_files(pid: u32) -> Option<(String, String)> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/limits")).ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("Max open files"))?;
    let mut fields = line.split_whitespace().map(str::to_owned);
    Some((fields.next()?, fields.next()?))
}

fn oom_score_adj(pid: u32) -> Option<String> {
    Some(std::fs::read_to_string(format!("/proc/{pid}/oom_score_adj")).ok()?.trim().to_owned())
}

/// A server without a node, started by a shell with a low soft limit of open files.
struct Server {
    child: Child,
    folder: std::path::PathBuf,
}

impl Server {
    fn start(name: &str) -> Self {
        let folder = std::env::temp_dir().join(format!("knarr-process-{}-{name}", std::process::id()));
        let script = format!(
            "ulimit -S -n 512 && exec \"$0\" server --disable-node --port 0 --data-dir {}",
            folder.display()
        );
        let child = Command::new("sh")
            .args(["-c", &script, env!("CARGO_BIN_EXE_knarr")])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        Self { child, folder }
    }

    /// Waits until the value that `read` returns is as expected.
    fn wait_for<T: std::fmt::Debug>(&self, read: impl Fn(u32) -> Option<T>, expected: impl Fn(&T) -> bool) {
        let deadline = Instant::now() + Duration::from_secs(20);
        let mut last = None;
        while Instant::now() < deadline {
            last = read(self.child.id()).or(last);
            if last.as_ref().is_some_and(&expected) {
                return;
            }
            std::thread::yield_now();
        }
        panic!("it is {last:?}");
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

#[test]
fn a_server_raises_its_limit_of_open_files() {
    Server::start("files").wait_for(open_files, |(soft, hard)| soft == hard && soft != "512");
}

#[test]
fn a_server_is_the_last_that_the_kernel_takes_for_memory() {
    let try_it = "echo -999 2>/dev/null > /proc/self/oom_score_adj";
    let may_lower = Command::new("sh").args(["-c", try_it]).stderr(Stdio::null()).status().unwrap().success();
    let own = oom_score_adj(std::process::id()).unwrap();
    let wanted = if may_lower { "-999".to_owned() } else { own };
    Server::start("memory").wait_for(oom_score_adj, |score| *score == wanted);
}
