//! Runs one plugin: a program that reads JSON and answers with JSON.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Output, Stdio};
use std::time::Duration;

use nix::sys::resource::{Resource, getrlimit};
use nix::sys::statfs::{NSFS_MAGIC, PROC_SUPER_MAGIC, statfs};
use serde_json::Value;
use thiserror::Error;
use tokio::io::AsyncWriteExt;

/// The same time as a container runtime has for a whole sandbox.
const TIMEOUT: Duration = Duration::from_secs(120);

/// An operation of the specification.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Command {
    Add,
    Del,
}

impl Command {
    fn name(self) -> &'static str {
        match self {
            Self::Add => "ADD",
            Self::Del => "DEL",
        }
    }

    /// Returns the command's name in errors.
    pub fn shown(self) -> &'static str {
        match self {
            Self::Add => "add",
            Self::Del => "delete",
        }
    }
}

/// Why a plugin failed, with the plugin's own message if it gave one.
#[derive(Debug, Error)]
pub enum PluginError {
    #[error("failed to find plugin {kind:?} in path [{}]", shown(paths))]
    NotFound { kind: String, paths: Vec<PathBuf> },
    #[error("cannot run {}: {source}", path.display())]
    Run { path: PathBuf, source: std::io::Error },
    #[error("no answer within {} s", TIMEOUT.as_secs())]
    Timeout,
    /// The message of the plugin's error result, with its details if there are any.
    #[error("{0}")]
    Said(String),
    #[error("netplugin failed with no error message: {0}")]
    Silent(String),
    #[error("netplugin failed: {0:?}")]
    Stderr(String),
    #[error("netplugin failed but error parsing its diagnostic message {text:?}: {source}")]
    Diagnostic { text: String, source: serde_json::Error },
    #[error("error parsing its result {text:?}: {source}")]
    Result { text: String, source: serde_json::Error },
}

fn shown(paths: &[PathBuf]) -> String {
    paths.iter().map(|p| p.display().to_string()).collect::<Vec<_>>().join(" ")
}

/// Finds the program with that name.
pub fn find(kind: &str, paths: &[PathBuf]) -> Result<PathBuf, PluginError> {
    let path = paths.iter().map(|folder| folder.join(kind)).find(|path| path.is_file());
    path.ok_or_else(|| PluginError::NotFound { kind: kind.to_owned(), paths: paths.to_vec() })
}

/// The environment of a plugin's call.
pub struct Invocation<'a> {
    pub command: Command,
    pub container_id: &'a str,
    pub netns: &'a Path,
    pub interface: &'a str,
    pub arguments: &'a str,
    pub paths: &'a [PathBuf],
}

impl Invocation<'_> {
    /// Runs the program with that name and returns its answer, which is empty for [`Command::Del`].
    pub async fn run(&self, kind: &str, request: &Value) -> Result<Value, PluginError> {
        let path = find(kind, self.paths)?;
        let output = tokio::time::timeout(TIMEOUT, self.output(&path, request.to_string()))
            .await
            .map_err(|_| PluginError::Timeout)?
            .map_err(|source| PluginError::Run { path, source })?;
        if !output.status.success() {
            return Err(failure(&output));
        }
        if self.command == Command::Del {
            return Ok(Value::Null);
        }
        serde_json::from_slice(&output.stdout).map_err(|source| PluginError::Result {
            text: String::from_utf8_lossy(&output.stdout).into_owned(),
            source,
        })
    }

    async fn output(&self, path: &Path, request: String) -> std::io::Result<Output> {
        // A namespace that does not exist any more is not passed: the plugin then frees what it can without it.
        let gone = self.command == Command::Del && !is_namespace(self.netns);
        let netns = if gone { Path::new("") } else { self.netns };
        let paths = std::env::join_paths(self.paths).unwrap_or_else(|_| OsString::new());
        let mut child = tokio::process::Command::new(path)
            .env("CNI_COMMAND", self.command.name())
            .env("CNI_CONTAINERID", self.container_id)
            .env("CNI_NETNS", netns)
            .env("CNI_IFNAME", self.interface)
            .env("CNI_ARGS", self.arguments)
            .env("CNI_PATH", paths)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()?;
        if let Some(pid) = child.id() {
            usual_open_files(pid);
        }
        let mut stdin = child.stdin.take();
        let feed = async move {
            // A plugin may answer without reading its input.
            if let Some(stdin) = &mut stdin {
                let _ = stdin.write_all(request.as_bytes()).await;
            }
        };
        let (output, ()) = tokio::join!(child.wait_with_output(), feed);
        output
    }
}

/// The soft limit of open files that programs expect at their start.
const OPEN_FILES: libc::rlim_t = 1024;

