//! Tests of containers' AppArmor profiles: in force if the kernel has AppArmor, and never silently ignored.

use std::fs;
use std::path::Path;

use knarr_runtime::app_armor::{DEFAULT_PROFILE, is_loaded, load_default};
use knarr_runtime::containers::{CapabilityChange, ContainerSpec, IdRange, PidMode, SandboxConfig};

use crate::world::{World, sandbox};

const SCRIPT: &str = "cat /proc/self/attr/current; mount -t tmpfs none /tmp 2>/dev/null && echo mounted; \
    echo x > /proc/sys/kernel/domainname && echo written; kill -0 1 && echo signalled; true";

fn host_has_it() -> bool {
    fs::read("/sys/module/apparmor/parameters/enabled").is_ok_and(|text| text.starts_with(b"Y"))
}

/// Returns a spec with everything that mounting needs, except for the profile.
fn spec(world: &World, id: &str, profile: Option<&str>) -> ContainerSpec {
    ContainerSpec {
        app_armor: profile.map(str::to_owned),
        capabilities: CapabilityChange { add: vec!["SYS_ADMIN".into()], ..CapabilityChange::default() },
        readonly_paths: Some(Vec::new()),
        ..world.spec(id, &["sh", "-c", SCRIPT])
    }
}

#[tokio::test]
async fn a_profile_that_cannot_be_applied_keeps_the_container_from_running() {
    let world = World::new().await;
    world.sandbox("s").await;
    world.runtime.create_container("s", spec(&world, "c", Some("knarr-test-nowhere"))).await.unwrap();
    let error = world.runtime.start_container("c").await.unwrap_err().to_string();
    assert!(error.contains("unable to apply apparmor profile \"knarr-test-nowhere\""), "{error}");
    assert_eq!(world.log("c"), "");
}

/// Runs on hosts with AppArmor; others have no profiles.
#[tokio::test]
async fn programs_run_under_their_profiles() {
    let world = World::new().await;
    if !host_has_it() {
        assert!(is_loaded(DEFAULT_PROFILE).is_err());
        return;
    }
    load_default().unwrap();
    assert!(is_loaded(DEFAULT_PROFILE).unwrap());
    let confined = format!("{DEFAULT_PROFILE} (enforce)\nsignalled");
    let (_, log) = world.script(spec(&world, "open", None)).await;
    assert_eq!(log.lines().take(2).collect::<Vec<_>>(), ["unconfined", "mounted"], "{log}");
    let (_, log) = world.script(spec(&world, "plain", Some(DEFAULT_PROFILE))).await;
    assert!(log.starts_with(&confined), "{log}");
    let strict = ContainerSpec { no_new_privileges: true, ..spec(&world, "strict", Some(DEFAULT_PROFILE)) };
    let (_, log) = world.script(strict).await;
    assert!(log.starts_with(&confined), "{log}");

    let sleeps = ContainerSpec {
        args: ["sleep", "1000"].map(str::to_owned).to_vec(),
        ..spec(&world, "long", Some(DEFAULT_PROFILE))
    };
    world.run(sleeps).await;
    assert!(world.sh("long", SCRIPT).await.1.starts_with(&confined), "commands, too");

    let ids = Some(IdRange { first: 1_600_000, count: 65_536 });
    let own_users = SandboxConfig { id: "u".into(), user_namespace: ids, ..sandbox("u") };
    let shared = SandboxConfig { id: "p".into(), shared_pid: true, ..sandbox("p") };
    let runc = Path::new("/usr/sbin/runc").exists().then(|| "/usr/sbin/runc".into());
    let by_runc =
        runc.map(|program| SandboxConfig { id: "r".into(), oci_runtime: Some(program), ..sandbox("r") });
    for config in [Some(own_users), Some(shared), by_runc].into_iter().flatten() {
        let id = config.id.clone();
        let pid_mode = if config.shared_pid { PidMode::Pod } else { PidMode::Container };
        let mut spec = ContainerSpec { pid_mode, ..spec(&world, &format!("c-{id}"), Some(DEFAULT_PROFILE)) };
        spec.args = ["sh", "-c", "cat /proc/self/attr/current; mount -t tmpfs none /tmp || echo sealed"]
            .map(str::to_owned)
            .to_vec();
        world.runtime.run_sandbox(config).await.unwrap();
        let name = spec.id.clone();
        world.runtime.create_container(&id, spec).await.unwrap();
        world.runtime.start_container(&name).await.unwrap();
        world.runtime.wait_container(&name).await.unwrap();
        let log = world.log(&name);
        assert!(log.starts_with(&format!("{DEFAULT_PROFILE} (enforce)\nsealed")), "{id}: {log}");
    }
}
