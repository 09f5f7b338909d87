//! Escapes through processes: system calls of a container, its program, and what exec runs in it.

use serde_json::{Value, json};

use super::attacker::{DESCRIPTORS, ODD};
use super::cases::{Attack, End, Setting, Variant};

/// What a container can do by itself: masked and read-only files, devices, mounts and namespaces
/// (CVE-2022-0185, CVE-2022-0492), control groups, open_by_handle_at, modules, keys, descriptors that were
/// left open.
pub fn inside(variant: Variant, setting: &Setting) -> Attack {
    Attack::new("inside", variant, setting).attacks("inside", "inside", &setting.disk, End::Says("tried all"))
}

/// A working directory that is a descriptor of the runtime (CVE-2024-21626).
pub fn working_folders(variant: Variant, setting: &Setting) -> Attack {
    let mut attack = Attack::new("folder", variant, setting);
    for number in DESCRIPTORS.take(2 * setting.tries) {
        for (name, folder) in [("fd", "/proc/self/fd"), ("link", "/fd")] {
            let fields = json!({"workingDir": format!("{folder}/{number}")});
            attack = attack.attacks_with(
                &format!("{name}-{number}"),
                "look",
                "",
                End::Refused("chdir to cwd"),
                fields,
            );
        }
    }
    let fields = json!({"workingDir": "/proc/self/cwd"});
    attack.attacks_with("cwd", "look", "", End::Refused("chdir to cwd"), fields)
}

/// The runtime's own executable as the container's program (CVE-2019-5736). As a script's interpreter it runs
/// with the image's loader, which keeps its file open: the file must not be writable or changed.
pub fn executables(variant: Variant, setting: &Setting) -> Attack {
    let from_log = json!({"terminationMessagePolicy": "FallbackToLogsOnError"});
    Attack::new("program", variant, setting)
        .runs("itself", &json!(["/proc/self/exe"]), End::Refused("symbolic links"), json!({}))
        .runs("link", &json!(["/bin/self"]), End::Refused("symbolic links"), json!({}))
        .runs("script", &json!(["/bin/script"]), End::Says("caught it: Read-only file system"), from_log)
}

/// The same for commands that probes run in a container.
pub fn executables_by_exec(variant: Variant, setting: &Setting) -> Attack {
    let caught =
        "until [ \"$(echo /tmp/caught-*)\" != '/tmp/caught-*' ]; do sleep 0.2; done; echo caught >/result";
    let fields = json!({"readinessProbe": probe(&["/bin/script"])});
    let command = json!(["/bin/sh", "-c", caught]);
    Attack::new("command", variant, setting).runs("runs", &command, End::Says("caught"), fields)
}

/// Processes that enter a container, inspected and stopped by the processes in it: they must not have more
/// rights than those, no root, directory or descriptor of the host, and no library loaded from the image
/// (CVE-2019-14271).
pub fn newcomers(variant: Variant, setting: &Setting) -> Attack {
    let wanted = (2 * setting.tries).to_string();
    let fields = json!({
        "securityContext": {"capabilities": {"add": ["SYS_PTRACE"]}},
        "readinessProbe": probe(&["/bin/true"]),
        "livenessProbe": probe(&["/bin/true"]),
    });
    Attack::new("newcomer", variant, setting).attacks_with(
        "looks",
        "newcomers",
        &wanted,
        End::Says("seen them"),
        fields,
    )
}

/// Process 1 changes its root while exec starts commands.
pub fn changing_roots(variant: Variant, setting: &Setting) -> Attack {
    let look = format!("attack look roots-{} {} /jail", variant.name(), setting.marker);
    let fields = json!({"readinessProbe": probe(&["/bin/sh", "-c", &look])});
    let seconds = (setting.tries + 2).to_string();
    // A user may not change roots.
    let end = if variant.user { "chroot: Operation not permitted" } else { "swapped them" };
    let words = format!("exec attack roots roots {} {seconds} >/result 2>&1", setting.marker);
    Attack::new("roots", variant, setting).runs(
        "swaps",
        &json!(["/bin/sh", "-c", words]),
        End::Says(end),
        fields,
    )
}

/// Containers that share a pid namespace: attacks on processes of the runtime and of other containers, and on
/// process 1.
pub fn shared_processes(variant: Variant, setting: &Setting) -> Attack {
    let fields = json!({"securityContext": {"capabilities": {"add": ["SYS_PTRACE"]}}});
    let at_root = json!({"workingDir": "/proc/1/root"});
    Attack::new("shared", variant, setting)
        .spec("shareProcessNamespace", json!(true))
        .stays("neighbour", "exec sleep 3600", json!({}))
        .attacks("looks", "others", "", End::Says("looked at them"))
        .attacks_with("debugs", "others", "", End::Says("looked at them"), fields)
        .attacks_with("starts", "look", "", End::Refused("chdir to cwd"), at_root)
}

/// Images and volumes in place of the kernel's file systems (CVE-2025-52881, CVE-2019-16884).
pub fn kernel_file_systems(variant: Variant, setting: &Setting) -> Attack {
    let mut attack = Attack::new("kernel", variant, setting).volume("data");
    for (folder, image) in ODD {
        let reason = match folder {
            "proc" => "\"/proc\"",
            "sys" => "\"/sys\"",
            _ => "\"/dev\"",
        };
        attack = attack.attacks_with(folder, "masked", "", End::Refused(reason), json!({"image": image}));
    }
    for (name, path) in
        [("over-proc", "/proc"), ("over-proc-sys", "/proc/sys"), ("over-attr", "/proc/self/attr")]
    {
        let fields = json!({"volumeMounts": [{"name": "data", "mountPath": path}]});
        attack = attack.attacks_with(name, "masked", "", End::Refused("error mounting"), fields);
    }
    attack
}

fn probe(command: &[&str]) -> Value {
    json!({"exec": {"command": command}, "periodSeconds": 1, "timeoutSeconds": 30, "failureThreshold": 1000})
}