/// Resets the plugin's soft limit of open files, because a server raises its own and its children inherit that.
/// It is set before the plugin gets its request, so that all processes that the plugin starts have the usual
/// limit.
fn usual_open_files(pid: u32) {
    let (Ok((_, hard)), Ok(pid)) = (getrlimit(Resource::RLIMIT_NOFILE), libc::pid_t::try_from(pid)) else {
        return;
    };
    let limit = libc::rlimit { rlim_cur: hard.min(OPEN_FILES), rlim_max: hard };
    // SAFETY: a plain system call that reads `limit`. It is harmless if the plugin has ended: the process id is
    // not reused until the child is waited for.
    unsafe { libc::prlimit(pid, libc::RLIMIT_NOFILE, &limit, std::ptr::null_mut()) };
}

/// Returns whether a namespace is mounted at the path, rather than the empty file that is the mount point.
fn is_namespace(path: &Path) -> bool {
    statfs(path).is_ok_and(|found| [NSFS_MAGIC, PROC_SUPER_MAGIC].contains(&found.filesystem_type()))
}

fn failure(output: &Output) -> PluginError {
    if output.stdout.is_empty() {
        let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        return if stderr.is_empty() {
            PluginError::Silent(output.status.to_string())
        } else {
            PluginError::Stderr(stderr)
        };
    }
    match serde_json::from_slice::<Value>(&output.stdout) {
        Ok(result) => {
            let text = |key: &str| result[key].as_str().unwrap_or("").to_owned();
            let (message, details) = (text("msg"), text("details"));
            PluginError::Said(if details.is_empty() { message } else { format!("{message}; {details}") })
        }
        Err(source) => {
            PluginError::Diagnostic { text: String::from_utf8_lossy(&output.stdout).into_owned(), source }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    async fn answer_of(script: &str) -> Result<Value, String> {
        use std::os::unix::fs::PermissionsExt;
        let folder = std::env::temp_dir().join(format!("knarr-cni-plugin-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let program = folder.join("net");
        std::fs::write(&program, format!("#!/bin/sh\n{script}\n")).unwrap();
        std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).unwrap();
        let invocation = Invocation {
            command: Command::Add,
            container_id: "c1",
            netns: Path::new("/run/netns/x"),
            interface: "eth0",
            arguments: "A=b",
            paths: &[PathBuf::from("/nowhere"), folder.clone()],
        };
        let answer = loop {
            // Another test's fork may briefly hold the script open for writing.
            match invocation.run("net", &json!({"cniVersion": "1.0.0"})).await {
                Err(PluginError::Run { source, .. }) if source.raw_os_error() == Some(libc::ETXTBSY) => {
                    tokio::task::yield_now().await;
                }
                other => break other,
            }
        };
        std::fs::remove_dir_all(&folder).unwrap();
        answer.map_err(|e| e.to_string())
    }

    #[test]
    fn a_namespace_is_told_from_a_file() {
        assert!(is_namespace(Path::new("/proc/self/ns/net")));
        assert!(!is_namespace(&std::env::current_exe().unwrap()));
        assert!(!is_namespace(Path::new("/nowhere")));
    }

    #[tokio::test]
    async fn answers_and_errors() {
        let script = r#"request=$(cat); printf '{"is": "%s %s %s %s %s", "read": %s}' \
            $CNI_COMMAND $CNI_CONTAINERID $CNI_NETNS $CNI_IFNAME $CNI_ARGS "$request""#;
        let answer = answer_of(script).await;
        assert_eq!(
            answer.unwrap(),
            json!({"is": "ADD c1 /run/netns/x eth0 A=b", "read": {"cniVersion": "1.0.0"}})
        );
        // The plugin's processes do not inherit a limit that the server raised for itself.
        let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
        nix::sys::resource::setrlimit(Resource::RLIMIT_NOFILE, hard, hard).unwrap();
        assert!(hard > OPEN_FILES, "the test needs a hard limit above {OPEN_FILES}");
        assert_eq!(answer_of("cat > /dev/null; ulimit -S -n").await.unwrap(), json!(OPEN_FILES));
        for (script, error) in [
            (
                r#"echo '{"code": 7, "msg": "no free address", "details": "10.0.0.0/30"}'; exit 1"#,
                "no free address; 10.0.0.0/30",
            ),
            (r#"echo '{"code": 7, "msg": "no free address"}'; exit 1"#, "no free address"),
            ("echo oh >&2; exit 1", "netplugin failed: \"oh\\n\""),
            ("exit 3", "netplugin failed with no error message: exit status: 3"),
        ] {
            assert_eq!(answer_of(script).await.unwrap_err(), error);
        }
        assert!(answer_of("echo no; exit 1").await.unwrap_err().contains("diagnostic message \"no\\n\""));
        assert!(answer_of("echo no").await.unwrap_err().contains("parsing its result \"no\\n\""));
        let nowhere = Invocation {
            command: Command::Del,
            container_id: "c1",
            netns: Path::new("/x"),
            interface: "eth0",
            arguments: "",
            paths: &[PathBuf::from("/nowhere"), PathBuf::from("/else")],
        };
        assert_eq!(
            nowhere.run("bridge", &json!({})).await.unwrap_err().to_string(),
            "failed to find plugin \"bridge\" in path [/nowhere /else]"
        );
    }
}
