//! Tests of commands in running containers, of terminals, and of attaching.

use std::time::Duration;

use knarr_runtime::containers::{AttachRequest, Error, ExecRequest, TerminalSize};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::world::World;

fn args(list: &[&str]) -> Vec<String> {
    list.iter().map(|arg| (*arg).to_owned()).collect()
}

#[tokio::test]
async fn exec_sync_gives_output_and_code() {
    let world = World::new().await;
    let mut spec = world.spec("c", &["sleep", "1000"]);
    spec.env = args(&["GREETING=hello"]);
    spec.cwd = "/tmp".to_owned();
    world.run(spec).await;
    let output = world
        .runtime
        .exec_sync("c", args(&["sh", "-c", "echo $GREETING $PWD $HOSTNAME; echo bad >&2; exit 4"]), None)
        .await
        .unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stdout), "hello /tmp host-s\n");
    assert_eq!(String::from_utf8_lossy(&output.stderr), "bad\n");
    assert_eq!(output.exit_code, 4);
    assert_eq!(world.sh("c", "kill -9 $$").await.0, 137);
    let (_, processes) = world.sh("c", "ps -o pid,args").await;
    assert!(processes.contains("1 sleep 1000"), "{processes}");
    let (code, size) = world.sh("c", "dd if=/dev/zero bs=1M count=20 2>/dev/null | wc -c").await;
    assert_eq!((code, size.as_str()), (0, "20971520"));
    let big = args(&["sh", "-c", "dd if=/dev/zero bs=1M count=20 2>/dev/null"]);
    assert_eq!(world.runtime.exec_sync("c", big.clone(), None).await.unwrap().stdout.len(), 16 << 20);
    assert_eq!(world.runtime.exec_limited("c", big, None, 1000).await.unwrap().stdout, vec![0; 1000]);
}

#[tokio::test]
async fn exec_failures_and_timeouts() {
    let world = World::new().await;
    world.run(world.spec("c", &["sleep", "1000"])).await;
    let failure = world.runtime.exec_sync("c", args(&["nope"]), None).await.unwrap_err();
    let want =
        "exec failed: unable to start container process: exec: \"nope\": executable file not found in $PATH";
    assert_eq!(failure.to_string(), want);
    assert!(matches!(failure, Error::Exec { exit_code: 127, .. }));
    let limit = Some(Duration::from_millis(300));
    let late = world.runtime.exec_sync("c", args(&["sleep", "777"]), limit).await.unwrap_err();
    assert!(matches!(late, Error::ExecTimeout { .. }), "{late}");
    tokio::time::sleep(Duration::from_millis(200)).await;
    let (_, processes) = world.sh("c", "ps -o args").await;
    assert!(!processes.contains("sleep 777"), "{processes}");
    // A process that a command leaves behind holds its output open; that must not delay the result.
    let (code, text) = world.sh("c", "sleep 500 & echo left").await;
    assert_eq!((code, text.as_str()), (0, "left"));
    world.runtime.stop_container("c", Duration::ZERO).await.unwrap();
    let stopped = world.runtime.exec_sync("c", args(&["true"]), None).await.unwrap_err();
    assert_eq!(stopped.to_string(), "container \"c\" is not running");
    assert!(matches!(
        world.runtime.exec_sync("x", args(&["true"]), None).await,
        Err(Error::ContainerNotFound(_))
    ));
}

#[tokio::test]
async fn exec_streams_stdin() {
    let world = World::new().await;
    world.run(world.spec("c", &["sleep", "1000"])).await;
    let request = ExecRequest {
        container_id: "c".into(),
        args: args(&["cat"]),
        stdin: true,
        stdout: true,
        ..ExecRequest::default()
    };
    let mut streams = world.runtime.exec(request).await.unwrap();
    let mut stdin = streams.stdin.take().unwrap();
    stdin.write_all(b"ping\n").await.unwrap();
    let mut stdout = streams.stdout.take().unwrap();
    let mut buffer = [0; 5];
    stdout.read_exact(&mut buffer).await.unwrap();
    assert_eq!(&buffer, b"ping\n");
    drop(stdin);
    assert_eq!(streams.wait().await.unwrap(), 0);
    assert_eq!(stdout.read(&mut buffer).await.unwrap(), 0);
}

