//! Tests of unpacking, with hostile and unusual archives.

use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};

use tar::EntryType;

use super::attributes::{is_opaque, is_whiteout};
use super::*;
use crate::images::fixture::{Tar, TempDir, gzip, is_root, zstd};

struct Bench {
    dir: TempDir,
    store: LayerStore,
    chain: Vec<Digest>,
}

impl Bench {
    fn new() -> Bench {
        let dir = TempDir::new();
        let store = LayerStore::open(dir.path()).unwrap();
        Bench { dir, store, chain: Vec::new() }
    }

    fn unpack(&mut self, stored: &[u8], plain: &[u8], limits: LayerLimits) -> Result<PathBuf, LayerError> {
        let path = self.dir.path().join("blob");
        fs::write(&path, stored).unwrap();
        let blob = File::open(&path).unwrap();
        let chain = self.store.unpack(&self.chain, Digest::of(plain), blob, limits)?;
        self.chain.push(chain);
        Ok(self.store.fs_dir(&chain))
    }

    fn add(&mut self, layer: Tar) -> Result<PathBuf, LayerError> {
        let bytes = layer.bytes();
        self.unpack(&bytes, &bytes, LayerLimits::default())
    }
}

thread_local! {
    static KEPT: std::cell::RefCell<Vec<Bench>> = const { std::cell::RefCell::new(Vec::new()) };
}

fn add(layer: Tar) -> Result<PathBuf, LayerError> {
    let mut bench = Bench::new();
    let root = bench.add(layer)?;
    // Kept so that the caller can inspect the folder; it is removed when the test's thread ends.
    KEPT.with_borrow_mut(|kept| kept.push(bench));
    Ok(root)
}

fn mode(path: &Path) -> u32 {
    fs::symlink_metadata(path).unwrap().permissions().mode() & 0o7777
}

#[test]
fn every_kind_of_entry() {
    if !is_root() {
        return;
    }
    let mut bench = Bench::new();
    let root = bench
        .add(
            Tar::new()
                .dir("./", 0o711)
                .dir("bin/", 0o755)
                .file_mode("bin/su", "program", 0o4755)
                .owned("bin/app", 1000, 2000, 0o640)
                .symlink("sh", "bin/su")
                .symlink("dangling", "/nowhere/../../x")
                .hard_link("bin/su2", "bin/su")
                .hard_link("sh2", "/sh")
                .device(EntryType::Char, "dev/null", 1, 3)
                .device(EntryType::Block, "dev/loop0", 7, 0)
                .device(EntryType::Fifo, "pipe", 0, 0)
                .file("/absolute", "a")
                .file("./a/./deep//file", "b"),
        )
        .unwrap();
    assert_eq!(mode(&root), 0o711);
    assert_eq!(mode(&root.join("bin/su")), 0o4755);
    let app = fs::metadata(root.join("bin/app")).unwrap();
    assert_eq!((app.uid(), app.gid(), app.mode() & 0o7777), (1000, 2000, 0o640));
    assert_eq!(fs::read_link(root.join("sh")).unwrap().as_os_str().as_bytes(), b"bin/su");
    assert!(fs::symlink_metadata(root.join("dangling")).unwrap().is_symlink());
    assert_eq!(
        fs::metadata(root.join("bin/su2")).unwrap().ino(),
        fs::metadata(root.join("bin/su")).unwrap().ino()
    );
    assert!(fs::symlink_metadata(root.join("sh2")).unwrap().is_symlink(), "a link to the link itself");
    let null = fs::metadata(root.join("dev/null")).unwrap();
    assert!(null.file_type().is_char_device() && null.rdev() == libc::makedev(1, 3));
    assert!(fs::metadata(root.join("dev/loop0")).unwrap().file_type().is_block_device());
    assert!(fs::metadata(root.join("pipe")).unwrap().file_type().is_fifo());
    assert_eq!(fs::read(root.join("absolute")).unwrap(), b"a");
    assert_eq!(fs::read(root.join("a/deep/file")).unwrap(), b"b");
    for path in ["", "bin", "bin/su", "sh"] {
        assert_eq!(fs::symlink_metadata(root.join(path)).unwrap().mtime(), 1_000_000_000, "{path}");
    }
    let meta = bench.store.meta(&bench.chain[0]).unwrap();
    assert_eq!((meta.bytes, meta.inodes), (9, 14));
}

