//! The security modules that the host's kernel enforces.

use std::path::Path;

/// Read once when the kubelet starts: enabling or disabling a module requires a reboot.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct HostSecurity {
    pub app_armor: bool,
    pub se_linux: bool,
}

impl HostSecurity {
    pub fn read() -> Self {
        Self::below(Path::new("/"))
    }

    fn below(root: &Path) -> Self {
        let read = |path: &str| std::fs::read(root.join(path)).unwrap_or_default();
        let exists = |path: &str| root.join(path).exists();
        // Without a policy every process has the label `kernel`, and nothing is enforced.
        let label = read("proc/self/attr/current");
        let has_policy = label.split(|b| *b == 0 || *b == b'\n').next() != Some(b"kernel");
        Self {
            app_armor: exists("sys/kernel/security/apparmor")
                && read("sys/module/apparmor/parameters/enabled").starts_with(b"Y"),
            se_linux: exists("sys/fs/selinux/enforce") && has_policy,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modules_count_when_they_enforce() {
        let root = std::env::temp_dir().join(format!("knarr-kubelet-{:016x}", fastrand::u64(..)));
        let write = |path: &str, text: &str| {
            let path = root.join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        };
        let neither = HostSecurity::default();
        assert_eq!(HostSecurity::below(&root), neither);
        write("sys/kernel/security/apparmor/profiles", "");
        write("sys/module/apparmor/parameters/enabled", "N\n");
        assert_eq!(HostSecurity::below(&root), neither);
        write("sys/module/apparmor/parameters/enabled", "Y\n");
        assert_eq!(HostSecurity::below(&root), HostSecurity { app_armor: true, ..neither });
        write("sys/fs/selinux/enforce", "0");
        write("proc/self/attr/current", "kernel\0");
        assert!(!HostSecurity::below(&root).se_linux);
        write("proc/self/attr/current", "system_u:system_r:kernel_t:s0\0");
        assert_eq!(HostSecurity::below(&root), HostSecurity { app_armor: true, se_linux: true });
        std::fs::remove_dir_all(root).unwrap();
    }
}