#[tokio::test]
async fn exec_with_a_terminal() {
    let world = World::new().await;
    world.run(world.spec("c", &["sleep", "1000"])).await;
    let request = ExecRequest {
        container_id: "c".into(),
        args: args(&["sh", "-c", "stty size; tty; echo $TERM; read line; stty size; echo got:$line"]),
        tty: true,
        stdin: true,
        stdout: true,
        size: Some(TerminalSize { columns: 91, rows: 33 }),
        ..ExecRequest::default()
    };
    let mut streams = world.runtime.exec(request).await.unwrap();
    let mut stdout = streams.stdout.take().unwrap();
    let mut seen = String::new();
    let mut buffer = [0; 256];
    while !seen.contains("xterm") {
        let count = stdout.read(&mut buffer).await.unwrap();
        seen += &String::from_utf8_lossy(&buffer[..count]);
    }
    assert!(seen.contains("33 91") && seen.contains("/dev/pts/0"), "{seen}");
    streams.resize(TerminalSize { columns: 120, rows: 40 }).unwrap();
    streams.stdin.as_mut().unwrap().write_all(b"word\n").await.unwrap();
    let mut rest = String::new();
    stdout.read_to_string(&mut rest).await.unwrap();
    assert!(rest.contains("40 120") && rest.contains("got:word"), "{rest}");
    assert_eq!(streams.wait().await.unwrap(), 0);
}

#[tokio::test]
async fn attach_to_streams() {
    let world = World::new().await;
    let mut spec = world.spec("c", &["sh", "-c", "while read line; do echo got:$line; done; echo end"]);
    spec.stdin = true;
    spec.stdin_once = true;
    world.run(spec).await;
    let request = AttachRequest { container_id: "c".into(), stdin: true, stdout: true, stderr: true };
    let mut streams = world.runtime.attach(request).await.unwrap();
    let mut stdin = streams.stdin.take().unwrap();
    stdin.write_all(b"a\nb\n").await.unwrap();
    drop(stdin);
    let mut text = String::new();
    streams.stdout.as_mut().unwrap().read_to_string(&mut text).await.unwrap();
    assert_eq!(text, "got:a\ngot:b\nend\n");
    assert_eq!(world.runtime.wait_container("c").await.unwrap().exit_code, Some(0));
    assert_eq!(world.log("c"), "got:a\ngot:b\nend");
}

#[tokio::test]
async fn a_container_with_a_terminal() {
    let world = World::new().await;
    let mut spec =
        world.spec("c", &["sh", "-c", "tty; read line; stty size; echo you said $line > /dev/console"]);
    spec.stdin = true;
    spec.tty = true;
    world.run(spec).await;
    world.runtime.resize_container("c", TerminalSize { columns: 77, rows: 22 }).await.unwrap();
    let request = AttachRequest { container_id: "c".into(), stdin: true, stdout: true, stderr: true };
    let mut streams = world.runtime.attach(request).await.unwrap();
    assert!(streams.stderr.is_none());
    streams.stdin.as_mut().unwrap().write_all(b"hi\n").await.unwrap();
    let mut text = String::new();
    streams.stdout.as_mut().unwrap().read_to_string(&mut text).await.unwrap();
    assert!(text.contains("22 77") && text.contains("you said hi"), "{text}");
    assert_eq!(world.runtime.wait_container("c").await.unwrap().exit_code, Some(0));
    assert!(world.log("c").contains("/dev/pts/0"), "{}", world.log("c"));
}

#[tokio::test]
async fn a_client_that_does_not_read_holds_nobody_up() {
    let world = World::new().await;
    let mut spec = world
        .spec("c", &["sh", "-c", "sleep 0.3; dd if=/dev/zero bs=1k count=4000 2>/dev/null; echo; echo end"]);
    spec.log_path = None;
    world.run(spec).await;
    let request = AttachRequest { container_id: "c".into(), stdout: true, ..AttachRequest::default() };
    let streams = world.runtime.attach(request).await.unwrap();
    let status = tokio::time::timeout(Duration::from_secs(10), world.runtime.wait_container("c")).await;
    assert_eq!(status.unwrap().unwrap().exit_code, Some(0));
    drop(streams);
}
