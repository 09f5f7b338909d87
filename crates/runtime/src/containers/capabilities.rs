//! Linux capabilities: names, the default set, additions and drops, and applying them to a process.

use std::io;

use super::spec::{CapabilityChange, ContainerSpec};
use super::sys;

/// Names by number, as in linux/capability.h.
const NAMES: [&str; 41] = [
    "CHOWN",
    "DAC_OVERRIDE",
    "DAC_READ_SEARCH",
    "FOWNER",
    "FSETID",
    "KILL",
    "SETGID",
    "SETUID",
    "SETPCAP",
    "LINUX_IMMUTABLE",
    "NET_BIND_SERVICE",
    "NET_BROADCAST",
    "NET_ADMIN",
    "NET_RAW",
    "IPC_LOCK",
    "IPC_OWNER",
    "SYS_MODULE",
    "SYS_RAWIO",
    "SYS_CHROOT",
    "SYS_PTRACE",
    "SYS_PACCT",
    "SYS_ADMIN",
    "SYS_BOOT",
    "SYS_NICE",
    "SYS_RESOURCE",
    "SYS_TIME",
    "SYS_TTY_CONFIG",
    "MKNOD",
    "LEASE",
    "AUDIT_WRITE",
    "AUDIT_CONTROL",
    "SETFCAP",
    "MAC_OVERRIDE",
    "MAC_ADMIN",
    "SYSLOG",
    "WAKE_ALARM",
    "BLOCK_SUSPEND",
    "AUDIT_READ",
    "PERFMON",
    "BPF",
    "CHECKPOINT_RESTORE",
];

/// The capabilities of a container whose spec changes none: containerd's fourteen.
const DEFAULT: [&str; 14] = [
    "CHOWN",
    "DAC_OVERRIDE",
    "FSETID",
    "FOWNER",
    "MKNOD",
    "NET_RAW",
    "SETGID",
    "SETUID",
    "SETFCAP",
    "SETPCAP",
    "NET_BIND_SERVICE",
    "SYS_CHROOT",
    "KILL",
    "AUDIT_WRITE",
];

const ALL: u64 = (1 << NAMES.len()) - 1;

/// Capability sets as bit masks.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CapabilitySets {
    pub bounding: u64,
    pub permitted: u64,
    pub inheritable: u64,
    pub ambient: u64,
}

/// Returns the bit of a capability named like `NET_ADMIN` or `cap_net_admin`.
fn bit(name: &str) -> Option<u64> {
    let upper = name.to_ascii_uppercase();
    let name = upper.strip_prefix("CAP_").unwrap_or(&upper);
    NAMES.iter().position(|known| *known == name).map(|number| 1 << number)
}

/// Returns the names of the capabilities in `mask`, without `CAP_`.
pub fn names(mask: u64) -> impl Iterator<Item = &'static str> {
    NAMES.iter().enumerate().filter(move |(number, _)| mask & (1 << number) != 0).map(|(_, name)| *name)
}

/// Returns whether `mask` contains the named capability.
pub fn holds(mask: u64, name: &str) -> bool {
    bit(name).is_some_and(|bit| mask & bit != 0)
}

/// Returns why a change is invalid; `None` if every name is a known capability.
pub fn change_fault(change: &CapabilityChange) -> Option<String> {
    let names = change.add.iter().chain(&change.drop).chain(&change.ambient);
    names
        .filter(|name| !name.eq_ignore_ascii_case("ALL"))
        .find(|name| bit(name).is_none())
        .map(|name| format!("unknown capability {name:?}"))
}

/// Returns the capability sets of a container: the defaults, then ALL, then single drops and additions. A
/// single addition takes precedence over `drop: [ALL]`, and a single drop over `add: [ALL]`.
pub fn sets_of(spec: &ContainerSpec) -> CapabilitySets {
    let change = &spec.capabilities;
    let has_all = |list: &[String]| list.iter().any(|name| name.eq_ignore_ascii_case("ALL"));
    let mask = |list: &[String]| list.iter().filter_map(|name| bit(name)).fold(0, |all, bit| all | bit);
    let mut set =
        if spec.privileged { ALL } else { DEFAULT.iter().filter_map(|name| bit(name)).fold(0, |a, b| a | b) };
    if !spec.privileged {
        if has_all(&change.add) {
            set = ALL;
        }
        if has_all(&change.drop) {
            set = 0;
        }
        set = (set | mask(&change.add)) & !mask(&change.drop);
    }
    let ambient = mask(&change.ambient) & set;
    // The inheritable set has only the ambient capabilities: with a full inheritable set, a non-root user could
    // regain capabilities by executing a file with inheritable file capabilities.
    CapabilitySets { bounding: set, permitted: set, inheritable: ambient, ambient }
}

