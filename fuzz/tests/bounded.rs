//! A bounded run of every target.

use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};

use knarr_client::clock::SystemClock;
use knarr_fuzz::memory::Counting;
use knarr_fuzz::{Target, check, fuzz, on_a_stack, targets};

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Memory is counted for the whole process, so one test runs at a time.
static ALONE: Mutex<()> = Mutex::new(());

fn alone() -> MutexGuard<'static, ()> {
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns the number of inputs of a target, few enough for every test run; requests use a whole server, so
/// there are fewer of them.
fn rounds(target: &Target) -> u64 {
    if matches!(target.name, "body" | "layer" | "objects" | "path" | "query") { 150 } else { 1500 }
}

#[test]
fn nothing_panics_hangs_or_grows() {
    let _alone = alone();
    let run = || {
        for target in targets() {
            let most = rounds(&target);
            if let Err(failure) = fuzz(&target, 1, &SystemClock, |round| round < most) {
                panic!("{}: {}: {:?}", target.name, failure.why, String::from_utf8_lossy(&failure.input));
            }
        }
    };
    on_a_stack(run).unwrap();
}

/// Runs the inputs that libFuzzer found to reach new code.
#[test]
fn what_is_kept_still_passes() {
    let _alone = alone();
    on_a_stack(run_what_is_kept).unwrap();
}

fn run_what_is_kept() {
    let kept = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus");
    let all = targets();
    for folder in std::fs::read_dir(kept).unwrap() {
        let folder = folder.unwrap();
        let target = all.iter().find(|target| folder.file_name() == target.name);
        let target = target.unwrap_or_else(|| panic!("{:?} is no target", folder.file_name()));
        for file in std::fs::read_dir(folder.path()).unwrap() {
            let path = file.unwrap().path();
            if let Err(failure) = check(target, &std::fs::read(&path).unwrap(), &SystemClock) {
                panic!("{}: {}", path.display(), failure.why);
            }
        }
    }
}

#[test]
fn what_went_wrong_is_told() {
    let _alone = alone();
    let target = |run: fn(&[u8])| Target { name: "t", corpus: vec![b"x".to_vec()], run: Box::new(run) };
    let why = |run| check(&target(run), b"abc", &SystemClock).map_err(|f| f.why);
    assert_eq!(why(|_| ()), Ok(()));
    assert_eq!(why(|_| panic!("on purpose")), Err("panicked".into()));
    let held = why(|_| drop(std::hint::black_box(vec![1u8; 80 << 20])));
    assert!(held.unwrap_err().starts_with("held "));
}

#[test]
fn a_seed_is_a_run() {
    let _alone = alone();
    let seen = || {
        let all = std::rc::Rc::new(std::cell::RefCell::new(Vec::new()));
        let list = std::rc::Rc::clone(&all);
        let run = Box::new(move |input: &[u8]| list.borrow_mut().push(input.to_vec()));
        let target = Target { name: "t", corpus: vec![b"abc".to_vec()], run };
        assert_eq!(fuzz(&target, 7, &SystemClock, |round| round < 20), Ok(20));
        all.take()
    };
    assert_eq!(seen(), seen());
}