#[test]
fn nothing_leaves_the_layer() {
    if !is_root() {
        return;
    }
    for path in ["../x", "a/../../x", "/../x", ".."] {
        assert!(matches!(add(Tar::new().file(path, "")), Err(LayerError::Escape { .. })), "{path}");
    }
    // Links are resolved as if the layer were the root.
    let outside = TempDir::new();
    let target = outside.path().to_str().unwrap();
    let root = add(Tar::new().symlink("abs", target).file("abs/x", "inside")).unwrap();
    assert_eq!(fs::read_dir(outside.path()).unwrap().count(), 0);
    assert_eq!(fs::read(root.join(target.trim_start_matches('/')).join("x")).unwrap(), b"inside");
    let root = add(Tar::new().symlink("up", "../../../../..").file("up/x", "inside")).unwrap();
    assert_eq!(fs::read(root.join("x")).unwrap(), b"inside");
    // A file replaces a link instead of being written through it.
    let victim = outside.path().join("victim");
    fs::write(&victim, "safe").unwrap();
    let root =
        add(Tar::new().symlink("f", victim.to_str().unwrap()).file("f", "new").owned("f", 5, 5, 0o777))
            .unwrap();
    assert_eq!(fs::read(&victim).unwrap(), b"safe");
    assert!(fs::symlink_metadata(root.join("f")).unwrap().is_file());
    let layer = Tar::new().symlink("l", victim.to_str().unwrap()).hard_link("h", "l");
    assert!(fs::symlink_metadata(add(layer).unwrap().join("h")).unwrap().is_symlink());
    for (layer, reason) in [
        (Tar::new().hard_link("h", "../../etc/passwd"), "leaves the layer"),
        (Tar::new().hard_link("h", "/etc/passwd"), "does not exist"),
        (Tar::new().dir("d/", 0o755).hard_link("h", "d"), "no file"),
        (Tar::new().hard_link("h", ""), "without a target"),
        (Tar::new().symlink("a", "b").symlink("b", "a").file("a/x", ""), "too many links"),
        (Tar::new().file(".wh.", ""), "whiteout without a name"),
        (Tar::new().file(".wh...", ""), "whiteout without a name"),
        (Tar::new().link(EntryType::new(b'V'), "v", "x"), "unhandled tar header type"),
    ] {
        let error = add(layer).unwrap_err().to_string();
        assert!(error.contains(reason), "{error}");
    }
}

#[test]
fn whiteouts_become_overlay_whiteouts() {
    if !is_root() {
        return;
    }
    let root = add(Tar::new()
        .file("a/.wh.gone", "")
        .file("b/.wh..wh..opq", "")
        .file("b/kept", "")
        .file("c/.wh.file", "")
        .file("c/file", "new")
        .file("d/.wh.dir", "")
        .dir("d/dir/", 0o755)
        .dir("e/dir/", 0o755)
        .file("e/.wh.dir", "")
        .file(".wh..wh.plnk", "")
        .file(".wh..wh.aufs", ""))
    .unwrap();
    assert!(is_whiteout(&fs::symlink_metadata(root.join("a/gone")).unwrap()));
    assert!(is_opaque(&root.join("b")) && root.join("b/kept").exists());
    assert_eq!(fs::read(root.join("c/file")).unwrap(), b"new");
    assert!(is_opaque(&root.join("d/dir")), "removed, then made anew");
    assert!(is_opaque(&root.join("e/dir")), "made anew, then what was below removed");
    let names: Vec<_> = fs::read_dir(&root).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert_eq!(names.len(), 5, "{names:?}");
}

#[test]
fn layers_below_shape_what_is_left_out() {
    if !is_root() {
        return;
    }
    let mut bench = Bench::new();
    bench
        .add(
            Tar::new()
                .dir("usr/lib/", 0o750)
                .symlink("lib", "usr/lib")
                .file("usr/lib/base", "base")
                .dir("private/", 0o700)
                .dir("shadow/", 0o711)
                .file("etc/f", "f"),
        )
        .unwrap();
    bench.add(Tar::new().file(".wh.shadow", "").file("etc/.wh..wh..opq", "")).unwrap();
    let top = bench
        .add(
            Tar::new()
                .file("lib/new", "n")
                .file("private/x", "x")
                .hard_link("copy", "lib/base")
                .file("shadow/y", "y"),
        )
        .unwrap();
    assert_eq!(fs::read(top.join("usr/lib/new")).unwrap(), b"n", "the link of the base layer is followed");
    assert!(!top.join("lib").exists());
    assert_eq!(mode(&top.join("usr/lib")), 0o750, "as the base layer has it");
    assert_eq!(mode(&top.join("private")), 0o700);
    assert_eq!(mode(&top.join("shadow")), 0o755, "the base layer's is hidden");
    assert_eq!(fs::read(top.join("copy")).unwrap(), b"base", "copied up for the hard link");
    let error = bench.add(Tar::new().hard_link("h", "etc/f")).unwrap_err().to_string();
    assert!(error.contains("does not exist"), "{error}");
}

