//! Commands in containers, and attaching.

use std::time::Duration;

use knarr_runtime::containers as runtime;
use tokio::sync::{mpsc, oneshot};

use super::{Embedded, errors};
use crate::runtime::*;

/// The number of control messages that may be queued for a session; terminals change their size in bursts.
const CONTROLS: usize = 16;

impl Embedded {
    pub(super) async fn run_command(&self, id: &str, command: &[String], seconds: u64) -> Result<ExecOutput> {
        let limit = (seconds > 0).then(|| Duration::from_secs(seconds));
        let run = self.inner.runtime.exec_limited(id, command.to_vec(), limit, MAX_EXEC_OUTPUT);
        let output = run.await.map_err(errors::container)?;
        Ok(ExecOutput { exit_code: output.exit_code, stdout: output.stdout, stderr: output.stderr })
    }

    pub(super) async fn open_exec(&self, id: &str, request: &ExecRequest) -> Result<Session> {
        let streams = self
            .inner
            .runtime
            .exec(runtime::ExecRequest {
                container_id: id.to_owned(),
                args: request.command.clone(),
                tty: request.tty,
                stdin: request.stdin,
                stdout: request.stdout,
                stderr: request.stderr,
                size: request.size,
            })
            .await;
        let mut streams = streams.map_err(errors::container)?;
        let (control, mut orders) = mpsc::channel(CONTROLS);
        let (exit_sender, exit) = oneshot::channel();
        let session = Session {
            stdin: streams.stdin.take().map(|w| Box::new(w) as BoxWriter),
            stdout: streams.stdout.take().map(|r| Box::new(r) as BoxReader),
            stderr: streams.stderr.take().map(|r| Box::new(r) as BoxReader),
            control,
            exit,
        };
        tokio::spawn(async move {
            let mut listening = true;
            loop {
                tokio::select! {
                    code = streams.wait() => {
                        let _ = exit_sender.send(code.map_err(errors::container));
                        return;
                    }
                    order = orders.recv(), if listening => match order {
                        Some(Control::Resize(size)) => {
                            let _ = streams.resize(size);
                        }
                        Some(Control::Signal(signal)) => {
                            let _ = streams.kill(signal).await;
                        }
                        None => listening = false,
                    },
                }
            }
        });
        Ok(session)
    }

    pub(super) async fn open_attach(&self, id: &str, request: &AttachRequest) -> Result<Session> {
        let streams = self
            .inner
            .runtime
            .attach(runtime::AttachRequest {
                container_id: id.to_owned(),
                stdin: request.stdin,
                stdout: request.stdout,
                stderr: request.stderr,
            })
            .await
            .map_err(errors::container)?;
        let (control, mut orders) = mpsc::channel(CONTROLS);
        let (exit_sender, exit) = oneshot::channel();
        let session = Session {
            stdin: streams.stdin.map(|w| Box::new(w) as BoxWriter),
            stdout: streams.stdout.map(|r| Box::new(r) as BoxReader),
            stderr: streams.stderr.map(|r| Box::new(r) as BoxReader),
            control,
            exit,
        };
        let (runtime, id) = (self.inner.runtime.clone(), id.to_owned());
        tokio::spawn(async move {
            let end = runtime.wait_container(&id);
            tokio::pin!(end);
            loop {
                tokio::select! {
                    ended = &mut end => {
                        let _ = exit_sender.send(ended.map(|_| 0).map_err(errors::container));
                        return;
                    }
                    order = orders.recv() => match order {
                        Some(Control::Resize(size)) => {
                            let _ = runtime.resize_container(&id, size).await;
                        }
                        Some(Control::Signal(signal)) => {
                            let _ = runtime.kill_container(&id, signal, false).await;
                        }
                        // No client is attached any more.
                        None => return,
                    },
                }
            }
        });
        Ok(session)
    }
}
