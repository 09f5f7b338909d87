//! Containers: combines an image's snapshot and configuration with the pod's.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use knarr_runtime::containers::{self as runtime, Bind, ContainerSpec, MountKind, User};
use knarr_runtime::images::{ImageConfig, MappedIds, resolve_user};

use super::sandboxes::new_id;
use super::{ATTEMPT, Embedded, IMAGE, IMAGE_ID, app_armor, errors, images};
use crate::host_security::HostSecurity;
use crate::labels;
use crate::runtime::*;

/// Converts the runtime's state of a container.
pub fn status(container: &runtime::Container) -> ContainerStatus {
    let (spec, status) = (&container.spec, &container.status);
    let annotation = |name: &str| spec.annotations.get(name).cloned().unwrap_or_default();
    ContainerStatus {
        id: status.id.clone(),
        sandbox_id: container.sandbox_id.clone(),
        name: spec.labels.get(labels::CONTAINER_NAME).cloned().unwrap_or_default(),
        attempt: annotation(ATTEMPT).parse().unwrap_or(0),
        state: status.state,
        created_at: status.created_at,
        started_at: status.started_at,
        finished_at: status.finished_at,
        exit_code: status.exit_code,
        signal: status.signal,
        reason: status.reason.clone(),
        message: status.message.clone(),
        image: annotation(IMAGE),
        image_id: annotation(IMAGE_ID),
        labels: spec.labels.clone(),
        annotations: spec.annotations.clone(),
        log_path: spec.log_path.clone().unwrap_or_default(),
        user: Some((spec.user.uid, spec.user.gid, spec.user.additional_gids.clone())),
    }
}

/// Returns the command line: the pod's command replaces both the image's entrypoint and its command.
fn command_line(config: &ContainerConfig, image: &ImageConfig) -> Vec<String> {
    let (first, rest) = match (config.command.is_empty(), config.args.is_empty()) {
        (false, _) => (&config.command, &config.args),
        (true, false) => (&image.entrypoint, &config.args),
        (true, true) => (&image.entrypoint, &image.cmd),
    };
    first.iter().chain(rest).cloned().collect()
}

/// Returns the image's variables in their order, then the pod's; a later one of the same name wins.
fn environment(config: &ContainerConfig, image: &ImageConfig) -> Vec<String> {
    let own: BTreeMap<&str, &str> = config.env.iter().map(|(k, v)| (k.as_str(), v.as_str())).collect();
    let inherited =
        image.env.iter().filter(|pair| !own.contains_key(pair.split('=').next().unwrap_or(""))).cloned();
    inherited.chain(own.iter().map(|(name, value)| format!("{name}={value}"))).collect()
}

/// Returns the user of a container. Blocks: reads the image's passwd and group files.
fn user(config: &ContainerConfig, image: &ImageConfig, rootfs: &Path) -> Result<User> {
    let text = config.user.uid.map_or_else(|| image.user.clone(), |uid| uid.to_string());
    let resolved = resolve_user(rootfs, &text).map_err(|e| RuntimeError::Failed(e.to_string()))?;
    let gid = config.user.gid.unwrap_or(resolved.gid);
    let mut groups = if config.user.strict_groups { Vec::new() } else { resolved.supplementary_groups };
    groups.extend(&config.user.supplemental_groups);
    groups.sort_unstable();
    groups.dedup();
    groups.retain(|group| *group != gid);
    Ok(User { uid: resolved.uid, gid, additional_gids: groups })
}

fn bind(destination: &str, source: &Path, read_only: bool) -> runtime::Mount {
    let bind = Bind { source: source.to_owned(), read_only, ..Bind::default() };
    runtime::Mount { destination: destination.to_owned(), kind: MountKind::Bind(bind) }
}

/// Returns the mounts: the sandbox's name files, unless the pod mounts something over them, and the pod's mounts.
fn mounts(config: &ContainerConfig, sandbox_dir: &Path) -> Vec<runtime::Mount> {
    let files = [("/etc/resolv.conf", "resolv.conf"), ("/etc/hostname", "hostname")];
    let mut mounts: Vec<runtime::Mount> = files
        .into_iter()
        .filter(|(path, name)| {
            sandbox_dir.join(name).exists() && !config.mounts.iter().any(|m| m.container_path == *path)
        })
        .map(|(path, name)| bind(path, &sandbox_dir.join(name), config.readonly_rootfs))
        .collect();
    // A mount below another one must follow it.
    let mut own: Vec<&Mount> = config.mounts.iter().collect();
    own.sort_by_key(|m| m.container_path.split('/').filter(|part| !part.is_empty()).count());
    mounts.extend(own.into_iter().map(|m| {
        let bind = Bind {
            source: m.host_path.clone(),
            read_only: m.read_only,
            recursive_read_only: m.recursive_read_only,
            no_exec: m.image.is_some(),
            propagation: m.propagation,
            has_outside_ids: m.image.is_some(),
        };
        runtime::Mount { destination: m.container_path.clone(), kind: MountKind::Bind(bind) }
    }));
    mounts
}

