//! Folders of provisioned volumes, created and removed for the provisioner: only the node knows their paths.

use std::fs::{self, Permissions};
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use http::{Method, StatusCode};
use serde_json::json;

use super::answer::{self, Answer};

const MAX_NAME: usize = 255;

/// Creates the folder and returns its path (POST), or removes it with its content (DELETE). Both are idempotent.
pub async fn answer(root: &Path, name: String, method: &Method) -> Answer {
    let Some(path) = folder(root, &name) else {
        return answer::text(StatusCode::BAD_REQUEST, format!("{name:?} is no name of a folder\n"));
    };
    let work: fn(&Path) -> io::Result<()> = match *method {
        Method::POST => make,
        Method::DELETE => knarr_runtime::remove_folder,
        _ => return answer::text(StatusCode::METHOD_NOT_ALLOWED, "405: Method Not Allowed"),
    };
    let of_work = path.clone();
    let done = tokio::task::spawn_blocking(move || work(&of_work)).await;
    match done.map_err(io::Error::other).and_then(|done| done) {
        Ok(()) => answer::json(&json!({"path": path})),
        Err(error) => {
            let why = format!("{}: {error}\n", path.display());
            answer::text(StatusCode::INTERNAL_SERVER_ERROR, why)
        }
    }
}

/// Returns the folder of that name; `None` for names that lead out of the root.
fn folder(root: &Path, name: &str) -> Option<PathBuf> {
    let plain = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.');
    let fits =
        !name.is_empty() && name.len() <= MAX_NAME && !name.starts_with('.') && name.bytes().all(plain);
    fits.then(|| root.join(name))
}

/// Creates a folder in which every user may write, as containers may run as any user; fsGroup restricts that.
fn make(path: &Path) -> io::Result<()> {
    match path.parent() {
        Some(root) => fs::create_dir_all(root)?,
        None => return Err(io::ErrorKind::InvalidInput.into()),
    }
    match fs::create_dir(path) {
        Ok(()) => fs::set_permissions(path, Permissions::from_mode(0o777)),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_stay_below_the_root() {
        let root = Path::new("/data");
        assert_eq!(folder(root, "pvc-1_ns_data-web.0"), Some("/data/pvc-1_ns_data-web.0".into()));
        for bad in ["", "..", ".", ".hidden", "a/b", "/etc", "a b", "ä", "\0", &"x".repeat(256)] {
            assert_eq!(folder(root, bad), None, "{bad:?}");
        }
    }

    #[tokio::test]
    async fn folders_come_and_go() {
        let root = std::env::temp_dir().join(format!("knarr-local-path-{:016x}", fastrand::u64(..)));
        let path = root.join("new/pvc-1");
        let ask = async |method: Method| answer(&root.join("new"), "pvc-1".into(), &method).await.status();
        for _ in 0..2 {
            assert_eq!(ask(Method::POST).await, StatusCode::OK);
            assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o777);
        }
        fs::write(path.join("file"), "x").unwrap();
        for _ in 0..2 {
            assert_eq!(ask(Method::DELETE).await, StatusCode::OK);
            assert!(!path.exists());
        }
        assert_eq!(ask(Method::GET).await, StatusCode::METHOD_NOT_ALLOWED);
        fs::remove_dir_all(&root).unwrap();
    }
}