#[test]
fn later_entries_replace_earlier_ones() {
    if !is_root() {
        return;
    }
    let root = add(Tar::new()
        .file("x", "old")
        .dir("x/", 0o755)
        .file("x/in", "1")
        .file("y/in", "1")
        .file("y", "file now")
        .symlink("z", "x")
        .file("z/through", "t")
        .dir("z/", 0o700)
        .file("z/own", "o"))
    .unwrap();
    assert_eq!(fs::read(root.join("x/in")).unwrap(), b"1");
    assert_eq!(fs::read(root.join("y")).unwrap(), b"file now");
    assert_eq!(fs::read(root.join("x/through")).unwrap(), b"t");
    assert_eq!(fs::read(root.join("z/own")).unwrap(), b"o");
    assert!(!root.join("x/own").exists());
}

#[test]
fn attributes_of_the_overlay_are_not_for_images() {
    if !is_root() {
        return;
    }
    let root = add(Tar::new()
        .xattr("trusted.overlay.redirect", b"/etc")
        .dir("d/", 0o755)
        .xattr("trusted.overlay.opaque", b"y")
        .dir("e/", 0o755)
        .xattr("security.capability", &[1, 0, 0, 2, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0])
        .file("ping", ""))
    .unwrap();
    assert!(!is_opaque(&root.join("d")) && !is_opaque(&root.join("e")));
    let path = std::ffi::CString::new(root.join("ping").as_os_str().as_bytes()).unwrap();
    // SAFETY: both strings are NUL-terminated; a null buffer of size 0 asks for the length.
    let length =
        unsafe { libc::lgetxattr(path.as_ptr(), c"security.capability".as_ptr(), std::ptr::null_mut(), 0) };
    assert_eq!(length, 20);
}

#[test]
fn compressions_and_limits() {
    if !is_root() {
        return;
    }
    let plain = Tar::new().file("f", vec![7; 100_000]).bytes();
    for stored in [plain.clone(), gzip(&plain), zstd(&plain)] {
        let mut bench = Bench::new();
        let root = bench.unpack(&stored, &plain, LayerLimits::default()).unwrap();
        assert_eq!(fs::metadata(root.join("f")).unwrap().len(), 100_000);
        let mut bench = Bench::new();
        let limits = LayerLimits { bytes: 50_000, entries: 10 };
        let error = bench.unpack(&stored, &plain, limits).unwrap_err();
        assert!(matches!(error, LayerError::Archive(_)), "{error:?}");
        let error = bench.unpack(&stored, b"something else", LayerLimits::default()).unwrap_err();
        assert!(matches!(error, LayerError::DiffId { .. }));
        assert_eq!(fs::read_dir(bench.dir.path().join("ingest")).unwrap().count(), 0);
        assert!(bench.store.list().unwrap().is_empty());
    }
    let many = (0..20).fold(Tar::new(), |tar, n| tar.file(&format!("f{n}"), "")).bytes();
    let limits = LayerLimits { bytes: 1 << 30, entries: 10 };
    assert!(matches!(Bench::new().unpack(&many, &many, limits), Err(LayerError::TooManyEntries(10))));
    let mut cut = Tar::new().file("f", vec![7; 100_000]).bytes();
    cut.truncate(60_000);
    assert!(matches!(Bench::new().unpack(&cut, &cut, LayerLimits::default()), Err(LayerError::Archive(_))));
}

#[test]
fn layers_that_may_not_be_on_disk_go_after_another_boot() {
    if !is_root() {
        return;
    }
    let mut bench = Bench::new();
    bench.add(Tar::new().file("a", "")).unwrap();
    bench.store.sync().unwrap();
    bench.add(Tar::new().file("b", "")).unwrap();
    bench.store.drop_unsynced().unwrap();
    assert_eq!(bench.store.list().unwrap().len(), 2, "same boot");
    for chain in bench.store.list().unwrap() {
        let path = bench.dir.path().join("layers").join(chain.hex()).join("layer.json");
        let text = fs::read_to_string(&path).unwrap();
        fs::write(&path, text.replace(&boot_id(), "another boot")).unwrap();
    }
    bench.store.drop_unsynced().unwrap();
    assert_eq!(bench.store.list().unwrap(), [bench.chain[0]], "the synced one stays");
    empty_trash(bench.store.trash_dir());
    assert_eq!(fs::read_dir(bench.store.trash_dir()).unwrap().count(), 0);
}