/// Refuses SELinux labels. Admission refuses pods with labels, but ephemeral containers are added later.
fn check_se_linux(config: &ContainerConfig, host: HostSecurity) -> Result<()> {
    if config.se_linux.is_none() || !host.se_linux {
        return Ok(());
    }
    Err(RuntimeError::Failed(format!(
        "failed to create container {:?}: SELinux labels are not supported",
        config.name
    )))
}

impl Embedded {
    pub(super) async fn make_container(&self, sandbox_id: &str, config: ContainerConfig) -> Result<String> {
        let host = HostSecurity::read();
        check_se_linux(&config, host)?;
        let app_armor = app_armor::profile(&config, host, self.inner.has_default_profile)?;
        let store = &self.inner.images;
        let image = store.get(&config.image).await.map_err(errors::image)?;
        let image =
            image.ok_or_else(|| RuntimeError::NotFound(format!("image {:?} not found", config.image)))?;
        let id = new_id();
        store.create_snapshot(&id, &image.id.to_string()).await.map_err(errors::image)?;
        let made = self.make_from_snapshot(sandbox_id, &id, config, &image, app_armor).await;
        if made.is_err()
            && let Err(error) = self.remove_snapshots(&id).await
        {
            tracing::warn!(container = %id, %error, "cannot remove the snapshot");
        }
        made.map(|()| id)
    }

    async fn make_from_snapshot(
        &self,
        sandbox_id: &str,
        id: &str,
        mut config: ContainerConfig,
        image: &knarr_runtime::images::Image,
        app_armor: Option<String>,
    ) -> Result<()> {
        let ids = self.mapped_ids(sandbox_id).await?;
        self.mount_images(id, ids.as_ref(), &mut config.mounts).await?;
        let rootfs = self.inner.images.mount_snapshot(id, ids).await.map_err(errors::image)?;
        let (sandbox_dir, id, image) = (self.sandbox_dir(sandbox_id), id.to_owned(), image.clone());
        let spec = tokio::task::spawn_blocking(move || {
            if let Some(folder) = config.log_path.parent() {
                std::fs::create_dir_all(folder).map_err(errors::file("create", folder))?;
            }
            let spec = spec(id, rootfs, config, &image, &sandbox_dir)?;
            Ok(ContainerSpec { app_armor, ..spec })
        });
        let spec = spec.await.map_err(|e| RuntimeError::Failed(format!("background work: {e}")))??;
        self.inner.runtime.create_container(sandbox_id, spec).await.map_err(errors::container)
    }

    /// Returns the id mapping for the container's files, if the sandbox has a user namespace.
    async fn mapped_ids(&self, sandbox_id: &str) -> Result<Option<MappedIds>> {
        let (runtime, sandbox_id) = (self.inner.runtime.clone(), sandbox_id.to_owned());
        let found = tokio::task::spawn_blocking(move || runtime.user_namespace(&sandbox_id));
        let found = found.await.map_err(|e| RuntimeError::Failed(format!("background work: {e}")))?;
        let namespace = found.map_err(errors::container)?;
        Ok(namespace.map(|(fd, ids)| MappedIds { user_namespace: Arc::new(fd), root: ids.first }))
    }

    pub(super) async fn drop_container(&self, id: &str) -> Result<()> {
        errors::fine_if_missing(self.inner.runtime.remove_container(id).await)?;
        self.remove_snapshots(id).await
    }

    pub(super) async fn stats_of(
        &self,
        container: &runtime::Container,
        disk: Disk,
    ) -> Result<ContainerStats> {
        let id = &container.spec.id;
        let usage = self.inner.runtime.container_stats(id).map_err(errors::container)?;
        let rootfs = match disk {
            Disk::Measured => self.inner.images.snapshot_usage(id).await.map_err(errors::image)?,
            Disk::LeftOut => None,
        };
        Ok(ContainerStats {
            container_id: id.clone(),
            sandbox_id: container.sandbox_id.clone(),
            name: container.spec.labels.get(labels::CONTAINER_NAME).cloned().unwrap_or_default(),
            at: jiff::Timestamp::now(),
            usage,
            rootfs,
        })
    }
}

