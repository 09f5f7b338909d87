//! Adds a shell to an image: the machine's busybox with all its applets, or its `/bin/sh` and a few tools.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::{BuildError, ImageBuild};

const DIRS: [&str; 6] = ["/bin", "/usr/bin", "/sbin", "/usr/sbin", "/usr/local/bin", "/usr/local/sbin"];
const MAX_APPLETS: usize = 2000;
/// The tools that examples, probes and interactive users need.
const TOOLS: [&str; 24] = [
    "cat", "chmod", "cp", "date", "df", "echo", "env", "false", "head", "hostname", "id", "ls", "mkdir",
    "mv", "printenv", "ps", "pwd", "rm", "sleep", "tail", "test", "touch", "true", "wc",
];

/// Finds a program by name in the usual folders.
pub fn find_program(name: &str) -> Option<PathBuf> {
    DIRS.iter().map(|dir| Path::new(dir).join(name)).find(|path| path.is_file())
}

pub fn find_busybox() -> Option<PathBuf> {
    find_program("busybox")
}

impl ImageBuild {
    /// Adds busybox at `/bin/busybox` and a link for each of its applets. Runs busybox to list them; blocks.
    pub fn busybox(mut self, host: &Path) -> Result<ImageBuild, BuildError> {
        for applet in applets(host)? {
            if applet != "/bin/busybox" {
                self = self.symlink(&applet, "/bin/busybox");
            }
        }
        Ok(self.program(host, "/bin/busybox"))
    }

    /// Adds `/bin/sh` and everyday tools: busybox if the machine has it, otherwise the machine's own tools.
    /// Blocks.
    pub fn shell(mut self) -> Result<ImageBuild, BuildError> {
        if let Some(busybox) = find_busybox() {
            return self.busybox(&busybox);
        }
        let shell = find_program("sh").ok_or_else(|| BuildError::NoProgram("/bin/sh".to_owned()))?;
        self = self.program(shell, "/bin/sh");
        for tool in TOOLS {
            if let Some(host) = find_program(tool) {
                self = self.program(host, &format!("/bin/{tool}"));
            }
        }
        Ok(self)
    }
}

/// Returns the absolute paths of the applets, for example `/usr/bin/wc`.
fn applets(busybox: &Path) -> Result<Vec<String>, BuildError> {
    let output = Command::new(busybox)
        .arg("--list-full")
        .env_clear()
        .stdin(Stdio::null())
        .output()
        .map_err(BuildError::io("run", busybox))?;
    let text = String::from_utf8_lossy(&output.stdout);
    let applets: Vec<String> = text
        .lines()
        .map(str::trim)
        .filter(|line| {
            !line.is_empty()
                && line.bytes().all(|c| c.is_ascii_graphic())
                && !line.split('/').any(|p| p == "..")
        })
        .take(MAX_APPLETS)
        // Some applets are in the root folder (linuxrc).
        .map(|line| format!("/{}", line.trim_start_matches('/')))
        .collect();
    if !output.status.success() || !applets.iter().any(|a| a == "/bin/sh") {
        return Err(BuildError::Busybox { path: busybox.to_owned() });
    }
    Ok(applets)
}
