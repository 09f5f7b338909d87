//! The AppArmor profile of containers whose spec names none.

/// The profile's name, as the kernel and `/proc/PID/attr/current` show it.
pub const DEFAULT_PROFILE: &str = "knarr-default";

/// Folders of the kernel and of drivers in /proc, without those of processes.
const PROC_FOLDERS: &str = "acpi,asound,bus,driver,dynamic_debug,fs,irq,scsi,sysvipc,tty";
/// All folders of /sys except `fs`, because cgroups may be written if they are mounted so.
const SYS_FOLDERS: &str = "block,bus,class,dev,devices,firmware,hypervisor,kernel,module,power";

/// Returns the profile in the language of apparmor.d(5). It has the effect of containerd's and Docker's: a
/// container may do what its capabilities and mounts permit, but it may not mount, may not write to the
/// machine's parts of /proc and /sys, and may exchange signals and ptrace only with processes under the same
/// profile. `own` is the profile of the server itself, which kills containers and reads their /proc.
pub fn text(own: Option<&str>) -> String {
    let own = own.map_or(String::new(), |name| {
        format!("\n  signal (receive) peer=\"{name}\",\n  ptrace (readby) peer=\"{name}\",")
    });
    format!(
        "profile {DEFAULT_PROFILE} flags=(attach_disconnected,mediate_deleted) {{
  file,
  network,
  capability,
  umount,
  deny mount,

  # The host's processes, and OCI runtimes where they have profiles of their own.
  signal (receive) peer=unconfined,
  signal (receive) peer=runc,
  signal (receive) peer=crun,{own}
  signal (send, receive) peer={DEFAULT_PROFILE},
  ptrace (trace, read, tracedby, readby) peer={DEFAULT_PROFILE},

  # Files directly in /proc, and the folders that are no process's.
  deny /proc/* w,
  deny /proc/{{{PROC_FOLDERS}}}/** w,
  deny /proc/kcore rwklx,
  deny /proc/sysrq-trigger rwklx,
  # Of the sysctls, System V shared memory's may be written.
  deny /proc/sys/[^k]** w,
  deny /proc/sys/kernel/{{[^s],s[^h],sh[^m]}}** w,

  deny /sys/{{{SYS_FOLDERS}}}/** wklx,
  deny /sys/fs/{{[^c],c[^g],cg[^r]}}** wklx,
  deny /sys/firmware/** r,
  deny /sys/kernel/security/** r,
  deny /sys/devices/virtual/powercap/** r,
}}
"
    )
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::process::{Command, Stdio};

    use super::*;

    /// The parser reads a profile without AppArmor in the kernel; if it is not installed, only the text is
    /// checked.
    #[test]
    fn the_profile_parses() {
        let plain = text(None);
        assert!(plain.starts_with("profile knarr-default flags=") && !plain.contains("peer=\""), "{plain}");
        parses(&plain);
        let confined = text(Some("/usr/bin/knarr//odd name"));
        assert!(confined.contains("signal (receive) peer=\"/usr/bin/knarr//odd name\","), "{confined}");
        parses(&confined);
    }

    fn parses(text: &str) {
        assert!(!text.contains("{{"), "{text}");
        assert_eq!(text.matches('{').count(), text.matches('}').count());
        let parser = Command::new("apparmor_parser")
            .args(["--skip-kernel-load", "--skip-cache", "--debug"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn();
        let Ok(mut parser) = parser else { return };
        parser.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
        let output = parser.wait_with_output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }
}