fn spec(
    id: String,
    rootfs: std::path::PathBuf,
    config: ContainerConfig,
    image: &knarr_runtime::images::Image,
    sandbox_dir: &Path,
) -> Result<ContainerSpec> {
    let args = command_line(&config, &image.config);
    if args.is_empty() {
        return Err(RuntimeError::Failed(format!(
            "failed to generate container {id:?} spec: no command specified"
        )));
    }
    let mut annotations = config.annotations.clone();
    annotations.insert(ATTEMPT.to_owned(), config.attempt.to_string());
    let (name, image_id) = images::names(image, &config.image_name);
    annotations.insert(IMAGE.to_owned(), name);
    annotations.insert(IMAGE_ID.to_owned(), image_id);
    let cwd = [&config.working_dir, &image.config.working_dir];
    let mut stop_signal = config.stop_signal.clone().unwrap_or_else(|| image.config.stop_signal.clone());
    if runtime::signal_number(&stop_signal).is_none() {
        stop_signal.clear();
    }
    Ok(ContainerSpec {
        user: user(&config, &image.config, &rootfs)?,
        env: environment(&config, &image.config),
        mounts: mounts(&config, sandbox_dir),
        id,
        labels: config.labels,
        annotations,
        rootfs,
        rootfs_has_outside_ids: true,
        readonly_rootfs: config.readonly_rootfs,
        args,
        cwd: cwd.into_iter().find(|dir| !dir.is_empty()).cloned().unwrap_or_default(),
        devices: config.devices,
        capabilities: config.capabilities,
        privileged: config.privileged,
        no_new_privileges: config.no_new_privileges,
        masked_paths: config.unmasked_proc.then(Vec::new),
        readonly_paths: config.unmasked_proc.then(Vec::new),
        seccomp: config.seccomp,
        app_armor: None,
        rlimits: Vec::new(),
        oom_score_adj: config.oom_score_adj,
        tty: config.tty,
        stdin: config.stdin,
        stdin_once: config.stdin_once,
        log_path: Some(config.log_path),
        resources: config.resources,
        pid_mode: config.pid_mode,
        stop_signal,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &str) -> Vec<String> {
        text.split_whitespace().map(str::to_owned).collect()
    }

    #[test]
    fn commands() {
        let image =
            ImageConfig { entrypoint: words("/entry e"), cmd: words("c d"), ..ImageConfig::default() };
        for (command, args, expected) in
            [("", "", "/entry e c d"), ("", "x", "/entry e x"), ("sh", "", "sh"), ("sh", "-c y", "sh -c y")]
        {
            let config =
                ContainerConfig { command: words(command), args: words(args), ..ContainerConfig::default() };
            assert_eq!(command_line(&config, &image), words(expected), "{command} {args}");
        }
    }

    #[test]
    fn variables() {
        let image = ImageConfig { env: words("PATH=/bin A=1"), ..ImageConfig::default() };
        let env = vec![("A".to_owned(), "2".to_owned()), ("B".to_owned(), "3".to_owned())];
        let config = ContainerConfig { env, ..ContainerConfig::default() };
        assert_eq!(environment(&config, &image), ["PATH=/bin", "A=2", "B=3"]);
    }

    #[test]
    fn labels_are_refused_where_they_mean_something() {
        let (off, on) = (HostSecurity::default(), HostSecurity { app_armor: true, se_linux: true });
        let refused = |labels: bool, host| {
            let se_linux = labels.then(SeLinuxOptions::default);
            let config = ContainerConfig { name: "c".into(), se_linux, ..Default::default() };
            check_se_linux(&config, host).err().map(|e| e.to_string())
        };
        assert_eq!((refused(true, off), refused(false, on)), (None, None));
        let unsupported = "failed to create container \"c\": SELinux labels are not supported";
        assert_eq!(refused(true, on).as_deref(), Some(unsupported));
    }

    #[test]
    fn inner_mounts_come_last() {
        let mount = |path: &str| Mount { container_path: path.into(), ..Mount::default() };
        let config = ContainerConfig {
            mounts: vec![mount("/a/b/c"), mount("/a"), mount("/a/b")],
            ..Default::default()
        };
        let order: Vec<String> =
            mounts(&config, Path::new("/nonexistent")).into_iter().map(|m| m.destination).collect();
        assert_eq!(order, ["/a", "/a/b", "/a/b/c"]);
    }
}
