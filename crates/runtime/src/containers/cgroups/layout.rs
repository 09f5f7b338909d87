//! Reads which cgroup hierarchies are mounted, and where.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// The v1 controllers that apply to containers; other controllers are not touched.
const USED: [&str; 7] = ["cpu", "cpuacct", "cpuset", "memory", "devices", "pids", "hugetlb"];

/// A mounted v1 hierarchy with its controllers, for example `cpu,cpuacct`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hierarchy {
    pub mount: PathBuf,
    pub controllers: Vec<String>,
}

impl Hierarchy {
    /// Returns whether the hierarchy has the controller.
    pub fn has(&self, controller: &str) -> bool {
        self.controllers.iter().any(|name| name == controller)
    }
}

/// The mounted hierarchies of a machine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Layout {
    /// `unified` is the v2 mount of a hybrid machine, used for `cgroup.kill`.
    V1 {
        hierarchies: Vec<Hierarchy>,
        unified: Option<PathBuf>,
        /// Mounts in which this runtime creates no cgroups. Other runtimes do, below a pod's cgroup.
        #[serde(default)]
        others: Vec<PathBuf>,
    },
    V2 {
        mount: PathBuf,
    },
}

impl Layout {
    /// Parses /proc/self/mountinfo; the first mount of a hierarchy counts. `None` if there is none.
    pub fn parse(mountinfo: &str) -> Option<Self> {
        let mut hierarchies: Vec<Hierarchy> = Vec::new();
        let mut unified = None;
        let mut others: Vec<(&str, PathBuf)> = Vec::new();
        for line in mountinfo.lines() {
            let Some((left, right)) = line.split_once(" - ") else { continue };
            let Some(mount) = left.split(' ').nth(4).filter(|path| path.starts_with("/sys/fs/cgroup")) else {
                continue;
            };
            let mut right = right.split(' ');
            match right.next() {
                Some("cgroup2") => unified = unified.or_else(|| Some(PathBuf::from(mount))),
                Some("cgroup") => {
                    let options = right.nth(1).unwrap_or_default();
                    let unused = !options.split(',').any(|name| USED.contains(&name));
                    if unused && !others.iter().any(|(known, _)| *known == options) {
                        others.push((options, PathBuf::from(mount)));
                    }
                    let controllers: Vec<String> = options
                        .split(',')
                        .filter(|name| USED.contains(name))
                        .filter(|name| !hierarchies.iter().any(|known| known.has(name)))
                        .map(str::to_owned)
                        .collect();
                    if !controllers.is_empty() {
                        hierarchies.push(Hierarchy { mount: PathBuf::from(mount), controllers });
                    }
                }
                _ => {}
            }
        }
        match (hierarchies.is_empty(), unified) {
            (false, unified) => {
                let others = others.into_iter().map(|(_, mount)| mount).collect();
                Some(Self::V1 { hierarchies, unified, others })
            }
            (true, Some(mount)) => Some(Self::V2 { mount }),
            (true, None) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hybrid() {
        let text = "31 23 0:28 / /sys/fs/cgroup rw - tmpfs tmpfs rw\n\
            32 31 0:29 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n\
            40 31 0:37 / /sys/fs/cgroup/systemd rw - cgroup cgroup rw,name=systemd\n\
            35 31 0:32 / /sys/fs/cgroup/memory rw shared:9 - cgroup cgroup rw,memory\n\
            41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n";
        let Some(Layout::V1 { hierarchies, unified, others }) = Layout::parse(text) else { panic!("not v1") };
        assert_eq!(others, [PathBuf::from("/sys/fs/cgroup/systemd")]);
        assert_eq!(hierarchies.len(), 2);
        assert_eq!(hierarchies[0].controllers, ["cpu", "cpuacct"]);
        assert_eq!(unified, Some(PathBuf::from("/sys/fs/cgroup/unified")));
    }

    #[test]
    fn pure_v2_and_none() {
        let text = "30 23 0:26 / /sys/fs/cgroup rw shared:4 - cgroup2 cgroup2 rw,nsdelegate\n";
        assert_eq!(Layout::parse(text), Some(Layout::V2 { mount: PathBuf::from("/sys/fs/cgroup") }));
        assert_eq!(Layout::parse("1 2 0:3 / / rw - ext4 /dev/vda rw\n"), None);
    }
}