#[repr(C)]
struct Header {
    version: u32,
    pid: i32,
}

#[repr(C)]
#[derive(Default, Clone, Copy)]
struct Words {
    effective: u32,
    permitted: u32,
    inheritable: u32,
}

const VERSION_3: u32 = 0x2008_0522;

fn own_permitted() -> io::Result<u64> {
    let header = Header { version: VERSION_3, pid: 0 };
    let mut words = [Words::default(); 2];
    // SAFETY: version 3 reads and writes two words.
    if unsafe { libc::syscall(libc::SYS_capget, &raw const header, words.as_mut_ptr()) } < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(u64::from(words[0].permitted) | u64::from(words[1].permitted) << 32)
}

/// Removes the capabilities that the container may never have from the bounding set; needs CAP_SETPCAP.
pub fn drop_bounding(sets: &CapabilitySets) -> io::Result<()> {
    for number in 0..64u32 {
        if sets.bounding & (1 << number) != 0 {
            continue;
        }
        // Above the kernel's last capability the call fails: no capability is left to drop.
        if let Err(error) = sys::prctl(libc::PR_CAPBSET_DROP, number.into(), 0) {
            if error.raw_os_error() == Some(libc::EINVAL) {
                break;
            }
            return Err(error);
        }
    }
    Ok(())
}

/// Makes every permitted capability effective.
pub fn act_with_all() -> io::Result<()> {
    let held = own_permitted()?;
    set(held, held, 0)
}

impl CapabilitySets {
    /// Returns the capabilities that a program of this user has in effect when it starts: a user other than
    /// root has only the ambient ones.
    fn effective(&self, uid: u32) -> u64 {
        if uid == 0 { self.permitted } else { self.ambient }
    }

    /// Limits the effective capabilities to those that the program will have; the others stay permitted.
    pub fn act(&self, uid: u32) -> io::Result<()> {
        let held = own_permitted()?;
        set(self.effective(uid) & held, held, 0)
    }

    /// Sets the capabilities of the calling thread, as far as this machine permits them at all.
    pub fn apply(&self, uid: u32) -> io::Result<()> {
        let held = own_permitted()?;
        set(self.effective(uid) & held, self.permitted & held, self.inheritable & held)?;
        for number in 0..64u32 {
            if self.ambient & held & (1 << number) != 0 {
                // SAFETY: integer arguments only.
                sys::check(unsafe {
                    libc::prctl(
                        libc::PR_CAP_AMBIENT,
                        libc::PR_CAP_AMBIENT_RAISE as libc::c_ulong,
                        number as libc::c_ulong,
                        0,
                        0,
                    )
                })?;
            }
        }
        Ok(())
    }
}

/// Calls capset(2) for the calling thread.
fn set(effective: u64, permitted: u64, inheritable: u64) -> io::Result<()> {
    let header = Header { version: VERSION_3, pid: 0 };
    let word = |shift: u32| Words {
        effective: (effective >> shift) as u32,
        permitted: (permitted >> shift) as u32,
        inheritable: (inheritable >> shift) as u32,
    };
    let words = [word(0), word(32)];
    // SAFETY: version 3 reads two words.
    if unsafe { libc::syscall(libc::SYS_capset, &raw const header, words.as_ptr()) } < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

/// Drops every capability of the calling thread.
pub fn drop_all() -> io::Result<()> {
    set(0, 0, 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sets(privileged: bool, add: &[&str], drop: &[&str]) -> CapabilitySets {
        let list = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
        sets_of(&ContainerSpec {
            privileged,
            capabilities: CapabilityChange { add: list(add), drop: list(drop), ambient: vec![] },
            ..ContainerSpec::default()
        })
    }

    #[test]
    fn defaults_additions_and_drops() {
        let default = sets(false, &[], &[]).permitted;
        assert_eq!(default, 0xa804_25fb, "the fourteen, as /proc shows them in a Docker container");
        assert_eq!(sets(false, &["NET_ADMIN"], &["ALL"]).permitted, 1 << 12);
        assert_eq!(sets(false, &["cap_net_admin"], &[]).permitted, default | 1 << 12);
        assert_eq!(sets(false, &[], &["CHOWN"]).permitted, default & !1);
        assert_eq!(sets(false, &["ALL"], &["CHOWN"]).permitted, ALL & !1);
        assert_eq!(sets(true, &[], &["ALL"]).permitted, ALL);
        assert_eq!(sets(false, &[], &[]).inheritable, 0);
    }

    #[test]
    fn unknown_names_are_refused() {
        let change = CapabilityChange { add: vec!["FLY".into()], ..CapabilityChange::default() };
        assert!(change_fault(&change).unwrap_or_default().contains("FLY"));
        assert_eq!(change_fault(&CapabilityChange { drop: vec!["all".into()], ..Default::default() }), None);
    }
}
